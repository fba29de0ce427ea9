"""Runs are trained once, resumed, and set aside where other code trained them."""

import math
import multiprocessing
import os
import shutil
from dataclasses import replace

import pytest
import torch
from filelock import FileLock

from abcnb import pipeline
from abcnb.study.fingerprint import UNKNOWN, fingerprint
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.study.settings import with_settings

SMOKE = experiment("successor", "vanilla", "smoke")
ABC = experiment("successor", "abc", "smoke")


def test_an_experiment_asked_for_twice_is_trained_once_after_what_it_calibrates(tmp_path, monkeypatch):
    trained, train = [], pipeline.train

    def spy(*rest, **watch):
        trained.append(watch["label"])
        return train(*rest, **watch)

    monkeypatch.setattr(pipeline, "train", spy)
    first = fit(ABC, tmp_path, "cpu", progress=False)
    assert fit(ABC, tmp_path, "cpu", progress=False) == first
    assert fit(SMOKE, tmp_path, "cpu", progress=False).folder == tmp_path / SMOKE.digest
    assert trained == ["successor vanilla seed 0", "successor abc seed 0"]
    assert (first.folder / "metrics.json").is_file() and not (first.folder / "checkpoint.safetensors").exists()
    fit(replace(SMOKE, seed=1), tmp_path, "cpu", progress=False)
    assert len(trained) == 3


def test_a_model_that_looks_once_has_its_lines_in_the_first_layer_and_the_weights_of_retrain(tmp_path):
    e = with_settings(experiment("successor", "abs", "smoke"), ["look_once=true", "model.decoder_layers=2"])
    model = fit(e, tmp_path, "cpu", progress=False).model()
    assert [bool(bias.lines) for bias in (*model.self_biases, *model.cross_biases)] == [True, False] * 2
    data = e.data()
    by_hand = pipeline.lines_by_hand(data, e.model.heads)
    other = pipeline.retrain(data, by_hand, e.model, e.training, e.seed, look_once=True, progress=False)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert pipeline.evaluate(model, data, [300], 1)[0].samples == 1  # along open tokens


def test_two_processes_that_ask_at_once_train_once(tmp_path):
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def ask(name):
        heard = lambda steps, _: os.write(log, f"{name}{steps} ".encode())  # noqa: E731
        run = fit(ABC, tmp_path / "runs", "cpu", False, heard)
        number = (run.folder / "weights.safetensors").stat().st_ino
        (tmp_path / name).write_text(f"{number} {run.metrics['steps']}")

    processes = [multiprocessing.get_context("fork").Process(target=ask, args=name) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text(), "both have the same file, written once"
    # Twenty steps of Vanilla and twenty of ABC: by either process, but not by both.
    assert sum(int(word[1:]) for word in (tmp_path / "log").read_text().split()) == 40


def test_a_wait_for_another_process_is_said_and_can_be_stopped(tmp_path, capsys):
    wanted = experiment("successor", "vanilla", "smoke")

    def stop(steps, loss):
        assert steps == 0 and math.isnan(loss)
        raise KeyboardInterrupt

    with FileLock(tmp_path / f".{wanted.digest}.lock"), pytest.raises(KeyboardInterrupt):
        fit(wanted, tmp_path, "cpu", progress=False, listener=stop)
    assert "another process works on" in capsys.readouterr().err
    assert fit(wanted, tmp_path, "cpu", progress=False).metrics["steps"] == 20


def test_a_checkpoint_of_another_experiment_is_refused(tmp_path, vanilla_run):
    """Both have the same shapes."""
    other = replace(SMOKE, seed=SMOKE.seed + 1)
    with pytest.raises(KeyboardInterrupt):
        fit(other, tmp_path, "cpu", progress=False, listener=interrupt)
    (tmp_path / SMOKE.digest).mkdir()
    shutil.copy(tmp_path / other.digest / "checkpoint.safetensors", tmp_path / SMOKE.digest)
    with pytest.raises(ValueError, match=rf"got: that of {other.digest}, not of {SMOKE.digest}; delete it"):
        fit(SMOKE, tmp_path, "cpu", progress=False)


def interrupt(steps, loss):
    raise KeyboardInterrupt


def test_a_run_that_was_killed_when_it_was_finished_keeps_no_checkpoint(tmp_path, vanilla_run):
    folder = shutil.copytree(vanilla_run.folder, tmp_path / SMOKE.digest)
    for name in ("checkpoint.safetensors", "code.txt"):
        (folder / name).write_text("left")
    fit(SMOKE, tmp_path, "cpu", progress=False)
    assert not (folder / "checkpoint.safetensors").exists() and not (folder / "code.txt").exists()


def test_a_calibration_of_what_has_not_interpolated_says_so(tmp_path, monkeypatch, capsys):
    wanted = experiment("successor", "abc", "smoke")
    run = fit(wanted, tmp_path, "cpu", progress=False)
    reached = load_run(tmp_path / wanted.interpolation.digest).metrics["history"][-1]["exact_match"]
    told = capsys.readouterr().err
    assert reached < 99 and told.count("\n") == 1
    assert f"(successor, seed 0) has {reached:.2f}% in its last validation" in told
    monkeypatch.setattr("abcnb.study.fitting.INTERPOLATED", reached)
    shutil.rmtree(run.folder)
    fit(wanted, tmp_path, "cpu", progress=False)
    assert capsys.readouterr().err == ""


class Interrupted(Exception):
    """Raised by a listener, as Ctrl-C would be."""


def interrupted_by_other_code(folder, monkeypatch):
    """A run whose first half was trained by other code."""

    def stop(steps, loss):
        raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr("abcnb.study.fitting.fingerprint", lambda: "0123456789ab")
        fit(SMOKE, folder, "cpu", progress=False, listener=stop)
    assert (folder / SMOKE.digest / "checkpoint.safetensors").is_file()


def test_a_run_that_other_code_began_says_so(tmp_path, monkeypatch, vanilla_run):
    interrupted_by_other_code(tmp_path, monkeypatch)
    run = fit(SMOKE, tmp_path, "cpu", progress=False)
    assert run.code == f"0123456789ab+{fingerprint()}" and not (run.folder / "code.txt").exists()


def test_a_fresh_run_does_not_go_on_from_the_checkpoint_of_other_code(tmp_path, monkeypatch, vanilla_run):
    interrupted_by_other_code(tmp_path, monkeypatch)
    heard = []
    run = fit(SMOKE, tmp_path, "cpu", progress=False, listener=lambda steps, loss: heard.append(steps), fresh=True)
    assert run.code == fingerprint() and sum(heard) == SMOKE.training.steps
    for name, value in vanilla_run.model().state_dict().items():
        assert torch.equal(run.model().state_dict()[name], value)


def test_a_run_whose_metrics_cannot_be_read_can_be_trained_anew(tmp_path, vanilla_run):
    shutil.copytree(vanilla_run.folder, tmp_path / SMOKE.digest)
    (tmp_path / SMOKE.digest / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match="expected a run of this version"):
        fit(SMOKE, tmp_path, "cpu", progress=False)
    assert fit(SMOKE, tmp_path, "cpu", progress=False, fresh=True).code == fingerprint()
    assert (tmp_path / "superseded" / f"{SMOKE.digest}-{UNKNOWN}-1" / "metrics.json").read_text() == "{"
