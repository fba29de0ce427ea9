import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from abcnb.show.cleaning import KERNEL, WIDGET, clean, clean_all, find, problems, write
from abcnb.show.panels.calibration import PANEL_MIME
from tests.little import LINKS, little


@pytest.fixture
def folder(tmp_path):
    """Two clean notebooks, not executed."""
    for name, link in LINKS.items():
        write(clean(little(name, link, "preset")), tmp_path / f"{name}.ipynb")
    return tmp_path


@pytest.mark.parametrize("wanted", [["01", "2"], ["02_second", "01"], []])
def test_notebooks_are_found_by_number_or_name_in_order(folder, wanted):
    assert [file.stem for file in find(wanted, folder)] == ["01_first", "02_second"]


def dirty():
    notebook = little("01_first", LINKS["01_first"], "preset")
    view = {WIDGET: {"model_id": "1"}, "text/plain": "VBox()"}
    shown = [
        new_output("stream", name="stderr", text="100%| 3.2 s"),
        new_output("display_data", view, metadata={"image/png": {"width": 3}}),
        new_output("display_data", view | {"image/png": "aGk=", PANEL_MIME: "<p></p>"}),
        new_output("execute_result", {"text/plain": "'laptop'"}, execution_count=17),
    ]
    notebook.cells[2].update(outputs=shown, execution_count=17)
    notebook.cells[2].metadata.update(
        execution={"iopub.execute_input": "2026"}, papermill={"duration": 3}, tags=[]
    )
    notebook.cells[1].execution_count = 4
    notebook.cells.insert(2, new_code_cell("preset = 'smoke'", metadata={"tags": ["injected-parameters"]}))
    notebook.metadata.update(widgets={"state": {}}, papermill={"duration": 1.5}, abcnb={})
    notebook.metadata.language_info["version"] = "3.11.9"
    return notebook


def test_cleaning_keeps_outputs_and_drops_what_changes_with_every_execution():
    cleaned = clean(dirty())
    nbformat.validate(cleaned)
    assert cleaned.metadata == nbformat.from_dict(KERNEL)
    assert [cell.metadata for cell in cleaned.cells] == [{}, {"tags": ["parameters"]}, {}, {}]
    assert [cell.execution_count for cell in cleaned.cells if cell.cell_type == "code"] == [1, 2]
    panel, result = cleaned.cells[2].outputs
    assert set(panel.data) == {"image/png", "text/plain", PANEL_MIME} and panel.metadata == {}
    assert result.execution_count == 2 and result.data == {"text/plain": "'laptop'"}
    assert clean(cleaned) == cleaned


def test_cleaning_in_place_tells_what_is_left(folder):
    write(dirty(), folder / "01_first.ipynb")
    assert "it is not clean" in problems(folder / "01_first.ipynb")[0]
    left = clean_all(folder)
    assert left == ["02_second: 2 of 2 code cells were not executed"]


def test_a_clean_file_is_left_as_it_is(folder):
    write(clean(dirty()), folder / "01_first.ipynb")
    text = json.dumps(json.loads((folder / "01_first.ipynb").read_text()), indent=4)
    (folder / "01_first.ipynb").write_text(text)
    clean_all(folder)
    assert (folder / "01_first.ipynb").read_text() == text


def told(folder, change):
    """The problems of a good notebook after a change to it."""
    notebook = clean(dirty())
    change(notebook)
    write(notebook, folder / "01_first.ipynb")
    return problems(folder / "01_first.ipynb")


def set_source(number, source):
    return lambda notebook: notebook.cells[number].update(source=source)


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda n: n.cells[1].update(metadata={}), "0 cells tagged parameters, expected one"),
        (set_source(1, 'preset = "laptop"'), "parameter preset has no help"),
        (set_source(1, 'preset = "smoke"  # which'), "preset is \"smoke\", expected 'laptop'"),
        (lambda n: n.cells[2].update(execution_count=None, outputs=[]), "1 of 2 code cells were not executed"),
        (lambda n: n.cells[2].update(outputs=[new_output("error")]), "code cell 2 failed"),
        (set_source(0, "# Title\n\nNo question"), "not Markdown with a title and a **Question.**"),
        (set_source(3, "[next](02_second.ipynb), see /home/me/x.csv"), "a path of one machine: /home/me/x.csv"),
        (lambda n: n.metadata.update(widgets={}), "it is not clean"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_keeps_a_notebook_from_being_committed(folder, change, problem):
    assert told(folder, lambda notebook: None) == []
    found = told(folder, change)
    assert len(found) == 1 and problem in found[0], found


def test_images_and_addresses_are_no_paths_of_one_machine(folder):
    def change(notebook):
        html = "<img src='data:image/png;base64,AA/home/AA'> https://e.org/home/x"
        data = {"image/png": "AA/tmp/AA", "text/html": html}
        notebook.cells[2].outputs = [new_output("display_data", data)]

    assert told(folder, change) == []
