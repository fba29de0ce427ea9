"""What was chosen by hand, shown: the configuration of one task and method, and the table of all of them."""

from dataclasses import fields, is_dataclass
from typing import Any

import pandas as pd

from abcnb.model.configs import OF_SCHEMES, SCHEMES, read_by
from abcnb.study.experiments import Experiment
from abcnb.study.methods import METHODS, experiment, has
from abcnb.study.runs import CROSS_DISTANCE_OF
from abcnb.study.tables import markdown
from abcnb.tasks.task import TASKS

# What an experiment is told of an input beyond its tokens and their order, by bias, position scheme and distance.
COUNTERS = "where operands and rows begin and end, and the row and place of every step"
EDGES = "where the matrix ends, left and right"
FILLED = "how many steps write training digits"
KIND = "the kind of every step"
TOLD = {
    "window": ("which tokens every step has to look at",),
    "by-hand": (COUNTERS, "which tokens every step has to look at"),
    "calibrated": (COUNTERS,),
    "algorithm1": (EDGES, "how long the longest test is", FILLED),
    "columns": (EDGES, "how long the longest test is", FILLED),
    "aligned": ("which digits belong together",),
    "kinds": (KIND,),
    "cyclic-columns": ("where the last operand ends, from which phases are counted",),
    "abacus": ("the place of every digit in its number",),
    "coupled": ("which tokens share a place",),
    "coupled-rows": (KIND, "which tokens share a row and which a place"),
    "right": ("where the source ends on the right",),
    "places": ("the place of every digit in its operand",),
}


def told(e: Experiment) -> tuple[str, ...]:
    """What an experiment is told of an input beyond its tokens and their order."""
    distance = CROSS_DISTANCE_OF.get(e.bias, e.model.cross_distance)
    parts = [part for name in (e.form, e.bias, e.model.position, distance) for part in TOLD.get(name, ())]
    return tuple(dict.fromkeys(parts))


def values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of an experiment by the key that `--set` takes; what a method does not have is left out."""
    found = {}
    for part in fields(config):
        value, key = getattr(config, part.name), f"{prefix}{part.name}"
        if is_dataclass(value):
            found |= values(value, f"{key}.")
        elif value is not None and (part.name not in OF_SCHEMES or part.name in read_by(SCHEMES[config.position])):
            found[key] = value
    return found


def text_of(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def resolved(e: Experiment) -> str:
    """The configuration of an experiment, one `key=value` per line, and what its method is told."""
    lines = [
        f"# {e.task}, {e.method}: {METHODS[e.method].description}",
        f"# run {e.digest}, trained on inputs of size {_trained_on(e)}",
    ]
    lines += [f"# told: {part}" for part in told(e)] or ["# told: nothing beyond the tokens and their order"]
    return "\n".join(lines + [f"{key}={text_of(value)}" for key, value in values(e).items()])


def _trained_on(e: Experiment) -> str:
    """The digits that operands are padded to, or the largest shape of an output in rows."""
    text = f"{e.terms} terms of {e.train_width}" if e.terms else str(e.train_width)
    return f"{text} alone" if e.shapes == "largest" else text


def summary(e: Experiment) -> dict[str, str]:
    """What an experiment is trained on, and for how long, in words."""
    return {
        "steps": f"{e.training.steps:,}",
        "batch": str(e.training.batch_size),
        "learning rate": f"{e.training.learning_rate:g}",
        "training numbers": e.train_numbers,
        "width": _trained_on(e),
        "form": e.form,
    }


def methods_page() -> str:
    """Every method at the presets `laptop` and `decoder-only` as Markdown."""
    in_rows = [name for name, task in TASKS.items() if task.in_rows]
    in_places = [name for name in TASKS if has(name, "vanilla", "decoder-only")]
    methods = [
        {"method": f"`{name}`", "what it is": method.description}
        | {"what it is told": _told(name, "addition"), "in rows": _told(name, "multiplication")}
        for name, method in METHODS.items()
    ]
    parts = [
        "# What was chosen by hand",
        "Written by `python -m abcnb table`. `python -m abcnb show TASK METHOD` prints one configuration whole, and "
        "`--set KEY=VALUE` changes any value. Not all of them were run; [the tables](tables.md) say which. "
        "[The glossary](glossary.md) explains the words.",
        "## What each method is told",
        "Beyond the tokens of an input and their order:",
        markdown(pd.DataFrame(methods)),
        "## How it is trained",
        "Where tasks differ, the first value is that of all tasks but those named. *Width* is the number of digits "
        "that operands are padded to. ABC and LoRA start from the `vanilla` model of the same task, `abc-paper` and "
        "`abc-columns` from one of their own width.",
        _settings_table("laptop", [name for name in TASKS if name not in in_rows]),
        "## In one stream",
        _settings_table("decoder-only", in_places),
        "## Outputs in rows",
        "*Width* is the most digits of an operand and the most terms (of `nested`, the deepest lists), *alone* where "
        "no smaller shape is trained on.",
        _settings_table("laptop", in_rows),
    ]
    return "\n\n".join(parts) + "\n"


def _told(method: str, task: str) -> str:
    return "; ".join(told(experiment(task, method))) or "nothing" if has(task, method) else "not run"


def _settings_table(preset: str, tasks: list[str]) -> str:
    """One row for the methods that are trained in the same way."""
    alike: dict[tuple, list[str]] = {}
    for name in METHODS:
        by_task = {task: summary(experiment(task, name, preset)) for task in tasks if has(task, name, preset)}
        if by_task:
            keys = next(iter(by_task.values()))
            cells = {key: _in_one_cell({task: found[key] for task, found in by_task.items()}) for key in keys}
            alike.setdefault(tuple(cells.items()), []).append(f"`{name}`")
    return markdown(pd.DataFrame({"methods": ", ".join(names)} | dict(cells) for cells, names in alike.items()))


def _in_one_cell(values: dict[str, str]) -> str:
    """The value of most tasks, then the others with their tasks."""
    alike: dict[str, list[str]] = {}
    for task, value in values.items():
        alike.setdefault(value, []).append(task)
    first, *others = sorted(alike, key=lambda value: -len(alike[value]))
    return "; ".join([first, *(f"{value} ({', '.join(alike[value])})" for value in others)])
