"""What training costs in floating point operations, counted from the sizes.

A product of [m, k] and [k, n] matrices is 2 m k n operations; all else is left out. The backward pass costs twice
the forward pass (gradients of activations and of weights); with LoRA's frozen weights, once. Heads with one line
each have no queries and no keys."""

from abcnb.study.experiments import ONE_A_HEAD, Experiment


def forward_flops(e: Experiment) -> int:
    """Operations of one sample's forward pass on the largest training input, which is taken for every input."""
    task, model, stream = e.get_task(), e.model, e.stream
    rows, columns, d = len(stream), stream.source, model.d_model

    def attention(queries: int, keys: int, relative: bool, adapted: bool = False, gathers: bool = False) -> int:
        projections = 2 * (queries + keys) * d * d  # output and value; as many again for query and key, if any
        if gathers:
            return projections
        distances = queries * d * (2 * model.relative_clip + 1) if relative else 0
        adapters = 2 * (queries + keys) * d * e.lora.rank if adapted else 0
        return 2 * (projections + distances + adapters + 2 * queries * keys * d)

    in_self, in_cross = model.position in ("relative", "relative-self"), model.position == "relative"
    how = e.lora is not None, e.bias in ONE_A_HEAD
    feed_forward = 4 * d * model.d_ff
    encoder = attention(columns, columns, in_self) + columns * feed_forward
    decoder = attention(rows, rows, in_self, *how) + rows * feed_forward
    if not e.in_one_stream:
        decoder += attention(rows, columns, in_cross, *how)
    tokens = task.stream_vocabulary_size if e.in_one_stream else task.vocabulary_size
    return model.encoder_layers * encoder + model.decoder_layers * decoder + 2 * stream.rows * d * tokens


def training_flops(experiment: Experiment) -> int:
    """Operations of training from scratch; for ABC and LoRA, including the interpolating model's."""
    training = experiment.training
    passes = 2 if experiment.lora else 3
    own = passes * training.steps * training.batch_size * forward_flops(experiment)
    return own + (training_flops(experiment.interpolation) if experiment.interpolation else 0)
