import copy
import json
import shutil
from dataclasses import asdict, fields, is_dataclass, replace

import pytest
import torch

from abcnb import experiments
from abcnb.calibration import calibrate
from abcnb.experiments import Experiment, Run, TaskData, fit, from_dict, load_run, with_settings
from abcnb.lines import Line, LineBias
from abcnb.methods import METHODS, PRESETS, experiment
from abcnb.tasks import TASKS

SMOKE = experiment("successor", "vanilla", "smoke")
ABC = experiment("successor", "abc-places", "smoke")


# --- trained once


def test_an_experiment_asked_for_twice_is_trained_once(tmp_path, monkeypatch):
    trained, train = [], experiments.train
    monkeypatch.setattr(experiments, "train", lambda *rest: trained.append(1) or train(*rest))
    first = fit(SMOKE, tmp_path, "cpu", progress=False)
    second = fit(SMOKE, tmp_path, "cpu", progress=False)
    assert len(trained) == 1 and first == second
    assert first.folder == tmp_path / SMOKE.digest
    assert (first.folder / "metrics.json").is_file() and not (first.folder / "checkpoint.safetensors").exists()
    fit(replace(SMOKE, seed=1), tmp_path, "cpu", progress=False)
    assert len(trained) == 2


def test_abc_trains_what_it_calibrates_unless_that_is_there(tmp_path, monkeypatch):
    trained, train = [], experiments.train
    monkeypatch.setattr(experiments, "train", lambda *rest: trained.append(rest[5]) or train(*rest))
    fit(ABC, tmp_path, "cpu", progress=False)
    fit(SMOKE, tmp_path, "cpu", progress=False)
    assert trained == ["successor vanilla seed 0", "successor abc-places seed 0"]


TWO = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from abcnb.experiments import fit
from abcnb.methods import experiment

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


# --- digest


def leaves(config, path=()):
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, (*path, field.name))
        else:
            yield (*path, field.name)


def changed(experiment, path):
    """A copy with one value changed, past all checks."""
    result = copy.deepcopy(experiment)
    owner = result
    for name in path[:-1]:
        owner = getattr(owner, name)
    value = getattr(owner, path[-1])
    other = {
        bool: lambda: not value, int: lambda: value + 1, float: lambda: value + 0.125,
        str: lambda: value + "x", tuple: lambda: (*value, 2), type(None): lambda: {"method": "something"},
    }[type(value)]()  # fmt: skip
    object.__setattr__(owner, path[-1], other)
    return result


@pytest.mark.parametrize("method", ["abc-places", "abs-place", "vanilla"])
def test_the_digest_ignores_the_labels_but_nothing_else(method):
    wanted = experiment("addition", method, "smoke")
    paths = list(leaves(wanted))
    assert len(paths) > 20
    for path in paths:
        same = changed(wanted, path).digest == wanted.digest
        assert same == (path[-1] in ("method", "preset")), ".".join(path)


def test_the_digest_is_the_same_in_every_process():
    assert SMOKE.digest == from_dict(Experiment, json.loads(json.dumps(asdict(SMOKE)))).digest
    assert len(SMOKE.digest) == 12 and int(SMOKE.digest, 16) >= 0


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", TASKS)
def test_every_experiment_survives_json(task, preset):
    for method in METHODS:
        wanted = experiment(task, method, preset, 3)
        again = from_dict(Experiment, json.loads(json.dumps(asdict(wanted))))
        assert again == wanted and again.digest == wanted.digest


@pytest.mark.parametrize(
    "content, told",
    [
        ({"tusk": 1}, "got 'tusk'"),
        ({}, "expected the keys of Experiment"),
        ({"task": "successor"}, "expected the keys of Experiment"),
        (asdict(SMOKE) | {"model": {"size": 3}}, "got 'size'"),
    ],
)
def test_from_dict_names_what_is_wrong(content, told):
    with pytest.raises(ValueError, match=told):
        from_dict(Experiment, content)


# --- settings


def test_settings_reach_nested_configs():
    wanted = with_settings(
        experiment("addition", "abc-places", "smoke"),
        ["training.steps=7", "training.learning_rate=0.5e-3", "training.compile=true", "train_numbers=carry",
         "calibration.directions_cross=(-1, 1)", "calibration.kappa_cross=3", "interpolation.training.steps=9"],
    )  # fmt: skip
    assert (wanted.training.steps, wanted.training.learning_rate, wanted.training.compile) == (7, 5e-4, True)
    assert wanted.train_numbers == "carry" and wanted.interpolation.train_numbers == "even"
    assert wanted.calibration.directions_cross == (-1, 1) and wanted.calibration.kappa_cross == 3.0
    assert wanted.interpolation.training.steps == 9
    assert with_settings(wanted, []) == wanted


@pytest.mark.parametrize(
    "setting, path, value",
    [
        ("model.heads=4", "model.heads", 4),
        ("width=9", "width", 9),
        ("base=8", "base", 8),
        ("seed=5", "seed", 5),
        (" seed = 5 ", "seed", 5),
    ],
)
def test_settings_that_abc_shares_with_what_it_calibrates_are_set_for_both(setting, path, value):
    wanted = with_settings(experiment("addition", "abc-places", "smoke"), [setting])
    for config in (wanted, wanted.interpolation):
        for name in path.split("."):
            config = getattr(config, name)
        assert config == value


@pytest.mark.parametrize(
    "setting, told",
    [
        ("training.steps", "expected a setting of the form key=value, got 'training.steps'"),
        ("training.stepz=3", "expected a key among .*steps.*, got 'training.stepz'"),
        ("stepz=3", "expected a key among seed, base, .*, got 'stepz'"),
        ("=3", "expected a key among"),
        ("task=parity", "got 'task'"),
        ("method=rope", "got 'method'"),
        ("training.steps=many", "expected int for training.steps, got 'many'"),
        ("training.steps=1.5", "expected int for training.steps, got '1.5'"),
        ("training.learning_rate=fast", "expected float for training.learning_rate, got 'fast'"),
        ("training.compile=1", "expected true or false for training.compile, got '1'"),
        ("training=3", "expected a key with a single value such as training.steps, got 'training'"),
        ("training.steps.x=3", "expected a key with a single value, got 'training.steps.x'"),
        ("window.w=2", "got 'window.w'"),
        ("training.steps=0", "at least 1"),
        ("model.position=spiral", "expected a position among .*got 'spiral'"),
        ("form=aligned", "written in forms natural, got 'aligned'"),
        ("bias=window", "window"),
        ("base=1", "expected a base from 2 to 16, got 1"),
        ("seed=-1", "seed"),
    ],
)
def test_bad_settings_are_named(setting, told):
    with pytest.raises(ValueError, match=told) as error:
        with_settings(SMOKE, [setting])
    assert "\n" not in str(error.value)


def test_bad_directions_are_named():
    with pytest.raises(
        ValueError, match=r"integers separated by commas for calibration.directions_self, got 'up'"
    ):
        with_settings(ABC, ["calibration.directions_self=up"])
    with pytest.raises(ValueError, match="expected directions among"):
        with_settings(ABC, ["calibration.directions_self=7"])


@pytest.mark.parametrize(
    "wrong",
    [{"bias": "lines"}, {"train_numbers": "odd"}, {"bias": "calibrated"}, {"form": "aligned"}, {"task": "sum"}],
)
def test_experiments_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError):
        replace(SMOKE, **wrong)


# --- runs


def test_a_run_is_read_back(vanilla_run):
    run = load_run(vanilla_run.folder)
    assert run == vanilla_run and run.experiment == SMOKE
    assert run.metrics["steps"] == 20 and run.metrics["device"] == "cpu"
    assert [record["step"] for record in run.metrics["history"]] == [10, 20]
    batch = TaskData(SMOKE).validation(8, torch.Generator().manual_seed(0))
    assert torch.equal(run.model()(batch), vanilla_run.model()(batch))
    assert not run.model().training
    assert run.metrics["parameters"] == sum(p.numel() for p in run.model().parameters())


def test_an_abc_run_keeps_its_lines_and_the_attention_they_come_from(abc_run):
    assert {"self-0.json", "cross-0.json", "attention.safetensors"} <= {f.name for f in abc_run.folder.iterdir()}
    selves, crosses = abc_run.biases()
    found = calibrate(abc_run.attention(), abc_run.experiment.calibration)
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

    monkeypatch.setattr(experiments, "evaluate", refuse)
    assert run.evaluate(3, 40) == first and load_run(run.folder).evaluate(3, 41) == other
    for forgotten in ({"length": 4}, {"samples": 42}, {"test_set": "carry"}):
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
