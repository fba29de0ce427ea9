"""Runs many experiments: order, retries, progress, and results that go into the CSV as they come.

Called again, it repeats nothing that finished, and interrupted trainings resume from their last checkpoint. A job
that fails is tried once more, then listed with its log; the others go on."""

import sys
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from abcnb.machine.files import check_writable
from abcnb.model.evaluation import percent
from abcnb.study import results
from abcnb.study.engines import Ended, Engine, Job
from abcnb.study.experiments import Experiment
from abcnb.study.fitting import is_usable
from abcnb.study.runs import Run, check_lengths
from abcnb.study.settings import settings_of

ATTEMPTS = 2


def name_of(e: Experiment) -> str:
    """An experiment's name in messages on progress and failures."""
    return f"{e.task} {e.method} seed {e.seed} {settings_of(e)}".strip()


def run_all(
    wanted: results.Wanted, runs: Path, csv: Path, engine: Engine, device: str = "auto", fresh: bool = False
) -> list[str]:
    """Fit and evaluate experiments, those that others build on first; returns one line for each that failed.

    Scores go into the CSV, validations and lines into files beside it (`results.beside`). `fresh` retrains and
    remeasures what other code made. The engine is stopped at the end.
    """
    for e, tests in wanted.items():
        for test_set, length, samples in tests:
            check_lengths(e, [length], samples, test_set)
    jobs = [Job(e, runs, tuple(tests), device, fresh) for e, tests in wanted.items()]
    attempts: Counter[Job] = Counter()
    running, failures, failed = [], [], set()
    try:
        check_writable(csv.parent)  # fail before there are results if they could not be written
        for file in (csv, *results.beside(csv)):
            results.read(file)
        known = {job: rows for job in jobs if len(rows := job.known()) == len(job.tests)}
        if known:
            _record(csv, known)
        waiting = [job for job in jobs if job not in known]
        shown = {"unit": "run", "smoothing": 0, "mininterval": 10, "miniters": 0, "leave": False}
        with tqdm(total=len(jobs), initial=len(known), **shown) as bar:

            def over(end: Ended) -> None:
                if end.rows is None:
                    failures.append(f"{name_of(end.job.experiment)}: {end.problem} (log: {end.job.log})")
                if rows := end.rows or end.job.known():  # what was measured before a failure is not lost
                    _record(csv, {end.job: rows})
                bar.update()
                tqdm.write(f"[{len(jobs) - len(waiting) - len(running)}/{len(jobs)}] {_line(end)}", sys.stderr)

            while waiting or running:
                while len(running) < engine.slots and (job := _next(waiting, running)):
                    waiting.remove(job)
                    base = job.experiment.interpolation
                    if base and base.digest in failed:
                        over(Ended(job, None, f"the model that it builds on failed: {name_of(base)}"))
                        continue
                    attempts[job] += 1
                    running.append(job)
                    engine.start(job)
                bar.set_description_str(f"{len(running)} running, {len(waiting)} waiting", refresh=False)
                bar.update(0)
                for end in engine.ended(1.0) if running else ():
                    running.remove(end.job)
                    if end.rows is None and attempts[end.job] < ATTEMPTS:
                        tqdm.write(f"{name_of(end.job.experiment)}: {end.problem}; once more", sys.stderr)
                        waiting.insert(0, end.job)
                        continue
                    if end.rows is None and not is_usable(end.job.experiment, runs, fresh):
                        failed.add(end.job.experiment.digest)
                    over(end)
    finally:
        engine.stop()
    return failures


def _next(waiting: list[Job], running: list[Job]) -> Job | None:
    """The first job that need not wait for a model that another job is training or will train."""
    in_hand = {job.experiment.digest for job in running}
    in_hand |= {base.digest for job in running if (base := job.experiment.interpolation)}
    to_come = {job.experiment.digest for job in waiting} | in_hand
    for job in waiting:
        base = job.experiment.interpolation
        if job.experiment.digest in in_hand and not is_usable(job.experiment, job.runs, job.fresh):
            continue
        if base is None or base.digest not in to_come or is_usable(base, job.runs, job.fresh):
            return job
    return None


def _record(csv: Path, measured: dict[Job, list[dict]]) -> None:
    results.record(csv, [row for rows in measured.values() for row in rows])
    runs = [Run(job.runs / job.experiment.digest, job.experiment) for job in measured]
    for file, rows_of in zip(results.beside(csv), (results.learning_rows, results.line_rows), strict=True):
        if rows := [row for run in runs for row in rows_of(run)]:
            results.record(file, rows)


def _line(end: Ended) -> str:
    name = name_of(end.job.experiment)
    if end.rows is None:
        return f"{name} failed: {end.problem}"
    rows = [row for row in end.rows if row["test_set"] == end.rows[0]["test_set"]]
    shares = [f"{row['length']}: {percent(100 * row['correct'] / row['samples'])}" for row in rows]
    return f"{name}, {rows[0]['train_seconds']:.0f} s of training | {'  '.join(shares)}"
