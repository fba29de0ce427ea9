"""Configurations are frozen dataclasses; their fields are checked when they are made."""

import math
from collections.abc import Collection
from dataclasses import fields


def check_types(config: object) -> None:
    """Refuse a field of another type than its default's, and infinities and NaN that are no default.

    A whole number that stands for a float becomes one, so that equal configurations are written alike.

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
    """Refuse a field whose value is none of its choices."""
    for name, allowed in choices.items():
        if (value := getattr(config, name)) not in allowed:
            article = "an" if name[0] in "aeiou" else "a"
            raise ValueError(f"expected {article} {name} among {', '.join(allowed)}, got {value!r}")


def check_least(config: object, **least: float) -> None:
    """Refuse a field whose value is less than its least one."""
    for name, bound in least.items():
        if (value := getattr(config, name)) < bound:
            raise ValueError(f"expected {name} of at least {bound}, got {value}")
