"""Measured results: tidy CSV files, and what they say beside what was published.

accuracy.csv       scores: one row per (task, method, preset, seed, settings, test set, length)
learning.csv       validations: one row per validation of the runs behind them
development.csv, development-learning.csv   the same of development seeds, which no published table shows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from abcnb.files import write_atomically
from abcnb.scores import Score, percent, wilson_interval
from abcnb.study.cost import training_flops
from abcnb.study.experiments import Experiment
from abcnb.study.fingerprint import UNKNOWN
from abcnb.study.methods import METHODS, settings_of
from abcnb.study.published import Choice, Question, published
from abcnb.study.runs import Run
from abcnb.tasks import TASKS
from abcnb.testsets import sample_count

COLUMNS = [
    "task", "method", "preset", "seed", "test_set", "length", "samples", "correct", "wrong_digits",
    "train_steps", "train_seconds", "device",
    "frame", "position", "train_width", "train_numbers", "form", "digits", "parameters", "hardware", "run",
    "settings", "train_flops", "code", "date", "worst_kind", "worst_percent",
]  # fmt: skip
NAMES = ["task", "method", "preset", "seed", "settings"]
LEARNED = ["step", "seconds", "loss", "exact_match", "digit_error_rate"]
LEARNING_COLUMNS = [*NAMES, "run", *LEARNED, "code", "date"]
# The last columns, which older files lack, with what is known of their rows then.
LATER = {"code": UNKNOWN, "date": "", "worst_kind": "", "worst_percent": ""}


@dataclass(frozen=True)
class Content:
    """What a CSV file holds: its columns, and those that tell its rows apart."""

    columns: list[str]
    key: list[str]


SCORES = Content(COLUMNS, [*NAMES, "test_set", "length"])
VALIDATIONS = Content(LEARNING_COLUMNS, [*NAMES, "step"])
TABLES, DEVELOPMENT = "accuracy", "development"  # the files of scores, without .csv


def learning_file(scores: Path) -> Path:
    """The file of the validations behind a file of scores."""
    return scores.with_name("learning.csv" if scores.stem == TABLES else f"{scores.stem}-learning.csv")


def row(run: Run, test_set: str, score: Score) -> dict:
    """One row of accuracy.csv.

    `digits` are the output tokens over which `wrong_digits` counts; `run` is the digest; `settings` is what
    differs from the method's frozen configuration, as for `--set`, and empty where nothing does; `train_flops`
    are counted from the sizes, the interpolating model's included; `code` is the fingerprint of the code that trained
    and measured, `date` the day of the measurement (of rows from before there were dates, the day they were
    committed); `worst_kind` and `worst_percent`, of a test set with several kinds, are empty where not known.
    """
    e, metrics = run.experiment, run.metrics
    return {
        "task": e.task,
        "method": e.method,
        "preset": e.preset,
        "seed": e.seed,
        "test_set": test_set,
        "length": score.length,
        "samples": score.samples,
        "correct": score.correct,
        "wrong_digits": score.wrong_digits,
        "train_steps": metrics["steps"],
        "train_seconds": metrics["seconds"],
        "device": metrics["device"],
        "frame": e.frame,
        "position": e.model.position,
        "train_width": e.train_width,
        "train_numbers": e.train_numbers,
        "form": e.form,
        "digits": score.digits,
        "parameters": metrics["parameters"],
        "hardware": metrics["hardware"],
        "run": e.digest,
        "settings": settings_of(e),
        "train_flops": training_flops(e),
        "code": score.code,
        "date": score.date,
        "worst_kind": score.worst_kind,
        "worst_percent": "" if score.worst_percent is None else str(score.worst_percent),
    }


def score_of(row: Any) -> Score:
    """The score that a row of scores, a named tuple of its columns, was made of."""
    worst = float(row.worst_percent) if row.worst_percent else None
    counts = (row.length, row.samples, row.correct, row.wrong_digits, row.digits)
    return Score(*counts, row.code, row.date, row.worst_kind, worst)


def learning_rows(run: Run) -> list[dict]:
    """The rows of learning.csv: every validation of a run."""
    e = run.experiment
    names = {"task": e.task, "method": e.method, "preset": e.preset, "seed": e.seed, "settings": settings_of(e)}
    known = {"run": e.digest, "code": run.code, "date": run.metrics.get("date", "")}
    return [names | known | {key: record[key] for key in LEARNED} for record in run.metrics["history"]]


def read(file: Path, content: Content = SCORES) -> pd.DataFrame:
    """The rows so far; empty where there is no file.

    Raises:
        ValueError: the file has other columns.
    """
    columns = content.columns
    if not file.exists():
        return pd.DataFrame(columns=columns)
    texts = dict.fromkeys(("run", "settings", *LATER), str)  # a hash may look like a number
    table = pd.read_csv(file, keep_default_na=False, dtype=texts)
    missing = columns[len(table.columns) :]
    if set(missing) <= set(LATER):
        table = table.assign(**{name: LATER[name] for name in missing})
    if list(table.columns) != columns:
        raise ValueError(f"expected the columns {','.join(columns)} in {file}, got {','.join(table.columns)}")
    return table


def record(file: Path, rows: list[dict], content: Content = SCORES) -> None:
    """Write rows into a CSV, replacing earlier ones of the same key; safe from many processes at once.

    Rows of another run of the same names go: of a configuration that is no longer. A score of the same run on
    more samples stays; if the run was trained again, its rows take the new seconds.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        new = pd.DataFrame(rows, columns=content.columns)
        old = read(file, content)
        if content is VALIDATIONS:  # a run's validations are of one training
            old = old[~old["run"].isin(new["run"])]
        table = pd.concat([old, new], ignore_index=True) if len(old) else new
        table = table[table["run"] == table.groupby(NAMES)["run"].transform("last")]
        if content is SCORES:
            table["train_seconds"] = table.groupby(["run", "hardware", "code"])["train_seconds"].transform("last")
            newest = table["code"] == table.groupby(content.key)["code"].transform("last")
            table = table.assign(newest=newest).sort_values(["newest", "samples"], kind="stable")
            table = table.drop(columns="newest")
        table = table.drop_duplicates(content.key, keep="last").sort_values(content.key, kind="stable")
        write_atomically(file, lambda name: table.to_csv(name, index=False))


def unmeasured(
    table: pd.DataFrame, experiments: Sequence[Experiment], tests: Sequence[tuple[str, int, int]]
) -> list[Experiment]:
    """The experiments that lack a row of accuracy.csv, or have one of fewer samples.

    Args:
        table: the rows so far.
        experiments: the wanted ones.
        tests: (test set, length, samples) of every evaluation wanted of each.
    """
    rows = table[["run", "method", "preset", "test_set", "length", "samples"]].itertuples(index=False)
    known = {tuple(row[:-1]): row.samples for row in rows}

    def lacks_one(e: Experiment) -> bool:
        name, task = (e.digest, e.method, e.preset), e.get_task()
        return any(
            known.get((*name, test_set, length), 0) < sample_count(task, length, samples, test_set)
            for test_set, length, samples in tests
        )

    return [e for e in experiments if lacks_one(e)]


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of accuracy.csv with exact_match, low and high added: percent, and its 95% Wilson interval."""
    bounds = [wilson_interval(row.correct, row.samples) for row in table.itertuples()]
    return table.assign(
        exact_match=100 * table["correct"] / table["samples"],
        low=[100 * low for low, _ in bounds],
        high=[100 * high for _, high in bounds],
    )


def beside_published(table: pd.DataFrame, lengths: Sequence[int], with_published: bool = True) -> pd.DataFrame:
    """Measured beside published: one row per task and method, one column per length.

    A cell reads `measured (published)`; of several seeds the mean and the worst: `99.99, worst 99.97`. Where a
    row has several seeds and a cell one, the cell says so.

    Args:
        table: columns task, method, seed, length, samples, correct, and preset or settings where they differ.
        lengths: in digits.
        with_published: leave the published number out of the cells where False.
    """
    rows, names = [], ["task", "method"]
    if "preset" in table and table["preset"].nunique() > 1:
        names.append("preset")
    for group_names, group in table.groupby(row_names(names, table), sort=False):
        seeds, preset = group["seed"].nunique(), group["preset"].iloc[0] if "preset" in group else ""
        row = dict(zip(row_names(names, table), group_names, strict=True)) | {"seeds": seeds}
        for length in lengths:
            at = group[group["length"] == length]
            known = published(row["task"], row["method"], length, preset) if with_published else None
            row[str(length)] = cell(exact_match(at), known, seeds > 1)
        rows.append(row)
    return pd.DataFrame(rows)


# The third round's test seeds: its configuration is chosen on seeds 30 to 35 and only then evaluated, once, on these
# (reports/round_three.md). Seeds below them had been looked at while something was still chosen, and a table shows
# either these or the others.
OPENED_LAST = range(20, 30)


def opened_last(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of these seeds, without settings where a method has one configuration on each task, the round's own."""
    rows = table[table["seed"].isin(OPENED_LAST)]
    if rows.groupby(["task", "method"])["settings"].nunique().gt(1).any():
        return rows
    return rows.assign(settings="")


TITLES = {
    "random": "random digits",
    "hard": "hard cases",
    "unequal": "operands of unequal length",
    "padded": "one to twenty more leading zeros",
}


def row_names(names: list[str], table: pd.DataFrame) -> list[str]:
    """The columns that name a table's rows, and the settings where some row has any."""
    return [*names, "settings"] if "settings" in table and (table["settings"] != "").any() else names


def exact_match(rows: pd.DataFrame) -> pd.Series:
    """Percent exact match of each row."""
    return 100 * rows["correct"] / rows["samples"]


def cell(found: pd.Series, known: float | None, one_of_several: bool = False) -> str:
    """A cell of a table: the mean over seeds and the worst one where it differs, beside the published number.

    Args:
        found: percent, one value per seed.
        known: the published number, if there is one.
        one_of_several: say so where a single seed was measured, since the table's row has several.
    """
    if not len(found):
        return "not run"
    text = percent(found.mean())
    if percent(found.min()) != text:
        text += f", worst {percent(found.min())}"
    if one_of_several and len(found) == 1:
        text += ", one seed"
    return text + (f" ({known:g})" if known is not None else "")


def every_seed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at lengths where a method has all its seeds, so that a curve is one of the same models throughout.

    Args:
        table: columns task, method, seed, length; frozen rows of one test set.
    """
    seeds = table.groupby(["task", "method"])["seed"].transform("nunique")
    return table[table.groupby(["task", "method", "length"])["seed"].transform("nunique") == seeds]


def effects(table: pd.DataFrame, choices: Sequence[Choice | Question], lengths: Sequence[int]) -> pd.DataFrame:
    """What a choice or question changes: one row per setting, task and method that it was tried on, or *not run*.

    A cell reads `as frozen → as tried`, means over the seeds that have both.

    Args:
        table: rows of one preset and test set, the frozen ones (no settings) among them.
        choices: what was chosen or asked, and the settings that choose otherwise.
        lengths: in digits.
    """
    frozen = table[table["settings"] == ""]
    cells, rows = ("seeds", *map(str, lengths)), []
    for choice in choices:
        for settings in choice.tried:
            said = {"point": choice.point, "tried": settings}
            tried = table[table["settings"] == settings].merge(
                frozen, on=["task", "method", "seed", "length"], suffixes=("", "_frozen")
            )
            if tried.empty:
                rows.append(dict.fromkeys(("task", "method"), "not run") | said | dict.fromkeys(cells, "not run"))
            for (task, method), group in tried.groupby(["task", "method"], sort=False):
                row = {"task": task, "method": method} | said | {"seeds": group["seed"].nunique()}
                for length in lengths:
                    at = group[group["length"] == length]
                    shares = [100 * at[f"correct{part}"] / at[f"samples{part}"] for part in ("_frozen", "")]
                    row[str(length)] = (
                        "\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}".join(percent(s.mean()) for s in shares)
                        if len(at)
                        else "not run"
                    )
                rows.append(row)
    return pd.DataFrame(rows)


# Schemes whose cross-attention depends on a distance alone, and what that distance is taken from, by what says so in
# a row's settings.
BY_DISTANCE = ("alibi-cross", "t5", "kerple", "fire", "rpe")
TOLD = {"left": "columns from the left", "right": "columns from the right", "places": "places"}


def by_what_is_told(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of schemes by distance, with a column `told`, those of `TOLD`'s values that occur, in their order.

    Of the settings that a scheme was tried with on a task and with a distance, those trained for most steps count.
    """
    rows = table[table["method"].isin(BY_DISTANCE)]
    distance = rows["settings"].str.extract(r"(?:cross_distance=|bias=alibi-)(\w+)", expand=False).fillna("left")
    rows = rows.assign(told=pd.Categorical(distance.map(TOLD), list(TOLD.values())))
    most = rows.groupby(["task", "method", "told"], observed=True)["train_steps"].transform("max")
    rows = rows[rows["train_steps"] == most]
    return rows.assign(told=rows["told"].cat.remove_unused_categories())


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order in which tasks and methods are registered."""
    order = {name: place for names in (TASKS, METHODS) for place, name in enumerate(names)}
    return table.sort_values(["task", "method"], key=lambda names: names.map(order), kind="stable")


def score_lines(scores: list[Score]) -> str:
    """A plain table of scores with their intervals."""
    lines = [f"{'length':>8} {'samples':>8} {'correct':>8} {'exact match':>12}   95% interval    wrong digits"]
    for s in scores:
        low, high = s.interval
        lines.append(
            f"{s.length:>8} {s.samples:>8} {s.correct:>8} {percent(s.exact_match):>11}%   "
            f"{low:6.2f}–{high:6.2f}%   {s.wrong_digits} of {s.digits}"
        )
    return "\n".join(lines)
