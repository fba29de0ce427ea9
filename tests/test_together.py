"""Models that differ in their seeds alone, trained as one batched model, are what each is alone, up to rounding."""

import shutil
from dataclasses import replace

import pytest
import torch
from filelock import FileLock

from abcnb.model.checkpoint import steps_in
from abcnb.model.training import CHECKPOINT, train
from abcnb.study import fitting, together
from abcnb.study.fitting import fit, fit_together
from abcnb.study.methods import experiment
from abcnb.study.runs import is_finished, load_run, new_model
from abcnb.study.settings import with_settings
from abcnb.study.together import train_together

ROUNDING = 1e-5  # of losses; single weights whose gradient is next to nothing differ by more


def seeds_of(task, method, *settings, count=2, preset="smoke"):
    return [with_settings(experiment(task, method, preset, seed), settings) for seed in range(count)]


def assert_alike(run, other):
    """The same validations and outputs."""
    for mine, its in zip(run.metrics["history"], other.metrics["history"], strict=True):
        assert mine["step"] == its["step"]
        assert mine["loss"] == pytest.approx(its["loss"], abs=ROUNDING)
        assert mine["exact_match"] == pytest.approx(its["exact_match"], abs=2)
    (batch, *_) = run.experiment.data().validation(64, torch.Generator().manual_seed(5))
    torch.testing.assert_close(run.model()(batch), other.model()(batch), rtol=0, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_card_each_is_trained_as_alone(tmp_path):
    wanted = seeds_of("addition", "abc", "training.precision=fp32")
    fit_together(wanted, tmp_path / "together", "cuda", progress=False)
    for e in wanted:
        assert_alike(fit(e, tmp_path / "together", "cuda"), fit(e, tmp_path / "alone", "cuda", progress=False))


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("successor", "vanilla"),
        ("addition", "abc"),  # each with lines and widths of its own
        ("successor", "abc-paper"),  # matrices, in several heads a line
        ("addition", "t5"),  # biases that are learned
        ("addition", "fire"),  # numbers that are learned
        ("multiplication", "abs"),  # shapes of their own
    ],
)
def test_each_is_trained_as_alone(tmp_path, task, method):
    wanted = seeds_of(task, method)
    fit_together(wanted, tmp_path / "together", "cpu", progress=False)
    for e in wanted:
        folder = tmp_path / "together" / e.digest
        assert load_run(folder, e).metrics["hardware"].endswith("2 models at once")
        assert not (folder / CHECKPOINT).exists()
        assert_alike(load_run(folder, e), fit(e, tmp_path / "alone", "cpu", progress=False))


def test_with_dropout_each_is_trained_as_well(tmp_path):
    wanted = seeds_of(
        "successor", "vanilla", "model.dropout=0.3", "training.steps=60", "training.validate_every=60"
    )
    fit_together(wanted, tmp_path / "together", "cpu", progress=False)
    for e in wanted:
        (mine,), (its,) = (
            run.metrics["history"]
            for run in (fit(e, tmp_path / "together", "cpu"), fit(e, tmp_path / "alone", "cpu", progress=False))
        )
        assert mine["loss"] != its["loss"] and mine["loss"] == pytest.approx(its["loss"], rel=0.1)


def interrupted(models, e, folders, monkeypatch, at):
    """Training that is stopped at a step, with a checkpoint behind every one."""
    monkeypatch.setattr(together, "CHECKPOINT_SECONDS", -1)
    step = together.Stacked.step

    def stopping(self, batches, number):
        if number == at:
            raise KeyboardInterrupt
        return step(self, batches, number)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(together.Stacked, "step", stopping)
        train_together(models, e.data(), e.training, [0, 1, 2], folders, list("abc"), progress=False)


def test_an_interrupted_training_goes_on_together_or_alone(tmp_path, monkeypatch):
    wanted = seeds_of("successor", "vanilla", count=3)
    e = wanted[0]

    def begun(name):
        folders = [tmp_path / name / str(e.seed) for e in wanted]
        for folder in folders:
            folder.mkdir(parents=True)
        return [new_model(e, ((), ())) for e in wanted], folders

    models, folders = begun("straight")
    straight = train_together(models, e.data(), e.training, [0, 1, 2], folders, list("abc"), progress=False)
    others, folders = begun("stopped")
    interrupted(others, e, folders, monkeypatch, 13)
    assert [steps_in(folder / CHECKPOINT) for folder in folders] == [13] * 3
    alone = new_model(wanted[2], ((), ()))
    shutil.copytree(folders[2], tmp_path / "alone")
    its = train(alone, e.data(), e.training, 2, tmp_path / "alone", "c", progress=False)
    again = begun("again")[0]
    went_on = train_together(again, e.data(), e.training, [0, 1, 2], folders, list("abc"), progress=False)
    assert [[r["loss"] for r in records] for records in went_on] == [
        [r["loss"] for r in records] for records in straight
    ]
    assert all(map(torch.equal, models[1].parameters(), again[1].parameters()))
    assert [r["loss"] for r in its] == pytest.approx([r["loss"] for r in straight[2]], abs=ROUNDING)


def test_those_that_have_come_equally_far_go_on_together(tmp_path, monkeypatch):
    wanted, groups = seeds_of("successor", "vanilla", count=5), []
    monkeypatch.setattr(fitting, "_fit_group", lambda group, *_: groups.append([e.seed for e in group]))
    monkeypatch.setattr(fitting, "steps_in", lambda file: {wanted[3].digest: 7}.get(file.parent.name, 0))
    fit_together(wanted, tmp_path, "cpu", most=2)
    assert groups == [[0, 1], [2, 4]]  # the fourth is alone with its seven steps


def test_what_cannot_go_together_is_left(tmp_path, capsys, monkeypatch):
    lora, drawn = seeds_of("successor", "lora"), seeds_of("successor", "abacus")
    drawn += seeds_of(
        "successor", "abc", "model.position=kerple", "model.cross_distance=right"
    )  # lines of their own
    bases = [e.interpolation for e in lora]
    lone = [replace(e, width=9 + e.seed) for e in seeds_of("successor", "nope")]  # no two alike
    fit_together([*lora, *drawn, *lone], tmp_path, "cpu", progress=False)
    bases += [e.interpolation for e in drawn if e.interpolation]
    assert {folder.name for folder in tmp_path.iterdir() if is_finished(folder)} == {e.digest for e in bases}
    with FileLock(tmp_path / f".{bases[0].digest}.lock"), monkeypatch.context() as patched:
        patched.setattr(fitting, "is_usable", lambda *_: False)
        fit_together(bases, tmp_path, "cpu", progress=False)  # another process works on one
    monkeypatch.setattr(fitting, "train_together", lambda *_: _fail())
    fit_together(seeds_of("parity", "vanilla"), tmp_path, "cpu", progress=False)
    assert (
        "each goes on alone, since together they failed: parity vanilla of 2 seeds: no room"
        in capsys.readouterr().err
    )


def _fail():
    raise RuntimeError("no room")


def test_where_one_is_busy_what_the_others_have_stays(tmp_path, monkeypatch):
    wanted = seeds_of("successor", "vanilla")
    fit_together(wanted, tmp_path, "cpu", progress=False)
    monkeypatch.setattr(fitting, "is_current", lambda code: False)
    with FileLock(tmp_path / f".{wanted[1].digest}.lock"):
        fit_together(wanted, tmp_path, "cpu", progress=False, fresh=True)
    assert is_finished(tmp_path / wanted[0].digest)
