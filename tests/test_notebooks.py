"""The committed notebooks: what they hold, and that they run, at the smoke preset, from a folder far away."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import papermill
import pytest
import torch
from traitlets.config import Config

from abcnb.show.cleaning import find, problems, read
from abcnb.study.runs import load_run
from abcnb.tasks.task import full_name
from tests.conftest import REPOSITORY
from tests.test_own_task import DOUBLE

NOTEBOOKS = find([])
SANITIZE = Path(__file__).parent / "notebooks" / "sanitize.cfg"
LIVE = (
    "02_interpolation", "03_attention_analysis", "04_abs", "05_abc", "06_rpe_lora", "09_two_counters",
    "10_your_own_model",
)  # fmt: skip
STORED = "04_abs"  # run with live training off
FROM_THE_SHELL = "05_abc"  # run with live training on, by the command of papermill, for a task in a file
STRICT = (
    "07_why_it_works",
    "08_results",
    "11_other_tasks",
)  # read committed results alone: their outputs must come out again
SMOKE = {"preset": "smoke", "samples": 20, "device": "cpu", "stored": False, "seeds": [0]}
SMOKE |= {"tasks": ["addition", "parity"]}
NONSENSE = {"task": "division", "tasks": "division", "preset": "huge"}
SOCKETS = Config(AsyncKernelManager={"transport": "ipc"})  # see tests/kernels.py
by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
EXECUTED = [file for file in NOTEBOOKS if file.stem != FROM_THE_SHELL]


@pytest.fixture(scope="session")
def smoke_runs(shared_folder):
    """Models at the smoke preset that the notebooks train for each other."""
    return shared_folder / "notebooks"


@pytest.fixture
def abc(repository):
    return repository / "notebooks" / f"{FROM_THE_SHELL}.ipynb"


def nbval(notebook):
    """Run every cell of a notebook by nbval, in the notebook's folder; returns the finished process."""
    options = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", SANITIZE, "--nbval-cell-timeout=120"]
    options += ["-p", "nbval.plugin", "-p", "tests.kernels", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-qx", "--color=no", *options, notebook]
    # The other plugins take a second to load.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY)}
    asked = {"cwd": notebook.parent, "env": alone, "capture_output": True, "text": True, "timeout": 600}
    return subprocess.run(map(str, command), **asked)


def papermill_command(*arguments, **options):
    command = [Path(sys.executable).parent / "papermill", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)


def passed(chosen):
    """Parameters as options of the command."""
    return [part for name, value in chosen.items() for part in ("-p", name, value)]


def chosen_for(notebook):
    """The parameters of `SMOKE` that a notebook has."""
    return {name: value for name, value in SMOKE.items() if name in papermill.inspect_notebook(notebook)}


def outputs_of(file):
    return [output for cell in read(file).cells for output in cell.get("outputs", [])]


def texts(file):
    """What the cells of an executed notebook printed and showed, as plain text."""
    return [o["text"] if o.output_type == "stream" else o.data.get("text/plain", "") for o in outputs_of(file)]


def trained(runs):
    """(task, method) of every run in a folder."""
    found = [load_run(file.parent).experiment for file in runs.glob("*/metrics.json")]
    return {(e.task, e.method) for e in found}


@pytest.mark.parametrize("notebook", EXECUTED, ids=lambda file: file.stem)
def test_runs_at_the_smoke_preset_or_its_outputs_come_out_again(notebook, smoke_runs, tmp_path):
    copy = tmp_path / notebook.name
    if notebook.stem in STRICT:
        copy.write_text(notebook.read_text())
        done = nbval(copy)
        assert done.returncode == 0, done.stdout
    else:
        chosen = chosen_for(notebook)
        if "runs_dir" in papermill.inspect_notebook(notebook):
            chosen["runs_dir"] = str(smoke_runs)
        if notebook.stem == STORED:
            chosen |= {"live": False, "runs_dir": str(tmp_path / "runs")}
        asked = {"cwd": tmp_path, "progress_bar": False, "execution_timeout": 120}
        papermill.execute_notebook(notebook, copy, chosen, config=SOCKETS, **asked)
    if notebook.stem == STORED:
        assert {("addition", "abs"), ("addition", "abs-cpi")} <= trained(tmp_path / "runs")


@by_name
def test_may_be_committed(notebook):
    assert problems(notebook) == []


@by_name
def test_the_help_of_papermill_reads_as_help(notebook):
    parameters = papermill.inspect_notebook(notebook)
    assert parameters
    assert [name for name, known in parameters.items() if len(known["help"].split()) < 2] == []


@by_name
def test_an_unknown_value_is_refused_in_the_first_cell_after_the_parameters(notebook):
    """With one clear message."""
    name = next((name for name in NONSENSE if name in papermill.inspect_notebook(notebook)), None)
    if name is None:
        pytest.skip("no parameter with a list of known values")
    parameters, first = [cell.source for cell in read(notebook).cells if cell.cell_type == "code"][:2]
    namespace: dict = {}
    exec(parameters, namespace)
    namespace[name] = NONSENSE[name]
    with pd.option_context("display.max_colwidth", 50), pytest.raises(ValueError, match="expected") as failure:
        exec(first, namespace)
    assert NONSENSE[name] in str(failure.value) and len(str(failure.value).splitlines()) == 1


def test_live_training_can_be_turned_off_where_a_notebook_trains_live():
    helped = {file.stem: papermill.inspect_notebook(file).get("live") for file in NOTEBOOKS}
    assert tuple(name for name, known in helped.items() if known) == LIVE
    assert {(helped[name]["default"], helped[name]["inferred_type_name"]) for name in LIVE} == {("True", "bool")}


def test_papermill_from_the_shell_trains_a_task_in_a_file_live_in_memory(abc, tmp_path):
    file, out, runs = tmp_path / "my_task.py", tmp_path / "out.ipynb", tmp_path / "runs"
    file.write_text(DOUBLE)
    chosen = {"task": file.name, "preset": "smoke", "samples": 20, "tau": 0.02, "stored": False, "runs_dir": runs}
    done = papermill_command(abc, out, *passed(chosen), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum("image/png" in output.get("data", {}) for output in outputs_of(out)) >= 8
    lives = (f"{file.name}, interpolating:", f"{file.name}, retraining:")
    assert sum(text.startswith(lives) for text in texts(out)) == 2
    assert trained(runs) == {(full_name(str(file)), method) for method in ("vanilla", "abs", "abc")}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_abc_on_a_gpu(abc, tmp_path):
    chosen = chosen_for(abc) | {"device": "cuda", "runs_dir": str(tmp_path / "runs")}
    papermill.execute_notebook(abc, tmp_path / "out.ipynb", chosen, start_timeout=120, execution_timeout=600)
    runs = [load_run(file.parent) for file in (tmp_path / "runs").glob("*/metrics.json")]
    assert len(runs) >= 2 and {run.metrics["device"] for run in runs} == {"cuda"}
