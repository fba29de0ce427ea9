"""Rows of results as a reader wants them: beside what was published, seed by seed, by what was changed."""

from collections.abc import Sequence

import pandas as pd

from abcnb.model.evaluation import percent, wilson_interval
from abcnb.study.methods import METHODS, PRESETS
from abcnb.study.published import Choice, published
from abcnb.tasks.task import TASKS


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of accuracy.csv with exact_match, low and high added: the percentage and its 95% Wilson interval."""
    bounds = [wilson_interval(*pair) for pair in zip(table["correct"], table["samples"], strict=True)]
    low, high = ([100 * pair[side] for pair in bounds] for side in (0, 1))
    return table.assign(exact_match=exact_match, low=low, high=high)


def beside_published(table: pd.DataFrame, lengths: Sequence[int], with_published: bool = True) -> pd.DataFrame:
    """Measured beside published: a row per task and method (the index) and settings, a column per length (digits).

    A cell reads `measured (published)`, with the mean and the worst of several seeds: `99.99, worst 99.97`. If a
    row has several seeds and a cell only one, the cell says so. Presets and settings are columns if they differ.
    """
    differ = {"preset": table["preset"].nunique() > 1, "settings": (table["settings"] != "").any()}
    rows, names = [], ["task", "method", *(name for name in differ if differ[name])]
    for group_names, group in table.groupby(names, sort=False):
        seeds, preset, found = group["seed"].nunique(), group["preset"].iloc[0], exact_match(group)
        row = dict(zip(names, group_names, strict=True)) | {"seeds": seeds}
        for length in lengths:
            known = published(row["task"], row["method"], length, preset) if with_published else None
            row[str(length)] = cell(found[group["length"] == length], known, seeds > 1)
        rows.append(row)
    return pd.DataFrame(rows, columns=[*names, "seeds", *map(str, lengths)]).set_index(["task", "method"])


TITLES = {"random": "random digits", "hard": "hard cases", "unequal": "operands of unequal length"}
TITLES |= {"padded": "one to twenty more leading zeros"}


def exact_match(rows: pd.DataFrame) -> pd.Series:
    """Percent exact match of each row."""
    return 100 * rows["correct"] / rows["samples"]


def cell(found: pd.Series, known: float | None = None, one_of_several: bool = False) -> str:
    """The mean over seeds, in percent, and the worst one if it differs, beside the published number."""
    if not len(found):
        return "not run"
    text = percent(found.mean())
    if percent(found.min()) != text:
        text += f", worst {percent(found.min())}"
    if one_of_several and len(found) == 1:
        text += ", one seed"
    return text + (f" ({known:g})" if known is not None else "")


def span(numbers: pd.Series) -> str:
    """The least and the greatest of whole numbers, `16 to 1,024`; one if they are equal, a dash if there are none."""
    ends = sorted({numbers.min(), numbers.max()}) if len(numbers) else []
    return " to ".join(f"{end:,.0f}" for end in ends) or "–"


def every_seed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at lengths where a method has all its seeds, so that a curve shows the same models throughout."""
    seeds = table.groupby(["task", "method"])["seed"].transform("nunique")
    return table[table.groupby(["task", "method", "length"])["seed"].transform("nunique") == seeds]


def effects(table: pd.DataFrame, choices: Sequence[Choice], lengths: Sequence[int]) -> pd.DataFrame:
    """What a choice changes: one row per setting, task and method that it was tried on, or *not run*.

    A cell reads `as frozen → as tried` at a length in digits, means over the seeds that have both. The table has rows
    of one preset and test set, including the frozen ones (no settings).
    """
    frozen, rows = table[table["settings"] == ""].assign(frozen=exact_match), []
    for point, settings in ((choice.point, settings) for choice in choices for settings in choice.tried):
        tried = table[table["settings"] == settings].assign(tried=exact_match)
        both = tried.merge(frozen[["task", "method", "seed", "length", "frozen"]])
        if both.empty:
            rows.append({"task": "not run", "method": "not run", "point": point, "tried": settings})
        for (task, method), group in both.groupby(["task", "method"], sort=False):
            means = group.groupby("length")[["frozen", "tried"]].mean().T.items()
            arrow = "\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}"
            row = {"task": task, "method": method, "point": point, "tried": settings}
            row |= {str(n): arrow.join(map(percent, pair)) for n, pair in means}
            rows.append(row | {"seeds": group["seed"].nunique()})
    columns = ["task", "method", "point", "tried", "seeds", *map(str, lengths)]
    return pd.DataFrame(rows, columns=columns, dtype=object).fillna("not run")


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order in which tasks, methods and presets are registered, then by seed."""
    order = {name: place for names in (TASKS, METHODS, PRESETS) for place, name in enumerate(names)}
    by = ["task", "method", "preset", "seed"]
    return table.sort_values(by, key=lambda column: column if column.name == "seed" else column.map(order))
