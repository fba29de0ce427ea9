"""The committed notebooks: what they hold, and that they run, at the smoke preset, from a folder far away."""

import subprocess
import sys
from pathlib import Path

import papermill
import pytest
import torch
from papermill.exceptions import PapermillExecutionError

from abcnb.show.cleaning import find, problems, read
from abcnb.study.runs import load_run

NOTEBOOKS = find([])
SANITIZE = Path(__file__).parent / "notebooks" / "sanitize.cfg"
STRICT = "08_results"  # reads committed results alone, so its committed outputs must come out again
SMOKE = {"preset": "smoke", "samples": 20, "device": "cpu", "stored": False, "seeds": [0], "longest": 100}
SMOKE |= {"tasks": ["addition", "parity"]}
NONSENSE = {"task": "division", "tasks": "division", "preset": "huge"}
by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)


@pytest.fixture(scope="session")
def smoke_runs(shared_folder):
    """Models at the smoke preset that the notebooks train for each other."""
    return shared_folder / "notebooks"


@pytest.fixture
def abc(repository):
    return repository / "notebooks" / "05_abc.ipynb"


def nbval(notebook, *options):
    """Run every cell of a notebook by nbval, in the notebook's folder; returns the finished process."""
    options = [*options, "--nbval-current-env", "--nbval-sanitize-with", SANITIZE, "--nbval-cell-timeout=120"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-qx",
        "--color=no",
        "-n0",
        "-p",
        "no:cacheprovider",
        *options,
        notebook,
    ]
    return subprocess.run(map(str, command), cwd=notebook.parent, capture_output=True, text=True, timeout=600)


def papermill_command(*arguments, **options):
    command = [Path(sys.executable).parent / "papermill", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)


@by_name
def test_runs_at_the_smoke_preset_and_its_checked_outputs_come_out_again(notebook, smoke_runs, tmp_path):
    copy = tmp_path / notebook.name
    if notebook.stem == STRICT:
        copy.write_text(notebook.read_text())
        done = nbval(copy, "--nbval")
    else:
        chosen = {n: v for n, v in SMOKE.items() if n in papermill.inspect_notebook(notebook)}
        if "runs_dir" in papermill.inspect_notebook(notebook):
            chosen["runs_dir"] = str(smoke_runs)
        papermill.execute_notebook(notebook, copy, chosen, prepare_only=True)
        done = nbval(copy, "--nbval-lax")
    assert done.returncode == 0, done.stdout


@by_name
def test_may_be_committed(notebook):
    assert problems(notebook) == []


@by_name
def test_the_help_of_papermill_reads_as_help(notebook):
    parameters = papermill.inspect_notebook(notebook)
    assert parameters
    assert [name for name, known in parameters.items() if len(known["help"].split()) < 2] == []


@by_name
def test_an_unknown_value_fails_early_with_one_clear_message_and_keeps_the_output(notebook, tmp_path):
    name = next((name for name in NONSENSE if name in papermill.inspect_notebook(notebook)), None)
    if name is None:
        pytest.skip("no parameter with a list of known values")
    chosen = {name: NONSENSE[name]}
    with pytest.raises(PapermillExecutionError) as failure:
        papermill.execute_notebook(
            notebook, tmp_path / "out.ipynb", chosen, progress_bar=False, start_timeout=120, cwd=tmp_path
        )
    assert failure.value.ename == "ValueError" and "expected" in failure.value.evalue, failure.value
    assert NONSENSE[name] in failure.value.evalue and len(failure.value.evalue.splitlines()) == 1
    assert failure.value.exec_count <= 3, "the parameters, those of papermill, and the imports"
    assert (tmp_path / "out.ipynb").exists()


def test_papermill_from_the_shell(abc, smoke_runs, tmp_path):
    chosen = {"task": "addition", "preset": "smoke", "seeds": "[0]", "samples": 20, "runs_dir": smoke_runs}
    options = [part for name, value in chosen.items() for part in ("-p", name, value)]
    done = papermill_command(abc, "out.ipynb", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outputs = [o for cell in read(tmp_path / "out.ipynb").cells for o in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 5
    trained = [load_run(file.parent).experiment.method for file in smoke_runs.glob("*/metrics.json")]
    assert {"vanilla", "abc-places"} <= set(trained)


def test_papermill_from_the_shell_with_an_unknown_value(abc, tmp_path):
    done = papermill_command(abc, "out.ipynb", "-p", "task", "division", cwd=tmp_path)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: expected a task among successor, addition") and "'division'" in last
    assert (tmp_path / "out.ipynb").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_abc_on_a_gpu(abc, tmp_path):
    chosen = {
        "preset": "smoke",
        "samples": 20,
        "device": "cuda",
        "runs_dir": str(tmp_path / "runs"),
        "stored": False,
    }
    known = papermill.inspect_notebook(abc)
    chosen = {name: value for name, value in chosen.items() if name in known}
    papermill.execute_notebook(abc, tmp_path / "out.ipynb", chosen, start_timeout=120, execution_timeout=600)
    runs = [load_run(file.parent) for file in (tmp_path / "runs").glob("*/metrics.json")]
    assert len(runs) >= 2 and {run.metrics["device"] for run in runs} == {"cuda"}
