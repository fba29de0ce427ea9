"""Measured results: tidy CSV files (`views` turns them into tables for a reader).

accuracy.csv       scores: one row per (task, method, preset, seed, settings, test set, length)
learning.csv       validations: one row per validation of the runs behind them
lines.csv          lines that the rule found: one row per line of the runs behind them
certificates.csv   outcomes of certifying models (`certificates`)
why.csv            scores of the rule's variants (`why`)
other-tasks.csv    scores of tasks that no method was chosen on (`other_tasks`)
development.csv    scores of development seeds, which no published table shows
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from filelock import FileLock

from abcnb.machine.files import write_atomically
from abcnb.model.evaluation import Score
from abcnb.study.cost import training_flops
from abcnb.study.experiments import RULE, Experiment
from abcnb.study.runs import ATTENTION, Run, Test
from abcnb.study.settings import settings_of
from abcnb.tasks.testsets import sample_count

NAMES = ["task", "method", "preset", "seed", "settings"]
COLUMNS = [
    "task", "method", "preset", "seed", "test_set", "length", "samples", "correct", "wrong_digits",
    "train_steps", "train_seconds", "device",
    "position", "train_width", "train_numbers", "form", "digits", "parameters", "hardware", "run",
    "settings", "train_flops", "code", "date", "worst_kind", "worst_percent",
]  # fmt: skip
LEARNED = ["step", "seconds", "loss", "exact_match", "digit_error_rate"]
TEXTS = dict.fromkeys(  # all other columns are numbers
    ("task", "method", "preset", "test_set", "device", "position", "train_numbers", "form", "hardware", "run",
     "settings", "code", "date", "worst_kind", "worst_percent", "outcome", "attention", "kind", "line", "variant"), str,
)  # fmt: skip
Wanted = Mapping[Experiment, Sequence[Test]]  # experiments, each with its evaluations


class Content(NamedTuple):
    """What a CSV file holds: its columns, and those that tell its rows apart."""

    columns: list[str]
    key: list[str]


FOUND = ["attention", "kind", "line", "share", "layer", "head"]
CERTIFIED = ["pruned", "lines", "windows", "margin", "rounding", "outcome", "seconds", "hardware", "code", "date"]
COUNTED = ["lines", "samples", "correct", "wrong_digits", "digits", "hardware", "code", "date"]
UNDONE = ["task", "seed", "variant", "test_set", "length"]
SCORES = Content(COLUMNS, [*NAMES, "test_set", "length"])
CONTENTS = {  # by the last word of a file's name; all others hold scores
    "learning": Content([*NAMES, "run", *LEARNED, "code", "date"], [*NAMES, "step"]),
    "lines": Content([*NAMES, "run", *FOUND, "code", "date"], [*NAMES, "attention", "kind", "line"]),
    "certificates": Content([*NAMES, "run", *CERTIFIED], [*NAMES, "pruned"]),
    "why": Content([*UNDONE, *COUNTED], UNDONE),
}
CORRECT = "correct"  # the outcome of a certificate that holds
TABLES = "accuracy"
FILES = (TABLES, "development", "other-tasks")  # of scores, without .csv


def content_of(file: Path) -> Content:
    """What a CSV file holds, by its name."""
    return CONTENTS.get(file.stem.rpartition("-")[2], SCORES)


def beside(scores: Path) -> list[Path]:
    """The files of validations and of lines behind a file of scores."""
    prefix = "" if scores.stem == TABLES else f"{scores.stem}-"
    return [scores.with_name(f"{prefix}{name}.csv") for name in ("learning", "lines")]


def row(run: Run, test_set: str, score: Score) -> dict:
    """One row of accuracy.csv.

    `digits` is the number of output tokens, of which `wrong_digits` are wrong; `run` is the digest; `settings` is
    what differs from the method's frozen configuration, as for `--set`; `train_flops` is computed from the sizes,
    the interpolating model's included; `code` is of the code that trained and measured; `date` is the day of the
    measurement (for rows older than dates, of the commit); `worst_kind` and `worst_percent` are empty if unknown.
    """
    e, metrics = run.experiment, run.metrics
    # Where keys repeat, the later one counts: `code` and `date` are the score's.
    found = metrics | vars(e) | vars(score) | names(e) | {"test_set": test_set, "run": e.digest}
    found |= {"train_steps": metrics["steps"], "train_seconds": metrics["seconds"]}
    found |= {"train_flops": training_flops(e), "position": e.model.position, "train_width": e.train_width}
    found |= {"worst_percent": "" if score.worst_percent is None else str(score.worst_percent)}
    return {column: found[column] for column in COLUMNS}


def names(e: Experiment) -> dict:
    """The columns that tell experiments apart."""
    return {"task": e.task, "method": e.method, "preset": e.preset, "seed": e.seed, "settings": settings_of(e)}


def score_of(row: Any) -> Score:
    """The score behind a row of scores, given as a named tuple of its columns."""
    worst = float(row.worst_percent) if row.worst_percent else None
    counts = (row.length, row.samples, row.correct, row.wrong_digits, row.digits)
    return Score(*counts, row.code, row.date, row.worst_kind, worst)


def _known(run: Run) -> dict:
    known = {"run": run.experiment.digest, "code": run.code, "date": run.metrics.get("date", "")}
    return names(run.experiment) | known


def learning_rows(run: Run) -> list[dict]:
    """The rows of learning.csv: every validation of a run."""
    return [_known(run) | {key: record[key] for key in LEARNED} for record in run.metrics["history"]]


def line_rows(run: Run) -> list[dict]:
    """The rows of lines.csv: the lines that the rule found for a run; none if it has no attention file."""
    if run.experiment.bias not in RULE or not (run.folder / ATTENTION).exists():
        return []
    found = run.calibration().table.rename(columns={"step": "kind"}).round({"share": 4})
    return [_known(run) | line for line in found.to_dict("records")]


def read(file: Path) -> pd.DataFrame:
    """The rows so far, empty if there is no file; ValueError if it is damaged or has other columns."""
    columns = content_of(file).columns
    if not file.exists():
        return pd.DataFrame(columns=columns)
    try:
        table = pd.read_csv(file, keep_default_na=False, dtype=TEXTS)
    except ValueError as error:
        raise ValueError(f"expected a table in {file}, got: {str(error).splitlines()[0]}") from None
    if list(table.columns) != columns:
        raise ValueError(f"expected the columns {','.join(columns)} in {file}, got {','.join(table.columns)}")
    for name in (name for name in columns if name not in TEXTS):
        if (wrong := pd.to_numeric(table[name], errors="coerce").isna()).any():
            line = int(wrong.argmax()) + 2
            raise ValueError(f"expected a number as {name} in line {line} of {file}; is the line damaged?")
    return table


def record(file: Path, rows: list[dict]) -> None:
    """Write rows into a CSV, replacing earlier ones with the same key; safe for many processes at once.

    Rows of another run with the same names are dropped: their configuration no longer exists. A score of the same
    run and code on more samples stays; after retraining, rows of the same hardware and code take the new seconds.
    """
    content = content_of(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        new = pd.DataFrame(rows, columns=content.columns)
        old = read(file)
        if file.stem.endswith(("learning", "lines")):  # a run's rows all come from one training
            old = old[~old["run"].isin(new["run"])]
        table = pd.concat([old, new], ignore_index=True) if len(old) else new
        if "run" in table:
            table = table[table["run"] == table.groupby(NAMES)["run"].transform("last")]
        if content is SCORES:
            table["train_seconds"] = table.groupby(["run", "hardware", "code"])["train_seconds"].transform("last")
            table = table[table["code"] == table.groupby(content.key)["code"].transform("last")]
            table = table.sort_values("samples", kind="stable")
        table = table.drop_duplicates(content.key, keep="last").sort_values(content.key, kind="stable")
        write_atomically(file, lambda name: table.to_csv(name, index=False))


def unmeasured(table: pd.DataFrame, wanted: Wanted) -> Wanted:
    """The experiments, each with all its tests, that lack a row for one of them or have one of too few samples."""
    known = table.set_index(["run", "method", "preset", "test_set", "length"])["samples"].to_dict()

    def is_measured(e: Experiment, test_set: str, length: int, samples: int) -> bool:
        have = known.get((e.digest, e.method, e.preset, test_set, length), 0)
        return have >= sample_count(e.get_task(), length, samples, test_set)

    return {e: tests for e, tests in wanted.items() if not all(is_measured(e, *test) for test in tests)}
