"""What was chosen by hand, shown: the configuration of one task and method, and the table of all of them."""

from dataclasses import fields, is_dataclass
from typing import Any

from abcnb.configs import OF_SCHEMES, SCHEMES, read_by
from abcnb.rows import RowTask
from abcnb.study.experiments import Experiment
from abcnb.study.methods import METHODS, OPERANDS, experiment, has
from abcnb.study.runs import CROSS_DISTANCE_OF
from abcnb.study.stream_methods import described_in_stream, told_in_stream
from abcnb.tasks import TASKS

TITLES = {
    "steps": "steps", "batch": "batch", "rate": "learning rate", "numbers": "training numbers", "width": "width",
    "form": "form", "positions": "positions", "bias": "bias", "kappa": "κ cross / self", "support": "support",
    "directions": "Δ cross / self", "pool": "σ, μ per", "frame": "frame",
}  # fmt: skip


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


# What a scheme is told by what it takes a source column's distance from.
TOLD_BY_DISTANCE = {"right": ("where the source ends on the right",), "places": (OPERANDS,)}


def told(e: Experiment) -> tuple[str, ...]:
    """What an experiment is told of an input beyond its tokens and their order."""
    if e.in_one_stream:
        return told_in_stream(e)
    distance = CROSS_DISTANCE_OF.get(e.bias, e.model.cross_distance)
    return METHODS[e.method].told + TOLD_BY_DISTANCE.get(distance, ())


def resolved(e: Experiment) -> str:
    """The configuration of an experiment, one `key=value` per line, and what its method is told."""
    description = described_in_stream(e) if e.in_one_stream else METHODS[e.method].description
    lines = [f"# {e.task}, {e.method}: {description}", f"# run {e.digest}, {_size_of(e)}"]
    lines += [f"# told: {part}" for part in told(e)] or ["# told: nothing beyond the tokens and their order"]
    return "\n".join(lines + [f"{key}={text_of(value)}" for key, value in values(e).items()])


def _size_of(e: Experiment) -> str:
    """Of what size the training operands are, in words."""
    if not isinstance(e.get_task(), RowTask):
        return f"operands padded to {e.train_width}"
    return f"trained on inputs of size {_trained_on(e)}" + ("" if e.shapes == "largest" else " at most")


def summary(e: Experiment) -> dict[str, str]:
    """What decides an experiment, by the keys of `TITLES`; empty where a method has no such choice."""
    c, window = e.calibration, e.window
    bias = f"window w={window.w}, {window.sides}" if window else e.bias
    if e.added_line:
        bias += f" and {e.added_line}"
    if e.biased_layers:
        bias += f" in layer {text_of(e.biased_layers)}"
    of_scheme = [name for name in read_by(SCHEMES[e.model.position]) if name in OF_SCHEMES]
    options = [f"{name} {text_of(getattr(e.model, name))}" for name in of_scheme]
    found = {
        "steps": f"{e.training.steps:,}",
        "batch": str(e.training.batch_size),
        "rate": f"{e.training.learning_rate:g}",
        "numbers": e.train_numbers,
        "width": _trained_on(e),
        "form": e.form,
        "positions": ", ".join([e.model.position, *options]),
        "bias": f"{bias}, LoRA of rank {e.lora.rank}" if e.lora else bias,
    }
    if e.counters:
        choices = e.counters
        found |= {
            "kappa": f"{choices.kappa_prompt:g} / {choices.kappa_output:g}",
            "support": f"{choices.min_support:g}",
            "frame": e.frame,
        }
    if c:
        found |= {
            "kappa": f"{c.kappa_cross:g} / {c.kappa_self:g}",
            "support": f"{c.min_support:g}",
            "directions": f"{text_of(c.directions_cross)} / {text_of(c.directions_self)}",
            "pool": c.pool,
            "frame": c.frame,
        }
    return found


def _trained_on(e: Experiment) -> str:
    """The digits that operands are padded to, or the largest shape of an output in rows."""
    text = f"{e.terms} terms of {e.train_width}" if e.terms else str(e.train_width)
    return f"{text} alone" if e.shapes == "largest" else text


def methods_page(preset: str = "laptop") -> str:
    """Every task and method at a preset as Markdown; what differs between the tasks of a method is bold."""
    known_to = ["| method | what it is | what it is told beyond tokens and their order |", "|---|---|---|"]
    for name, method in METHODS.items():
        known_to.append(f"| `{name}` | {method.description} | {'; '.join(method.told) or 'nothing'} |")
    return (
        "\n\n".join(
            [
                "# What was chosen by hand",
                f"The frozen configuration of every method on every task at the preset `{preset}`, written by "
                "`python -m abcnb table`. `python -m abcnb show TASK METHOD` prints one of them whole, and "
                "`--set KEY=VALUE` changes any value. Not all of them were run; [the tables](tables.md) say which. "
                "Some were measured with other settings than stand here: position schemes in rows with 10,000 "
                "steps, coupling at a learning rate of 0.004 as well, and products with a fifth line by hand "
                "([why](results.md#products)); those in one stream, on Successor, N×1 and Parity, with 3,000, and "
                "with 10,000 as well where those leave less than 99% at six digits "
                "([why](results.md#position-schemes-in-one-stream)); and `four-in-one` with the settings of "
                "[its sweep](sweeps/four-in-one.toml). The settings of the third and fourth round are on "
                "[their page](round_three.md). [The glossary](glossary.md) explains the words.",
                "## What each method is told",
                "\n".join(known_to),
                "## Every task and method",
                "What differs between the tasks of a method is **bold**. ABC and LoRA start from the `vanilla` model "
                "of the same task. *Width* is the number of digits that operands are padded to in training. Not in the "
                "table: `abc-paper` averages the first six output rows, all others every row; a head without "
                "lines, or a row that no line reaches, stays open in `abc-paper` and `abc-columns`; in `abc-places` "
                "and `lora-abc` the head keeps its strongest line and the row opens the nearest end.",
                _settings_table(preset, [name for name in TASKS if not issubclass(TASKS[name], RowTask)]),
                "## In one stream",
                "Decoder-only models: `multiplication`, `many-addition` and `nested`, whose outputs are written in "
                "rows, and the other tasks at the preset `decoder-only`. On which seeds each was frozen is said where "
                "they are defined, in [`stream_methods.py`](../abcnb/study/stream_methods.py). *Width* is, for outputs "
                "in rows, the most digits of an operand and the most terms (of `nested`, the deepest lists), *alone* "
                "where no smaller shape is trained on, and κ is for lines to the prompt and to the output. Instead of "
                "cyclic positions, models with lines have the kind of the step where outputs are in rows, and no "
                "positions where they are not.",
                "\n".join(
                    [
                        "| method | tasks | what it is | what it is told |",
                        "|---|---|---|---|",
                        *_told_in_streams(preset),
                    ]
                ),
                _settings_table(preset, [name for name in TASKS if issubclass(TASKS[name], RowTask)]),
                "At the preset `decoder-only`:",
                _settings_table("decoder-only", list(OF_ONE_STREAM)),
            ]
        )
        + "\n"
    )


OF_ONE_STREAM = ("successor", "addition", "parity", "n-by-1")  # the tasks that the page shows at `decoder-only`


def _settings_table(preset: str, tasks: list[str]) -> str:
    """One row per method and set of tasks with the same configuration."""
    rows = []
    for name in METHODS:
        by_task = {task: summary(experiment(task, name, preset)) for task in tasks if has(task, name, preset)}
        alike: dict[tuple, list[str]] = {}
        for task, found in by_task.items():
            alike.setdefault(tuple(found.items()), []).append(task)
        differing = {key for key in TITLES if len({row.get(key) for row in by_task.values()}) > 1}
        for found, same in alike.items():
            known = dict(found)
            cells = [f"**{known[key]}**" if key in differing else known.get(key, "") for key in TITLES]
            rows.append(f"| `{name}` | {', '.join(same)} | " + " | ".join(cells) + " |")
    head = ["| method | tasks | " + " | ".join(TITLES.values()) + " |", "|" + "---|" * (len(TITLES) + 2)]
    return "\n".join(head + rows)


def _told_in_streams(preset: str) -> list[str]:
    """One row per method and set of tasks that have the same description and are told the same."""
    rows, in_rows = [], [name for name in TASKS if issubclass(TASKS[name], RowTask)]
    for name in METHODS:
        alike: dict[str, list[str]] = {}
        for where, tasks in ((preset, in_rows), ("decoder-only", list(OF_ONE_STREAM))):
            for e in (experiment(task, name, where) for task in tasks if has(task, name, where)):
                cells = f"{described_in_stream(e)} | {'; '.join(told_in_stream(e)) or 'nothing'}"
                alike.setdefault(cells, []).append(e.task)
        rows += [f"| `{name}` | {', '.join(same)} | {cells} |" for cells, same in alike.items()]
    return rows
