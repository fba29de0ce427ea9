import json
import shutil
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from abcnb import pipeline
from abcnb.lines.algorithm1 import MatrixLines, calibrate_matrices
from abcnb.lines.line import LineBias
from abcnb.model.attention import record
from abcnb.model.evaluation import Score
from abcnb.study.fingerprint import UNKNOWN, fingerprint
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import Run, load_run, today
from abcnb.study.store import commit_run

SMOKE = experiment("successor", "vanilla", "smoke")
ABC = experiment("successor", "abc", "smoke")


# --- read back


def test_a_run_is_read_back(vanilla_run):
    run = load_run(vanilla_run.folder)
    assert run == vanilla_run and run.experiment == SMOKE
    assert run.metrics["steps"] == 20 and run.metrics["device"] == "cpu"
    assert [record["step"] for record in run.metrics["history"]] == [10, 20]
    (batch,) = SMOKE.data().validation(8, torch.Generator().manual_seed(0))
    assert torch.equal(run.model()(batch), vanilla_run.model()(batch))
    assert run.model().trained_on == "successor in base 10, natural form"
    assert not run.model().training
    assert run.metrics["parameters"] == sum(p.numel() for p in run.model().parameters())


def test_an_abc_run_keeps_its_lines_and_the_attention_they_come_from(abc_run):
    assert {"self-0.json", "cross-0.json", "attention.safetensors"} <= {f.name for f in abc_run.folder.iterdir()}
    biases, model = abc_run.biases(), abc_run.model()
    assert (
        abc_run.calibration().biases(abc_run.experiment.model.heads)
        == biases
        == (model.self_biases, model.cross_biases)
    )
    assert all(isinstance(bias, LineBias) and bias.lines for (bias,) in biases)
    (attention,) = abc_run.attention()
    assert attention.self_attention.shape == (2, 2, 8, 8) and attention.cross_attention.shape == (2, 2, 8, 9)
    assert torch.allclose(attention.cross_attention.sum(-1), torch.ones(2, 2, 8), atol=1e-5)


def test_a_run_in_rows_keeps_the_same_in_one_attention(product_run, tmp_path):
    assert not (product_run.folder / "cross-0.json").exists()
    (attention,) = product_run.attention()
    assert attention.stream.shape == (3, 3) and attention.self_attention.shape[-1] == len(attention.stream)
    assert (
        product_run.biases() == product_run.calibration().biases(product_run.experiment.model.heads)
        and not product_run.biases().cross_biases
    )
    for test_set in ("random", "hard", "unequal"):
        score = Run(shutil.copytree(product_run.folder, tmp_path / test_set), product_run.experiment)
        assert 0 < score.evaluate(3, 24, test_set).samples <= 30


def test_algorithm_1_keeps_its_own_lines(shared_runs):
    run = fit(experiment("addition", "abc-paper", "smoke"), shared_runs, "cpu", progress=False)
    (own,), (crossed,) = load_run(run.folder).biases()
    assert isinstance(own, MatrixLines) and (own.attention, crossed.attention) == ("self", "cross")
    assert calibrate_matrices(*run.attention(), run.experiment.algorithm1) == run.biases()


def test_a_rival_in_rows_sees_everything_and_vanilla_its_own_token_in_the_first_layer(shared_runs):
    e = experiment("multiplication", "vanilla", "smoke")
    model = fit(e, shared_runs, "cpu", progress=False).model()
    first, second = record(model, e.data().train(2, torch.Generator().manual_seed(0))).self_attention
    assert torch.equal(first, torch.eye(first.shape[-1]).expand_as(first)) and not torch.equal(second, first)
    rival = fit(experiment("multiplication", "rope", "smoke"), shared_runs, "cpu", progress=False).model()
    assert rival.self_biases == ()


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


def change(name, **values):
    """Other values in a JSON file."""

    def damage(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | values))

    return damage


metrics_with, config_with = (partial(change, name) for name in ("metrics.json", "config.json"))

DAMAGES = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no metrics": lambda folder: (folder / "metrics.json").unlink(),
    "no weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "no cross lines": lambda folder: (folder / "cross-0.json").unlink(),
    "no lines": lambda folder: [file.unlink() for file in (*folder.glob("self-*"), *folder.glob("cross-*"))],
    "truncated weights": truncate("weights.safetensors"),
    "empty weights": write("weights.safetensors", ""),
    "truncated config": truncate("config.json"),
    "config that is no text": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"),
    "truncated metrics": truncate("metrics.json"),
    "truncated lines": truncate("self-0.json"),
    "lines of something else": write("self-0.json", "{}"),
    "metrics of something else": write("metrics.json", "{}"),
    "config of something else": write("config.json", '{"name": "resnet"}'),
    "config that is a list": write("config.json", "[1, 2]"),
    "config that is a number": write("config.json", "3"),
    "null history": metrics_with(history=None),
    "no validation": metrics_with(history=[]),
    "a history of text": metrics_with(history=["100%"]),
    "steps as text": metrics_with(steps="many"),
    "hardware as a list": metrics_with(hardware=["cpu"]),
    "a hash as a number": metrics_with(content=3),
    "another run's hash": metrics_with(content="0123456789abcdef"),
    "a null method": config_with(method=None),
    "a width as text": config_with(width="7"),
    "a width of 10^9": config_with(width=10**9),
    "a null model": config_with(model=None),
    "a model of text": config_with(model="large"),
    "a seed of 2^64": config_with(seed=2**64),
    "a batch of half a sample": config_with(training=asdict(ABC.training) | {"batch_size": 0.5}),
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


@pytest.mark.parametrize(
    "damage",
    [
        {"length": "six"},
        {"accuracy": 3},
        {"correct": 26},
        {"samples": -25},
        {"digits": None},
        {"code": 3},
        {"worst_percent": "all"},
        {"more": 1},
    ],
)
def test_a_score_that_is_none_is_one_line(vanilla_run, tmp_path, damage):
    run = Run(shutil.copytree(vanilla_run.folder, tmp_path / "run"), SMOKE)
    run.evaluate(3, 25)
    file = run.folder / "evaluations.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | {"random 3 25": known["random 3 25"] | damage}))
    with pytest.raises(
        ValueError, match=r"expected scores as JSON in .*evaluations.json, got: .*; delete it"
    ) as error:
        run.known_score(3, 25)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [truncate("attention.safetensors"), write("attention.safetensors", "")])
def test_damaged_attention_is_one_line_and_is_not_committed(abc_run, tmp_path, damage):
    run = Run(shutil.copytree(abc_run.folder, tmp_path / "run"), ABC)
    damage(run.folder)
    told = r"expected the averaged attention of a run in .*attention.safetensors, got: .*; remove .*run and train"
    with pytest.raises(ValueError, match=told) as error:
        run.attention()
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=told):
        commit_run(run, tmp_path / "models")
    assert not list((tmp_path / "models").glob("*"))


def test_a_score_that_cannot_be_kept_is_given_all_the_same(tmp_path, monkeypatch, capsys, vanilla_run):
    run = Run(shutil.copytree(vanilla_run.folder, tmp_path / "run"), SMOKE)

    def no_room(*_):
        raise OSError("Read-only file system")

    monkeypatch.setattr("abcnb.study.runs.FileLock", no_room)
    assert run.evaluate(3, 23).samples == 23
    noted = capsys.readouterr().err
    assert noted == f"Note: this score could not be kept in {run.folder}: Read-only file system\n"
    assert run.known_score(3, 23) is None


def test_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"expected a finished run in .*nowhere, but there is no such folder"):
        load_run(tmp_path / "nowhere")


# --- runs of other code


@pytest.fixture
def older_run(abc_run, tmp_path):
    """The ABC run as other code, whose fingerprint is not known, would have left it."""
    folder = shutil.copytree(abc_run.folder, tmp_path / "runs" / ABC.digest)
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(
        json.dumps({k: v for k, v in metrics.items() if k not in ("code", "date")})
    )
    score = {"length": 6, "samples": 100, "correct": 40, "wrong_digits": 75, "digits": 800, "code": UNKNOWN}
    scores = {"content": metrics["content"], "hard 6 100": score, "random 6 50": score}
    (folder / "evaluations.json").write_text(json.dumps(scores))
    return Run(folder, ABC)


def test_an_older_run_is_found_with_its_scores(older_run, abc_run):
    run = load_run(older_run.folder)
    assert run == older_run and run.code == UNKNOWN
    assert run.biases() == abc_run.biases()
    expected = Score(6, 100, 40, 75, 800, UNKNOWN)
    assert run.known_score(6, 100, "hard") == expected == run.known_score(6, 50, "random")
    assert run.evaluate(6, 100, "hard") == expected
    assert fit(ABC, older_run.folder.parent, "cpu", progress=False) == older_run, "it is not trained again"


def test_what_is_trained_and_measured_keeps_its_code_and_day(vanilla_run, tmp_path):
    run = Run(shutil.copytree(vanilla_run.folder, tmp_path / "run"), SMOKE)
    score = run.evaluate(3, 20)
    assert run.code == score.code == fingerprint() and run.metrics["date"] == score.date == today()
    date.fromisoformat(score.date)


def test_a_score_of_a_model_of_other_code_says_so(older_run):
    assert older_run.evaluate(4, 20).code == f"{UNKNOWN}+{fingerprint()}"


def test_a_fresh_run_replaces_one_of_other_code_which_is_set_aside(older_run, abc_run):
    runs = older_run.folder.parent
    fresh = fit(ABC, runs, "cpu", progress=False, fresh=True)
    assert fresh.code == fingerprint() and fresh.folder == older_run.folder
    aside = load_run(runs / "superseded" / f"{ABC.digest}-{UNKNOWN}-1")
    assert aside.experiment == ABC and aside.known_score(6, 100, "hard").correct == 40
    assert fresh.known_score(6, 100, "hard") is None
    for name, value in abc_run.model().state_dict().items():
        assert torch.equal(fresh.model().state_dict()[name], value), "the same model, trained anew"
    again = fit(ABC, runs, "cpu", progress=False, fresh=True)
    assert again == fresh and len(list((runs / "superseded").iterdir())) == 1


def test_a_fresh_score_replaces_one_of_other_code(older_run):
    assert older_run.evaluate(6, 100, "hard").code == UNKNOWN
    measured = older_run.evaluate(6, 100, "hard", fresh=True)
    assert measured.code == f"{UNKNOWN}+{fingerprint()}"
    assert older_run.known_score(6, 100, "hard") == measured


# --- files of another run


@pytest.fixture
def pair(vanilla_run, tmp_path):
    """Two runs whose weights have the same shapes."""
    other = fit(replace(SMOKE, seed=7), tmp_path, "cpu", progress=False)
    return Run(Path(shutil.copytree(vanilla_run.folder, tmp_path / "copy")), vanilla_run.experiment), other


def test_weights_and_configs_of_another_run_are_refused_and_scores_stay_with_their_weights(pair):
    run, other = pair
    score = run.evaluate(3, 50)
    good = {name: (run.folder / name).read_bytes() for name in ("weights.safetensors", "config.json")}
    for name, content in good.items():
        shutil.copy(other.folder / name, run.folder)
        with pytest.raises(
            ValueError, match=r"config.json or weights.safetensors of another run than metrics.json"
        ):
            load_run(run.folder)
        (run.folder / name).write_bytes(content)
    assert load_run(run.folder).known_score(3, 50) == score
    for name in ("weights.safetensors", "config.json", "metrics.json"):  # another run's, as a whole
        shutil.copy(other.folder / name, run.folder)
    assert load_run(run.folder).known_score(3, 50) is None


def test_weights_that_are_no_numbers_are_refused(pair):
    run, _ = pair
    weights = load_file(run.folder / "weights.safetensors")
    weights["head.weight"][0, 0] = float("nan")
    save_file(weights, run.folder / "weights.safetensors")
    with pytest.raises(ValueError, match=r"expected finite weights in .*got NaN or infinity in head.weight"):
        run.model()
