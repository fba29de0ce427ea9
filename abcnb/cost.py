"""What training costs in floating point operations, counted from the sizes.

A product of [m, k] and [k, n] matrices is 2 m k n operations; everything else is left out, as is usual. The
backward pass costs twice the forward pass.
"""

from abcnb.experiments import Experiment


def forward_flops(experiment: Experiment, width: int) -> int:
    """Operations of one sample's forward pass at a width."""
    task, model = experiment.get_task(), experiment.model
    rows = task.label(*task.zeros(width)).shape[1] + 1
    columns = len(task.layout(width, experiment.form))
    d, d_ff = model.d_model, model.d_ff

    def attention(queries: int, keys: int) -> int:
        projections = 2 * queries * d * d + 2 * keys * d * d  # query and output; key and value
        return 2 * projections + 2 * 2 * queries * keys * d

    def feed_forward(tokens: int) -> int:
        return 2 * 2 * tokens * d * d_ff

    encoder = attention(columns, columns) + feed_forward(columns)
    decoder = attention(rows, rows) + attention(rows, columns) + feed_forward(rows)
    head = 2 * rows * d * task.vocabulary_size
    return model.encoder_layers * encoder + model.decoder_layers * decoder + head


def training_flops(experiment: Experiment) -> int:
    """Operations of the training from nothing: of ABC and LoRA, the interpolating model's too."""
    training = experiment.training
    own = 3 * training.steps * training.batch_size * forward_flops(experiment, experiment.train_width)
    return own + (training_flops(experiment.interpolation) if experiment.interpolation else 0)
