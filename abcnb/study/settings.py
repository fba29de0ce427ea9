"""Settings, `key=value`, that change an experiment; keys have dots for nested configs: `training.steps=200`.

Not OmegaConf, which has no tuples and no settings that two models share.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from abcnb.study.experiments import LINES, Experiment, from_dict
from abcnb.study.methods import METHODS, PRESETS, experiment

LABELS = ("task", "method", "preset")  # what settings cannot change
SHARED = ("seed", "base", "form", "width")  # with the interpolating model


def is_shared(key: str, bias: str, adapted: bool) -> bool:
    """Whether a setting applies to the interpolating model too: if LoRA adapts it, it shares all of `model`; if
    its `bias` is one of lines, it shares `look_once`."""
    return key in SHARED or (adapted and key.startswith("model.")) or (key == "look_once" and bias in LINES)


def with_settings(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    """Apply `key=value` settings; raises ValueError for one that cannot be applied.

    `interpolation.…` reaches the experiment that ABC calibrates or LoRA adapts. The plain key of a setting that
    the models share (`is_shared`) sets it for all of them for which no other value is set.
    """
    content = asdict(experiment)
    for setting in sorted(settings, key=lambda setting: setting.strip().startswith("interpolation.")):
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ValueError(f"expected a setting of the form key=value, got {setting!r}")
        _set(content, key, text)
        first = content["interpolation"]
        while first and is_shared(key, first["bias"], bool(content["lora"])):
            _set(first, key, text)
            first = first["interpolation"]
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
        inside = [f"{part}.{name}" for part, of in content.items() if isinstance(of, dict) and name in of]
        hint = f"; did you mean {' or '.join(inside)}?" if inside else ""
        raise ValueError(f"expected a key among {_keys(content)}, got {key!r}{hint}")
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


def values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every single value of an experiment or config, by its key for `--set`."""
    found = {}
    for part in fields(config):
        value, key = getattr(config, part.name), f"{prefix}{part.name}"
        found |= values(value, f"{key}.") if is_dataclass(value) else {key: value}
    return found


def text_of(value: Any) -> str:
    """A value as written in a setting."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def settings_of(wanted: Experiment) -> str:
    """What differs from the frozen experiment of the same names, as for `--set`; empty if nothing does.

    Settings shared with the interpolating model are named once, unless its value differs.
    """
    if wanted.method not in METHODS or wanted.preset not in PRESETS:
        return ""
    frozen, adapted = experiment(wanted.task, wanted.method, wanted.preset, wanted.seed), wanted.lora is not None
    before, after = values(frozen), values(wanted)
    chosen = {key: value for key, value in after.items() if value != before.get(key)}
    prefix, first = "interpolation.", wanted.interpolation
    while first:
        before |= {f"{prefix}{key}": value for key, value in chosen.items() if is_shared(key, first.bias, adapted)}
        prefix, first = f"{prefix}interpolation.", first.interpolation
    changed = {key: text_of(new) for key, new in after.items() if key not in before or new != before[key]}
    return " ".join(f"{key}={text}" for key, text in changed.items() if key.rpartition(".")[2] not in LABELS)
