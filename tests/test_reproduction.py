import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from abcnb import reproduction
from abcnb.methods import experiment
from abcnb.reproduction import MAIN_METHODS, MAIN_TASKS, reproduce, run_all
from abcnb.results import read


def test_four_experiments_on_two_workers_one_of_which_fails(tmp_path):
    broken = experiment("successor", "vanilla", "smoke", seed=7)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / broken.digest).write_text("a file where the run's folder should be")
    wanted = [
        experiment("parity", "vanilla", "smoke"),
        broken,
        experiment("addition", "abs-place", "smoke"),
        experiment("parity", "abc-places", "smoke"),
    ]
    csv = tmp_path / "reports" / "accuracy.csv"
    failures = run_all(wanted, tmp_path / "runs", csv, (3, 6), samples=50, workers=2, device="cpu")
    assert len(failures) == 1 and "\n" not in failures[0]
    assert failures[0].startswith("successor vanilla seed 7: ") and "File exists" in failures[0]
    table = read(csv)
    found = {
        tuple(row)
        for row in table[["task", "method", "preset", "seed", "test_set", "length"]].itertuples(index=False)
    }
    assert found == {
        (task, method, "smoke", 0, test_set, length)
        for task, method in [("parity", "vanilla"), ("parity", "abc-places"), ("addition", "abs-place")]
        for test_set in ("random", "carry")
        for length in (3, 6)
    }  # fmt: skip
    assert len(table) == 12
    assert (
        set(table["samples"][table["test_set"] == "random"]) == {50}
        and set(table["device"]) == {"cpu"}
        and set(table["train_steps"]) == {20}
    )
    assert ((table["correct"] >= 0) & (table["correct"] <= table["samples"])).all()
    assert set(table["run"]) == {wanted[i].digest for i in (0, 2, 3)}
    assert all((tmp_path / "runs" / name / "metrics.json").is_file() for name in table["run"])


def test_reproduce_asks_for_everything_vanilla_first(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(reproduction, "run_all", lambda wanted, *rest: asked.extend(wanted) or ["all failed"])
    reproduce("smoke", tmp_path / "runs", tmp_path / "reports", seeds=(0, 1))
    assert {(e.task, e.method, e.seed) for e in asked} == {
        (task, method, seed) for task in MAIN_TASKS for method in MAIN_METHODS for seed in (0, 1)
    }
    for seed in (0, 1):
        mine = [e.method for e in asked if e.seed == seed]
        assert mine == sorted(mine, key=MAIN_METHODS.index)
    assert MAIN_METHODS.index("vanilla") < MAIN_METHODS.index("abc-places")


def test_reproduce_lists_its_failures_even_where_everything_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "run_all", lambda *_: ["parity vanilla seed 0: the disk is full"])
    _, failures = reproduce("smoke", tmp_path / "runs", tmp_path / "reports", tasks=("parity",))
    assert failures == ["parity vanilla seed 0: the disk is full"]


@pytest.mark.parametrize("names", [{"tasks": ("sums",)}, {"methods": ("gpt",)}])
def test_reproduce_refuses_unknown_names_before_it_starts(tmp_path, names):
    with pytest.raises(ValueError, match=r"expected a (task|method) among"):
        reproduce("smoke", tmp_path / "runs", tmp_path / "reports", **names)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_parent_leaves_no_worker_behind(tmp_path):
    spec = tmp_path / "long.toml"
    spec.write_text(
        '[[grid]]\ntasks = ["addition"]\nmethods = ["vanilla"]\npresets = ["smoke"]\n'
        'overrides = [["training.steps=1000000"]]\n'
    )
    command = [sys.executable, "-m", "abcnb", "sweep", str(spec), "--workers", "1", "--device", "cpu"]
    command += ["--runs", str(tmp_path / "runs"), "--reports", str(tmp_path / "reports")]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: list((tmp_path / "runs").glob("*/config.json")), "the training to start")
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert children
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
    wait_for(lambda: not any(is_running(int(pid)) for pid in children), "the workers to end")


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition, what, seconds=60):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"waited {seconds} s for {what}"
        time.sleep(0.2)
