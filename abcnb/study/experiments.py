"""Complete descriptions of trained models.

An `Experiment` says everything that decides a model but the hardware; its digest is the name of its run.
"""

import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import torch

from abcnb.biases import CLOSED, Biases
from abcnb.calibration import CalibrationConfig
from abcnb.configs import LoRAConfig, ModelConfig, TrainingConfig, check_types
from abcnb.counter_calibration import CounterConfig
from abcnb.counters import by_hand, dealt
from abcnb.layout import Layout
from abcnb.lines import cross_window
from abcnb.rows import RowTask
from abcnb.stream import Stream
from abcnb.study.line_text import line_of_text
from abcnb.tasks import Task, get_task
from abcnb.training_data import WIDEST, TrainingData, largest_layout, sampler_of, width_of

BIASES = (
    "none", "alibi", "alibi-cross", "alibi-right", "alibi-places", "own-token", "window", "by-hand", "calibrated",
)  # fmt: skip
OF_STREAMS = ("none", "alibi", "own-token", "by-hand", "calibrated")  # those that a decoder-only model may have
LARGEST_SEED = 2**32 - 1  # batches, validation and calibration take the next ones


@dataclass(frozen=True)
class WindowConfig:
    """ABS: half-width w of the cross- and self-attention windows, and the cross window's sides."""

    w: int = 1
    sides: str = "past"

    def __post_init__(self):
        if self.w > WIDEST:
            raise ValueError(f"expected a window of w at most {WIDEST:,}, got {self.w:,}")
        cross_window(1, 1, self.w, self.sides)  # refuses what is no window


@lru_cache(maxsize=256)  # a sampler takes milliseconds to make, and sweeps have thousands of experiments
def _check_numbers(task: Task, numbers: str, width: int, terms: int, shapes: str) -> None:
    """Refuse training numbers that the task does not have, as their sampler does."""
    sampler_of(task, numbers, width, terms=terms, shapes=shapes)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a trained model except the hardware.

    Attributes:
        task, method, preset, seed: its names; method and preset are labels, the rest decides.
        base: of the digits; 0 is the task's own.
        form: `natural` or `aligned` (the paper aligns for ABS only).
        width: digits that operands are padded to in training; 0 is the training length + 1, or more where the
            results of the training numbers take more. Of outputs in rows, the most digits of an operand (of
            `nested`, the deepest lists); 0 is the training length.
        train_numbers: one of `numbers.TRAIN_NUMBERS`, or of `row_numbers.ROW_NUMBERS` for outputs in rows.
        terms, shapes: of outputs in rows: the most terms of a sum (0 is the width), and whether shapes up to the
            largest or that one alone are trained on.
        bias: `none`, `alibi` (self-attention), `alibi-cross`, `alibi-right`, `alibi-places` (both, source columns
            counted from the left, from the right, and by place), `own-token` (of a decoder-only model: every
            token sees itself), `window` (ABS), `by-hand` (ABS for outputs in rows) or `calibrated` (ABC).
        biased: which attention of the decoder gets the bias: `self`, `cross` or `both`.
        biased_layers: the decoder layers that get it, from 0; empty is all.
        closed: the bias of closed cells, −∞ or finite.
        model, training, window: as they say.
        calibration, interpolation: of ABC: the choices, and the experiment whose attention is calibrated.
        counters: of ABC in a decoder-only model: the choices, instead of `calibration`.
        added_line: a line added to those of `by-hand`, such as `sums:products[row-1,place+1]`; empty adds none.
            Where it leads nowhere its head opens the step's own token.
        lora: adapters; the model is then the one of `interpolation`, frozen except for them, and `calibration`,
            if there is any, gives that frozen model its bias.
    """

    task: str
    method: str
    preset: str
    seed: int
    base: int = 0
    form: str = "natural"
    width: int = 0
    train_numbers: str = "even"
    bias: str = "none"
    biased: str = "both"
    biased_layers: tuple[int, ...] = ()
    closed: float = CLOSED
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    window: WindowConfig | None = None
    calibration: CalibrationConfig | None = None
    interpolation: "Experiment | None" = None
    lora: LoRAConfig | None = None
    counters: CounterConfig | None = None
    terms: int = 0
    shapes: str = "all"
    added_line: str = ""

    def __post_init__(self):
        check_types(self)
        if type(self.seed) is not int:
            raise ValueError(f"expected seed as int, got {self.seed!r}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"expected a seed from 0 to {LARGEST_SEED}, got {self.seed}")
        if self.width > WIDEST:
            raise ValueError(f"expected a width of at most {WIDEST:,} digits, got {self.width:,}")
        task = self.get_task()
        self._check_data(task)
        if self.bias not in BIASES:
            raise ValueError(f"expected a bias among {', '.join(BIASES)}, got {self.bias!r}")
        self._check_bias_of_architecture(task)
        if self.biased not in ("self", "cross", "both"):
            raise ValueError(f"expected biased as self, cross or both, got {self.biased!r}")
        if not all(0 <= layer < self.model.decoder_layers for layer in self.biased_layers):
            raise ValueError(
                f"expected biased_layers among 0 to {self.model.decoder_layers - 1}, got {self.biased_layers}"
            )
        if self.added_line and self.bias != "by-hand":
            raise ValueError(f"expected an added_line only beside lines by hand, got bias {self.bias!r}")
        if self.added_line:
            self.lines_by_hand()
        if not self.closed < 0:
            raise ValueError(f"expected a bias of closed cells below 0, got {self.closed}")
        if self.bias == "none" and (self.biased, self.biased_layers, self.closed) != ("both", (), CLOSED):
            raise ValueError("biased, biased_layers and closed are for experiments with a bias")
        if self.bias == "alibi" and self.biased == "cross":
            raise ValueError(
                "expected biased as self or both, since 'alibi' has no bias in cross-attention, got cross"
            )
        if self.closed != CLOSED and self.bias not in ("window", "calibrated"):
            raise ValueError(
                f"closed is for biases that close cells, window and calibrated, got bias {self.bias!r}"
            )
        if (self.bias == "window") != (self.window is not None):
            raise ValueError("the window is given exactly where the bias is 'window'")
        choices = self.counters if self.in_one_stream else self.calibration
        if (self.bias == "calibrated") != (choices is not None and self.interpolation is not None):
            raise ValueError("calibration and interpolation are given exactly where the bias is 'calibrated'")
        if self.calibration and self.counters:
            raise ValueError(
                "calibration is for encoder-decoder models and counters for decoder-only ones: got both"
            )
        if self.calibration and self.interpolation.train_numbers == "bucketed":
            raise ValueError(
                "expected interpolation.train_numbers of one width, such as 'even', got 'bucketed': "
                "the calibration of an encoder-decoder averages attention matrices of one size"
            )
        if self.model.rotary_width not in (0, self.train_width):
            raise ValueError(
                f"expected model.rotary_width 0 or the training width {self.train_width}, "
                f"got {self.model.rotary_width}"
            )
        if self.interpolation:
            ours, its = (
                {
                    "task": e.task,
                    "base": e.get_task().base,
                    "form": e.form,
                    "heads": e.model.heads,
                    "architecture": e.model.architecture,
                }
                for e in (self, self.interpolation)
            )
            for name in ours:
                if ours[name] != its[name]:
                    raise ValueError(
                        f"expected the {name} of the interpolating model, {its[name]!r}, got {ours[name]!r}"
                    )
        if self.lora and (not self.interpolation or self.interpolation.model != self.model):
            raise ValueError("adapters need an interpolation with the same model config: the model they adapt")
        if self.lora and self.lora.rank > self.model.d_model:
            raise ValueError(f"expected a lora.rank of at most d_model {self.model.d_model}, got {self.lora.rank}")

    def _check_data(self, task: Task) -> None:
        """Refuse a form, numbers or a width that the task does not have."""
        task.layout(self.train_width, self.form)
        _check_numbers(task, self.train_numbers, self.train_width, self.terms, self.shapes)
        if isinstance(task, RowTask) and not self.in_one_stream:
            raise ValueError(
                f"expected a decoder-only model for {task.name}, whose output is in rows, "
                f"got {self.model.architecture}"
            )

    def _check_bias_of_architecture(self, task: Task) -> None:
        """Refuse a bias, or a part of it, that the model's architecture does not have."""
        if not self.in_one_stream:
            if self.bias in ("by-hand", "own-token"):
                raise ValueError(f"bias {self.bias!r} is for decoder-only models, got {self.model.architecture}")
            return
        known = [bias for bias in OF_STREAMS if bias != "by-hand" or isinstance(task, RowTask)]
        if self.bias not in known:
            raise ValueError(
                f"expected a bias among {', '.join(known)} for {task.name} in a decoder-only model, got {self.bias!r}"
            )
        if self.biased != "both" or self.closed != CLOSED:
            raise ValueError(
                "biased and closed are for encoder-decoder models: "
                f"a decoder-only model has no cross-attention, and lines of a stream close cells by −∞; "
                f"got biased {self.biased} and closed {self.closed}"
            )

    def lines_by_hand(self) -> Biases:
        """The lines by hand of its task, dealt to its heads, and the added line after them.

        Raises:
            ValueError: the added line names none, or is one of the others.
        """
        found = by_hand(self.layout, self.model.heads, self.get_task().lines_by_hand)
        if not self.added_line:
            return found
        (known,) = found.self_biases
        both = dealt(known.heads, [*known.lines, line_of_text(self.added_line, self.layout)])
        if both == known:
            raise ValueError(f"expected an added_line that is not by hand already, got {self.added_line!r}")
        return Biases((both,))

    @property
    def in_one_stream(self) -> bool:
        """Whether the model is decoder-only."""
        return self.model.architecture == "decoder-only"

    def get_task(self) -> Task:
        """The task instance."""
        return get_task(self.task, self.base or None)

    @property
    def train_width(self) -> int:
        """Digits that operands are padded to in training."""
        return self.width or width_of(self.get_task(), self.train_numbers)

    def data(self, device: torch.device | str = "cpu") -> TrainingData:
        """What it is trained on, made on a device."""
        return TrainingData(
            self.get_task(), self.train_numbers, self.width, self.form, device, self.terms, self.shapes
        )

    @property
    def layout(self) -> Layout | Stream:
        """The layout of the largest input that it is trained on."""
        return largest_layout(self.get_task(), self.train_width, self.form, self.terms)

    @property
    def frame(self) -> str:
        """The frame of its lines: `columns`, `places`, `counters` (of a stream), or empty where it has none."""
        if self.counters or self.bias == "by-hand":
            return "counters"
        if self.calibration:
            return self.calibration.frame
        return "places" if self.window else ""

    @property
    def digest(self) -> str:
        """Hash of every value that differs from its default, without the labels `method` and `preset`.

        So a new field with a default leaves known digests, and with them trained models, as they are. Where a
        default is changed, its first value goes into `FIRST_DEFAULTS`: `fit` refuses a run whose stored
        description says otherwise.
        """
        content = json.dumps(_decisive(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


# Defaults that digests were first made with, where they are others today.
FIRST_DEFAULTS = {
    CalibrationConfig: {"directions_cross": (-1, 0, 1), "kappa_cross": 2.0, "kappa_self": 0.87},
}


def _decisive(config: Any) -> dict:
    """The fields that decide a model and differ from their first defaults, nested configs likewise."""
    content, first = {}, FIRST_DEFAULTS.get(type(config), {})
    for part in fields(config):
        value = getattr(config, part.name)
        if part.name in ("method", "preset"):
            continue
        if is_dataclass(value):
            content[part.name] = _decisive(value)
        elif value != first.get(part.name, part.default):
            content[part.name] = value
    return content


def from_dict(kind: type, content: dict) -> Any:
    """A config dataclass from its JSON form.

    Raises:
        ValueError: no mapping, unknown or missing keys, or a value of another type.
    """
    hints = get_type_hints(kind)
    if not isinstance(content, dict):
        raise ValueError(f"expected the keys of {kind.__name__}, got {content!r}")
    unknown = sorted(set(content) - set(hints))
    if unknown:
        raise ValueError(f"expected keys among {', '.join(hints)}, got {unknown[0]!r}")
    values = {}
    for name, value in content.items():
        inner = next((t for t in (hints[name], *get_args(hints[name])) if is_dataclass(t)), None)
        if inner and isinstance(value, dict):
            value = from_dict(inner, value)
        values[name] = tuple(value) if isinstance(value, list) else value
        if not _is_of(values[name], hints[name]):
            wanted = getattr(hints[name], "__name__", str(hints[name]))
            raise ValueError(f"expected {name} as {wanted}, got {value!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"expected the keys of {kind.__name__}: {error}") from error


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a config's field is declared with."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(type(part) is int for part in value)
    if get_args(hint):
        return any(_is_of(value, choice) for choice in get_args(hint))
    return type(value) in ((int, float) if hint is float else (hint,))
