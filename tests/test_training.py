import json
import os
import shutil
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from abcnb.model import training
from abcnb.model.training import CHECKPOINT, TrainingConfig, learning_rate, train
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from tests.conftest import status_of_child

TINY = TrainingConfig(
    steps=20, batch_size=8, learning_rate=3e-3, warmup_steps=5, validate_every=5, validation_samples=16
)


def make(method="vanilla", dropout=0.0, task="successor", preset="smoke", **changes):
    wanted = experiment(task, method, preset, 4)
    small = replace(wanted.model, dropout=dropout, d_model=32, d_ff=64, heads=2)
    wanted = replace(wanted, model=small, training=replace(TINY, **changes))
    return new_model(wanted, written_biases(wanted)), wanted.data(), wanted.training


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


# --- interrupted and resumed


# Each child saves after every step up to the seventh, and is killed in the middle of its 14th.
class Killed:
    def __init__(self, data):
        self.data, self.calls = data, 0

    def validation(self, *rest):
        return self.data.validation(*rest)

    def train(self, *rest):
        self.calls += 1
        if self.calls == 8:
            training.CHECKPOINT_SECONDS = 1e9
        if self.calls == 14:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data.train(*rest)


def train_and_die(case, folder):
    training.CHECKPOINT_SECONDS = -1.0
    model, data, config = make(*case)
    train(model, Killed(data), config, 4, folder, progress=False)


CASES = {"plain": ("vanilla", 0.0), "dropout": ("vanilla", 0.1), "lines": ("abs", 0.1)}
CASES |= {"in one stream": ("fire", 0.0, "addition", "decoder-only")}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    for name, case in CASES.items():
        (folder / name).mkdir()
        assert status_of_child(partial(train_and_die, case, folder / name)) == -signal.SIGKILL
    return folder


@pytest.mark.parametrize("name", CASES)
def test_killed_and_resumed_training_is_bit_equal_to_an_uninterrupted_one(killed, name):
    folder = killed / name
    assert [file.name for file in folder.iterdir()] == [CHECKPOINT]
    with safe_open(folder / CHECKPOINT, "pt") as file:
        assert file.metadata()["step"] == "7"
        assert [record["step"] for record in json.loads(file.metadata()["history"])] == [5]
    resumed, data, config = make(*CASES[name])
    batches = []
    draw = data.train
    data.train = lambda *rest: batches.append(1) or draw(*rest)
    history = train(resumed, data, config, 4, folder, progress=False)
    assert len(batches) == 13, "it went on from step 7"
    whole, data, config = make(*CASES[name])
    expected = train(whole, data, config, 4, progress=False)
    before, after = weights(whole), weights(resumed)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    without_time = [[{**record, "seconds": 0} for record in records] for records in (history, expected)]
    assert without_time[0] == without_time[1]
    assert [record["step"] for record in history] == [5, 10, 15, 20]


def test_a_finished_checkpoint_is_not_trained_further(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    model, data, config = make()
    train(model, data, config, 4, tmp_path, progress=False)
    again, data, config = make()
    data.train = None
    train(again, data, config, 4, tmp_path, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_seed_decides_batches_and_dropout():
    found = []
    for seed in (4, 4, 5):
        model, data, config = make(dropout=0.1)
        train(model, data, config, seed, progress=False)
        found.append(weights(model)["head.weight"])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    model, data, config = make(dropout=0.1, steps=2)
    train(model, data, config, 4, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


# --- schedule and stop rule


def test_schedule_by_hand():
    config = TrainingConfig(steps=1500, learning_rate=1e-3, warmup_steps=100)
    assert learning_rate(config, 0) == pytest.approx(1e-5)
    assert learning_rate(config, 49) == pytest.approx(5e-4)
    assert learning_rate(config, 99) == pytest.approx(1e-3)
    assert learning_rate(config, 100) == pytest.approx(1e-3)
    assert learning_rate(config, 450) == pytest.approx(1e-3 * 0.853553, rel=1e-5)  # (1 + cos 45°) / 2
    assert learning_rate(config, 800) == pytest.approx(5e-4)  # half of the cosine's way
    assert learning_rate(config, 1500) == pytest.approx(0, abs=1e-12)
    assert learning_rate(config, 2000) == pytest.approx(0, abs=1e-12)


def test_schedule_without_warm_up_and_with_nothing_else():
    assert learning_rate(TrainingConfig(steps=10, learning_rate=0.1, warmup_steps=0), 0) == pytest.approx(0.1)
    short = TrainingConfig(steps=4, learning_rate=0.1, warmup_steps=8)
    assert [learning_rate(short, step) for step in range(4)] == pytest.approx([0.0125, 0.025, 0.0375, 0.05])


def test_the_optimizer_follows_the_schedule():
    rates = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    try:
        model, data, config = make()
        train(model, data, config, 4, progress=False)
    finally:
        hook.remove()
    assert rates == pytest.approx([learning_rate(config, step) for step in range(20)])


def test_gradients_are_clipped():
    norms = []

    def measure(optimizer, *_):
        gradients = [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.cat(gradients).norm().item())

    hook = register_optimizer_step_pre_hook(measure)
    try:
        model, data, config = make(clip=0.01, steps=3)
        train(model, data, config, 4, progress=False)
    finally:
        hook.remove()
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)


def rewrite(file, without=(), tensors=None, **metadata):
    with safe_open(file, "pt") as opened:
        known = opened.metadata() | metadata
    content = {name: value for name, value in (load_file(file) | (tensors or {})).items() if name not in without}
    save_file(content, file, {name: value for name, value in known.items() if name not in without})


BIAS = "model.head.bias"
DAMAGES = {
    "empty": (lambda file: file.write_bytes(b""), "expected a checkpoint in .*; delete it"),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:-100]), "expected a checkpoint in .*; delete it"),
    "device": (
        lambda f: rewrite(f, device="cuda"),
        "on cuda, where it was begun, got cpu; go on there, or delete it",
    ),
    "owner": (lambda f: rewrite(f, owner="another"), "got: that of another, not of mine; delete it"),
    "no owner": (lambda f: rewrite(f, without=["owner"]), "got: no owner; delete it"),
    "no step": (lambda f: rewrite(f, without=["step"]), "got: no step; delete it"),
    "no device": (lambda f: rewrite(f, without=["device"]), "got: no device; delete it"),
    "no generator": (lambda f: rewrite(f, without=["generator"]), "got: no generator; delete it"),
    "no weight": (lambda f: rewrite(f, without=[BIAS]), f"got: no {BIAS}; delete it"),
    "no momentum": (
        lambda f: rewrite(f, without=["optimizer.0.exp_avg"]),
        "got: no optimizer.0.exp_avg; delete it",
    ),
    "weight too many": (
        lambda f: rewrite(f, tensors={"model.x": torch.ones(1)}),
        "model.x, which this model does not",
    ),
    "other size": (
        lambda f: rewrite(f, tensors={BIAS: torch.ones(3)}),
        r"shape \[3\] instead of torch.float32 and",
    ),
    "other type": (lambda f: rewrite(f, tensors={"generator": torch.ones(5056)}), "generator of torch.float32"),
    "no numbers": (
        lambda f: rewrite(f, tensors={BIAS: torch.full((15,), torch.nan)}),
        f"infinity in {BIAS}; delete",
    ),
    "a step that is none": (lambda f: rewrite(f, step="two"), "invalid literal .*; delete it"),
    "a step too far": (lambda f: rewrite(f, step=str(10**15)), "step 10+ of 2 after .*; delete it"),
    "endless": (lambda f: rewrite(f, seconds="nan"), "step 2 of 2 after nan seconds; delete it"),
    "no history": (lambda f: rewrite(f, history="null"), "a history that is no list of validations; delete it"),
    "half a history": (lambda f: rewrite(f, history="[]"), "a history that is not that of 2 steps; delete it"),
    "a history of text": (lambda f: rewrite(f, history='["two"]'), "a history that is no list of validations"),
    "deep history": (lambda f: rewrite(f, history="[" * 100_000), "recursion .*; delete it"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of two steps, all that there are."""
    folder = tmp_path_factory.mktemp("checkpoint")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "CHECKPOINT_SECONDS", -1.0)
        train(*make(steps=2), 4, folder, "mine", progress=False)
    return folder / CHECKPOINT


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_cannot_be_gone_on_with_is_refused(tmp_path, checkpoint, damage):
    shutil.copy(checkpoint, tmp_path)
    harm, told = DAMAGES[damage]
    harm(tmp_path / CHECKPOINT)
    model, data, config = make(steps=2)
    before = weights(model)
    with pytest.raises(ValueError, match=told) as refusal:
        train(model, data, config, 4, tmp_path, "mine", progress=False)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / CHECKPOINT).exists()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- validation


def test_validation_records_what_the_model_gets_wrong():
    model, data, config = make(steps=1, validation_samples=64)
    (record,) = train(model, data, config, 4, progress=False)
    (batch,) = data.validation(64, torch.Generator().manual_seed(4 + 1))
    with torch.no_grad():
        wrong = model.eval()(batch).argmax(-1) != batch.target
    assert record["digit_error_rate"] == pytest.approx(wrong.float().mean().item())
    assert record["exact_match"] == pytest.approx(100 * (~wrong.any(1)).float().mean().item())
    assert set(record) == {"step", "seconds", "loss", "exact_match", "digit_error_rate"}
    assert record["loss"] > 0 and record["seconds"] >= 0


# --- what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"validate_every": 0},
        {"validation_samples": 0},
        {"learning_rate": 0.0},
        {"learning_rate": 1.0},
        {"learning_rate": float("nan")},
        {"weight_decay": float("inf")},
        {"steps": True},
        {"steps": 2.5},
        {"learning_rate": "1e-3"},
        {"weight_decay": -1.0},
        {"clip": 0.0},
        {"warmup_steps": -1},
        {"precision": "fp8"},
    ],
)
def test_training_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        TrainingConfig(**wrong)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_training_with_its_step(poison):
    model, data, config = make()
    with torch.no_grad():
        model.head.weight.fill_(poison)
    with pytest.raises(ValueError, match=r"loss is (nan|inf) at step 5; lower learning_rate"):
        train(model, data, config, 4, progress=False)


def test_a_listener_hears_of_steps_and_losses_between_validations(monkeypatch):
    heard, config = [], {"steps": 7, "validate_every": 5}
    model, data, training_config = make(**config)
    history = train(model, data, training_config, 4, progress=False, on_step=lambda *told: heard.append(told))
    steps = [sum(done for done, _ in heard[: n + 1]) for n in range(len(heard))]
    assert steps[-2:] == [5, 7]
    losses = [loss for step, (_, loss) in zip(steps, heard, strict=True) if step in (5, 7)]
    assert losses == [record["loss"] for record in history]
    monkeypatch.setattr(training, "TELL_SECONDS", -1.0)
    heard.clear()
    other, data, training_config = make(**config)
    train(other, data, training_config, 4, progress=False, on_step=lambda *told: heard.append(told))
    assert [done for done, _ in heard] == [1] * 7 and all(loss > 0 for _, loss in heard)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
