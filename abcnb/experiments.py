"""Complete descriptions of trained models, and settings that change them.

An `Experiment` says everything that decides a model but the hardware; its digest is the name of its run.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from abcnb.calibration import CalibrationConfig
from abcnb.lines import cross_window
from abcnb.lora import LoRAConfig
from abcnb.model import ModelConfig
from abcnb.sampling import check_numbers, smallest_width
from abcnb.tasks import Task, get_task
from abcnb.training import TrainingConfig

LABELS = ("task", "method", "preset")  # what settings leave alone
BIASES = ("none", "alibi", "alibi-cross", "window", "calibrated")


@dataclass(frozen=True)
class WindowConfig:
    """ABS: half-width w of the cross- and self-attention windows, and the cross window's sides."""

    w: int = 1
    sides: str = "past"

    def __post_init__(self):
        cross_window(1, 1, self.w, self.sides)  # refuses what is no window


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a trained model, but for the hardware.

    Attributes:
        task, method, preset, seed: its names; method and preset are labels, the rest decides.
        base: of the digits; 0 is the task's own.
        form: `natural` or `aligned` (the paper aligns for ABS only).
        width: digits that operands are padded to in training; 0 is the training length + 1, or more where the
            results of the training numbers take more.
        train_numbers: one of `sampling.TRAIN_NUMBERS`.
        bias: `none`, `alibi` (self-attention), `alibi-cross` (both), `window` (ABS) or `calibrated` (ABC).
        model, training, window: as they say.
        calibration, interpolation: of ABC: the choices, and the experiment whose attention is calibrated.
        lora: adapters; the model is then the one of `interpolation`, frozen but for them, and `calibration`,
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
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    window: WindowConfig | None = None
    calibration: CalibrationConfig | None = None
    interpolation: "Experiment | None" = None
    lora: LoRAConfig | None = None

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"expected a seed of at least 0, got {self.seed}")
        task = self.get_task()
        task.layout(self.train_width, self.form)
        check_numbers(task, self.train_numbers, self.train_width)
        if self.bias not in BIASES:
            raise ValueError(f"expected a bias among {', '.join(BIASES)}, got {self.bias!r}")
        if (self.bias == "window") != (self.window is not None):
            raise ValueError("the window is given exactly where the bias is 'window'")
        if (self.bias == "calibrated") != (self.calibration is not None and self.interpolation is not None):
            raise ValueError("calibration and interpolation are given exactly where the bias is 'calibrated'")
        if self.model.rotary_width not in (0, self.train_width):
            raise ValueError(
                f"expected model.rotary_width 0 or the training width {self.train_width}, "
                f"got {self.model.rotary_width}"
            )
        if self.interpolation:
            ours, its = (
                {"task": e.task, "base": e.get_task().base, "form": e.form, "heads": e.model.heads}
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

    def get_task(self) -> Task:
        """The task instance."""
        return get_task(self.task, self.base or None)

    @property
    def train_width(self) -> int:
        """Digits that operands are padded to in training."""
        task = self.get_task()
        return self.width or max(task.train_length + 1, smallest_width(task, self.train_numbers))

    @property
    def frame(self) -> str:
        """The frame of its lines: `columns`, `places`, or empty where it has none."""
        if self.calibration:
            return self.calibration.frame
        return "places" if self.window else ""

    @property
    def digest(self) -> str:
        """Hash of everything but the labels `method` and `preset`, and but for values left at their defaults.

        So a new field with a default leaves known digests, and with them trained models, as they are. A
        default once given must then stay: `fit` refuses a run whose stored description says otherwise.
        """
        content = json.dumps(_decisive(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def _decisive(config: Any) -> dict:
    """The fields that decide a model and differ from their defaults, nested configs likewise."""
    content = {}
    for part in fields(config):
        value = getattr(config, part.name)
        if part.name in ("method", "preset"):
            continue
        if is_dataclass(value):
            content[part.name] = _decisive(value)
        elif value != part.default:
            content[part.name] = value
    return content


def from_dict(kind: type, content: dict) -> Any:
    """A config dataclass from its JSON form.

    Raises:
        ValueError: unknown or missing keys.
    """
    hints = get_type_hints(kind)
    unknown = sorted(set(content) - set(hints))
    if unknown:
        raise ValueError(f"expected keys among {', '.join(hints)}, got {unknown[0]!r}")
    values = {}
    for name, value in content.items():
        inner = next((t for t in (hints[name], *get_args(hints[name])) if is_dataclass(t)), None)
        if inner and isinstance(value, dict):
            value = from_dict(inner, value)
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"expected the keys of {kind.__name__}: {error}") from error


SHARED = ("seed", "base", "form", "width", "model.heads")  # with the interpolating model


def sets_both(key: str, adapted: bool) -> bool:
    """Whether a setting is of the interpolating model too; one that is adapted by LoRA shares all of `model`."""
    return key in SHARED or (adapted and key.startswith("model."))


def with_settings(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    """Apply `key=value` settings, keys with dots for nested configs, e.g. `training.steps=200`.

    `interpolation.…` reaches the experiment that ABC calibrates or LoRA adapts. What the two models share (the
    seed, base, form, width and heads; with LoRA all of `model`) is set for both by the plain key.

    Raises:
        ValueError: not `key=value`, an unknown key, a value of the wrong type, or an experiment that cannot be.
    """
    content = asdict(experiment)
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ValueError(f"expected a setting of the form key=value, got {setting!r}")
        _set(content, key, text)
        if content["interpolation"] and sets_both(key, bool(content["lora"])):
            _set(content["interpolation"], key, text)
    return from_dict(Experiment, content)


def _set(content: dict, key: str, text: str) -> None:
    """Set one value of an experiment's JSON form, in place."""
    *parents, name = key.split(".")
    for parent in parents:
        if parent in content and content[parent] is None:
            raise ValueError(f"expected a key that this method has, got {key!r}: it has no {parent}")
        if not isinstance(content.get(parent), dict):
            raise ValueError(f"expected a key among {_keys(content)}, got {key!r}")
        content = content[parent]
    if name not in content or name in LABELS:
        raise ValueError(f"expected a key among {_keys(content)}, got {key!r}")
    current = content[name]
    if current is None or isinstance(current, dict):
        inner = f" such as {name}.{next(iter(current))}" if current else ""
        raise ValueError(f"expected a key with a single value{inner}, got {key!r}")
    content[name] = _parse(current, text, key)


def _keys(content: dict) -> str:
    return ", ".join(name for name in content if name not in LABELS)


def _parse(current: Any, text: str, key: str) -> Any:
    kind = type(current)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is tuple:
            return tuple(int(part) for part in text.strip("()[]").split(",") if part.strip())
        return kind(text)
    except (ValueError, KeyError):
        name = {tuple: "integers separated by commas", bool: "true or false"}.get(kind, kind.__name__)
        raise ValueError(f"expected {name} for {key}, got {text!r}") from None
