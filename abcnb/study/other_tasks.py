"""Tables of tasks that no method was chosen on: exact match by length, cost of training, and the lines found.

Source of the published scores: Delétang et al., Neural Networks and the Chomsky Hierarchy, ICLR 2023, Table 2, for a
Transformer with the best of five position encodings and of ten seeds. Only numbers that could be checked are here,
against that paper's text (cycle navigation) or the appendix of the Deltaformer paper, which repeats the others.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from abcnb.other_tasks.chomsky import CHOMSKY
from abcnb.other_tasks.huang import RANGE
from abcnb.study import results, views
from abcnb.study.tables import hardware_of, markdown, ranges
from abcnb.study.trial import FACTORS
from abcnb.tasks.strings import LONGEST
from abcnb.tasks.task import FURTHER, Task

SCORED = range(41, 501)  # the lengths over which the benchmark averages
SOLVED = 90  # percent, the benchmark's bar
TRANSFORMER = {"modular-arithmetic": 24.2, "parity-check": 52.0, "cycle-navigation": 61.9, "reverse-string": 62.3}
TRANSFORMER |= {"duplicate-string": 52.8, "odds-first": 52.8}
# At up to 50, 51 to 100 and 101 to 150 tokens.
IN_RANGES = {
    "huang-copy": (100, 25.55, 0),
    "huang-parity": (100, 82.95, 62.06),
    "huang-addition": (99.74, 26.78, 0),
}
VARIANT = "modular-arithmetic-brackets"  # without products, unlike theirs, so not counted
SHOWN = 3  # per task, lines to the input that move with the step


def written(task: Task) -> str:
    """A task's description: the first paragraph of its docstring."""
    return inspect.getdoc(type(task)).split("\n\n")[0].replace("\n", " ").replace("`", "").rstrip(".")


def lengths() -> list[int]:
    """The lengths of the tests: multiples of the training length."""
    return [factor * LONGEST for factor in FACTORS]


def last_attempts(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores or lines from each seed's longest training of a plain model, with which `trial.attempt` ends."""
    steps = rows["settings"].str.extract(r"training\.steps=(\d+)", expand=False).astype(float).fillna(0)
    return rows[steps == steps.groupby([rows["task"], rows["seed"]]).transform("max")]


def table(scores: pd.DataFrame, found: pd.DataFrame, names: Sequence[str], at: Sequence[int] = ()) -> pd.DataFrame:
    """One row for each task: its plain model and `abc` by length, the benchmark's score, steps, minutes, lines.

    The score is exact match, averaged over those of the benchmark's lengths that were tested. The benchmark itself
    counts correct tokens of the answer, which gives at least as much.
    """
    rows = []
    for name in names:
        mine = last_attempts(scores[scores["task"] == name]).assign(exact=views.exact_match)
        seeds = mine["seed"][mine["method"] == "abc"].unique()
        mine, row = mine[mine["seed"].isin(seeds)], {"task": name, "seeds": len(seeds)}
        for method in ("vanilla", "abc"):
            of_method = mine[mine["method"] == method]
            cells = [views.cell(of_method["exact"][of_method["length"] == n]) for n in at or lengths()]
            row[f"`{method}`"] = "not run" if set(cells) == {"not run"} else " / ".join(cells)
        if name in {task.name for task in CHOMSKY}:
            long = mine[(mine["method"] == "abc") & mine["length"].isin(SCORED)]
            row["41 to 500"] = views.cell(long.groupby("seed")["exact"].mean())
            row["their Transformer"] = TRANSFORMER.get(name, "not checked")
        if name in IN_RANGES:
            row["their Transformer"] = " / ".join(f"{number:g}" for number in IN_RANGES[name])
        rows.append(row | _training(mine) | {"lines": _lines(found[found["task"] == name])})
    return pd.DataFrame(rows).fillna("")


def in_ranges(scores: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """The second benchmark's tasks, at its lengths, beside its authors' scores."""
    return table(scores, found, list(IN_RANGES), [RANGE, 2 * RANGE, 3 * RANGE])


def _training(mine: pd.DataFrame) -> dict[str, str]:
    """Steps of the plain model, and minutes of both trainings, each for its fastest seed."""
    if set(mine["method"]) != {"vanilla", "abc"}:
        return {"plain steps": "not run", "minutes": "not run"}
    minutes = mine.groupby("method")["train_seconds"].min().sum() / 60
    steps = mine[mine["method"] == "vanilla"].groupby("train_steps")["seed"].unique()
    some = [
        f"{n:,}" + f" (seed{'s' * (len(seeds) > 1)} {ranges(set(seeds))})" * (len(steps) > 1)
        for n, seeds in steps.items()
    ]
    return {"plain steps": ", ".join(some), "minutes": f"{minutes:.1f}"}


def _lines(found: pd.DataFrame) -> str:
    if found.empty:
        return "not run"
    found = last_attempts(found)
    first = found[found["seed"] == found["seed"].min()]
    first = first[first["attention"] == "cross"] if (first["attention"] == "cross").any() else first
    working = first["kind"].str.endswith(" end") | (first["line"] == first["kind"] + "[row, place-1]")  # in rows
    first = first[~working & first["line"].str.contains("place|row")]
    first = first.sort_values("share", ascending=False, kind="stable").drop_duplicates("line")
    some = ", ".join(f"{row.line} {row.share:.2f}" for row in first[:SHOWN].itertuples())
    return f"{views.span(found.groupby('seed').size())}: {some}"


def page(reports: Path) -> str:
    """All tables as Markdown: the benchmark's tasks, a second benchmark's, and further ones."""
    scores, found = (
        results.read(reports / "results" / name) for name in ("other-tasks.csv", "other-tasks-lines.csv")
    )
    benchmark = [task.name for task in CHOMSKY]
    long = scores.query("method == 'abc' and length in @SCORED and task in @benchmark and task != @VARIANT")
    first, last = (
        tried.assign(exact=views.exact_match).groupby(["task", "seed"])["exact"].mean().groupby("task").min()
        >= SOLVED
        for tried in (long[long["settings"] == ""], last_attempts(long))
    )
    most = scores["samples"].max()
    seeds, hardware = ranges(set(scores["seed"])), hardware_of(scores)
    made = f"Preset `laptop`, seeds {seeds}, at most {most:,} samples per length, on {hardware}."
    solved = (
        f"Of the benchmark's fifteen tasks {last.sum()} are solved on every seed by its bar of {SOLVED}%, "
        f"{first.sum()} of them without longer training of the plain model; `{VARIANT}`, here without products, is not "
        "counted."
    )
    further = [name for name in FURTHER if name not in (*benchmark, *IN_RANGES)]
    tables = [table(scores, found, benchmark), in_ranges(scores, found), table(scores, found, further)]
    return "\n\n".join([made, *([solved] if len(first) else []), *map(markdown, tables)])
