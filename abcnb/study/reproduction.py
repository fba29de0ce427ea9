"""The paper's main job: its methods on its tasks, measured here beside what is committed and what was published.

What is measured lands beside the runs, `runs/results/accuracy.csv`, and never in the committed files.
"""

import time
from itertools import product
from pathlib import Path

from abcnb.study import results, tables, views
from abcnb.study.engines import LocalEngine
from abcnb.study.methods import experiment
from abcnb.study.published import LENGTHS
from abcnb.study.runs import evaluations_of
from abcnb.study.schedule import run_all
from abcnb.tasks.testsets import HARD_SAMPLES

# The longest first, for two workers to end together.
MAIN_TASKS = ("parity", "addition", "n-by-1", "successor")
MAIN_METHODS = ("vanilla", "abs", "abc")


def reproduce(
    preset: str,
    runs: Path,
    reports: Path,
    seeds: tuple[int, ...] = (0,),
    tasks: tuple[str, ...] = MAIN_TASKS,
    methods: tuple[str, ...] = MAIN_METHODS,
    samples: int = 10_000,
    workers: int = 2,
    device: str = "auto",
    lengths: tuple[int, ...] = LENGTHS,
    fresh: bool = False,
) -> tuple[str, list[str]]:
    """The methods on the tasks, from nothing: the table as Markdown, and a line for each failure.

    `reports` is read only; what is measured goes into `results/` of `runs`.
    """
    started = time.monotonic()
    names = product(seeds, methods, tasks)  # Vanilla first: ABC calibrates it
    wanted = [experiment(task, method, preset, seed) for seed, method, task in names]
    csv, tests = runs / "results" / "accuracy.csv", evaluations_of(lengths, samples, min(samples, HARD_SAMPLES))
    failures = run_all(dict.fromkeys(wanted, tests), runs, csv, LocalEngine(workers), device, fresh)
    digests = [e.digest for e in wanted]
    both = (results.read(file) for file in (csv, reports / "results" / "accuracy.csv"))
    here, committed = (table[table["run"].isin(digests)] for table in both)
    if here.empty:
        return "nothing was measured", failures
    minutes = (time.monotonic() - started) / 60
    text = tables.three_ways(views.in_order(here), committed, lengths)
    return f"{text}\n\n{workers} workers, {minutes:.1f} minutes. Rows: {csv}", failures
