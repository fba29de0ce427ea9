"""The tables of the measured results, as Markdown: for the README, the results page and the reproduction."""

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

import pandas as pd

from abcnb.model.evaluation import percent
from abcnb.study import views
from abcnb.study.fingerprint import older
from abcnb.study.methods import architecture_of
from abcnb.study.published import LENGTHS, OTHER_MODELS, PUBLISHED, published
from abcnb.study.results import CORRECT
from abcnb.tasks.task import get_task

WORST = {"hard": "worst kind of hard cases", "padded": "worst padding"}  # for the test sets that have kinds
COMPLETE, COMPLETE_AT = 99, 60  # percent exact match, and the digits of the test
LONGEST = {"nested": 10}  # for a task whose longest test is not the paper's: a depth
IN_SHORT = (*PUBLISHED, "multiplication", "many-addition", "nested")  # the tasks of the short table
PRESETS_SHOWN = ("laptop", "decoder-only")  # in the short table
PROVED_WITH = dict.fromkeys(IN_SHORT[-3:], "look_once=True")  # settings, where the default's models are refused
CLOSE = 1.0  # percentage points between measured and published that still count as the same


def three_ways(here: pd.DataFrame, committed: pd.DataFrame, lengths: Sequence[int]) -> str:
    """Rows of accuracy.csv as Markdown: measured here, committed for the same runs, and published."""
    parts, sides = [made_with(here)], {"here": here, "committed": committed}
    for test_set, title in views.TITLES.items():
        shown, rows = here[here["test_set"] == test_set], []
        for (task, method, preset), _ in shown.groupby(["task", "method", "preset"], sort=False):
            for name, side in sides.items():
                mine = side.query("test_set == @test_set and task == @task and method == @method")
                cells = [views.cell(views.exact_match(mine[mine["length"] == n])) for n in lengths]
                rows.append([task, method, name, *cells])
            known = [published(task, method, n, preset) for n in lengths]
            if test_set == "random" and set(known) != {None}:
                rows.append([task, method, "published", *("" if n is None else f"{n:g}" for n in known)])
        if rows:
            table = pd.DataFrame(rows, columns=["task", "method", "measured", *map(str, lengths)])
            parts += [f"**{title[0].upper()}{title[1:]}**, percent exact match by length:", markdown(table)]
    return "\n\n".join(parts)


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown."""
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in table.itertuples(index=False)])


def comparison(table: pd.DataFrame, lengths: Sequence[int], test_set: str = "random") -> str:
    """`beside_published` for one test set, as Markdown."""
    shown = views.beside_published(table[table["test_set"] == test_set], lengths, test_set == "random")
    return markdown(shown.reset_index().replace({"seeds": {1: "one seed"}}))


def overview(table: pd.DataFrame, certificates: pd.DataFrame) -> str:
    """One row for each task and architecture, at the paper's longest test (60 digits), or `LONGEST` for its tasks.

    The best rival is the best over all settings tried. For `abc` there are also hard cases, how many models were
    proved right at every length once pruned, and the paper's result for its ABC.
    """
    at = table["task"].map(lambda task: LONGEST.get(task, LENGTHS[-1]))
    rivals = table[(table["length"] <= at) & (table["test_set"] == "random")]
    rivals = rivals[~rivals["method"].str.match("ab[sc]|vanilla")]
    shown = table["task"].isin(IN_SHORT) & table["preset"].isin(PRESETS_SHOWN) & (table["length"] == at)
    table, rows = views.in_order(table[shown]), []
    for (task, preset), group in table.groupby(["task", "preset"], sort=False):
        settings, others = PROVED_WITH.get(task, ""), rivals.query("task == @task and preset == @preset")
        shown = group[group["settings"] == ""]
        in_random, in_hard = (shown[shown["test_set"] == name] for name in ("random", "hard"))
        if in_random.empty:
            continue
        known = published(task, "abc", group["length"].iloc[0], preset)
        found = {"task": task, "architecture": architecture_of(task, preset)}
        found |= {"vanilla": _counted(in_random, "vanilla"), "best rival": _best_rival(others, at[group.index[0]])}
        found |= {f"`{name}`": _counted(in_random, name) for name in ("abs", "abc")}
        of_abc = "task == @task and preset == @preset and method == 'abc' and settings == @settings"
        tried = certificates.query(f"{of_abc} and pruned == 1")
        right = tried[tried["outcome"] == CORRECT]["seed"].nunique()
        proved = f"{right} of {tried['seed'].nunique()}" if len(tried) else "not run"
        proved += ", one look" * bool(settings and len(tried))
        found |= {"`abc`, hard": _counted(in_hard, "abc"), "`abc`, pruned and proved": proved}
        rows.append(found | {"paper's ABC": "" if known is None else f"{known:g}"})
    if not rows:
        return ""
    text = (
        f"Percent exact match at {LENGTHS[-1]} digits ({LENGTHS[-1]} × {LENGTHS[-1]}, as many "
        f"terms; lists {LONGEST['nested']} deep), of at most {table['samples'].max():,} samples (fewer in "
        f"rows), on {hardware_of(table)}, presets `laptop` and `decoder-only` (one stream); the mean over seeds (how "
        "many), and the worst if it differs. * marks rivals with non-default settings. Hard: long carries and "
        "the like. Pruned and proved: of the seeds tried, those right at every length once needless heads are cut."
    )
    return f"{_with_note(text, table)}\n\n{markdown(pd.DataFrame(rows))}"


def _with_note(text: str, rows: pd.DataFrame) -> str:
    """A text, with a note if rows come from other code."""
    return " ".join(filter(None, [text, older(set(rows["code"]), "`--fresh`", "these rows")]))


def _counted(rows: pd.DataFrame, method: str) -> str:
    mine = rows[rows["method"] == method]
    return f"{views.cell(views.exact_match(mine))} ({mine['seed'].nunique()})" if len(mine) else "not run"


def _best_rival(rivals: pd.DataFrame, length: int) -> str:
    """The rival with the highest mean at a length, or at the longest one tried if none was tried there."""
    longest = rivals["length"].max()
    rivals = rivals[rivals["length"] == longest].assign(exact=views.exact_match)
    means = rivals.groupby(["method", "settings"], sort=False)["exact"].mean()
    where = "" if longest == length else f" at {longest}"
    if means.empty or not means.max():
        return "not run" if means.empty else f"none right{where}"
    method, settings = means.idxmax()
    return f"{method}{'*' if settings else ''} {_counted(rivals[rivals['settings'] == settings], method)}{where}"


def long_tables(table: pd.DataFrame) -> str:
    """Everything measured beside what was published, as Markdown, with what a reader needs to trust it.

    Rows with changed settings are left out. Tables comparable with the paper's have its lengths, the others all.
    """
    table, parts = views.in_order(table[table["settings"] == ""]), []
    for (in_rows, preset), group in table.groupby([_is_in_rows(table), "preset"], sort=False):
        beside_the_paper, complete = _is_of_the_papers_models(group), completeness(group)
        rows_of = "Outputs in rows: products, sums of many terms, lists in lists"
        parts += [f"## {rows_of if in_rows else f'Preset `{preset}`'}", made_with(group)]
        if beside_the_paper:
            parts.append("### Which of the paper's rows reproduce")
            parts += [f"Within {CLOSE:g} point at every published length.", markdown(reproduction(group))]
        if len(complete):
            parts += [
                "### On how many seeds a method is complete",
                f"With at least {COMPLETE}% at {COMPLETE_AT} digits (lists: {LONGEST['nested']} deep). Methods that "
                f"are complete on no seed are left out. {seed_intervals(complete)}",
                markdown(complete),
            ]
        for test_set, title in views.TITLES.items():
            shown = group[group["test_set"] == test_set]
            if beside_the_paper:
                shown = shown[shown["length"].isin(LENGTHS)]
            if shown.empty:
                continue
            parts.append(f"### By length, {title}")
            # In rows each task has lengths of its own.
            for _, rows in shown.groupby("task" if in_rows else "preset", sort=False):
                parts.append(comparison(rows, sorted(set(rows["length"])), test_set))
    return "\n\n".join(parts)


def completeness(table: pd.DataFrame) -> pd.DataFrame:
    """On how many seeds each method is complete, on each test set, and its worst kind on any seed.

    Methods that are complete on no seed of a task are left out. Source of what is complete: paper, Definition 1.1.
    """
    at, rows = table[table["length"] == table["task"].map(lambda task: LONGEST.get(task, COMPLETE_AT))], []
    at = at.assign(complete=100 * at["correct"] >= COMPLETE * at["samples"])
    at = at[at.groupby(["task", "method"])["complete"].transform("any")]
    for (task, method), group in at.groupby(["task", "method"], sort=False):
        row = {"task": task, "method": method}
        for test_set in (name for name in views.TITLES if name in set(at["test_set"])):
            seeds = group["complete"][group["test_set"] == test_set]
            row[views.TITLES[test_set]] = f"{seeds.sum()} of {len(seeds)}" if len(seeds) else "not run"
        for test_set, title in WORST.items():
            known = group[(group["test_set"] == test_set) & (group["worst_kind"] != "")]
            if len(known):
                exact = known["worst_percent"].astype(float)
                kind = re.sub(r"\ball$", "every digit the largest", known["worst_kind"].iloc[exact.argmin()])
                row[title] = "100 in each" if exact.min() == 100 else f"{kind}: {percent(exact.min())}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("not known")


def seed_intervals(complete: pd.DataFrame) -> str:
    """The exact 95% interval of the share of seeds behind each count in a table of `completeness`, in a sentence."""
    from scipy.stats import binomtest  # here, since it is slow to load

    counts = {tuple(map(int, found)) for found in re.findall(r"\b(\d+) of (\d+)\b", complete.to_csv())}
    told = []
    for right, seeds in sorted(counts, key=lambda count: count[::-1]):
        low, high = binomtest(right, seeds).proportion_ci(method="exact")
        told.append(f"{right} of {seeds}, {100 * low:.1f} to {100 * high:.1f}".replace(".0", ""))
    return f"Exact 95% intervals (Clopper and Pearson) of the share of seeds, in percent: {'; '.join(told)}."


def reproduction(table: pd.DataFrame) -> pd.DataFrame:
    """Which of the paper's rows reproduce here: one row per task, its methods grouped by whether they do.

    A row reproduces if the mean over seeds is within `CLOSE` points of every published number. One that misses any
    is shown with its widest gap; one that misses none, but was not run at every length, counts as not run.
    """
    random, rows = table[table["test_set"] == "random"].assign(exact=views.exact_match), []
    means = random.groupby(["task", "method", "length"])["exact"].mean()
    for task, methods in PUBLISHED.items():
        found: dict[str, list[str]] = {"reproduces": [], "does not": [], "not run": []}
        for method, numbers in methods.items():
            gaps, known = [], {n: number for n, number in zip(LENGTHS, numbers, strict=True) if number is not None}
            for length, number in known.items():
                if (mean := means.get((task, method, length))) is not None:
                    gaps.append((abs(mean - number), f"{percent(mean)} at {length}, published {number:g}"))
            if gaps and max(gaps)[0] > CLOSE:
                found["does not"].append(f"{method} ({max(gaps)[1]})")
            else:
                found["reproduces" if len(gaps) == len(known) else "not run"].append(method)
        rows.append({"task": task} | {name: ", ".join(cell) or "–" for name, cell in found.items()})
    return pd.DataFrame(rows)


def _is_of_the_papers_models(group: pd.DataFrame) -> bool:
    return group["preset"].iloc[0] not in OTHER_MODELS and not _is_in_rows(group).any()


def _is_in_rows(table: pd.DataFrame) -> pd.Series:
    return table["task"].map(lambda name: get_task(name).in_rows)


def made_with(group: pd.DataFrame) -> str:
    """One line with a group's preset, seeds, samples and hardware, and a note if its rows come from other code."""
    beside = "; published numbers in parentheses" if _is_of_the_papers_models(group) else ""
    text = (
        f"Preset `{group['preset'].iloc[0]}`, seeds {ranges(set(group['seed']))}, at most "
        f"{group['samples'].max():,} samples per length, on {hardware_of(group)}. "
        f"Percent exact match over the whole output{beside}."
    )
    return _with_note(text, group)


def hardware_of(rows: pd.DataFrame) -> str:
    """The hardware that rows were measured on, in words."""
    names, thread = rows["hardware"], ", 1 thread(s)"
    alike = names.str.endswith(thread).all()
    told = " or ".join(sorted(set(names.str.removesuffix(thread) if alike else names)))
    return escape(told) + (", one thread" if alike else "")


def ranges(seeds: set[int]) -> str:
    """Numbers as text: three or more consecutive ones as `0 to 4`."""
    in_a_row = groupby(enumerate(sorted(seeds)), lambda numbered: numbered[1] - numbered[0])
    runs = [[seed for _, seed in run] for _, run in in_a_row]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


TABLE_BEGINS, TABLE_ENDS = "<!-- table: python -m abcnb table -->", "<!-- end of table -->"


def with_table(text: str, document: Path) -> str:
    """A document's text with what is between its table marks replaced; ValueError if there are none."""
    try:
        before = document.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"expected a document to put a table into, got {document}: {error.strerror}") from None
    inside = f"{TABLE_BEGINS}\n{text}\n{TABLE_ENDS}"
    after, found = re.subn(f"(?s){TABLE_BEGINS}.*?{TABLE_ENDS}", lambda _: inside, before, count=1)
    if not found:
        raise ValueError(f"expected the marks {TABLE_BEGINS} and {TABLE_ENDS} in {document}")
    return after
