"""The notebooks: parameterized and executed by papermill with a real kernel, at the smoke preset."""

import json
import os
from pathlib import Path

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
os.environ.setdefault("OMP_NUM_THREADS", "1")


def execute(notebook: Path, output: Path, **parameters):
    return papermill.execute_notebook(
        notebook,
        output,
        parameters,
        cwd=output.parent,
        progress_bar=False,
        start_timeout=120,
        execution_timeout=300,
    )


@pytest.mark.parametrize("task", ["addition", "parity"])
def test_abc_runs_from_any_folder_and_draws_its_figures(tmp_path, task):
    notebook = next(file for file in NOTEBOOKS if file.stem == "05_abc")
    runs = tmp_path / "runs"
    done = execute(
        notebook, tmp_path / "out.ipynb", preset="smoke", task=task, samples=20, runs_dir=str(runs), seeds="[0]"
    )
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 5
    assert len([folder for folder in runs.iterdir() if (folder / "metrics.json").exists()]) == 2


def test_an_unknown_value_fails_with_one_clear_message_and_keeps_the_output(tmp_path):
    notebook = next(file for file in NOTEBOOKS if file.stem == "05_abc")
    with pytest.raises(PapermillExecutionError, match="expected a task among successor, addition"):
        execute(notebook, tmp_path / "out.ipynb", preset="smoke", task="division", runs_dir=str(tmp_path))
    assert (tmp_path / "out.ipynb").exists()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_committed_notebooks_are_clean(notebook):
    content = json.loads(notebook.read_text())
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert len(content["cells"]) <= 30
    assert "widgets" not in content["metadata"]
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in cells) == 1
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert str(Path.home()) not in notebook.read_text()
    assert not [cell for cell in cells if "execution" in cell["metadata"] or "papermill" in cell["metadata"]]
