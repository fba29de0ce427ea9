"""What every configuration is asked: whether its fields are of the types of their defaults."""

from dataclasses import fields


def check_types(config: object) -> None:
    """Refuse a field of another type than its default's, or one that is no number; a whole number may be a float.

    Args:
        config: a dataclass whose fields all have defaults. Fields that are tuples are left to their own checks.

    Raises:
        ValueError: names the field, its type and what came.
    """
    for part in fields(config):
        value, kind = getattr(config, part.name), type(part.default)
        if kind is tuple:
            continue
        if not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"expected {part.name} as {kind.__name__}, got {value!r}")
        if value != value:
            raise ValueError(f"expected {part.name} as a number, got {value!r}")
