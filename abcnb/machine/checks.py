"""Checks of configurations: frozen dataclasses whose fields are checked when they are made."""

import math
from collections.abc import Collection
from dataclasses import fields


def check_types(config: object) -> None:
    """Raise ValueError for a field not of its default's type, or infinite or NaN unless that is its default.

    A whole number given for a float is converted, so that equal configurations are written alike.

    Fields that are tuples or have no default are left to their own checks.
    """
    for part in fields(config):
        value, kind = getattr(config, part.name), type(part.default)
        if kind not in (bool, int, float, str):
            continue
        if kind is float and type(value) is int:
            value = float(value)
            object.__setattr__(config, part.name, value)
        if type(value) is not kind:
            raise ValueError(f"expected {part.name} as {kind.__name__}, got {value!r}")
        if kind is float and not math.isfinite(value) and value != part.default:
            raise ValueError(f"expected {part.name} as a finite number, got {value!r}")


def check_among(config: object, **choices: Collection[str]) -> None:
    """Raise ValueError for a field whose value is not one of its choices."""
    for name, allowed in choices.items():
        if (value := getattr(config, name)) not in allowed:
            article = "an" if name[0] in "aeiou" else "a"
            raise ValueError(f"expected {article} {name} among {', '.join(allowed)}, got {value!r}")


def check_least(config: object, **least: float) -> None:
    """Raise ValueError for a field below its least value."""
    for name, bound in least.items():
        if (value := getattr(config, name)) < bound:
            raise ValueError(f"expected {name} of at least {bound}, got {value}")
