"""Attacks that take minutes: kills at any moment, damaged folders of every kind, a disk that is full.

`make attack` runs them; the fast tests leave them out.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from abcnb.study import results
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.settings import with_settings

pytestmark = pytest.mark.attack

LONGER = ["training.steps=100", "interpolation.training.steps=100"]
WANTED = with_settings(experiment("successor", "abc", "smoke"), LONGER)
TRAINING = f"""
import sys, torch; torch.set_num_threads(1)
from pathlib import Path
from abcnb.model import training
from abcnb.study.methods import experiment
from abcnb.study.fitting import fit
from abcnb.study.settings import with_settings
training.CHECKPOINT_SECONDS = 0.0
wanted = with_settings(experiment("successor", "abc", "smoke"), {LONGER})
print("begun", flush=True)
fit(wanted, Path(sys.argv[1]), "cpu", progress=False)
"""


def test_a_training_that_is_killed_at_any_moment_loses_nothing(tmp_path):
    """The run that is left is bit-equal to an uninterrupted one, and nothing lies about."""
    whole, draw, kills = tmp_path / "whole", random.Random(0), 0
    fit(WANTED, whole, "cpu", progress=False)
    command = [sys.executable, "-c", TRAINING, str(tmp_path / "runs")]
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n", process.stderr.read()
        try:
            process.wait(draw.uniform(0.0, 0.5 + kills / 4))  # longer and longer, lest it never comes to its end
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert process.returncode == 0, process.stderr.read()
    ours, theirs = (load_file(runs / WANTED.digest / "weights.safetensors") for runs in (tmp_path / "runs", whole))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    for runs in (tmp_path / "runs", whole):
        assert not [file for file in runs.rglob("*") if "@" in file.name or "checkpoint" in file.name]
    print(f"{kills} kills, nothing lost")


RECORDING = """
import random, sys
from pathlib import Path
from abcnb.study import results
file, writer = Path(sys.argv[1]), int(sys.argv[2])
text = {name: "" if name in results.TEXTS else 0 for name in results.COLUMNS}
for number in range(10_000):
    row = text | {"task": "successor", "method": f"writer{writer}", "preset": "smoke", "seed": number, "length": 6}
    row |= {"samples": 10, "correct": 5, "train_seconds": 1.0, "run": f"{writer}-{number}", "test_set": "random"}
    results.record(file, [row])
    print(number, flush=True)
"""


def test_writers_of_a_table_that_are_killed_leave_no_torn_lost_or_doubled_row(tmp_path):
    file, draw = tmp_path / "accuracy.csv", random.Random(0)
    done, reads, kills, writer = {}, 0, 0, 0
    running, until = {}, {}
    end = time.monotonic() + 60
    while time.monotonic() < end or running:
        while len(running) < 3 and time.monotonic() < end:
            log = (tmp_path / f"{writer}.log").open("w+")
            command = [sys.executable, "-c", RECORDING, str(file), str(writer)]
            running[writer] = (subprocess.Popen(command, stdout=log), log)
            writer += 1
        if file.exists():
            assert list(pd.read_csv(file).columns) == results.COLUMNS
            reads += 1
        for name, (process, log) in [*running.items()]:
            assert process.poll() is None, "a writer failed"
            if name not in until and os.fstat(log.fileno()).st_size:  # it has begun to write
                until[name] = time.monotonic() + draw.uniform(0, 3)
            if time.monotonic() > until.get(name, math.inf):
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                log.seek(0)
                done[name] = sum(line.endswith("\n") for line in log)
                del running[name]
    table = pd.read_csv(file)
    assert not table.duplicated(["method", "seed"]).any()
    for name, count in done.items():
        seeds = sorted(table.loc[table["method"] == f"writer{name}", "seed"])
        assert seeds[:count] == list(range(count)) and len(seeds) <= count + 1
    results.record(file, [table.iloc[0].to_dict()])
    assert [left.name for left in tmp_path.glob(".accuracy.csv.*@*")] == []
    print(f"{kills} kills, {reads} reads, {len(table)} rows")


VALUES = [None, True, -1, 0, 10**30, 1e308, float("nan"), "", "text", "\x1b[2J", [], [[]], {}, {"a": 1}]


def damaged(content, draw):
    """JSON with one value, anywhere in it, replaced or taken out."""
    places = []

    def visit(value, path):
        places.append(path)
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value[:3]):
            visit(inner, [*path, key]) if isinstance(inner, (dict, list)) else places.append([*path, key])

    visit(content, [])
    path = draw.choice(places)
    if not path:
        return draw.choice(VALUES)
    copy = json.loads(json.dumps(content))
    part = copy
    for key in path[:-1]:
        part = part[key]
    if isinstance(part, dict) and draw.random() < 0.2:
        del part[path[-1]]
    else:
        part[path[-1]] = draw.choice(VALUES)
    return copy


def harm(file, draw):
    """Damage a file in one of several ways."""
    content, kind = file.read_bytes(), draw.choice(["cut", "flip", "empty", "zeros", "json", "json", "json"])
    if kind == "json" and file.suffix == ".json":
        file.write_text(json.dumps(damaged(json.loads(content), draw)))
    elif kind == "flip":
        place = draw.randrange(len(content))
        file.write_bytes(
            content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
        )
    else:
        cut = content[: draw.randrange(len(content))]
        file.write_bytes({"empty": b"", "zeros": bytes(len(content))}.get(kind, cut))


@pytest.mark.parametrize("seed", range(150))
def test_a_damaged_folder_is_one_line_for_every_command(cli, small_machine, abc_run, tmp_path, seed):
    draw = random.Random(seed)
    for name in ("good", "bad"):
        shutil.copytree(abc_run.folder, tmp_path / "runs" / name)
    bad, good = (tmp_path / "runs" / name for name in ("bad", "good"))
    cli("evaluate", bad, "--lengths", "3", "--samples", "20")
    harm(draw.choice(sorted(file for file in bad.iterdir() if not file.name.startswith("."))), draw)
    before = {file: file.read_bytes() for folder in (good, bad) for file in folder.iterdir()}
    for command in (
        ["runs"],
        ["evaluate", bad, "--lengths", "3", "4", "--samples", "20"],
        ["predict", bad, "199"],
        ["keep", bad, "--reports", tmp_path / "reports"],
    ):
        code, out, err = cli(*command)
        assert code in (0, 2), (command, err)
        if code == 2:
            assert len(err.splitlines()) == 1 and "expected" in err, (command, err)
        assert "\x1b" not in out + err
        if command == ["runs"]:
            assert [line.split()[0] for line in out.splitlines()] in (["bad", "good"], ["good"])
    for file, content in before.items():
        assert file.name == "evaluations.json" or file.read_bytes() == content, file


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("a small disk can be mounted by root alone")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_model_that_does_not_fit_is_not_kept_in_part(small_disk, repository):
    weights = (repository / "reports" / "models").glob("*/weights.safetensors")
    model = max(weights, key=lambda file: file.stat().st_size).parent
    command = [sys.executable, "-m", "abcnb", "keep", model, "--reports", small_disk]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert failed.returncode == 2 and failed.stderr.startswith(f"abcnb: expected to write {small_disk}")
    assert list((small_disk / "models").iterdir()) == []


def test_a_full_disk_is_one_line_and_what_was_trained_goes_on_where_there_is_room(small_disk, tmp_path):
    large = ["--set", "model.d_model=128", "--set", "model.d_ff=512", "--set", "training.steps=30"]
    command = [sys.executable, "-m", "abcnb", "fit", "successor", "vanilla", "--preset", "smoke", *large]
    command += ["--lengths", "6", "--runs", small_disk / "runs"]
    for _ in range(2):
        failed = subprocess.run(command, capture_output=True, text=True, timeout=120)
        last = failed.stderr.replace("\r", "\n").splitlines()[-1]
        assert failed.returncode == 2 and "Traceback" not in failed.stderr
        assert last.startswith(f"abcnb: expected to write {small_disk}") and "No space left" in last
    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    run = next(Path(small_disk / "runs").glob("*/metrics.json")).parent
    with open(small_disk / "filler", "wb") as filler, pytest.raises(OSError):
        while True:
            os.write(filler.fileno(), bytes(4096))
    asked = [sys.executable, "-m", "abcnb", "evaluate", run, "--lengths", "7", "--samples", "20"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0 and "of 20 exact" in found.stdout
    assert "this score could not be kept" in found.stderr and "No space left" in found.stderr
