"""What training costs in floating point operations, counted from the sizes.

A product of [m, k] and [k, n] matrices is 2 m k n operations; everything else is left out, as is usual. The
backward pass costs twice the forward pass: gradients of activations and of weights. LoRA's frozen weights need no
gradients, so there it costs as much as the forward pass. Heads with one line each have no queries and no keys.
"""

from abcnb.study.experiments import RULE, Experiment


def forward_flops(experiment: Experiment, width: int = 0) -> int:
    """Operations of one sample's forward pass at a width; 0 is the largest input that it is trained on.

    Training on inputs of several sizes takes fewer: the largest counts for all of them.
    """
    task, model = experiment.get_task(), experiment.model
    stream = experiment.stream_of(task.stream(width, experiment.form)) if width else experiment.stream
    rows, columns = len(stream), stream.source
    tokens = task.stream_vocabulary_size if experiment.in_one_stream else task.vocabulary_size
    d, d_ff = model.d_model, model.d_ff

    def attention(
        queries: int, keys: int, relative: bool = False, adapted: bool = False, gathers: bool = False
    ) -> int:
        if gathers:
            return 2 * (queries + keys) * d * d  # output and value
        projections = 2 * queries * d * d + 2 * keys * d * d  # query and output; key and value
        distances = queries * d * (2 * model.relative_clip + 1) if relative else 0
        adapters = 2 * (queries + keys) * d * experiment.lora.rank if adapted else 0
        return 2 * (projections + distances + adapters + 2 * queries * keys * d)

    in_self, in_cross = model.position in ("relative", "relative-self"), model.position == "relative"
    adapted = experiment.lora is not None
    gathers = experiment.bias in ("by-hand", *RULE)
    encoder = attention(columns, columns, in_self) + 4 * columns * d * d_ff
    decoder = attention(rows, rows, in_self, adapted, gathers)
    if not experiment.in_one_stream:
        decoder += attention(rows, columns, in_cross, adapted, gathers)
    head = 2 * stream.rows * d * tokens
    return model.encoder_layers * encoder + model.decoder_layers * (decoder + 4 * rows * d * d_ff) + head


def training_flops(experiment: Experiment) -> int:
    """Operations of the training from nothing: of ABC and LoRA, the interpolating model's too."""
    training = experiment.training
    passes = 2 if experiment.lora else 3
    own = passes * training.steps * training.batch_size * forward_flops(experiment)
    return own + (training_flops(experiment.interpolation) if experiment.interpolation else 0)
