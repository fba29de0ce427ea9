"""The panels without a front end: controls are set, buttons clicked."""

import json
import re
from html import unescape

import pytest
import torch

from abcnb.model.configs import ModelConfig
from abcnb.pipeline import new_model
from abcnb.show.panels import (
    attention_panel,
    calibration,
    calibration_panel,
    rows_panel,
    tasks_panel,
    window_panel,
)
from abcnb.show.panels.calibration import ALGORITHM_1, KAPPAS, PANEL_MIME, TAUS, TESTED_LENGTHS
from abcnb.show.panels.panel import table
from abcnb.show.panels.tasks import column_kinds
from abcnb.study.runs import load_run
from abcnb.tasks.task import TASKS, get_task
from abcnb.tasks.training_data import TrainingData
from tests.conftest import copied
from tests.little import ONE_ROW

VIEW = "application/vnd.jupyter.widget-view+json"


def rows_of(html):
    """The rows of all tables of an HTML text by their first cell: the texts of the others."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html):
        name, *cells = (unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row))
        found[name] = cells
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("panels") / "runs"


@pytest.fixture(scope="module")
def run(runs, addition_run):
    return copied(addition_run, runs)


@pytest.fixture(scope="module")
def trained(run):
    """A model and its data."""
    return run.model(), run.experiment.data()


def test_tables_are_escaped_and_their_rows_named():
    html = table([["<b>", ("&", "black"), ("x", None)]])
    assert '<th scope="row"' in html and "&lt;b&gt;" in html and "background:#000000;color:white" in html
    assert rows_of(html) == {"<b>": ["&", "x"]}
    assert '<th scope="col"' in table([[1, 2]], ["a", "b"]) and 'scope="row"' not in table([[1, 2]], ["a", "b"])


# --- attention


def test_the_attention_panel_is_for_models_with_a_source():
    model = new_model(get_task("addition"), ModelConfig(architecture="decoder-only"), 0)
    with pytest.raises(ValueError, match="expected an encoder-decoder"):
        attention_panel(model, TrainingData("addition"))


def test_the_attention_panel_shows_what_the_model_writes(run, trained):
    found = attention_panel(*trained, "12+345")
    width = run.experiment.train_width  # shorter inputs are padded as in tests
    assert found.source == "$0000012+0000345&" and found.label == "7530000&"
    crossing, own = found.attention
    assert crossing[0].shape == (1, 4, width + 1, 2 * width + 3) and len(crossing) == len(own) == 2
    assert torch.allclose(own[1].sum(-1), torch.ones(1, 4, width + 1), atol=1e-4)
    assert found.step.max == width
    wrong = sum(a != b for a, b in zip(found.written, found.label, strict=True))
    verdict = f"wrong at {wrong} of {width + 1} steps" if wrong else "correct"
    assert verdict in found.steps.value and found.steps.value.count("✗") == wrong
    rows = rows_of(found.steps.value)
    assert ("".join(rows["written"]), "".join(rows["label"])) == (found.written, found.label)
    assert found.written == run.predict("12+345", "cpu").written


def test_the_step_slider_the_layer_and_the_head_redraw(run, trained):
    found = attention_panel(*trained)
    assert found.source == "$00078114514+00241919810&"
    for control, value in ((found.step, 3), (found.layer, 0), (found.head, 1), (found.step, 4)):
        drawn = found.picture.value
        control.value = value
        assert found.picture.value != drawn
    found.input.value = "1+1"
    assert found.text == "" and found.step.value == 4 and found.step.max == run.experiment.train_width


def test_wrong_inputs_are_one_clear_line(trained):
    found = attention_panel(*trained)
    for text, message in (("12", "expected NUMBER+NUMBER"), ("1x+2", "got the character 'x'"), ("", "expected")):
        found.input.value = text
        assert message in found.text and "\n" not in found.text
    found.input.value = "<b>+1"
    assert "&lt;" in found.message.value and "<b>" not in found.message.value
    found.input.value = f"{10**300}+1"
    assert found.text.startswith("expected an output of at most 300 tokens")
    found.input.value = "2+2"
    assert found.text == "" and found.label.startswith("40")


def test_attention_of_a_plain_run_is_shown_too(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    assert attention_panel(plain.model(), plain.experiment.data(), "1+2").text == ""


# --- windows and tasks


@pytest.mark.parametrize("task", ["multiplication", "nested"])
def test_panels_of_one_row_refuse_tasks_in_rows(task):
    with pytest.raises(ValueError, match=f"expected a task that writes one row, got '{task}'"):
        tasks_panel(task)
    with pytest.raises(ValueError, match=f"expected a task that the paper's windows are for, got '{task}'"):
        window_panel(task)


@pytest.mark.parametrize("task", ["addition", "parity", "n-by-1"])
def test_the_window_panel_follows_its_controls(task):
    found = window_panel(task, 3)
    for control, value in ((found.w, 2), (found.period, 5), (found.sides, "both"), (found.length, 12)):
        drawn = (found.picture.value, found.phases.value)
        control.value = value
        assert (found.picture.value, found.phases.value) != drawn and found.text == ""


def test_the_window_panel_shows_the_phases_of_cyclic_positions():
    source, steps = window_panel("addition", 2).phases.value.split("</div>")[:2]
    assert rows_of(source) == {"source token": list("$+######&"), "phase": [str((7 - j) % 3) for j in range(9)]}
    assert rows_of(steps) == {"decoder input": list("$###"), "phase": list("0120")}


def test_what_every_column_of_an_input_is():
    found = tasks_panel("addition", "123+748")
    texts, cells = rows_of(found.texts.value), rows_of(found.cells.value)
    assert texts["source"] == ["$+00172438&"] and texts["decoder input"] == ["$1780"]
    assert texts["target (units first)"] == ["1780&"] and texts["the label is read as"] == ["871"]
    assert "".join(cells["source"]) == "$+00172438&" and "".join(cells["kind"]) == "soababababe"
    assert cells["place in operand 1"] == ["", "4", "3", "", "2", "", "1", "", "0", "", "−1"]
    assert "".join(cells["target"]) == "1780&" and "".join(cells["decoder input"]) == "$1780"
    assert cells["kinds"] == ["s start", "o operator", "a digit of operand 1", "b digit of operand 2", "e end"]
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
        assert tasks_panel(name).text == "", "it begins with an example"
    found.task.value, found.input.value = "successor", "7" * 300
    assert found.text == "" and rows_of(found.cells.value)["source"].count("7") == 300


def test_a_panel_that_starts_with_a_wrong_input_says_so():
    found = tasks_panel(text="12")
    assert found.text.startswith("expected NUMBER+NUMBER")
    assert "expected NUMBER+NUMBER" in found._repr_mimebundle_()["text/html"]


@pytest.fixture
def panel(run, runs, monkeypatch):
    """The calibration panel, with a frame for one τ and one κ on the page."""
    monkeypatch.setattr(calibration, "TAUS", TAUS[:1])
    monkeypatch.setattr(calibration, "KAPPAS", KAPPAS[:1])
    return calibration_panel(run, runs, "cpu", samples=5)


# --- what remains without a kernel


def test_mime_bundles_hold_the_view_what_was_drawn_and_a_line(panel, trained):
    for found in (panel, attention_panel(*trained), window_panel(), tasks_panel()):
        bundle = found._repr_mimebundle_()
        assert bundle[VIEW]["model_id"] == found.model_id
        assert "panel" in bundle["text/plain"].lower() and "\n" not in bundle["text/plain"]
        described = f'<img alt="{bundle["text/plain"]}" src="data:image/png;base64,iVBOR'
        assert "<table" in bundle["text/html"]
        assert (described in bundle["text/html"]) == (type(found).__name__ != "TasksPanel")
        assert (PANEL_MIME in bundle) == (found is panel)
    still = panel._repr_mimebundle_()["text/html"]
    panel.tau.value = 0.04
    assert panel._repr_mimebundle_()["text/html"] == still


# --- outputs in rows


def test_the_rows_panel_shows_what_the_model_writes(product_run, monkeypatch):
    model, data = product_run.model(), product_run.experiment.data()
    found = rows_panel(model, data, "12*34")
    shown = rows_of(found.written.value)
    assert shown["written"] == [product_run.predict("12*34", "cpu").answer] and shown["true"] == ["408"]
    assert "rows wrong" in found.written.value and "background" in found.written.value and found.text == ""
    true = data.task.batch(data.task.parse("21*2")).target
    monkeypatch.setattr("abcnb.show.panels.models.write_outputs", lambda *_: true)
    found.input.value = "21*2"
    assert "all 2 rows right" in found.written.value and "background" not in found.written.value
    assert "".join(rows_of(found.written.value)["products 1"]).strip("+&,;0 ")[::-1] == "42"


def test_the_rows_panel_refuses_what_it_cannot_write(product_run, trained):
    model, data = product_run.model(), product_run.experiment.data()
    found = rows_panel(model, data, "12*34")
    found.input.value = "12+34"
    assert "expected" in found.text and found.results.layout.display == "none"
    found.input.value = f"{10**59}*{10**59}"
    assert found.text == "expected an output of at most 2,000 tokens here, got one of 7,441"
    with pytest.raises(ValueError, match="expected a task whose output is in rows, got addition"):
        rows_panel(*trained, "1+2")


# --- the calibration panel


def test_tau_draws_the_lines_above_it(panel):
    few, drawn = panel.lines.value, panel.maps.value
    panel.tau.value = 0.04
    assert panel.maps.value != drawn and panel.lines.value.count("<tr>") < few.count("<tr>")
    panel.tau.value = 0.6
    assert panel.text.startswith("expected lines with a share of more than 0.6")
    panel.tau.value = 0.04
    assert panel.text == "" and panel.asked()[0].tau == 0.04


def test_algorithm_1_on_the_same_attention(panel):
    panel.mode.value = ALGORITHM_1
    drawn = panel.maps.value
    panel.kappa_cross.value = 1.0
    assert panel.maps.value != drawn
    panel.directions_self.value = ()
    assert panel.text.startswith("expected directions_self as a tuple")
    panel.directions_self.value = (0, 1)
    assert panel.asked()[0].algorithm1.directions_self == (0, 1) and panel.asked()[0].bias == "algorithm1"


def test_the_page_has_a_frame_for_each_choice(run, runs):
    panel = calibration_panel(run, runs, "cpu", samples=5)
    shown = panel._repr_mimebundle_()[PANEL_MIME]
    data = json.loads(re.search(r"const frames = (.*);\n", shown)[1])
    assert [frame["name"] for frame in data["tau"]] == [f"{tau:g}" for tau in TAUS]
    assert [frame["name"] for frame in data["kappa"]] == [f"{kappa:g}" for kappa in KAPPAS]
    assert panel.tau.value == panel.run.experiment.tau, "the controls stay where they were"


def test_a_run_without_calibrated_lines_is_refused(run, runs):
    plain = load_run(runs / run.experiment.interpolation.digest)
    with pytest.raises(ValueError, match="expected a run of ABC"):
        calibration_panel(plain, runs)


def test_the_longest_training_length_is_in_digits_of_the_test():
    assert [get_task(name).longest_trained for name in ("addition", "parity")] == [6, 6]


def wait(panel):
    panel.retraining.thread.join(timeout=120)
    assert not panel.retraining.thread.is_alive()


def test_retraining_trains_and_adds_a_curve(panel, runs):
    (before,) = panel.retraining.curves.values()
    assert set(before["method"]) == {"τ 0.02 (this run)"}
    assert before["length"].tolist() == list(TESTED_LENGTHS)
    panel.tau.value = 0.03
    wanted, drawn = panel.asked()[0], panel.retraining.picture.value
    assert not (runs / wanted.digest).exists()
    panel.retraining.start_button.click()
    assert panel.retraining.start_button.disabled
    wait(panel)
    assert panel.retraining.status.value == "Done: the curve is in the figure."
    added, retrained = panel.retraining.curves[wanted.digest], load_run(runs / wanted.digest)
    assert retrained.metrics["steps"] == 20
    assert set(added["method"]) == {"τ 0.03"} and added["length"].tolist() == list(TESTED_LENGTHS)
    assert added["exact_match"].tolist() == [retrained.evaluate(n, 5).exact_match for n in TESTED_LENGTHS]
    assert panel.retraining.picture.value != drawn and "τ 0.03" in panel.retraining.table.value
    assert panel.retraining.progress.value == panel.retraining.progress.max == 20
    assert panel.retraining.stop_button.disabled and not panel.retraining.start_button.disabled


def press_stop(retraining, monkeypatch, when):
    """Let a reader press stop once, at the first line for which `when` holds; returns all lines, as they come."""
    told, show = [], retraining.show_progress

    def show_and_press(text, steps=0):
        told.append(text)
        if when(text) and not any(map(when, told[:-1])):
            retraining.stop_button.click()
        show(text, steps)

    monkeypatch.setattr(retraining, "show_progress", show_and_press)
    return told


def test_stop_stops_and_a_second_press_resumes(panel, runs, monkeypatch):
    told = press_stop(panel.retraining, monkeypatch, lambda text: text.startswith("step"))
    panel.tau.value = 0.04
    wanted, _ = panel.asked()
    panel.retraining.start_button.click()
    wait(panel)
    assert panel.retraining.status.value.startswith("Stopped; the next press goes on from the last checkpoint")
    assert not (runs / wanted.digest / "metrics.json").exists() and len(panel.retraining.curves) == 1
    assert all(re.fullmatch(r"step \d+ of 20, loss \d\.\d{3}(, \d\d:\d\d left)?", text) for text in told)
    before = len(told)
    panel.retraining.start_button.click()
    wait(panel)
    done = [int(text.split()[1]) for text in told if text.startswith("step")]
    assert done[before] > done[before - 1] and done[-1] == 20, "what was done is not done again"
    assert load_run(runs / wanted.digest).metrics["steps"] == 20 and len(panel.retraining.curves) == 2


def test_a_stop_between_tests_ends_them(panel, monkeypatch):
    told = press_stop(panel.retraining, monkeypatch, lambda text: text.startswith("testing"))
    panel.retraining.start_button.click()
    wait(panel)
    assert panel.retraining.status.value.startswith("Stopped") and told == ["testing 1 digits"]


def test_an_error_in_the_thread_is_one_line(panel, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the disk is full\nand more")

    monkeypatch.setattr("abcnb.show.panels.calibration.fit", fail)
    panel.retraining.start()
    wait(panel)
    assert panel.retraining.status.value == "the disk is full" and len(panel.retraining.curves) == 1
    assert not panel.retraining.start_button.disabled
