"""Complete descriptions of trained models: all that decides one except the hardware; its digest names the run."""

import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import torch

from abcnb.lines.algorithm1 import Algorithm1Config
from abcnb.lines.calibration import TAU, AveragedAttention
from abcnb.lines.coordinates import Stream, in_one
from abcnb.lines.line import check_window
from abcnb.machine.checks import check_types
from abcnb.model.configs import ModelConfig, TrainingConfig
from abcnb.rivals.lora import LoRAConfig
from abcnb.tasks.task import Task, get_task
from abcnb.tasks.training_data import WIDEST, TrainingData

OF_CROSSING = ("alibi-cross", "alibi-places", "window", "algorithm1", "varying")  # biases of cross-attention
IN_STREAMS = ("none", "own-token", "alibi", "by-hand", "calibrated", "pruned")  # the others
RULE = ("calibrated", "varying")  # lines found by the rule
FOUND = ("algorithm1", *RULE, "pruned")  # read off another model
ONE_A_HEAD = ("by-hand", *RULE, "pruned")  # biases of one line a head, in models without positions
LINES = ("window", *ONE_A_HEAD)
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class WindowConfig:
    """The paper's ABS: half-width w of the cross- and self-attention windows, and the cross window's sides."""

    w: int = 1
    sides: str = "past"

    def __post_init__(self):
        if self.w > WIDEST:
            raise ValueError(f"expected a window of w at most {WIDEST:,}, got {self.w:,}")
        check_window(self.w, self.sides)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a trained model except the hardware.

    Attributes:
        method, preset: labels; the rest decides.
        base: the base of the digits; 0 is the task's own.
        form, width, terms, shapes, train_numbers: what it is trained on, as in `TrainingData`.
        bias: `none`, `own-token` (in the first layer every token sees only itself), `alibi` (self-attention),
            `alibi-cross`, `alibi-places` (both, source columns counted from the left, and by place), `window` (the
            paper's ABS), `algorithm1` (the paper's ABC), `by-hand` (ABS), `calibrated` (ABC), `varying` (ABC by the
            same rule over matrix columns, where only attention to tokens that differ between samples counts), or
            `pruned` (the lines that pruning a model leaves).
        tau: for ABC, the share that a line must exceed.
        interpolation: for ABC and LoRA, the experiment whose model is calibrated, pruned or adapted.
        look_once: for methods with lines, only the first layer has them; in others a step sees the start token.
        lora: adapters; the model is then that of `interpolation`, frozen except for them.
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
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    window: WindowConfig | None = None
    algorithm1: Algorithm1Config | None = None
    tau: float = TAU
    interpolation: "Experiment | None" = None
    lora: LoRAConfig | None = None
    terms: int = 0
    shapes: str = "all"
    look_once: bool = False

    def __post_init__(self):
        check_types(self)
        if type(self.seed) is not int:
            raise ValueError(f"expected seed as int, got {self.seed!r}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"expected a seed from 0 to {LARGEST_SEED}, got {self.seed}")
        if self.width > WIDEST:
            raise ValueError(f"expected a width of at most {WIDEST:,} digits, got {self.width:,}")
        task, model = self.get_task(), self.model
        task.check_architecture(model.architecture)
        _ = self.stream  # refuses a form that the task does not have
        # Refuses training numbers that the task does not have.
        task.sampler(self.train_numbers, self.train_width, False, "cpu", self.terms, self.shapes)
        self._check_bias()
        if (got := model.rotary_width) not in (0, self.train_width):
            raise ValueError(f"expected model.rotary_width 0 or the training width {self.train_width}, got {got}")
        if self.interpolation:
            self._check_interpolation(self.interpolation)
        if self.lora and self.lora.rank > model.d_model:
            raise ValueError(f"expected a lora.rank of at most d_model {model.d_model}, got {self.lora.rank}")

    def _check_bias(self) -> None:
        known, kind = (*IN_STREAMS, *(() if self.in_one_stream else OF_CROSSING)), self.model.architecture
        if self.bias not in known:
            raise ValueError(f"expected a bias among {', '.join(known)} in {kind} models, got {self.bias!r}")
        for name in ("window", "algorithm1"):
            if (self.bias == name) != (getattr(self, name) is not None):
                raise ValueError(f"{name} is given exactly where the bias is {name!r}, got bias {self.bias!r}")
        if not 0 < self.tau < 1 or (self.tau != TAU and self.bias not in RULE):
            known = f"tau between 0 and 1, and {TAU} unless the bias is 'calibrated'"
            raise ValueError(f"expected {known}, got {self.tau}")
        if self.look_once and self.bias not in LINES:
            raise ValueError(f"expected look_once of a model with lines alone, got it with bias {self.bias!r}")
        if (self.bias in FOUND or self.lora is not None) != (self.interpolation is not None):
            raise ValueError("an interpolation is given exactly where lines are found in it or adapters change it")

    def _check_interpolation(self, other: "Experiment") -> None:
        ours, its = self.model, other.model
        shared = {"task": (self.task, other.task), "base": (self.get_task().base, other.get_task().base)}
        shared |= {"form": (self.form, other.form), "architecture": (ours.architecture, its.architecture)}
        if self.bias not in RULE:  # whose lines are dealt to any number of heads
            shared["heads"] = (ours.heads, its.heads)
        for name, (got, wanted) in shared.items():
            if got != wanted:
                raise ValueError(f"expected the {name} of the interpolating model, {wanted!r}, got {got!r}")
        if (self.algorithm1 or self.bias == "varying") and other.train_numbers == "bucketed":
            raise ValueError(
                "expected interpolation.train_numbers of one width, such as 'even', got 'bucketed': "
                "over matrix columns attention is averaged in matrices of one size"
            )
        if self.lora and self.bias in LINES:
            raise ValueError(
                f"expected bias none of a model with adapters, got {self.bias!r}: adapters change queries and keys, "
                "which decide nothing where a head looks along one line"
            )
        if self.lora and its != ours:
            raise ValueError("adapters need an interpolation with the same model config: the model they adapt")

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
        return self.width or self.get_task().training_width(self.train_numbers)

    def data(self, device: torch.device | str = "cpu") -> TrainingData:
        """What it is trained on, made on a device."""
        what = (self.get_task(), self.train_numbers, self.width, self.form)
        return TrainingData(*what, device, self.terms, self.shapes, self.in_one_stream)

    @property
    def stream(self) -> Stream:
        """The coordinates of the largest input that it is trained on, as its architecture has them."""
        return self.stream_of(self.get_task().largest_stream(self.train_width, self.form, self.terms))

    def stream_of(self, stream: Stream) -> Stream:
        """The coordinates of an input of its task, as its architecture has them."""
        return in_one(stream) if self.in_one_stream else stream

    def searched(self, average: AveragedAttention) -> AveragedAttention:
        """The average to seek lines in: for `varying`, over columns and the steps that write training digits."""
        return average.over_columns(self.get_task().train_length) if self.bias == "varying" else average

    @property
    def digest(self) -> str:
        """Hash of every value that differs from its default, except labels; new fields change no known digest."""
        content = json.dumps(_decisive(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def _decisive(config: Any) -> dict:
    """The fields that decide a model and differ from their defaults, nested configs likewise."""
    content = {}
    for part in (part for part in fields(config) if part.name not in ("method", "preset")):
        value = getattr(config, part.name)
        if is_dataclass(value) or value != part.default:
            content[part.name] = _decisive(value) if is_dataclass(value) else value
    return content


def from_dict(kind: type, content: dict) -> Any:
    """A config dataclass from its JSON form; raises ValueError for unknown or missing keys, or wrong types."""
    hints = get_type_hints(kind)
    if not isinstance(content, dict):
        raise ValueError(f"expected the keys of {kind.__name__}, got {content!r}")
    values = {}
    for name, value in content.items():
        if name not in hints:
            raise ValueError(f"expected keys among {', '.join(hints)}, got {name!r}")
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
