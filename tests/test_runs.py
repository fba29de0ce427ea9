import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch

from abcnb import pipeline
from abcnb.calibration import calibrate_attention
from abcnb.lines import Line, LineBias
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, fit, load_run

SMOKE = experiment("successor", "vanilla", "smoke")
ABC = experiment("successor", "abc-places", "smoke")


# --- trained once


def test_an_experiment_asked_for_twice_is_trained_once(tmp_path, monkeypatch):
    trained, train = [], pipeline.train
    monkeypatch.setattr(pipeline, "train", lambda *rest, **watch: trained.append(1) or train(*rest, **watch))
    first = fit(SMOKE, tmp_path, "cpu", progress=False)
    second = fit(SMOKE, tmp_path, "cpu", progress=False)
    assert len(trained) == 1 and first == second
    assert first.folder == tmp_path / SMOKE.digest
    assert (first.folder / "metrics.json").is_file() and not (first.folder / "checkpoint.safetensors").exists()
    fit(replace(SMOKE, seed=1), tmp_path, "cpu", progress=False)
    assert len(trained) == 2


def test_abc_trains_what_it_calibrates_unless_that_is_there(tmp_path, monkeypatch):
    trained, train = [], pipeline.train

    def spy(*rest, **watch):
        trained.append(watch["label"])
        return train(*rest, **watch)

    monkeypatch.setattr(pipeline, "train", spy)
    fit(ABC, tmp_path, "cpu", progress=False)
    fit(SMOKE, tmp_path, "cpu", progress=False)
    assert trained == ["successor vanilla seed 0", "successor abc-places seed 0"]


TWO = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from abcnb.study.runs import fit
from abcnb.study.methods import experiment

log = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
children = []
for name in "ab":
    child = os.fork()
    if child == 0:
        code = 1
        try:
            heard = lambda steps: os.write(log, f"{name}{steps} ".encode())
            run = fit(experiment("successor", "abc-places", "smoke"), Path(sys.argv[1]), "cpu", False, heard)
            weights = run.folder / "weights.safetensors"
            print(name, weights.stat().st_ino, run.metrics["steps"], flush=True)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_two_processes_that_ask_at_once_train_once(tmp_path, run_python):
    done = run_python(TWO, tmp_path / "runs", tmp_path / "log")
    assert done.returncode == 0, done.stderr
    reports = sorted(line.split() for line in done.stdout.splitlines())
    assert [report[0] for report in reports] == ["a", "b"]
    assert reports[0][1:] == reports[1][1:], "both have the same file, written once"
    # Twenty steps of Vanilla and twenty of ABC, heard every ten: by either process, but not by both.
    heard = (tmp_path / "log").read_text().split()
    assert sorted(word[1:] for word in heard) == ["10"] * 4


# --- read back


def test_a_run_is_read_back(vanilla_run):
    run = load_run(vanilla_run.folder)
    assert run == vanilla_run and run.experiment == SMOKE
    assert run.metrics["steps"] == 20 and run.metrics["device"] == "cpu"
    assert [record["step"] for record in run.metrics["history"]] == [10, 20]
    batch = SMOKE.data().validation(8, torch.Generator().manual_seed(0))
    assert torch.equal(run.model()(batch), vanilla_run.model()(batch))
    assert not run.model().training
    assert run.metrics["parameters"] == sum(p.numel() for p in run.model().parameters())


def test_an_abc_run_keeps_its_lines_and_the_attention_they_come_from(abc_run):
    assert {"self-0.json", "cross-0.json", "attention.safetensors"} <= {f.name for f in abc_run.folder.iterdir()}
    selves, crosses = abc_run.biases()
    found = calibrate_attention(abc_run.attention(), abc_run.experiment.calibration)
    assert (found.self_biases, found.cross_biases) == (selves, crosses)
    assert all(isinstance(bias, LineBias) and bias.lines for bias in (*selves, *crosses))
    model = abc_run.model()
    assert (model.self_biases, model.cross_biases) == (selves, crosses)
    attention = abc_run.attention()
    assert attention.self_attention.shape == (2, 2, 8, 8) and attention.cross_attention.shape == (2, 2, 8, 9)
    assert torch.allclose(attention.cross_attention.sum(-1), torch.ones(2, 2, 8), atol=1e-5)


def test_many_layers_keep_their_own_biases_in_order(tmp_path):
    each = replace(ABC.calibration, layer="each")
    wanted = replace(ABC, model=replace(ABC.model, decoder_layers=12), calibration=each)
    for layer in range(12):
        for kind in ("self", "cross"):
            lines = tuple(Line(head, "places", 1, 0, -layer) for head in (0, 1))
            LineBias(kind, 2, lines).save(tmp_path / f"{kind}-{layer}.json")
    for biases in Run(tmp_path, wanted).biases():
        assert [-bias.lines[0].offset for bias in biases] == list(range(12))


def test_an_evaluation_is_measured_once_and_then_remembered(vanilla_run, tmp_path, monkeypatch):
    run = Run(shutil.copytree(vanilla_run.folder, tmp_path / "run"), SMOKE)
    first = run.evaluate(3, 40)
    other = run.evaluate(3, 41)
    assert (first.samples, other.samples) == (40, 41)

    def refuse(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(pipeline, "evaluate", refuse)
    assert run.evaluate(3, 40) == first and load_run(run.folder).evaluate(3, 41) == other
    for forgotten in ({"length": 4}, {"samples": 42}, {"test_set": "hard"}):
        with pytest.raises(AssertionError, match="measured again"):
            run.evaluate(**({"length": 3, "samples": 40} | forgotten))


def truncate(name):
    def damage(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


DAMAGES = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no metrics": lambda folder: (folder / "metrics.json").unlink(),
    "no weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "no cross lines": lambda folder: (folder / "cross-0.json").unlink(),
    "no lines": lambda folder: [file.unlink() for file in (*folder.glob("self-*"), *folder.glob("cross-*"))],
    "truncated weights": truncate("weights.safetensors"),
    "empty weights": write("weights.safetensors", ""),
    "truncated config": truncate("config.json"),
    "truncated metrics": truncate("metrics.json"),
    "truncated lines": truncate("self-0.json"),
    "lines of something else": write("self-0.json", "{}"),
    "metrics of something else": write("metrics.json", "{}"),
    "config of something else": write("config.json", '{"name": "resnet"}'),
    "config that is a list": write("config.json", "[1, 2]"),
    "config that is a number": write("config.json", "3"),
    "another task": write("config.json", json.dumps(asdict(ABC) | {"task": "sums"})),
    "another size": write("config.json", json.dumps(asdict(replace(ABC, model=replace(ABC.model, d_model=64))))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_folder_is_one_line(abc_run, tmp_path, damage):
    folder = shutil.copytree(abc_run.folder, tmp_path / "run")
    DAMAGES[damage](folder)
    with pytest.raises(ValueError, match=r"expected a.* run") as error:
        load_run(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"expected a finished run in .*nowhere, but it has no config\.json"):
        load_run(tmp_path / "nowhere")
