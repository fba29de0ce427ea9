"""What a notebook shows: figures, and the curve of a model that trains before the reader's eyes."""

import base64

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from abcnb.show.live import LiveCurve, learning_curve

RECORDS = [
    {"step": 25, "seconds": 2.1, "loss": 1.9, "exact_match": 0.5, "digit_error_rate": 0.6},
    {"step": 50, "seconds": 4.4, "loss": 0.1, "exact_match": 99.996, "digit_error_rate": 0.0},
]


def test_the_line_tells_what_the_last_validation_found():
    curve = LiveCurve("Successor, plain")
    assert curve.describe(RECORDS[:1]) == "Successor, plain: 25 steps, 0.50% exact match in validation, 2 s"
    assert curve.describe(RECORDS) == "Successor, plain: 50 steps, 99.99% exact match in validation, 4 s"


def test_the_figure_holds_both_curves():
    exact, loss = learning_curve(RECORDS, "two records").axes
    assert [line.get_xydata().tolist() for line in exact.lines] == [[[25, 0.5], [50, 99.996]]]
    assert [line.get_xydata().tolist() for line in loss.lines] == [[[25, 1.9], [50, 0.1]]]
    assert (exact.get_ylim(), loss.get_yscale()) == ((-3, 103), "log")
    assert learning_curve([record | {"loss": 0.1} for record in RECORDS], "flat").axes[1].get_yscale() == "linear"


def test_it_says_nothing_where_there_is_no_kernel(capfd):
    LiveCurve("plain")(RECORDS)
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def executed():
    """A notebook with figures, in which a curve hears of two validations; and every state of its output on the way."""
    draw = "figures.learning_curves({'a': [{'step': 1, 'exact_match': 2.0}]}, 'title');"
    sources = [
        "import matplotlib.pyplot as plt\nplt.figure()\nplt.close()\nbefore = dict(plt.rcParams)",
        f"from abcnb.show import figures, hero, panels, style\n{draw}",
        draw,
        f"for _ in range(2):\n    {draw}",
        f"from abcnb.show.live import LiveCurve\ncurve = LiveCurve('Successor, plain')\nrecords = {RECORDS}",
        "for n in (1, 2):\n    curve(records[:n])",
        "assert dict(plt.rcParams) == before",
        "with plt.rc_context(style.THEME):\n    assert dict(plt.rcParams) != before",
    ]
    notebook, states = new_notebook(cells=[new_code_cell(source) for source in sources]), []

    class Watching(NotebookClient):
        def process_message(self, message, cell, index):
            if cell is notebook.cells[5] and message["msg_type"] in ("display_data", "update_display_data"):
                states.append((message["msg_type"], message["content"]["data"]))
            return super().process_message(message, cell, index)

    Watching(notebook, timeout=120, kernel_name="python3").execute()
    return notebook, states


def test_every_cell_of_a_notebook_shows_its_figures_and_leaves_the_readers_settings_alone(executed):
    notebook, _ = executed
    shown = [sum("image/png" in output.data for output in cell.get("outputs", ())) for cell in notebook.cells]
    assert shown == [0, 1, 1, 2, 0, 1, 0, 0]


def test_in_a_notebook_one_output_is_redrawn_in_place(executed):
    notebook, states = executed
    assert [kind for kind, _ in states] == ["display_data", "update_display_data"]
    assert states[0][1]["image/png"] != states[1][1]["image/png"]
    (output,) = notebook.cells[5].outputs
    assert output.output_type == "display_data" and set(output.data) == {"image/png", "text/plain"}
    assert output.data["text/plain"] == LiveCurve("Successor, plain").describe(RECORDS)
    assert base64.b64decode(output.data["image/png"]).startswith(b"\x89PNG")
    nbformat.validate(notebook)
