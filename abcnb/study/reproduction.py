"""The paper's main job: its methods on its tasks, measured beside published."""

import time
from pathlib import Path

from abcnb.study import results
from abcnb.study.engines import LocalEngine
from abcnb.study.methods import experiment
from abcnb.study.published import LENGTHS
from abcnb.study.schedule import run_all
from abcnb.testsets import HARD_SAMPLES

# The longest first, for two workers to end together.
MAIN_TASKS = ("parity", "addition", "n-by-1", "successor")
MAIN_METHODS = ("vanilla", "abs-place", "abc-places")


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
) -> tuple[str, list[str]]:
    """The paper's main job: the methods on the tasks, measured beside published.

    Returns:
        The table as Markdown, and a line for each failure.
    """
    started = time.monotonic()
    wanted = [
        experiment(task, method, preset, seed)
        for seed in seeds
        for method in methods  # Vanilla first: ABC calibrates it
        for task in tasks
    ]
    csv = reports / "results" / "accuracy.csv"
    hard = min(samples, HARD_SAMPLES)
    failures = run_all(wanted, runs, csv, lengths, samples, hard, LocalEngine(workers), device)
    table = results.read(csv)
    table = table[table["run"].isin([e.digest for e in wanted])]
    if table.empty:
        return "nothing was measured", failures
    minutes = (time.monotonic() - started) / 60
    text = f"{results.tables(table, lengths)}\n\n{workers} workers, {minutes:.1f} minutes."
    return text, failures
