"""One thread everywhere, and a few small trained models that many tests share."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from abcnb import pipeline
from abcnb.model.training import TrainingConfig, train
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, load_run, new_model, written_biases

torch.set_num_threads(1)
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """A folder of all processes that run these tests; `fit` lets one of them train what several ask for."""
    mine = tmp_path_factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


@pytest.fixture(scope="session")
def shared_runs(shared_folder) -> Path:
    """A folder of finished runs, not to be written into."""
    return shared_folder / "shared" / "runs"


@pytest.fixture(scope="session")
def vanilla_run(shared_runs):
    return fit(experiment("successor", "vanilla", "smoke"), shared_runs, "cpu", progress=False)


@pytest.fixture(scope="session")
def abc_run(shared_runs, vanilla_run):
    return fit(experiment("successor", "abc", "smoke"), shared_runs, "cpu", progress=False)


@pytest.fixture(scope="session")
def product_run(shared_runs):
    return fit(experiment("multiplication", "abc", "smoke"), shared_runs, "cpu", progress=False)


@pytest.fixture(scope="session")
def parity_run(shared_runs):
    return fit(experiment("parity", "abs", "smoke"), shared_runs, "cpu", progress=False)


@pytest.fixture(scope="session")
def addition_run(shared_runs):
    return fit(experiment("addition", "abc", "smoke"), shared_runs, "cpu", progress=False)


def copied(run: Run, folder: Path) -> Run:
    """A run and the plain model that it calibrates, if it does, in a folder of runs that may be written into."""
    for part in filter(None, (run.experiment, run.experiment.interpolation)):
        shutil.copytree(run.folder.with_name(part.digest), folder / part.digest, dirs_exist_ok=True)
    return load_run(folder / run.folder.name)


@pytest.fixture(scope="session")
def successors():
    """Successor with lines by hand after 0, 60 and 400 steps: (task, name -> model)."""
    wanted = experiment("successor", "abs", "smoke")
    models = {}
    for name, steps in (("untrained", 0), ("half-trained", 60), ("well-trained", 400)):
        models[name] = new_model(wanted, written_biases(wanted))
        if steps:
            config = TrainingConfig(
                steps=steps, batch_size=32, learning_rate=5e-3, warmup_steps=10,
                validate_every=1000, validation_samples=8,
            )  # fmt: skip
            train(models[name], wanted.data(), config, seed=0, progress=False)
    return wanted.get_task(), models


def status_of_child(work: Callable[[], object]) -> int:
    """Do some work in a process of its own, forked from this one; returns its status, or −n where signal n ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def small_pipeline(monkeypatch):
    """The README's functions with models and batches that train in no time, and lines found in what they learn."""
    monkeypatch.setattr(pipeline, "PLAIN", replace(pipeline.PLAIN, d_model=16, d_ff=16, heads=2))
    monkeypatch.setattr(pipeline, "HEADS_WITH_LINES", 4)
    for name in ("TRAINING", "RETRAINING"):
        training = replace(getattr(pipeline, name), batch_size=8, validation_samples=8)
        monkeypatch.setattr(pipeline, name, training)
    monkeypatch.setattr(pipeline, "CALIBRATION_SAMPLES", 64)
    monkeypatch.setattr(pipeline, "CALIBRATION_BATCHES", 4)
    monkeypatch.setattr(pipeline.calibrate, "__defaults__", (0.03, 0))  # untrained attention is spread evenly


@pytest.fixture
def small_machine(monkeypatch):
    """A machine of 16 GB, whatever this one has."""
    monkeypatch.setattr("abcnb.machine.devices.memory_of", lambda device: 16e9)


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """The command line in an empty folder: arguments to (exit status, stdout, stderr)."""
    from abcnb.__main__ import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["abcnb", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        written = capsys.readouterr()
        return end.value.code or 0, written.out, written.err

    return run


def assert_refused(outcome, *told):
    """Exit status 2 and one line that says what was expected and what came."""
    code, out, err = outcome
    assert code == 2, (code, out, err)
    assert out == ""
    assert len(err.splitlines()) == 1 and err.endswith("\n"), err
    for text in told:
        assert text in err
