import pytest
import torch
from abcnb.counter_calibration import calibrate_stream
from abcnb.counters import StreamBias

from abcnb.attention import record
from abcnb.study.cost import training_flops
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment, has
from abcnb.study.predictions import Prediction
from abcnb.study.settings import with_settings
from abcnb.study.store import commit_run
from abcnb.tasks import get_task
from tests.conftest import assert_refused


@pytest.fixture(scope="module")
def product_run(shared_runs):
    return fit(experiment("multiplication", "abc-places", "smoke"), shared_runs, "cpu", progress=False)


def test_a_calibrated_run_keeps_attention_and_lines(product_run, shared_runs, tmp_path):
    attention = product_run.attention()
    shapes = {shape.stream.shape for shape in attention}
    assert shapes == {(3, 3)}
    again = calibrate_stream(attention, product_run.experiment.counters)
    (bias,) = product_run.biases().self_biases
    assert isinstance(bias, StreamBias) and bias == again.bias and product_run.model().self_biases == (bias,)
    committed = commit_run(product_run, tmp_path)
    assert (committed / "self-0.json").exists() and (committed / "attention.safetensors").exists()
    assert fit(product_run.experiment, shared_runs, "cpu", progress=False) == product_run


def test_a_run_in_rows_is_measured_on_every_test_set_it_has(product_run):
    for test_set in ("random", "hard", "unequal"):
        score = product_run.evaluate(3, 24, test_set)
        assert 0 < score.samples <= 30 and score.digits > 0 and score.wrong_digits > 0
    with pytest.raises(ValueError, match="expected a test set among random, hard, unequal"):
        product_run.evaluate(3, 20, "padded")


def test_a_product_is_predicted_row_by_row(cli, product_run):
    code, out, _ = cli("predict", product_run.folder, "12*34", "--rows")
    assert code == 0 and out.startswith("source   $12*34=\n")
    # 12 × 4 = 48, 12 × 3 = 36, 4 + 36 = 40: the rows are shown beside what they should be
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["products", "sums", "products", "sums"]
    for row in ("840+", "840*", "630+", "040*"):
        assert row in out
    assert "(true: 408)" in out


def test_a_right_answer_with_a_wrong_row_is_said_to_be_that(cli, product_run, monkeypatch):
    written = Prediction("$0*5=", "00+10*00+&", "00+00*&", "0", "0")
    monkeypatch.setattr("abcnb.__main__.predict", lambda *_: written)
    code, out, _ = cli("predict", product_run.folder, "0*5", "--rows")
    rows = [line.split(maxsplit=1)[1] for line in out.splitlines()[1:4]]
    assert code == 0 and rows == ["00+", "10*  (true: 00*)", "00+  (true: no row)"]
    assert out.splitlines()[-1] == "right answer, another token is wrong: 0 (true: 0)"


def test_a_method_in_a_stream_is_shown_as_what_it_is_there(cli):
    for task, method, expected in (
        ("multiplication", "abs-place", ["lines over rows and places, by hand", "inputs of size 6 at most"]),
        (
            "many-addition",
            "vanilla",
            ["the first layer sees its own token alone", "inputs of size 6 terms of 3 alone"],
        ),
        ("addition", "abc-places", ["lines over places, calibrated; no positions", "operands padded to 7"]),
    ):
        code, out, _ = cli("show", task, method, *(["--preset", "decoder-only"] if task == "addition" else []))
        assert code == 0 and all(text in out for text in expected) and "ABS" not in out and "CPI" not in out
        assert ("that tokens of the output follow these counters" in out) == (method == "abc-places")


def test_rows_are_for_tasks_that_have_them(cli, vanilla_run):
    assert_refused(cli("predict", vanilla_run.folder, "12", "--rows"), "--rows for a task whose output is in rows")


@pytest.mark.parametrize("method", ["vanilla", "abc-places"])
def test_the_paper_tasks_are_learned_in_one_stream(method, shared_runs):
    wanted = experiment("addition", method, "decoder-only")
    settings = ["training.steps=3", "training.batch_size=8", "training.validate_every=3", "model.d_model=32"]
    if method == "abc-places":  # of the plain model too
        settings += [f"interpolation.{setting}" for setting in settings]
    run = fit(with_settings(wanted, settings), shared_runs, "cpu", progress=False)
    assert run.experiment.frame == ("counters" if method == "abc-places" else "")
    assert run.evaluate(4, 20).samples == 20


def test_own_token_in_the_first_layer(shared_runs):
    wanted = experiment("many-addition", "vanilla", "smoke")
    settings = ["bias=own-token", "biased_layers=0", "training.steps=3", "training.validate_every=3"]
    model = fit(with_settings(wanted, settings), shared_runs, "cpu", progress=False).model()
    data, generator = wanted.data(), torch.Generator().manual_seed(0)
    first, second = record(model, data.train(2, generator)).self_attention
    assert torch.equal(first[0, 0], torch.eye(first.shape[-1]))
    assert (second[0, 0].tril() > 0).sum() == first.shape[-1] * (first.shape[-1] + 1) // 2
    with pytest.raises(ValueError, match="bias 'own-token' is for decoder-only models"):
        with_settings(experiment("addition", "vanilla"), ["bias=own-token"])


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="expected preset smoke, laptop or paper for parity-classification"):
        experiment("parity-classification", "vanilla", "decoder-only")
    assert not has("multiplication", "rpe") and has("multiplication", "rope")
    plain = experiment("multiplication", "vanilla")
    for settings in (["model.architecture=encoder-decoder"], ["train_numbers=mixed"], ["width=7"]):
        with pytest.raises(ValueError):
            with_settings(plain, settings)


@pytest.mark.parametrize(
    "task, method, setting, told",
    [
        (
            "addition",
            "abc-places",
            "closed=-5",
            "lines of a stream close cells by −∞; got biased both and closed -5.0",
        ),
        ("multiplication", "abs-place", "biased=cross", "has no cross-attention, .* got biased cross"),
        (
            "addition",
            "alibi",
            "bias=alibi-places",
            "expected a bias among none, alibi, own-token, calibrated for addition",
        ),
        (
            "addition",
            "alibi",
            "bias=by-hand",
            "expected a bias among none, alibi, own-token, calibrated for addition",
        ),
        (
            "multiplication",
            "abs-place",
            "bias=window",
            "among none, alibi, own-token, by-hand, calibrated for multiplication",
        ),
    ],
)
def test_a_bias_that_a_stream_does_not_have_is_refused_before_anything_is_written(task, method, setting, told):
    preset = "decoder-only" if task == "addition" else "laptop"
    with pytest.raises(ValueError, match=told):
        with_settings(experiment(task, method, preset), [setting])


def test_lines_by_hand_of_a_stream_are_refused_elsewhere():
    with pytest.raises(ValueError, match="'by-hand' is for decoder-only models, got encoder-decoder"):
        with_settings(experiment("addition", "vanilla"), ["bias=by-hand"])


def test_a_stream_costs_what_its_tokens_cost():
    plain, longer = experiment("multiplication", "vanilla"), experiment("multiplication", "abs-place")
    per_step = [training_flops(e) / e.training.steps / e.training.batch_size for e in (plain, longer)]
    tokens = [len(get_task("multiplication").layout(e.train_width)) for e in (plain, longer)]
    assert tokens[1] / tokens[0] < per_step[1] / per_step[0] < (tokens[1] / tokens[0]) ** 2
