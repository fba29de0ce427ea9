import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import papermill
import psutil
import pytest
from nbformat.v4 import new_markdown_cell, new_output

from abcnb.show import reports
from abcnb.show.cleaning import find, problems, read, write
from abcnb.show.reports import Execution, build_pages, write_reports
from tests.little import LINKS, PARAMETERS, little

WHERE = "import os\nimport sys\n\nfrom abcnb.tasks.tokens import decode\n\nos.getcwd(), sys.executable"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder `now` to work in, and what it looks like with two notebooks executed, in `then`."""
    place = tmp_path_factory.mktemp("place")
    for name, source in (("01_first", "f'{preset} {stored}'"), ("02_second", WHERE)):
        write(little(name, LINKS[name], source), place / "now" / "notebooks" / f"{name}.ipynb")
    other = place / "jupyter" / "kernels" / "python3"  # a kernel of the user's folders, not to be used
    other.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "another Python", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    execution = Execution("smoke", place / "now" / "runs", place / "now" / "reports", "cpu")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JUPYTER_DATA_DIR", str(place / "jupyter"))
        assert write_reports(execution, [], folder=place / "now" / "notebooks") == []
    (place / "now").rename(place / "then")
    return place


@pytest.fixture
def folder(place):
    """Two notebooks that need no model."""
    shutil.rmtree(place / "now", ignore_errors=True)
    shutil.copytree(place / "then" / "notebooks", place / "now" / "notebooks")
    return place / "now" / "notebooks"


@pytest.fixture
def execution(place):
    return Execution("smoke", place / "now" / "runs", place / "now" / "reports", "cpu")


@pytest.fixture
def executed(place, folder, execution):
    """The same, after both were executed."""
    shutil.copytree(place / "then" / "reports", place / "now" / "reports")
    return execution


def outputs(execution, file, cell=3):
    """The text of what a cell of the executed notebook gave; cell 2 is papermill's."""
    return execution.done(file).cells[cell].outputs[0].data["text/plain"]


def replace_source(file, number, source):
    notebook = read(file)
    notebook.cells[number].source = source
    write(notebook, file)


# --- execution


def test_executes_all_in_the_running_interpreter_from_another_folder(executed, folder):
    first, second = find([], folder)
    assert outputs(executed, first) == "'smoke True'"
    where, interpreter = json.loads(outputs(executed, second).translate({40: "[", 41: "]", 39: '"'}))
    assert interpreter == sys.executable and not where.startswith(str(folder))
    html = executed.reports / "html-smoke"
    assert sorted(file.name for file in html.iterdir()) == ["01_first.html", "02_second.html", "index.html"]
    page = (html / "01_first.html").read_text()
    assert "smoke True" in page and 'href="02_second.html"' in page and "injected" not in page
    for told in ("Python 3.", "torch ", "abcnb ", "code ", "executed in ", "preset = smoke"):
        assert told in page
    index = (html / "index.html").read_text()
    assert 'rel="next" href="01_first.html"' in index and "The rule" in index and "data:image/png" in index


def test_texts_beside_the_results_have_pages(executed, folder):
    links = "[1](../notebooks/01_first.ipynb) [first](../README.md) [code](../abcnb/study/results.py)"
    (executed.reports / "results.md").write_text(f"# Results\n\n{links}")
    assert build_pages(executed, folder) == []
    page, index = ((executed.pages() / f"{name}.html").read_text() for name in ("results", "index"))
    assert (
        "<title>Results</title>" in page and '<a href="01_first.html">1</a> <a href="index.html">first</a>' in page
    )
    assert 'study/results.py">code</a>' in page and '<a href="results.html">results</a>' in index


def test_what_is_current_is_not_executed_again(executed, folder, monkeypatch, capsys):
    monkeypatch.setattr(papermill, "execute_notebook", lambda *_, **__: pytest.fail("executed again"))
    (executed.pages() / "01_first.html").unlink()
    assert write_reports(executed, [], folder=folder) == []
    assert "01_first: current\n02_second: current" in capsys.readouterr().out
    assert (executed.pages() / "01_first.html").exists(), "pages are written again"


def test_an_execution_is_current_as_long_as_nothing_that_decides_it_changes(executed, folder, monkeypatch):
    first = find(["1"], folder)[0]
    assert executed.is_current(first)
    assert not Execution("smoke", executed.runs, executed.reports, "cpu", fresh=True).is_current(first)
    assert not Execution("smoke", executed.runs / "x", executed.reports, "cpu").is_current(first)
    assert not Execution("laptop", executed.runs, executed.reports, "cpu").is_current(first)
    notebook = read(first)
    notebook.cells[2].outputs = [new_output("stream", text="outputs do not decide")]
    write(notebook, first)
    assert executed.is_current(first)
    with monkeypatch.context() as changed:
        changed.setattr(reports.abcnb, "__file__", str(folder / "__init__.py"))  # other sources: none
        assert not executed.is_current(first)
    replace_source(first, 2, "preset.upper()")
    assert not executed.is_current(first)


def test_committed_results_decide_where_a_notebook_reads_them(folder, execution):
    first, second = find([], folder)
    replace_source(second, 1, PARAMETERS + '\nreports_dir = ""  # folder of committed results')
    before = execution.fingerprint(first), execution.fingerprint(second)
    (execution.reports / "results").mkdir(parents=True)
    (execution.reports / "results" / "learning.csv").write_text("new")
    assert execution.fingerprint(first) == before[0]
    assert execution.fingerprint(second) != before[1]
    before = execution.fingerprint(second)
    (execution.reports / "models" / "abcd").mkdir(parents=True)
    (execution.reports / "models" / "abcd" / "weights.safetensors").write_text("new")
    assert execution.fingerprint(second) != before


@pytest.mark.parametrize("name", ["tokens.py", "show/pages.py", "show/templates/base.html.j2"])
def test_every_source_of_the_package_decides(folder, execution, tmp_path, monkeypatch, name):
    package = tmp_path / "abcnb"
    monkeypatch.setattr(reports.abcnb, "__file__", str(package / "__init__.py"))
    first = find(["1"], folder)[0]
    seen = {execution.fingerprint(first)}
    (package / name).parent.mkdir(parents=True)
    for text in ("one", "two"):
        (package / name).write_text(text)
        seen.add(execution.fingerprint(first))
    (package / name).rename(package / f"moved{(package / name).suffix}")
    seen.add(execution.fingerprint(first))
    assert len(seen) == 4


def test_fresh_executes_again_without_what_is_committed(executed, folder):
    again = Execution("smoke", executed.runs, executed.reports, "cpu", fresh=True)
    assert write_reports(again, ["01"], folder=folder) == []
    assert outputs(again, find(["01"], folder)[0]) == "'smoke False'"


def test_a_failure_keeps_its_output_and_its_old_page_and_others_go_on(cli, executed, folder, monkeypatch):
    first, second = find([], folder)
    replace_source(first, 2, 'print("so far")\nraise ValueError("expected more,\\ngot less")')
    replace_source(second, 2, "1 + 1")
    page = (executed.pages() / "01_first.html").read_text()
    monkeypatch.setattr(find, "__defaults__", (folder,))
    monkeypatch.setattr(write_reports, "__defaults__", (False, folder))
    folders = ["--runs", executed.runs, "--reports", executed.reports]
    code, out, err = cli("reports", "--preset", "smoke", *folders, "--device", "cpu")
    failed = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert code == 1 and failed == ["failed: 01_first: cell [3]: ValueError: expected more,"]
    assert outputs(executed, second) == "2"
    assert "so far" in executed.output(first).read_text() and executed.done(first) is None
    assert (executed.pages() / "01_first.html").read_text() == page
    assert str(executed.output(first)) in out and out.splitlines()[-1] == str(executed.pages() / "index.html")


def test_an_output_that_was_cut_off_is_made_anew(executed, folder):
    first, _ = find([], folder)
    executed.output(first).write_text('{"cells": [{')
    assert executed.done(first) is None and not executed.is_current(first)
    assert write_reports(executed, [], folder=folder) == [] and executed.is_current(first)


def test_a_kernel_that_dies_is_a_failure(folder, execution):
    replace_source(find(["01"], folder)[0], 2, "import os\n\nos._exit(3)")
    (failure,) = write_reports(execution, ["01"], folder=folder)
    assert failure == "01_first: Kernel died"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": [{}], "nbformat": 4}'])
def test_a_file_that_is_no_notebook_is_refused(tmp_path, text):
    (tmp_path / "01_first.ipynb").write_text(text)
    with pytest.raises(ValueError, match=f"^expected a notebook in {tmp_path}/01_first.ipynb, got: .+$"):
        read(tmp_path / "01_first.ipynb")


def test_a_formula_that_cannot_be_shown_is_a_failure_and_other_pages_are_written(executed, folder):
    notebook = executed.done(find(["01"], folder)[0])
    notebook.cells.append(new_markdown_cell(r"$\nonsense$"))
    write(notebook, executed.output(find(["01"], folder)[0]))
    (executed.pages() / "02_second.html").unlink()
    (failure,) = build_pages(executed, folder)
    assert failure.startswith("01_first: expected a formula") and "nonsense" in failure
    assert (executed.pages() / "02_second.html").exists()


def test_written_back_outputs_are_clean_and_of_the_committed_preset(folder, tmp_path):
    with pytest.raises(ValueError, match="expected preset 'laptop' to write back, got 'smoke'"):
        write_reports(Execution("smoke", tmp_path, tmp_path), [], write_back=True, folder=folder)
    execution = Execution("laptop", tmp_path / "runs", tmp_path / "reports", "cpu")
    assert write_reports(execution, ["01"], write_back=True, folder=folder) == []
    first, second = find([], folder)
    assert problems(first) == []
    assert read(first).cells[2].outputs[0].data["text/plain"] == "'laptop True'"
    assert not read(second).cells[2].outputs, "only the chosen ones"
    assert execution.is_current(first), "outputs do not decide"


def test_unknown_names_are_refused(folder, execution):
    with pytest.raises(ValueError, match=r"expected notebooks among 01_first, 02_second .*'7'"):
        write_reports(execution, ["7"], folder=folder)
    with pytest.raises(ValueError, match="expected a preset among smoke, laptop, paper, got 'huge'"):
        Execution("huge", execution.runs, execution.reports)


def test_an_interrupt_ends_the_notebooks_that_run(folder, execution):
    begun = folder.parent / "begun"
    begun.mkdir()
    for file in find([], folder):
        source = (
            f"import os, pathlib, time\n\npathlib.Path({str(begun)!r}, str(os.getpid())).touch()\ntime.sleep(300)"
        )
        replace_source(file, 2, source)
    asked = f"Execution('smoke', Path({str(execution.runs)!r}), Path({str(execution.reports)!r}), 'cpu')"
    program = "from pathlib import Path\nfrom abcnb.show.reports import Execution, write_reports\n"
    program += f"write_reports({asked}, [], folder=Path({str(folder)!r}))"
    # Where the tests run in the background, SIGINT is ignored, and a child would inherit that.
    with subprocess.Popen(
        [sys.executable, "-c", program], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as process:
        while len(kernels := [int(file.name) for file in begun.iterdir()]) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode and not any(map(psutil.pid_exists, kernels))


def test_a_kernel_that_does_not_start_is_started_again(execution, folder, monkeypatch):
    """As where another program takes one of its ports."""
    left, really = [reports.STARTS - 1], papermill.execute_notebook

    def start(*arguments, **options):
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("Kernel died before replying to kernel_info")
        return really(*arguments, **options)

    monkeypatch.setattr(papermill, "execute_notebook", start)
    assert write_reports(execution, ["01"], folder=folder) == []
    left[0] = reports.STARTS
    assert write_reports(execution, ["02"], folder=folder) == [
        "02_second: Kernel died before replying to kernel_info"
    ]


# --- cells that train live


def test_what_only_a_live_execution_shows_stays_until_its_code_changes(execution, folder, monkeypatch):
    monkeypatch.setattr(reports, "COMMITTED_PRESET", "smoke")  # as for the notebooks that are committed
    (file,) = find(["01"], folder)
    notebook = read(file)
    notebook.cells[1].source += "\nlive = True  # train before the reader's eyes"
    notebook.cells[2].source = "if live:\n    print('trained')"
    write(notebook, file)

    def shown(live, **options):
        run = replace(execution, live=live, **options)
        assert write_reports(run, ["01"], write_back=True, folder=folder) == []
        return "".join(output.text for output in read(file).cells[2].outputs)

    first = shown(live=True)
    assert re.fullmatch(r"trained\nLive: \d{4}-\d\d-\d\d, .*code \w{12}, cells \w{12}\n", first)
    assert (
        shown(live=False) == first and first.splitlines()[1] in (execution.pages() / "01_first.html").read_text()
    )
    replace_source(file, 2, "if live:\n    print('anew')")
    assert shown(live=False) == ""
    assert shown(live=True).startswith("anew") and shown(live=False, fresh=True) == ""
