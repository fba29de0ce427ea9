"""The running of many experiments: order, retries, progress, and results that land in the CSV as they come.

Interrupted and called again, finished runs and evaluations are not repeated and interrupted trainings go on from
their last checkpoint. A job that fails is tried once more and then listed with its log; the others go on.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from abcnb.evaluation import percent
from abcnb.files import check_writable
from abcnb.study import results
from abcnb.study.engines import Ended, Engine, Job
from abcnb.study.experiments import Experiment
from abcnb.study.fitting import is_usable, steps_to_do
from abcnb.study.methods import settings_of
from abcnb.study.runs import Run, check_lengths

ATTEMPTS = 2


def name_of(experiment: Experiment) -> str:
    """How an experiment is called in progress and failures."""
    return " ".join(
        [experiment.task, experiment.method, f"seed {experiment.seed}", settings_of(experiment)]
    ).strip()


def _steps(job: Job, planned: set[str]) -> int:
    """Optimizer steps that a job has to do; a model that another job trains, by its digest, is not its own."""
    e, base = job.experiment, job.experiment.interpolation
    elsewhere = steps_to_do(base, job.runs, job.fresh) if base and base.digest in planned else 0
    return max(0, steps_to_do(e, job.runs, job.fresh) - elsewhere)


def _work(job: Job, steps: int) -> float:
    """Tokens that a job reads, a token of training counted three times: backward costs twice the forward pass."""
    e, task = job.experiment, job.experiment.get_task()
    training = 3 * steps * e.training.batch_size * e.stream.rows
    return training + sum(count * task.outputs_at(length) for _, length, count in job.tests)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"


class _Progress:
    """What is known of the jobs, as the table that is shown."""

    def __init__(self, jobs: Sequence[Job], known: Sequence[Job]):
        planned = {job.experiment.digest for job in jobs}
        self.to_do = {job: _steps(job, planned) for job in jobs if job not in known}
        self.work = {job: _work(job, steps) for job, steps in self.to_do.items()}
        self.total, self.work_left, self.work_done = len(jobs), sum(self.work.values()), 0.0
        self.done = self.before = len(known)
        self.failed = 0
        self.running: dict[Job, float] = {}  # job -> when it started
        self.steps: dict[Job, int] = {}
        self._started = time.monotonic()

    def drop(self, job: Job) -> None:
        """A job that will not run: its work is neither to do nor done."""
        self.work_left -= self.work[job]
        self.work[job] = 0.0

    def time_left(self) -> str:
        partial = sum(
            self.work[job] * min(1.0, self.steps.get(job, 0) / max(1, self.to_do[job])) / 2 for job in self.running
        )  # half: the tests of a running job are still to come
        if self.done + self.failed == self.total:
            return "nothing left"
        if not self.work_done + partial:
            return "time left not known yet"
        rate = (self.work_done + partial) / (time.monotonic() - self._started)
        return f"about {_duration((self.work_left - partial) / rate)} left"

    def summary(self) -> str:
        waiting = self.total - self.done - self.failed - len(self.running)
        before = f" ({self.before} from before)" if self.before else ""
        return (
            f"{self.done} done{before}, {len(self.running)} running, {waiting} waiting, {self.failed} failed, "
            f"{self.time_left()}"
        )

    def __rich__(self) -> Table:
        table = Table(title=self.summary(), title_justify="left")
        for column, side in (("running", "left"), ("steps", "right"), ("minutes", "right")):
            table.add_column(column, justify=side)
        for job, since in self.running.items():
            stage = f"{min(self.steps.get(job, 0), self.to_do[job]):,} of {self.to_do[job]:,}"
            table.add_row(Text(name_of(job.experiment)), stage, f"{(time.monotonic() - since) / 60:.1f}")
        return table


def run_all(
    wanted: Sequence[Experiment],
    runs: Path,
    csv: Path,
    tests: Sequence[tuple[str, int, int]],
    engine: Engine,
    device: str = "auto",
    fresh: bool = False,
) -> list[str]:
    """Fit and evaluate experiments; results land in the CSV as they come.

    Args:
        wanted: the experiments; one that another builds on is done before that other starts.
        runs, csv: where runs and scores go; the validations go into the file beside it (`results.learning_file`).
        tests: (test set, length, samples) of every evaluation of each.
        engine: what runs them; stopped at the end.
        device: `auto`, `cpu` or `cuda`.
        fresh: train and measure again what other code than this did.

    Returns:
        One line for each experiment that failed twice.
    """
    if not tests:
        raise ValueError("expected at least one test, got none")
    for e in wanted:
        for test_set, length, samples in tests:
            check_lengths(e, [length], samples, test_set)
    jobs = [Job(e, runs, tuple(tests), device, fresh) for e in dict.fromkeys(wanted)]
    attempts: dict[Job, int] = {}
    failures: list[str] = []
    failed: set[str] = set()
    console = Console(stderr=True, markup=False, highlight=False)
    try:
        check_writable(csv.parent)  # what cannot take the results is refused before there are any
        results.read(csv)
        results.read(results.learning_file(csv), results.VALIDATIONS)
        measured = {job: job.known() for job in jobs}
        known = [job for job in jobs if len(measured[job]) == len(job.tests)]
        waiting = [job for job in jobs if job not in known]
        progress = _Progress(jobs, known)
        if known:
            _record(csv, {job: measured[job] for job in known})
        with Live(progress, console=console, refresh_per_second=1, transient=True):
            while waiting or progress.running:
                while len(progress.running) < engine.slots and (job := _next(waiting, progress.running)):
                    waiting.remove(job)
                    base = job.experiment.interpolation
                    if base and base.digest in failed:
                        end = Ended(job, None, f"the model that it builds on failed: {name_of(base)}")
                        progress.drop(job)
                        _count(end, progress, csv, failures)
                        console.print(_line(end, progress), soft_wrap=True)
                        continue
                    attempts[job] = attempts.get(job, 0) + 1
                    progress.steps.pop(job, None)
                    progress.running[job] = time.monotonic()
                    engine.start(job)
                for end in engine.ended(1.0) if progress.running else ():
                    del progress.running[end.job]
                    if end.rows is None and attempts[end.job] < ATTEMPTS:
                        console.print(f"{name_of(end.job.experiment)}: {end.problem}; once more", soft_wrap=True)
                        waiting.insert(0, end.job)
                        continue
                    if end.rows is None and not _is_trained(end.job, end.job.experiment):
                        failed.add(end.job.experiment.digest)
                    _count(end, progress, csv, failures)
                    console.print(_line(end, progress), soft_wrap=True)
                for job, steps in engine.steps().items():
                    progress.steps[job] = progress.steps.get(job, 0) + steps
    finally:
        engine.stop()
    return failures


def _is_trained(job: Job, experiment: Experiment) -> bool:
    return is_usable(experiment, job.runs, job.fresh)


def _next(waiting: list[Job], running: dict[Job, float]) -> Job | None:
    """The first job that would not wait for a model that another job trains now or will train."""
    in_hand = {job.experiment.digest for job in running}
    in_hand |= {base.digest for job in running if (base := job.experiment.interpolation)}
    to_come = {job.experiment.digest for job in waiting} | in_hand
    for job in waiting:
        base = job.experiment.interpolation
        if job.experiment.digest in in_hand and not _is_trained(job, job.experiment):
            continue
        if base is None or base.digest not in to_come or _is_trained(job, base):
            return job
    return None


def _count(end: Ended, progress: _Progress, csv: Path, failures: list[str]) -> None:
    progress.work_left -= progress.work[end.job]
    progress.work_done += progress.work[end.job]
    if end.rows is None:
        if measured := end.job.known():  # what could be measured is not lost
            _record(csv, {end.job: measured})
        progress.failed += 1
        failures.append(f"{name_of(end.job.experiment)}: {end.problem} (log: {end.job.log})")
    else:
        progress.done += 1
        _record(csv, {end.job: end.rows})


def _record(csv: Path, measured: dict[Job, list[dict]]) -> None:
    results.record(csv, [row for rows in measured.values() for row in rows])
    runs = [Run(job.runs / job.experiment.digest, job.experiment) for job in measured]
    validations = [row for run in runs for row in results.learning_rows(run)]
    results.record(results.learning_file(csv), validations, results.VALIDATIONS)


def _line(end: Ended, progress: _Progress) -> str:
    head = f"[{progress.done + progress.failed}/{progress.total}] {name_of(end.job.experiment)}"
    if end.rows is None:
        return f"{head} failed: {end.problem}; {progress.time_left()}"
    test_set = end.rows[0]["test_set"]
    shares = [
        f"{row['length']}: {percent(100 * row['correct'] / row['samples'])}"
        for row in end.rows
        if row["test_set"] == test_set
    ]
    seconds = end.rows[0]["train_seconds"]
    return f"{head}, {seconds:.0f} s of training | {'  '.join(shares)} | {progress.time_left()}"
