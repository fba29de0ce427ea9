"""Show what was chosen by hand: the configuration of one task and method, and the table of all of them."""

from itertools import product

import pandas as pd

from abcnb.model.configs import OF_SCHEMES, SCHEMES, read_by
from abcnb.study.experiments import Experiment
from abcnb.study.methods import METHODS, experiment, has
from abcnb.study.runs import CROSS_DISTANCE_OF
from abcnb.study.settings import text_of, values
from abcnb.study.tables import markdown
from abcnb.tasks.task import TASKS

# What an experiment is told about an input beyond tokens and order, by form, bias, position scheme and distance.
COUNTERS = "where operands and rows begin and end, and the row and place of every step"
EDGES = "where the matrix ends, left and right"
FILLED = "how many steps write training digits"
KIND = "the kind of every step"
TOLD = {
    "window": ("which tokens every step has to look at",),
    "by-hand": (COUNTERS, "which tokens every step has to look at"),
    "calibrated": (COUNTERS,),
    "pruned": (COUNTERS,),
    "algorithm1": (EDGES, "how long the longest test is", FILLED),
    "varying": (EDGES, "how long the longest test is", FILLED),
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
    """What an experiment is told about an input beyond its tokens and their order."""
    distance = CROSS_DISTANCE_OF.get(e.bias, e.model.cross_distance)
    parts = [part for name in (e.form, e.bias, e.model.position, distance) for part in TOLD.get(name, ())]
    return tuple(dict.fromkeys(parts))


def resolved(e: Experiment) -> str:
    """The configuration of an experiment, one `key=value` per line as `--set` takes it, and what its method is told."""
    head = f"# {e.task}, {e.method}: {METHODS[e.method].description}"
    lines = [head, f"# run {e.digest}, trained on inputs of size {_trained_on(e)}"]
    lines += [f"# told: {part}" for part in told(e)] or ["# told: nothing beyond the tokens and their order"]
    found = values(e)
    for key, value in found.items():
        config, _, name = key.rpartition(".")
        if value is None or (name in OF_SCHEMES and name not in read_by(SCHEMES[found[f"{config}.position"]])):
            continue
        lines.append(f"{key}={text_of(value).lower() if isinstance(value, bool) else text_of(value)}")
    return "\n".join(lines)


def _trained_on(e: Experiment) -> str:
    """The digits that operands are padded to, or the largest shape of an output in rows."""
    text = f"{e.terms} terms of {e.train_width}" if e.terms else str(e.train_width)
    return f"{text} alone" if e.shapes == "largest" else text


def methods_page() -> str:
    """Every method in the presets `laptop` and `decoder-only` as Markdown."""
    in_rows = [name for name, task in TASKS.items() if task.in_rows]
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
        _settings_table("decoder-only", list(TASKS)),
        "## Outputs in rows",
        "*Width* is the most digits of an operand and the most terms (of `nested`, the deepest lists), *alone* where "
        "no smaller shape is trained on.",
        _settings_table("laptop", in_rows),
    ]
    return "\n\n".join(parts) + "\n"


def _told(method: str, task: str) -> str:
    return "; ".join(told(experiment(task, method))) or "nothing" if has(task, method) else "not run"


def _settings_table(preset: str, tasks: list[str]) -> str:
    """One row for each group of methods that are trained in the same way."""
    rows = []
    for name, task in product(METHODS, tasks):
        if has(task, name, preset):
            e = experiment(task, name, preset)
            row = {"methods": f"`{name}`", "task": task, "steps": f"{e.training.steps:,}"}
            row |= {"batch": str(e.training.batch_size), "learning rate": f"{e.training.learning_rate:g}"}
            rows.append(row | {"training numbers": e.train_numbers, "width": _trained_on(e), "form": e.form})
    by_method = pd.DataFrame(rows).set_index("task").groupby("methods", sort=False).agg(_in_one_cell)
    alike = by_method.reset_index().groupby(list(by_method.columns), sort=False)["methods"].agg(", ".join)
    return markdown(alike.reset_index()[["methods", *by_method.columns]])


def _in_one_cell(of_tasks: pd.Series) -> str:
    """The value of most tasks, then the others with their tasks."""
    (first, _), *others = sorted(of_tasks.groupby(of_tasks, sort=False), key=lambda alike: -len(alike[1]))
    return "; ".join([first, *(f"{value} ({', '.join(of.index)})" for value, of in others)])
