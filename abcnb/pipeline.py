"""The idea on one page: interpolate, calibrate, retrain, evaluate. In memory; nothing is read or written.

    data = TrainingData("addition")      numbers of at most six digits
    plain = interpolate(data)            a plain Transformer, right at the lengths it was trained on
    lines = calibrate(plain, data)       the lines that its attention follows; prints as a table
    model = retrain(data, lines)         a new Transformer that sees nothing else
    evaluate(model, data, [6, 20, 60])   exact match at lengths it never met

The same for every task. `TrainingData("addition", one_stream=True)` is for decoder-only models; data of outputs in
rows (`multiplication`, `many-addition`, `nested`) always are. Lines written by hand (ABS) are lines too:
`retrain(data, lines_by_hand(data))`. `study.fitting` builds on these and adds folders, checkpoints and locks.

Source: paper, section 4 and appendix D (ABC), appendix C.4 (ABS).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from reprlib import repr as short

import torch

from abcnb.lines.biases import NO_BIASES, Biases, own_token_first
from abcnb.lines.calibration import TAU, AveragedAttention, Calibration, calibrate_attention
from abcnb.lines.line import by_hand, in_first_layer
from abcnb.model import evaluation
from abcnb.model.attention import average_attention
from abcnb.model.configs import ModelConfig
from abcnb.model.evaluation import Score
from abcnb.model.training import TrainingConfig, check_model, check_training, train
from abcnb.model.transformer import Transformer
from abcnb.tasks.task import Task
from abcnb.tasks.training_data import TrainingData, generator_for

# The model to calibrate. The retrained one has no positions, and more heads, since each has one line; in one
# stream with several kinds of steps, it is told which kind each step is.
PLAIN = ModelConfig(decoder_layers=2, position="sinusoidal")
HEADS_WITH_LINES = 16
TRAINING = TrainingConfig(steps=1000, learning_rate=2e-3)
RETRAINING = replace(TRAINING, steps=1500, batch_size=128)
CALIBRATION_SAMPLES, CALIBRATION_BATCHES = 4096, 64  # several batches of each shape


def plain_model(data: TrainingData) -> ModelConfig:
    """The configuration of the model that `interpolate` trains by default."""
    return replace(PLAIN, architecture="decoder-only") if data.one_stream else PLAIN


def model_with_lines(data: TrainingData) -> ModelConfig:
    """The configuration of the model that `retrain` trains by default."""
    position = "kinds" if data.one_stream and len(data.stream.kinds) > 1 else "none"
    return replace(plain_model(data), position=position, heads=HEADS_WITH_LINES)


def lines_by_hand(data: TrainingData, heads: int = HEADS_WITH_LINES) -> Biases:
    """ABS: the lines that a task is known to need, dealt to the heads of a model."""
    check_data(data)
    return by_hand(data.stream, heads, data.task.lines_by_hand)


def new_model(
    task: Task,
    config: ModelConfig,
    seed: int,
    biases: Biases = NO_BIASES,
    change: Callable[[Transformer], None] | None = None,
) -> Transformer:
    """A freshly initialized model, the same for the same seed; the global generator is left unchanged.

    `change` is called with the model at the end, and may draw more random numbers.

    Raises:
        ValueError: task, architecture and biases do not fit together, or the model does not fit into memory.
    """
    if not isinstance(config, ModelConfig):
        raise ValueError(f"expected a ModelConfig as the model, got {short(config)}")
    task.check_architecture(config.architecture)
    in_stream = config.architecture == "decoder-only"
    vocabulary = task.stream_vocabulary_size if in_stream else task.vocabulary_size
    check_model(config, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Transformer(config, vocabulary, *biases)
        if change:
            change(model)
        return model


def check_data(data: TrainingData, model: Transformer | None = None) -> None:
    """Raise ValueError unless this is training data, of the task, base and form that a model was trained on."""
    if not isinstance(data, TrainingData):
        raise ValueError(f"expected TrainingData, such as abcnb.TrainingData('successor'), got {short(data)}")
    if model is None:
        return
    if not isinstance(model, Transformer):
        raise ValueError(f"expected a trained model, as interpolate() and retrain() return, got {short(model)}")
    if model.trained_on not in ("", data.described):
        raise ValueError(
            f"expected data of what the model was trained on, {model.trained_on}, got {data.described}"
        )


def trained(model: Transformer, data: TrainingData, training: TrainingConfig, seed: int, **watch) -> Transformer:
    """Train a new model on `data.device`; `watch` as in `training.train`."""
    check_training(model.config, model.head.out_features, training.batch_size, data.stream.rows, data.device)
    model = model.to(data.device)
    model.trained_on = data.described
    model.history = train(model, data, training, seed, **watch)
    return model.eval()


def interpolate(
    data: TrainingData,
    model: ModelConfig | None = None,
    training: TrainingConfig = TRAINING,
    seed: int = 0,
    **watch,
) -> Transformer:
    """Train a plain model; with enough steps it is right at its training lengths. `history` holds its validations.

    Args:
        data: what it is trained on (as `data.for_plain`).
        model: sizes and positions; `plain_model(data)` when None.
        training: steps, batch size, learning rate.
        seed: of initialization, batches and dropout.
        **watch: `progress`, `label`, `on_validation`, `on_step`, `folder`, `owner`, as in `training.train`.

    Raises:
        ValueError: a model that cannot learn the task or does not fit into memory, or a loss that is not finite.
    """
    check_data(data)
    config = model or plain_model(data)
    biases = own_token_first(config.decoder_layers) if data.task.first_layer_apart else NO_BIASES
    return trained(new_model(data.task, config, seed, biases), data.for_plain, training, seed, **watch)


def attention_of(
    model: Transformer, data: TrainingData, what: str = "weights", seed: int = 0
) -> list[AveragedAttention]:
    """A trained model's attention over 4,096 training samples, averaged for each shape that was drawn.

    `what` is as in `average_attention`; `data` is what it was trained on, and other data raise ValueError.
    """
    check_data(data, model)
    drawn, generator = data.for_plain, generator_for("calibration", seed, data.device)
    size = CALIBRATION_SAMPLES // CALIBRATION_BATCHES
    batches = (drawn.train(size, generator) for _ in range(CALIBRATION_BATCHES))
    return average_attention(model, batches, what)


def calibrate(model: Transformer, data: TrainingData, tau: float = TAU, seed: int = 0) -> Calibration:
    """The lines that an interpolating model's attention follows, strongest first, with their shares.

    Args:
        model, data: the model, and what it was trained on.
        tau: the share of a step's attention that a line must exceed.
        seed: of the samples whose attention is averaged.

    Raises:
        ValueError: no line above τ, or data of another task.
    """
    return calibrate_attention(attention_of(model, data, seed=seed), tau)


def biases_of(lines: Calibration | Biases, data: TrainingData, heads: int) -> Biases:
    """The biases of found or written lines; raises ValueError for anything else, and found lines of other data."""
    if isinstance(lines, Biases):
        return lines
    if not isinstance(lines, Calibration):
        raise ValueError(f"expected what calibrate() or lines_by_hand() returns, got {type(lines).__name__}")
    biases = lines.biases(heads)
    for bias in (*biases.self_biases, *biases.cross_biases):
        bias.open_tokens(torch.tensor([0]), data.stream.to("cpu"))  # raises for lines of other segments
    return biases


def retrain(
    data: TrainingData,
    lines: Calibration | Biases,
    model: ModelConfig | None = None,
    training: TrainingConfig = RETRAINING,
    seed: int = 0,
    look_once: bool = False,
    **watch,
) -> Transformer:
    """Train a new model whose attention sees only the tokens on the lines; otherwise as `interpolate`.

    Args:
        data: what it is trained on.
        lines: found by `calibrate`, or written by hand (`lines_by_hand`, `line.windows`), dealt to its heads.
        model: sizes and positions; `model_with_lines(data)` when None.
        training: steps, batch size, learning rate; outputs in rows take 2,500 steps.
        look_once: keep lines in the first layer only (`in_first_layer`), for a certificate with few windows.
        seed, **watch: as in `interpolate`.

    Raises:
        ValueError: `lines` are not lines, or lead to tokens that the data do not have.
    """
    check_data(data)
    config = model or model_with_lines(data)
    biases = biases_of(lines, data, config.heads)
    biases = in_first_layer(biases, config.decoder_layers) if look_once else biases
    return trained(new_model(data.task, config, seed, biases), data, training, seed, **watch)


def evaluate(
    model: Transformer,
    data: TrainingData,
    lengths: Iterable[int] | int,
    samples: int = 10_000,
    test_set: str = "random",
) -> list[Score]:
    """Exact match by length: one `Score` per length.

    Args:
        model: any trained model.
        data: what it was trained on; the test has its task and form, and at least its width.
        lengths: of the operands, in digits; one or several.
        samples: at most this many per length, split evenly among the kinds of a test set, at least one of each.
        test_set: `random`, `hard`, `unequal` or `padded` (`abcnb.tasks.testsets`).

    Raises:
        ValueError: an unknown test set, no length, a length or sample count that is not a whole number of at least
            1, or data of a task other than the model's.
    """
    check_data(data, model)
    lengths = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    if not lengths:
        raise ValueError("expected at least one length, got none")
    rest = samples, test_set, data.width
    return [evaluation.evaluate(model, data.task, data.form, length, *rest) for length in lengths]
