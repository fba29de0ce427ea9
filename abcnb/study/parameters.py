"""Checks a notebook's parameters before anything runs.

`papermill -p samples 100 -p text 199` passes numbers where it can, even under names that the notebook lacks."""

import ast
import builtins
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abcnb.machine.devices import pick_device

NOTEBOOK_PRESETS = ("smoke", "laptop", "paper")  # notebooks show `decoder-only`, but cannot be run at it
AT_LEAST_ONE = ("samples", "steps", "steps_with_lines")  # other whole numbers may be 0
INJECTED = "# Parameters\n"  # the first line of the cell that papermill inserts after the defaults
WORDS = {"true": True, "false": False}


def checked(namespace: dict[str, Any]) -> dict[str, Any]:
    """A notebook's parameters, each converted to its declared type: `globals().update(checked(globals()))`.

    Text becomes a number where one is declared (`samples: int = 1000`), and vice versa; lists stay as given
    (`seed_list`, `name_list`). Raises ValueError for a parameter that the notebook does not have, a value of the
    wrong type or out of range, or a device or reports folder that does not exist.
    """
    declared, injected = _declared(namespace.get("In", []))
    if unknown := [name for name in injected if name not in declared]:
        raise ValueError(f"expected a parameter among {', '.join(declared)}, got {unknown[0]!r}")
    found = {name: _value(name, namespace[name], kind) for name, kind in declared.items()}
    pick_device(found.get("device", "cpu"))
    if found.get("preset", "laptop") not in NOTEBOOK_PRESETS:
        raise ValueError(f"expected a preset among {', '.join(NOTEBOOK_PRESETS)}, got {found['preset']!r}")
    if found.get("reports_dir") and not Path(found["reports_dir"]).is_dir():
        raise ValueError(f"expected reports_dir as a folder that is there, got {found['reports_dir']!r}")
    return found


def _declared(cells: Sequence[str]) -> tuple[dict[str, type], list[str]]:
    """The names and types that the first cell with any declares, and the names that papermill's cells assign."""
    known: dict[str, type] = {}
    injected: list[str] = []
    for cell in cells:
        try:
            statements = ast.parse(cell).body
        except SyntaxError:  # magics or shell commands
            continue
        if cell.startswith(INJECTED):
            injected += [target.id for part in statements for target in getattr(part, "targets", ())]
        parts = [part for part in statements if isinstance(part, ast.AnnAssign)]
        known = known or {part.target.id: getattr(builtins, ast.unparse(part.annotation)) for part in parts}
    return known, injected


def _value(name: str, value: Any, kind: type) -> Any:
    """Convert a value, or the text of one, to a type."""
    if kind is list:
        return value
    try:
        given = WORDS.get(value.lower()) if kind is bool and isinstance(value, str) else value
        if (kind is bool) != isinstance(given, bool) or not isinstance(given, (str, int, float)):
            raise TypeError
        found = kind(given)
        if found != found or (isinstance(given, float) and kind is int and found != given):
            raise ValueError  # NaN, or half a sample
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"expected {name} as {kind.__name__}, got {value!r}") from None
    if kind is int and found < (least := int(name in AT_LEAST_ONE)):
        raise ValueError(f"expected {name} of at least {least}, got {found}")
    return found


def seed_list(seeds: int | str | list[int], what: str = "seeds") -> list[int]:
    """A list of whole numbers of at least 0, from one, several, or a list's text; ValueError for anything else."""
    try:
        found = json.loads(f"[{seeds.strip(' []')}]") if isinstance(seeds, str) else seeds
        found = [found] if type(found) is int else list(found)
    except (json.JSONDecodeError, TypeError):
        found = []
    if not found or not all(type(seed) is int and seed >= 0 for seed in found):
        raise ValueError(f"expected {what} as a list of whole numbers such as [0, 1], got {seeds!r}")
    return found


def name_list(names: str | list[str], allowed: Sequence[str], what: str) -> list[str]:
    """Names as a list, from a list or text, `addition,parity` or `["addition", "parity"]`; others: ValueError."""
    found = [name.strip(" []\"'") for name in str(names).split(",")]
    if wrong := [name for name in found if name not in allowed]:
        raise ValueError(f"expected {what} among {', '.join(allowed)}, got {wrong[0]!r}")
    return found
