"""Sweeps for real: processes and a Ray cluster, workers killed in the middle, Ctrl-C."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest

from abcnb.study import results
from abcnb.study.engines import Ended, LocalEngine, open_engine, room
from abcnb.study.methods import experiment
from abcnb.study.results import read
from abcnb.study.runs import Run
from abcnb.study.schedule import run_all
from abcnb.study.settings import with_settings
from abcnb.study.sweep import read_sweep
from tests.conftest import assert_refused, copied
from tests.inline import InlineEngine

# Four runs: ABC waits for its Vanilla.
FOUR = """
lengths = [3, 6]
samples = 50
hard_samples = 50

[[grid]]
tasks = ["successor", "parity"]
methods = ["abc", "vanilla"]
presets = ["smoke"]
"""
SUCCESSOR = FOUR.replace(', "parity"', "")
EIGHT = FOUR + "seeds = [0, 1]\n"
THREE_DIGITS = [("random", 3, 20), ("hard", 3, 20)]


def each(experiments, tests=THREE_DIGITS):
    return dict.fromkeys(experiments, tuple(tests))


LONG = """
[[grid]]
tasks = ["addition"]
methods = ["vanilla"]
presets = ["smoke"]
overrides = [["training.steps=1000000"]]
"""
RAY = pytest.mark.attack  # it does not start where the machine is as busy as the fast tests keep it
MEASURED = ["task", "method", "seed", "test_set", "length", "samples", "correct", "wrong_digits", "run"]


def sweep_command(tmp_path, text, *options):
    spec = tmp_path / "sweep.toml"
    spec.write_text(text)
    command = [sys.executable, "-m", "abcnb", "sweep", str(spec), "--device", "cpu", *options]
    return [*command, "--runs", str(tmp_path / "runs"), "--reports", str(tmp_path / "reports")]


def measured(folder) -> pd.DataFrame:
    table = read(folder / "reports" / "results" / "accuracy.csv")
    return table[MEASURED].reset_index(drop=True)


def wait_for(condition, what, seconds=300):
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return found


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def logged_processes(folder):
    """Process numbers of the jobs that began and did not finish, from their logs."""
    logs = [log.read_text() for log in folder.glob("runs/logs/*.txt")]
    begun = [log.rpartition("process ")[2].split() for log in logs if "finished" not in log]
    return [int(words[0]) for words in begun if words]


def sweep_here(folder):
    csv = folder / "reports" / "results" / "accuracy.csv"
    return run_all(read_sweep(folder / "sweep.toml")[0], folder / "runs", csv, InlineEngine(), "cpu")


@pytest.fixture(scope="module")
def serial(tmp_path_factory, abc_run):
    """The four runs one after the other, in this process; those of Successor are there."""
    folder = tmp_path_factory.mktemp("serial")
    (folder / "sweep.toml").write_text(FOUR)
    copied(abc_run, folder / "runs")
    assert sweep_here(folder) == []
    table = measured(folder)
    assert len(table) == 4 * 2 * 2 and table["run"].nunique() == 4
    return folder, table


def of_successor(serial):
    return serial[1].query("task == 'successor'").reset_index(drop=True)


def test_a_finished_sweep_is_not_repeated(serial):
    folder, table = serial
    before = {file: file.stat().st_mtime for file in folder.glob("runs/*/*.safetensors")}
    (folder / "reports" / "results" / "accuracy.csv").unlink()
    assert sweep_here(folder) == []
    pd.testing.assert_frame_equal(measured(folder), table)
    assert {file: file.stat().st_mtime for file in folder.glob("runs/*/*.safetensors")} == before


@pytest.mark.parametrize(
    "engine, workers",
    [("local", 1), pytest.param("local", 2, marks=pytest.mark.slow), pytest.param("ray", 2, marks=RAY)],
)
def test_a_killed_worker_is_replaced_and_all_runs_finish(engine, workers, serial, tmp_path):
    """One is killed in the middle of a training: the CSV equals the serial one."""
    if engine == "ray":
        pytest.importorskip("ray")
    text, rows = (FOUR, serial[1]) if workers == 2 else (SUCCESSOR, of_successor(serial))
    command = sweep_command(tmp_path, text, "--engine", engine, "--workers", str(workers))
    sweep = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        victim = wait_for(lambda: logged_processes(tmp_path), "a job to begin")[0]
        os.kill(victim, signal.SIGKILL)
        _, errors = sweep.communicate(timeout=300)
    finally:
        sweep.kill()
    assert sweep.returncode == 0, errors
    assert "once more" in errors
    pd.testing.assert_frame_equal(measured(tmp_path), rows)
    attempts = [log.read_text().count("started") for log in tmp_path.glob("runs/logs/*.txt")]
    assert sorted(attempts) == [1] * (2 * workers - 1) + [2]


def test_a_run_that_fails_twice_is_listed_with_its_log(tmp_path):
    broken = experiment("successor", "vanilla", "smoke", seed=7)
    folder = tmp_path / "runs" / broken.digest
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")  # a finished run, says this file, but there is nothing else
    failures = run_all(each([broken]), tmp_path / "runs", tmp_path / "accuracy.csv", LocalEngine(2), "cpu")
    assert len(failures) == 1 and "\n" not in failures[0]
    assert failures[0].startswith("successor vanilla seed 7: ValueError: ") and "no config.json" in failures[0]
    log = tmp_path / "runs" / "logs" / f"{broken.digest}.txt"
    assert str(log) in failures[0]
    assert log.read_text().count("Traceback") == 2


@pytest.mark.parametrize("test", [("padded", 4, 10), ("random", 1000, 1)])
def test_tests_that_cannot_be_run_are_refused_before_anything_is_trained(tmp_path, test):
    wanted = [experiment("multiplication", "vanilla", "smoke")]
    with pytest.raises(
        ValueError, match=r"expected (a test set among random, hard, unequal|attention over 2,004,001 tokens)"
    ):
        run_all(each(wanted, [test]), tmp_path / "runs", tmp_path / "accuracy.csv", InlineEngine(), "cpu")
    assert not list(tmp_path.iterdir())


def test_a_csv_that_cannot_take_the_results_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "accuracy.csv").write_text("task,method\n")
    engine = Recorder(2)
    with pytest.raises(ValueError, match="expected the columns"):
        schedule([experiment("parity", "vanilla", "smoke")], engine, tmp_path)
    assert not engine.started and engine.stopped


METRICS = ("{", "[]", '{"history": null}')  # that are none


@pytest.mark.parametrize("name, text", [("evaluations.json", "{"), *(("metrics.json", text) for text in METRICS)])
def test_a_damaged_file_of_a_run_with_scores_stops_no_other_run(name, text, serial, tmp_path):
    runs, csv = shutil.copytree(serial[0] / "runs", tmp_path / "runs"), tmp_path / "accuracy.csv"
    damaged, whole = (experiment(task, "vanilla", "smoke") for task in ("parity", "successor"))
    (runs / damaged.digest / name).write_text(text)
    tests = [("random", 3, 50), ("hard", 3, 50)]  # as before
    failures = run_all(each([damaged, whole], tests), runs, csv, InlineEngine(), "cpu")
    assert len(failures) == 1 and failures[0].startswith("parity vanilla")
    assert ("delete it to measure again" in failures[0]) == (name == "evaluations.json")
    assert set(read(csv)["run"]) == {whole.digest}


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=RAY)])
def test_ctrl_c_stops_and_the_next_call_goes_on(engine, serial, tmp_path):
    if engine == "ray":
        pytest.importorskip("ray")
    text, rows = FOUR, serial[1]
    if engine == "local":  # ends what runs at once, so that two runs are enough
        text, rows = SUCCESSOR, of_successor(serial)
    command = sweep_command(tmp_path, text, "--engine", engine, "--workers", "1")
    # Where the tests themselves run in the background, SIGINT is ignored, and a child would inherit that.
    sweep = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        wait_for(lambda: list(tmp_path.glob("reports/results/accuracy.csv")), "the first run to finish")
        begun = wait_for(lambda: logged_processes(tmp_path), "the second to begin")
        os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does: to every process of the sweep
        _, errors = sweep.communicate(timeout=60)
    finally:
        sweep.kill()
    assert sweep.returncode == 130, errors
    assert errors.strip().splitlines()[-1] == "abcnb: interrupted; the same command goes on from here"
    assert "Traceback" not in errors
    wait_for(lambda: not any(map(is_running, begun)), "the worker to end")
    finished = {file: file.stat().st_mtime for file in tmp_path.glob("runs/*/metrics.json")}
    assert 0 < len(finished) < rows["run"].nunique()
    assert sweep_here(tmp_path) == []
    pd.testing.assert_frame_equal(measured(tmp_path), rows)
    assert {file: file.stat().st_mtime for file in finished} == finished


def test_a_killed_sweep_leaves_no_worker_behind(tmp_path):
    sweep = subprocess.Popen(sweep_command(tmp_path, LONG, "--workers", "1"), stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: list(tmp_path.glob("runs/*/config.json")), "the training to start")
        children = [child.pid for child in psutil.Process(sweep.pid).children(recursive=True)]
        assert children
    finally:
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.wait(10)
    wait_for(lambda: not any(is_running(pid) for pid in children), "the workers to end")


class Recorder:
    """An engine that does nothing but say that it was asked; `fails` tells of which jobs it says they failed."""

    def __init__(self, slots, fails=lambda job: False):
        self.slots, self.fails, self.running, self.started, self.most = slots, fails, [], [], 0

    def start(self, job):
        self.running.append(job)
        self.started.append(job.experiment)
        self.most = max(self.most, len(self.running))

    def ended(self, seconds):
        job = self.running.pop(0)
        if self.fails(job):
            return [Ended(job, None, "nothing [was] done [/here]")]
        folder = job.runs / job.experiment.digest
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"history": []}))
        return [
            Ended(job, [{"length": 3, "samples": 20, "correct": 1, "test_set": "random", "train_seconds": 1.0}])
        ]

    def stop(self):
        self.stopped = True


@pytest.fixture
def eight(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "record", lambda *_: None)
    (tmp_path / "sweep.toml").write_text(EIGHT)
    wanted = list(read_sweep(tmp_path / "sweep.toml")[0])
    assert wanted[0].method == "abc"  # asked for before the Vanilla that it calibrates
    return wanted


def schedule(wanted, engine, tmp_path):
    return run_all(each(wanted), tmp_path / "runs", tmp_path / "accuracy.csv", engine, "cpu")


def test_what_another_builds_on_is_done_first(eight, tmp_path):
    engine = Recorder(2)
    assert schedule(eight, engine, tmp_path) == []
    for position, e in enumerate(engine.started):
        assert e.interpolation is None or e.interpolation in engine.started[:position]
    assert len(engine.started) == 8 and engine.most == 2 and engine.stopped


def test_what_builds_on_a_failure_is_not_tried(eight, tmp_path):
    engine = Recorder(2, fails=lambda job: job.experiment.method == "vanilla")
    failures = schedule(eight, engine, tmp_path)
    assert len(failures) == 8 and [e.method for e in engine.started] == ["vanilla"] * 8  # four, twice each
    assert sum("the model that it builds on failed: " in failure for failure in failures) == 4


def test_variants_of_one_model_wait_until_one_of_them_has_trained_it(eight, tmp_path):
    """Their Vanilla is not asked for by itself."""
    variants = [with_settings(eight[0], [f"tau=0.0{k}"]) for k in (2, 3, 4)]
    engine = Recorder(3)
    schedule(variants, engine, tmp_path)
    assert len(engine.started) == 3 and engine.most == 1


def test_what_was_measured_before_a_failure_is_recorded(tmp_path, monkeypatch):
    evaluate = Run.evaluate

    def failing(run, length, *test):
        if length == 20:
            raise ValueError("no room for 20 digits")
        return evaluate(run, length, *test)

    monkeypatch.setattr(Run, "evaluate", failing)
    wanted, tests = experiment("successor", "vanilla", "smoke"), [("random", length, 20) for length in (3, 6, 20)]
    failures = run_all(each([wanted], tests), tmp_path / "runs", tmp_path / "accuracy.csv", InlineEngine())
    assert len(failures) == 1 and "no room for 20 digits" in failures[0]
    assert read(tmp_path / "accuracy.csv")["length"].tolist() == [3, 6]


@pytest.mark.parametrize(
    "resources, share, jobs",
    [({"CPU": 4.0}, 0, 4), ({}, 0, 0), ({"CPU": 4.0, "GPU": 1.0}, 0.1, 4), ({"CPU": 16.0, "GPU": 2.0}, 0.6, 2)],
)
def test_the_room_of_a_machine(resources, share, jobs):
    assert room(resources, share) == jobs


@pytest.mark.parametrize(
    "options, told",
    [
        (("--engine", "slurm"), "an engine among local, ray, got 'slurm'"),
        (("--address", "auto"), "are for the engine 'ray'"),
        (("--gpu-share", "0.5"), "are for the engine 'ray'"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(cli, tmp_path, options, told):
    (tmp_path / "sweep.toml").write_text(EIGHT)
    assert_refused(cli("sweep", "sweep.toml", "--device", "cpu", *options), told)
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.toml"]


@pytest.mark.parametrize(
    "address, told", [("127.0.0.1:1", r"expected a Ray cluster at '127.0.0.1:1'"), ("head", "auto or host:port")]
)
def test_a_cluster_that_is_not_there(address, told):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=told):
        open_engine("ray", address=address)


def test_where_ray_does_not_start_it_says_so(monkeypatch):
    ray = pytest.importorskip("ray")

    def start(*_, **__):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(
        ValueError, match="expected a Ray cluster of this machine, got: The current node timed out"
    ):
        open_engine("ray")
