"""The idea on one page: interpolate, calibrate, retrain, evaluate. In memory; nothing is read or written.

    data = TrainingData("successor")      numbers of at most six digits
    plain = interpolate(data)             a plain Transformer, right at the lengths it was trained on
    lines = calibrate(plain, data)        the lines that its attention follows
    model = retrain(data, lines)          a new Transformer that sees nothing else
    evaluate(model, data, [6, 20, 60])    exact match at lengths it never met

`adapt` (LoRA) and `attention_of` (what `calibrate` averages) stand beside these for comparisons and figures.

Windows written by hand (ABS) are lines too: `retrain(data, windows(heads=8, segments=1))`. What trains a model for the
tables (`study.fitting`) calls these same functions and adds folders, checkpoints and locks.

Source: paper, section 4 and appendix D (ABC), appendix C.4 (ABS).
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from abcnb import evaluation
from abcnb.biases import NO_BIASES, Biases
from abcnb.calibration import (
    AveragedAttention,
    Calibration,
    CalibrationConfig,
    average_attention,
    calibrate_attention,
)
from abcnb.counter_calibration import (
    CounterCalibration,
    CounterConfig,
    StreamAttention,
    average_by_shape,
    calibrate_stream,
)
from abcnb.counters import StreamBias
from abcnb.decoder_only import DecoderOnly
from abcnb.limits import check_model, check_training
from abcnb.lora import LoRAConfig, add_adapters, is_adapted
from abcnb.model import Transformer
from abcnb.model_config import ModelConfig
from abcnb.rows import RowTask
from abcnb.scores import Score
from abcnb.tasks import Task
from abcnb.training import TrainingConfig, train
from abcnb.training_data import TrainingData

# What is calibrated, and what is retrained: the same sizes, other positions. Sinusoidal positions are new at every
# new length; places modulo 3 are not.
PLAIN = ModelConfig(decoder_layers=2, position="sinusoidal")
WITH_LINES = replace(PLAIN, position="cyclic-places", random_phase=True)
TRAINING = TrainingConfig(steps=1000, learning_rate=2e-3)
CALIBRATION_BATCHES, CALIBRATION_BATCH_SIZE = 16, 256
STREAM_BATCHES, STREAM_BATCH_SIZE = 64, 64  # several batches of each shape


def new_model(
    task: Task,
    config: ModelConfig,
    seed: int,
    biases: Biases = NO_BIASES,
    adapted: dict[str, torch.Tensor] | None = None,
    lora: LoRAConfig | None = None,
) -> Transformer:
    """A freshly initialized model, the same for the same seed; the global generator is left as it was.

    Args:
        task: whose tokens it tells apart.
        config: sizes and positions.
        seed: of the initialization.
        biases: of self- and of cross-attention.
        adapted, lora: the weights of a trained model, which are frozen, and the adapters that it gets.

    Raises:
        ValueError: an encoder-decoder for a task in rows or with lines of a stream, a decoder-only model for a
            classification, or a model that does not fit into memory.
    """
    streaming = config.architecture == "decoder-only"
    if not streaming and (isinstance(task, RowTask) or any(isinstance(b, StreamBias) for b in biases[0])):
        raise ValueError(
            f"expected architecture='decoder-only' in the ModelConfig for {task.name} and these biases, since outputs "
            f"in rows and their lines are of one stream, got {config.architecture!r}"
        )
    if streaming and not task.answers_in_places:
        raise ValueError(
            f"expected an encoder-decoder for {task.name}, whose answer is not one digit for each place"
        )
    vocabulary = task.stream_vocabulary_size if streaming else task.vocabulary_size
    check_model(config, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = (DecoderOnly if streaming else Transformer)(config, vocabulary, *biases)
        if adapted:
            model.load_state_dict(adapted)
        if lora:
            add_adapters(model, lora)
        return model


def check_data(data: TrainingData, model: Transformer | None = None) -> None:
    """Refuse what is no training data, or data of another task than a model was trained on.

    Raises:
        ValueError: says what was expected and what came.
    """
    if not isinstance(data, TrainingData):
        raise ValueError(f"expected TrainingData, such as abcnb.TrainingData('successor'), got {data!r}")
    if model is not None and not isinstance(model, Transformer):
        raise ValueError(
            f"expected a trained model, as interpolate() and retrain() return, got {type(model).__name__}"
        )
    if model is not None and model.trained_on not in ("", data.described):
        raise ValueError(
            f"expected data of what the model was trained on, {model.trained_on}, got {data.described}"
        )


def _trained(model: Transformer, data: TrainingData, training: TrainingConfig, seed: int, **watch) -> Transformer:
    """Train a new model on `data.device`; `watch` as of `training.train`."""
    check_training(model.config, model.head.out_features, training.batch_size, data.layout.rows, data.device)
    model = model.to(data.device)
    model.trained_on = data.described
    model.history = train(model, data, training, seed, **watch)
    return model.eval()


def interpolate(
    data: TrainingData, model: ModelConfig = PLAIN, training: TrainingConfig = TRAINING, seed: int = 0, **watch
) -> Transformer:
    """A plain model, trained for `training.steps` steps; with enough of them it is right at its training lengths.

    Args:
        data: what it is trained on.
        model: sizes and positions.
        training: steps, batch size, learning rate.
        seed: of initialization, batches and dropout.
        **watch: `progress`, `label`, `on_validation`, `on_step`, `folder`, `owner`, as of `training.train`.

    Returns:
        The model in evaluation mode; its `history` holds the validations.

    Raises:
        ValueError: what came is no `TrainingData`, the task and the architecture do not go together, the training does
            not fit into memory, or its loss is not finite.
    """
    check_data(data)
    return _trained(new_model(data.task, model, seed), data, training, seed, **watch)


def attention_of(
    model: Transformer, data: TrainingData, what: str = "weights", seed: int = 0
) -> AveragedAttention | list[StreamAttention]:
    """A trained model's attention, averaged over 4,096 of its training samples.

    Args:
        model: the model; it is put in evaluation mode.
        data: what it was trained on.
        what: `weights`, or of an encoder-decoder also `scores`.
        seed: of the samples.

    Returns:
        Of an encoder-decoder its averages; of a decoder-only model those of each shape that was drawn.

    Raises:
        ValueError: scores of a decoder-only model, or data of another task.

    Source: paper, appendix D, step 1.
    """
    check_data(data, model)
    generator = torch.Generator(device=data.device).manual_seed(seed + 2)
    if isinstance(model, DecoderOnly):
        if what != "weights":
            raise ValueError(f"expected 'weights' of a decoder-only model, got {what!r}")
        batches = [data.train(STREAM_BATCH_SIZE, generator) for _ in range(STREAM_BATCHES)]
        return average_by_shape(model, batches)
    batches = [data.train(CALIBRATION_BATCH_SIZE, generator) for _ in range(CALIBRATION_BATCHES)]
    return average_attention(model, batches, what)


def calibrate(
    model: Transformer,
    data: TrainingData,
    config: CalibrationConfig | CounterConfig | None = None,
    seed: int = 0,
) -> Calibration | CounterCalibration:
    """The lines that a trained model's attention follows.

    Args:
        model: an interpolating model.
        data: what it was trained on.
        config: the threshold κ, the directions searched, and the other choices: a `CalibrationConfig`, or a
            `CounterConfig` for a decoder-only model; its defaults when None.
        seed: of the samples whose attention is averaged.

    Returns:
        The line biases of self- and cross-attention, and the tables they were chosen from.

    Raises:
        ValueError: a config for the other architecture, or data of another task.
    """
    kind = CounterConfig if isinstance(model, DecoderOnly) else CalibrationConfig
    config = kind() if config is None else config
    if not isinstance(config, kind):
        raise ValueError(
            f"expected a {kind.__name__} for a model that is {model.config.architecture}, got {type(config).__name__}"
        )
    if isinstance(model, DecoderOnly):
        return calibrate_stream(attention_of(model, data, seed=seed), config)
    return calibrate_attention(attention_of(model, data, config.average, seed), config)


def biases_of(lines: Calibration | CounterCalibration | Biases, data: TrainingData) -> Biases:
    """The biases of lines that were found or written.

    Raises:
        ValueError: no lines, or lines found on a source with another number of operands than the data's.
    """
    if not isinstance(lines, (Calibration, CounterCalibration, Biases)):
        raise ValueError(f"expected what calibrate() or windows() returns, got {type(lines).__name__}")
    segments = 0 if isinstance(data.task, RowTask) else data.layout.segments
    if isinstance(lines, Calibration) and lines.average.layout.segments != segments:
        raise ValueError(
            f"expected lines found on a source with {segments} operands, as {data.task.name} has, got lines of a "
            f"source with {lines.average.layout.segments}"
        )
    return lines if isinstance(lines, Biases) else lines.biases


def retrain(
    data: TrainingData,
    lines: Calibration | CounterCalibration | Biases,
    model: ModelConfig = WITH_LINES,
    training: TrainingConfig = TRAINING,
    seed: int = 0,
    **watch,
) -> Transformer:
    """A new model whose attention is restricted to the cells on the lines; a head without lines sees everything.

    Args:
        data: what it is trained on.
        lines: found by `calibrate`, or written by hand (`lines.windows`).
        model, training, seed, **watch: as of `interpolate`.

    Returns:
        The model in evaluation mode; its `history` holds the validations.

    Raises:
        ValueError: what came is no such lines, or they were found on a source with another number of operands.
    """
    check_data(data)
    return _trained(new_model(data.task, model, seed, biases_of(lines, data)), data, training, seed, **watch)


def adapt(
    data: TrainingData,
    plain: Transformer,
    lora: LoRAConfig,
    lines: Calibration | CounterCalibration | Biases | None = None,
    training: TrainingConfig = TRAINING,
    seed: int = 0,
    **watch,
) -> Transformer:
    """A trained model, frozen, with low-rank adapters that are trained on its queries and keys.

    Args:
        data: what the adapters are trained on.
        plain: the trained model; it stays as it is.
        lora: the adapters.
        lines: of its attention, as of `retrain`; those that it was trained with when None.
        training, seed, **watch: as of `interpolate`.

    Returns:
        A new model in evaluation mode; its `history` holds the validations.

    Raises:
        ValueError: as of `retrain`, data of another task than the model's, or a model that has adapters.
    """
    check_data(data, plain)
    if is_adapted(plain):
        raise ValueError("expected a model without adapters, got one that has them")
    biases = Biases(plain.self_biases, plain.cross_biases) if lines is None else biases_of(lines, data)
    model = new_model(data.task, plain.config, seed, biases, plain.state_dict(), lora)
    return _trained(model, data, training, seed, **watch)


def evaluate(
    model: Transformer,
    data: TrainingData,
    lengths: Iterable[int] | int,
    samples: int = 10_000,
    test_set: str = "random",
) -> list[Score]:
    """Exact match by length.

    Args:
        model: any trained model.
        data: what it was trained on: its task, form and width.
        lengths: of the operands, in digits; one or several.
        samples: at most this many per length, split evenly among the kinds of a test set, at least one of each.
        test_set: `random`, `hard`, `unequal` or `padded` (`abcnb.testsets`).

    Returns:
        One `Score` for each length: samples, how many are exact, and how many output tokens are wrong (its digits are
        all that a step writes, padding and the end token included).

    Raises:
        ValueError: an unknown test set, no length, a length or sample count that is not a whole number of at least
            1, or data of another task than the model's.
    """
    check_data(data, model)
    lengths = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    if not lengths:
        raise ValueError("expected at least one length, got none")
    return [
        evaluation.evaluate(model, data.task, data.form, length, samples, test_set, data.width)
        for length in lengths
    ]
