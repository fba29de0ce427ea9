"""Where the runs of a sweep are carried out: in processes on this machine, or on a Ray cluster.

An engine starts jobs, says which have ended, and can be stopped; order and retries are up to the sweep. A job that
dies affects no other; its log says how far it got and why it ended."""

import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from abcnb.study import results
from abcnb.study.experiments import Experiment
from abcnb.study.fingerprint import fingerprint
from abcnb.study.fitting import fit, is_usable
from abcnb.study.runs import Run, Test


@dataclass(frozen=True)
class Job:
    """Fit one experiment and evaluate it."""

    experiment: Experiment
    runs: Path  # on a cluster, a folder that every machine sees
    tests: tuple[Test, ...]
    device: str
    fresh: bool  # train and measure again what other code produced

    @property
    def log(self) -> Path:
        """What the job printed, attempt after attempt; outside the run's folder, which `fresh` sets aside."""
        return self.runs / "logs" / f"{self.experiment.digest}.txt"

    def known(self) -> list[dict]:
        """The rows of its scores that are measured; none if the run is unfinished or damaged."""
        run = Run(self.runs / self.experiment.digest, self.experiment)
        if not is_usable(self.experiment, self.runs, self.fresh):
            return []
        try:
            _ = results.learning_rows(run), results.line_rows(run)  # raises if these are damaged
            scores = [(name, run.known_score(length, count, name)) for name, length, count in self.tests]
            known = [(name, s) for name, s in scores if s and (not self.fresh or s.code == fingerprint())]
            return [results.row(run, name, score) for name, score in known]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []  # a damaged file; doing the job says what is wrong with it

    def work(self) -> list[dict]:
        """Do the job on one thread; returns its rows of scores."""
        torch.set_num_threads(1)
        run = fit(self.experiment, self.runs, self.device, fresh=self.fresh)
        scores = [(name, run.evaluate(n, count, name, self.device, self.fresh)) for name, n, count in self.tests]
        return [results.row(run, name, score) for name, score in scores]


class Ended(NamedTuple):
    """A job that has ended: its rows, or what went wrong, in one line."""

    job: Job
    rows: list[dict] | None
    problem: str = ""


def _problem(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def _worked(job: Job) -> Ended:
    """Do a job, with its output and any traceback in its log."""
    try:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("a", buffering=1, encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            print(f"{time.strftime('%F %T')} started on {socket.gethostname()}, process {os.getpid()}")
            try:
                rows = job.work()
            except BaseException:
                traceback.print_exc()
                raise
            print(f"{time.strftime('%F %T')} finished")
        return Ended(job, rows)
    except Exception as error:
        return Ended(job, None, _problem(error))


def _process(job: Job, connection: Connection) -> None:
    def end_with_parent() -> None:  # a killed sweep must not leave its workers training
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    connection.send(_worked(job))


class LocalEngine:
    """Processes of one thread each: two small models train faster side by side than one on two threads."""

    def __init__(self, workers: int = 2):
        self.slots = workers
        # They are forked from a process that has imported this file and computed nothing: PyTorch is imported once.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._running: dict[Connection, tuple[Job, Any]] = {}

    def start(self, job: Job) -> None:
        """Begin a job in a process of its own."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_process, args=(job, theirs), daemon=True)
        # It must ignore Ctrl-C, which reaches every process of a terminal: the sweep decides.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        self._running[ours] = (job, process)

    def ended(self, seconds: float) -> list[Ended]:
        """The jobs that have ended, after waiting at most this long for one."""
        found = []
        for connection in wait(list(self._running), seconds):
            job, process = self._running.pop(connection)
            try:
                found.append(connection.recv())
            except (EOFError, OSError):  # it died, perhaps in the middle of a message
                process.join()
                found.append(Ended(job, None, f"its process ended with exit code {process.exitcode}"))
            process.join()
            connection.close()
        return found

    def stop(self) -> None:
        """End what is running; each run keeps its last checkpoint."""
        for _, process in self._running.values():
            process.terminate()
        for _, process in self._running.values():
            process.join()
        self._running.clear()


class RayEngine:
    """Tasks on a Ray cluster; raises ValueError if there is none, or no room in it.

    Args:
        address: of a running cluster, as `ray start --head` prints it, or `auto`; empty starts one of this machine.
        workers: jobs at a time; 0 is as many as the cluster has room for.
        gpu_share: the share of a GPU that a job takes; with 0 it still sees the GPUs, so give it the device `cpu`.
    """

    def __init__(self, address: str = "", workers: int = 0, gpu_share: float = 0.0):
        import ray  # here, since it is slow to load and not always installed

        self._ray = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a sweep tells nobody that it runs
        new = {} if address else {"num_cpus": workers or None, "include_dashboard": False}
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()) and address not in ("", "auto"):
            raise ValueError(f"expected auto or host:port as the address of a Ray cluster, got {address!r}")
        try:
            if host:  # where nothing answers, Ray itself would wait for two minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address or "local", log_to_driver=False, logging_level="error", **new)
        except Exception as error:  # where a machine is too busy to start Ray, it raises no kind of its own
            ray.shutdown()
            wanted = f"a Ray cluster at {address!r}" if address else "a Ray cluster of this machine"
            raise ValueError(f"expected {wanted}, got: {error}") from None
        places = sum(room(node["Resources"], gpu_share) for node in ray.nodes() if node["Alive"])
        if not places:
            has = {name: ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")}
            ray.shutdown()
            wanted = f"a CPU and {gpu_share:g} of a GPU for each run"
            raise ValueError(f"expected {wanted} in the Ray cluster, got {has}")
        self.slots = min(workers, places) if workers else places
        # max_retries=0: retries are up to the sweep, whatever the engine.
        self._task = ray.remote(num_cpus=1, num_gpus=gpu_share, max_retries=0)(_worked)
        self._running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        """Begin a job somewhere in the cluster."""
        self._running[self._task.remote(job)] = job

    def ended(self, seconds: float) -> list[Ended]:
        """The jobs that have ended, after waiting at most this long for one."""
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        found = []
        for reference in done:
            job = self._running.pop(reference)
            try:
                found.append(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:  # its worker, machine or memory is gone
                found.append(Ended(job, None, _problem(error)))
        return found

    def stop(self) -> None:
        """End what is running; each run keeps its last checkpoint. A cluster that already existed stays up."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()


def room(resources: dict[str, float], gpu_share: float) -> int:
    """How many jobs a machine has room for; the share of a GPU is of a single one."""
    cpus = int(resources.get("CPU", 0))
    return min(cpus, int(resources.get("GPU", 0)) * int(1 / gpu_share)) if gpu_share else cpus


Engine = LocalEngine | RayEngine


def open_engine(name: str = "local", workers: int = 0, address: str = "", gpu_share: float = 0.0) -> Engine:
    """An engine by its name; `workers` 0 means two processes, or as many jobs as the cluster has room for."""
    if name == "ray":
        return RayEngine(address, workers, gpu_share)
    if name != "local":
        raise ValueError(f"expected an engine among local, ray, got {name!r}")
    if address or gpu_share:
        raise ValueError("an address and a GPU share are for the engine 'ray', got them for 'local'")
    return LocalEngine(workers or 2)
