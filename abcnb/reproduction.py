"""The main job: train, calibrate, retrain and evaluate many experiments, several at a time.

Every worker is a process of one thread: on a laptop two small models train faster beside each other than one
after the other on two threads. Interrupted and called again, finished runs and evaluations are not repeated.
"""

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing.managers import SyncManager
from pathlib import Path

import torch
from tqdm import tqdm

from abcnb import results
from abcnb.carries import SAMPLES as CARRY_SAMPLES
from abcnb.experiments import Experiment, fit
from abcnb.methods import experiment, settings_of
from abcnb.paper import LENGTHS

MAIN_TASKS = (
    "parity",
    "addition",
    "n-by-1",
    "successor",
)  # the longest first, for two workers to end together
MAIN_METHODS = ("vanilla", "abs-place", "abc-places")

_heard = None


def _start_worker(steps_done) -> None:
    global _heard
    _heard = steps_done
    torch.set_num_threads(1)
    _end_with_parent()


def _end_with_parent() -> None:
    """Let this process end when its parent is gone: a killed sweep must not leave its workers training."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_one(
    wanted: Experiment, runs: Path, csv: Path, lengths: tuple[int, ...], samples: int, device: str
) -> tuple[str, list[tuple[int, float]]]:
    """Fit and evaluate one experiment; returns its name and the percent by length."""
    run = fit(wanted, runs, device, progress=False, listener=_heard.put)
    where = "cpu" if device == "auto" and not torch.cuda.is_available() else device
    where = "cuda" if where == "auto" else where
    rows, shares = [], []
    for length in lengths:
        score = run.evaluate(length, samples, device=where)
        rows.append(results.row(run, "random", score))
        shares.append((length, score.exact_match))
        hard = run.evaluate(length, min(CARRY_SAMPLES, samples), "carry", device=where)
        rows.append(results.row(run, "carry", hard))
    results.record(csv, rows)
    results.record(csv.with_name("learning.csv"), results.learning_rows(run))
    name = " ".join([wanted.task, wanted.method, f"seed {wanted.seed}", settings_of(wanted)]).strip()
    return f"{name}, {run.metrics['seconds']:.0f} s of training", shares


def run_all(
    wanted: Sequence[Experiment],
    runs: Path,
    csv: Path,
    lengths: tuple[int, ...] = LENGTHS,
    samples: int = 10_000,
    workers: int = 2,
    device: str = "auto",
) -> list[str]:
    """Fit and evaluate experiments; results land in the CSV as they come.

    Args:
        wanted: the experiments, those that others build on first.
        runs, csv: where runs and results go.
        lengths, samples: of the random test sets; the hard cases of `carry` are tested at the same lengths.
        workers: processes of one thread each.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        One line for each experiment that failed; the others went on.
    """
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    steps_done = manager.Queue()
    total = sum(e.training.steps for e in wanted)
    failures = []
    with (
        ProcessPoolExecutor(workers, context, _start_worker, (steps_done,)) as pool,
        tqdm(total=total, desc="steps", mininterval=2.0) as bar,
    ):
        jobs = {pool.submit(_run_one, e, runs, csv, lengths, samples, device): e for e in wanted}
        waiting, finished = set(jobs), 0
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=2.0, return_when=FIRST_COMPLETED)
                _drain(steps_done, bar)
                for job in done:
                    finished += 1
                    e = jobs[job]
                    if job.exception():
                        failures.append(f"{e.task} {e.method} seed {e.seed}: {job.exception()}")
                        bar.write(f"[{finished}/{len(wanted)}] failed: {failures[-1]}")
                        continue
                    name, shares = job.result()
                    text = "  ".join(f"{length}: {results.percent(share)}" for length, share in shares)
                    bar.write(f"[{finished}/{len(wanted)}] {name} | {text}")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def _drain(steps_done, bar: tqdm) -> None:
    while True:
        try:
            bar.update(steps_done.get_nowait())
        except queue.Empty:
            return


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
    failures = run_all(wanted, runs, csv, lengths, samples, workers, device)
    table = results.read(csv)
    table = table[table["run"].isin([e.digest for e in wanted])]
    if table.empty:
        return "nothing was measured", failures
    minutes = (time.monotonic() - started) / 60
    text = f"{results.tables(table)}\n\n{workers} workers, {minutes:.1f} minutes."
    return text, failures
