"""The panels without a front end: controls are moved by setting their values."""

import base64

import pytest
import torch

from abcnb.configs import ModelConfig
from abcnb.pipeline import new_model
from abcnb.show.panels import attention_panel, calibration_panel, rows_panel, tasks_panel, window_panel
from abcnb.show.panels.attention import answer
from abcnb.show.panels.calibration import PANEL_MIME
from abcnb.show.panels.drawing import MOST_TOKENS
from abcnb.show.panels.rows import written_rows
from abcnb.show.panels.tasks import column_kinds, example_input, written_input
from abcnb.show.panels.windows import window_of
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.predictions import predict
from abcnb.study.runs import load_run
from abcnb.tasks import TASKS, get_task
from abcnb.training_data import TrainingData
from tests.little import ONE_ROW, calibrated_run

PNG = b"\x89PNG\r\n"
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("panels") / "runs"


@pytest.fixture(scope="module")
def run(runs):
    return calibrated_run(runs)


# --- attention


def test_the_attention_panel_is_for_models_with_a_source():
    model = new_model(get_task("addition"), ModelConfig(architecture="decoder-only"), 0)
    with pytest.raises(ValueError, match="expected an encoder-decoder"):
        attention_panel(model, TrainingData("addition"))


def test_the_attention_panel_shows_what_the_model_writes(run):
    found = attention_panel(run, text="12+345", device="cpu")
    e = run.experiment
    width = e.train_width  # shorter inputs are padded as in tests
    assert found.answer.source == "$0000012+0000345&" and found.answer.label == "7530000&"
    assert found.answer.cross_attention[0].shape == (2, width + 1, 2 * width + 3)
    assert len(found.answer.cross_attention) == len(found.answer.self_attention) == 2
    assert torch.allclose(found.answer.self_attention[1].sum(-1), torch.ones(2, width + 1), atol=1e-4)
    assert found.step.max == width
    wrong = sum(a != b for a, b in zip(found.answer.written, found.answer.label, strict=True))
    verdict = f"wrong at {wrong} of {width + 1} steps" if wrong else "correct"
    assert verdict in found.steps.value and found.steps.value.count("✗") == wrong
    assert answer(run.model(), e.data(), "12+345").written == found.answer.written


def test_the_attention_panel_takes_a_model_held_in_a_variable(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    of_run = attention_panel(plain, text="12+345", device="cpu")
    of_model = attention_panel(plain.model(), plain.experiment.data(), "12+345")
    assert of_model.answer.written == of_run.answer.written and of_model.picture.value == of_run.picture.value
    assert of_run.described == "Attention panel: addition, vanilla, seed 0"
    with pytest.raises(ValueError, match=r"expected the data .* attention_panel\(model, data\)"):
        attention_panel(plain.model())


def test_the_step_slider_the_layer_and_the_head_redraw(run):
    found = attention_panel(run, device="cpu")
    assert found.answer.source == "$00078114514+00241919810&"
    for control, value in ((found.step, 3), (found.layer, 0), (found.head, 1), (found.step, 4)):
        drawn = found.picture.value
        control.value = value
        assert found.picture.value != drawn
    found.input.value = "1+1"
    assert found.text == "" and found.step.value == 4 and found.step.max == run.experiment.train_width


def test_wrong_inputs_are_one_clear_line(run):
    found = attention_panel(run, device="cpu")
    for text, message in (("12", "expected NUMBER+NUMBER"), ("1x+2", "got the character 'x'"), ("", "expected")):
        found.input.value = text
        assert message in found.text and "\n" not in found.text
    found.input.value = "<b>+1"
    assert "&lt;" in found.message.value and "<b>" not in found.message.value
    found.input.value = "2+2"
    assert found.text == "" and found.answer.label.startswith("40")


def test_attention_of_a_plain_run_is_shown_too(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    assert attention_panel(plain, text="1+2", device="cpu").text == ""


# --- windows and tasks


def test_the_window_of_abs_and_its_phases():
    found = window_of(get_task("addition"), 2, w=1, period=3, sides="past")
    assert found.source == "$+######&" and found.fed == "$###"
    opened = (found.cross[0] > -torch.inf).nonzero().tolist()
    assert [j for i, j in opened if i == 1] == [4, 5, 6, 7] and [j for i, j in opened if i == 0] == [6, 7, 8]
    assert found.by_column == [(7 - j) % 3 for j in range(9)]
    assert found.of_steps == [0, 1, 2, 0]
    assert (window_of(get_task("addition"), 2, sides="both").cross > -torch.inf).sum() > len(opened)


@pytest.mark.parametrize("task", ["multiplication", "nested"])
def test_panels_of_one_row_refuse_tasks_in_rows(task):
    with pytest.raises(ValueError, match=f"expected a task that writes one row, got '{task}'"):
        tasks_panel(task)
    assert f"expected a task that the paper's windows are for, got '{task}'" in window_panel(task).text


@pytest.mark.parametrize("task", ["addition", "parity", "n-by-1"])
def test_the_window_panel_follows_its_controls(task):
    found = window_panel(task, 3)
    for control, value in ((found.w, 2), (found.period, 5), (found.sides, "both"), (found.length, 12)):
        drawn = (found.picture.value, found.source.value)
        control.value = value
        assert (found.picture.value, found.source.value) != drawn and "Traceback" not in found.text


def test_what_every_column_of_an_input_is():
    found = written_input(get_task("addition"), "123+748", "aligned")
    assert (found.source, found.fed, found.target, found.read) == ("$+00172438&", "$1780", "1780&", "871")
    assert "".join(found.kinds) == "soababababe"
    assert found.places[0] == [-2, 4, 3, -2, 2, -2, 1, -2, 0, -2, -1]
    stream = get_task("n-by-1").stream(2)
    assert "".join(column_kinds("$12*3&", stream)) == "saaode"


def test_the_tasks_panel_takes_tasks_bases_and_forms():
    found = tasks_panel(text="123+748")
    assert found.text == "" and "$+00172438&" in found.texts.value
    found.base.value = 4
    assert "expected NUMBER+NUMBER with digits 0 to 3" in found.text and found.results.layout.display == "none"
    found.base.value, found.form.value = 16, "natural"
    assert found.text == "" and "$0123+0748&" in found.texts.value
    for name in ONE_ROW:
        found.task.value = name
        assert found.text == "" and found.base.value == get_task(name).base
        assert found.base.disabled == (len(TASKS[name].bases) == 1)
        assert found.form.options == get_task(name).forms
    found.task.value, found.input.value = "successor", "7" * 300
    assert found.text.startswith(f"The first {MOST_TOKENS} of 30")


@pytest.mark.parametrize("name", ONE_ROW)
def test_example_inputs_are_inputs(name):
    for base in {2, 10, 16} & set(TASKS[name].bases):
        get_task(name, base).parse(example_input(get_task(name, base)))


@pytest.mark.parametrize("name", ONE_ROW)
def test_a_tasks_panel_of_any_task_starts_with_an_example(name):
    assert tasks_panel(name).text == ""


def test_a_panel_that_starts_with_a_wrong_input_says_so():
    found = tasks_panel(text="12")
    assert found.text.startswith("expected NUMBER+NUMBER")
    assert base64.b64decode(found._repr_mimebundle_()["image/png"]).startswith(PNG)


# --- what remains without a kernel


def test_mime_bundles_hold_the_view_a_picture_and_a_line(run, runs):
    panel = calibration_panel(run, runs, "cpu", samples=5)
    for found in (panel, attention_panel(run, device="cpu"), window_panel(), tasks_panel()):
        bundle = found._repr_mimebundle_()
        assert base64.b64decode(bundle["image/png"]).startswith(PNG)
        assert bundle[VIEW]["model_id"] == found.model_id
        assert "panel" in bundle["text/plain"].lower() and "\n" not in bundle["text/plain"]
        assert (PANEL_MIME in bundle) == (found is panel)
    still = panel._repr_mimebundle_()["image/png"]
    panel.tau.value = 0.04
    assert panel._repr_mimebundle_()["image/png"] == still


# --- outputs in rows


@pytest.fixture(scope="module")
def product_run(runs):
    return fit(experiment("multiplication", "vanilla", "smoke"), runs, "cpu", progress=False)


def test_the_rows_panel_shows_what_the_model_writes(product_run, monkeypatch):
    model, data = product_run.model(), product_run.experiment.data()
    found = rows_panel(model, data, "12*34")
    assert predict(product_run, "12*34", "cpu").answer in found.table.value and "408" in found.table.value
    assert bytes(found.picture.value).startswith(PNG) and "rows wrong" in found.table.value and found.text == ""
    before = found.picture.value
    _, true = written_rows(model, data.task, "21*2")
    monkeypatch.setattr("abcnb.show.panels.rows.written_rows", lambda *_: (true, true))
    found.input.value = "21*2"
    assert "all 2 rows right" in found.table.value and found.picture.value != before


def test_the_rows_panel_refuses_what_it_cannot_write(product_run, run):
    model, data = product_run.model(), product_run.experiment.data()
    found = rows_panel(model, data, "12*34")
    found.input.value = "12+34"
    assert "expected" in found.text and found.results.layout.display == "none"
    found.input.value = f"{10**59}*{10**59}"
    assert found.text == "expected an output of at most 2,000 tokens here, got one of 7,441"
    found.input.value = "12345678901234567890*12345678901234567890"
    assert "are not drawn" in found.text and found.picture.layout.display == "none"
    with pytest.raises(ValueError, match="expected a task whose output is in rows, got addition"):
        rows_panel(run.model(), run.experiment.data(), "1+2")
