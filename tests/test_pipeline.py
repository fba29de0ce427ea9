"""The idea as four functions, against the runs that are trained for the tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import abcnb
from abcnb import pipeline
from abcnb.lines.biases import NO_BIASES
from abcnb.model.configs import TrainingConfig
from abcnb.rivals.lora import LoRAConfig, adapt, new_adapted
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.tasks.task import get_task

VANILLA = experiment("successor", "vanilla", "smoke")
ABC = experiment("successor", "abc", "smoke")
TINY = TrainingConfig(
    steps=3, batch_size=8, learning_rate=3e-3, warmup_steps=1, validate_every=2, validation_samples=8
)


def same(one, other):
    before, after = one.state_dict(), other.state_dict()
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def without_seconds(history):
    return [record | {"seconds": 0} for record in history]


@pytest.fixture(scope="module")
def plain():
    return abcnb.interpolate(VANILLA.data(), VANILLA.model, VANILLA.training, VANILLA.seed, progress=False)


def test_interpolate_trains_the_model_of_the_run(plain, vanilla_run):
    assert same(plain, vanilla_run.model()) and not plain.training
    assert without_seconds(plain.history) == without_seconds(vanilla_run.metrics["history"])
    assert without_seconds(vanilla_run.model().history) == without_seconds(plain.history)


def test_calibrate_and_retrain_find_the_lines_and_the_model_of_the_run(plain, abc_run):
    lines = abcnb.calibrate(plain, VANILLA.data(), ABC.tau, VANILLA.seed)
    assert lines.biases(ABC.model.heads) == abc_run.biases()
    assert torch.equal(lines.attention[0].cross_attention, abc_run.attention()[0].cross_attention)
    model = abcnb.retrain(ABC.data(), lines, ABC.model, ABC.training, ABC.seed, progress=False)
    assert same(model, abc_run.model())
    by_hand = abcnb.retrain(ABC.data(), abc_run.biases(), ABC.model, ABC.training, ABC.seed, progress=False)
    assert same(by_hand, model)


def test_lines_by_hand_are_lines_too(parity_run):
    e = parity_run.experiment
    lines = abcnb.lines_by_hand(e.data(), e.model.heads)
    assert same(abcnb.retrain(e.data(), lines, e.model, e.training, e.seed, progress=False), parity_run.model())


def test_adapt_trains_the_adapters_of_the_run_and_leaves_the_plain_model_as_it_was(shared_runs):
    e = experiment("addition", "lora", "smoke")
    run = fit(e, shared_runs, "cpu", progress=False)
    base = load_run(shared_runs / e.interpolation.digest).model()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    adapted = adapt(e.data(), base, e.lora, e.training, e.seed, progress=False)
    assert same(adapted, run.model())
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert all(parameter.requires_grad for parameter in base.parameters())


def test_evaluate_counts_what_the_run_counts(plain, vanilla_run):
    found = abcnb.evaluate(plain, VANILLA.data(), [2, 9], 40, "hard")
    known = [vanilla_run.evaluate(length, 40, "hard") for length in (2, 9)]
    assert found == [replace(score, code="", date="") for score in known]


def test_evaluate_refuses_what_is_no_test(plain):
    with pytest.raises(
        ValueError, match="expected a test set among random, hard, unequal, padded for successor, got 'easy'"
    ):
        abcnb.evaluate(plain, VANILLA.data(), [3], 5, "easy")
    with pytest.raises(
        ValueError, match="expected a length and a sample count that are whole numbers of at least 1"
    ):
        abcnb.evaluate(plain, VANILLA.data(), [0])


def test_a_new_model_is_the_same_for_the_same_seed_and_leaves_the_generator_alone():
    task = VANILLA.get_task()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, two, other = (pipeline.new_model(task, VANILLA.model, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert same(one, two) and not same(one, other)
    assert (one.self_biases, one.cross_biases) == NO_BIASES and one.history == []


def test_what_is_adapted_keeps_its_weights_and_starts_as_it_was(plain):
    task, (batch,) = VANILLA.get_task(), VANILLA.data().validation(4, torch.Generator().manual_seed(0))
    model = new_adapted(task, VANILLA.model, 7, LoRAConfig(2), plain.state_dict()).eval()
    torch.testing.assert_close(model(batch), plain(batch))
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained and all(name.endswith((".up", ".down")) for name in trained)


def test_where_queries_and_keys_decide_nothing_there_is_nothing_to_adapt(plain, parity_run):
    adapted = adapt(VANILLA.data(), plain, LoRAConfig(2), TINY, progress=False)
    with pytest.raises(ValueError, match="expected a model without adapters"):
        adapt(VANILLA.data(), adapted, LoRAConfig(2), TINY, progress=False)
    with pytest.raises(ValueError, match="expected a model whose attention has a choice to adapt"):
        adapt(parity_run.experiment.data(), parity_run.model(), LoRAConfig(2), TINY, progress=False)


def test_attention_is_averaged_over_4096_training_samples(plain, monkeypatch):
    drawn = []

    class Watched(abcnb.TrainingData):
        def train(self, size, generator):
            drawn.append((size, generator.initial_seed()))
            return super().train(size, generator)

    whole = pipeline.attention_of(plain, Watched("successor", "even"), seed=5)
    (size, seed), *others = drawn  # all of one generator, that of no training
    assert size == 64 and others == [(size, seed)] * 63 and seed > 2**32
    (whole,) = whole
    torch.testing.assert_close(whole.cross_attention.sum(-1), torch.ones(2, 2, 8))
    (scores,) = pipeline.attention_of(plain, VANILLA.data(), "scores", 5)
    assert not torch.allclose(scores.cross_attention, whole.cross_attention)


def test_what_is_watched_is_told(tmp_path, capfd):
    heard = []
    data = abcnb.TrainingData("successor")
    watch = {
        "progress": True,
        "label": "my own label",
        "on_validation": lambda history: heard.append(len(history)),
    }
    model = abcnb.interpolate(data, VANILLA.model, TINY, **watch)
    assert heard == [1, 2] and [record["step"] for record in model.history] == [2, 3]
    assert "my own label" in capfd.readouterr().err


def test_the_defaults_are_those_that_the_documentation_names():
    data = abcnb.TrainingData("successor")
    assert (pipeline.plain_model(data).position, pipeline.model_with_lines(data).position) == (
        "sinusoidal",
        "none",
    )
    assert pipeline.model_with_lines(abcnb.TrainingData("multiplication")).position == "kinds"
    assert set(abcnb.__all__) >= {"interpolate", "calibrate", "retrain", "evaluate", "TrainingData", "windows"}
    assert all(hasattr(abcnb, name) for name in abcnb.__all__)


def test_data_of_another_task_are_refused(plain):
    addition = abcnb.TrainingData("addition")
    expected = "expected data of what the model was trained on, successor in base 10, natural form, got addition"
    for call in (lambda: abcnb.evaluate(plain, addition, [6]), lambda: abcnb.calibrate(plain, addition)):
        with pytest.raises(ValueError, match=expected):
            call()
    with pytest.raises(
        ValueError, match=r"expected TrainingData, such as abcnb.TrainingData\('successor'\), got 'successor'"
    ):
        abcnb.interpolate("successor", VANILLA.model, TINY)
    with pytest.raises(ValueError, match="expected a ModelConfig as the model, got 100"):
        abcnb.interpolate(VANILLA.data(), 100)
    with pytest.raises(ValueError, match="expected TrainingData"):
        abcnb.lines_by_hand(VANILLA.get_task())


def test_lines_of_inputs_of_another_form_are_refused(plain):
    lines = abcnb.calibrate(plain, VANILLA.data(), ABC.tau)
    lists = abcnb.TrainingData("nested")
    with pytest.raises(ValueError, match=r"expected a segment among|expected the stream of an encoder-decoder"):
        abcnb.retrain(lists, lines, replace(ABC.model, architecture="decoder-only"), TINY)
    with pytest.raises(ValueError, match="expected a trained model, as interpolate"):
        abcnb.evaluate(lines, ABC.data(), 6)
    with pytest.raises(ValueError, match=r"expected what calibrate\(\) or lines_by_hand\(\) returns, got tuple"):
        abcnb.retrain(ABC.data(), lines.biases(4).cross_biases, ABC.model, TINY)


def test_one_length_is_as_good_as_a_list_of_one_and_none_is_refused(plain):
    assert abcnb.evaluate(plain, VANILLA.data(), 3, 5) == abcnb.evaluate(plain, VANILLA.data(), [3], 5)
    assert abcnb.evaluate(plain, VANILLA.data(), np.arange(2, 4), 5) == abcnb.evaluate(
        plain, VANILLA.data(), [2, 3], 5
    )
    with pytest.raises(ValueError, match="expected at least one length"):
        abcnb.evaluate(plain, VANILLA.data(), [])
    with pytest.raises(ValueError, match="whole numbers"):
        abcnb.evaluate(plain, VANILLA.data(), [3], 1e4)


def test_what_an_architecture_cannot_learn_is_refused():
    stream = replace(VANILLA.model, architecture="decoder-only")
    with pytest.raises(ValueError, match="expected an encoder-decoder for parity-classification"):
        pipeline.new_model(get_task("parity-classification"), stream, 0)


def test_what_inference_leaves_behind_can_be_trained_with():
    model = pipeline.new_model(ABC.get_task(), ABC.model, 0, abcnb.windows(ABC.data().stream, ABC.model.heads))
    batch = ABC.data().train(2, torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(batch)
    model(batch).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
