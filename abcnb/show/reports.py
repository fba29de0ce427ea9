"""Executes the notebooks, two at a time, and turns them into HTML pages.

<reports>/executed/<name>-<preset>.ipynb   as they ran; not committed
<reports>/html/<name>.html                 pages of the laptop preset; those of others in html-<preset>/
<reports>/html/index.html                  the README, whose links lead to them and to pages of <reports>/*.md
<reports>/html/try.html                    two models that add in the browser
"""

import hashlib
import json
import os
import platform
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import papermill
import psutil
import torch
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

import abcnb
from abcnb.machine.devices import hardware, pick_device
from abcnb.machine.files import write_atomically
from abcnb.show import pages
from abcnb.show.cleaning import COMMITTED_PRESET, NOTEBOOKS, clean, find, read, write
from abcnb.show.try_page import try_page
from abcnb.study.fingerprint import fingerprint
from abcnb.study.parameters import NOTEBOOK_PRESETS

# Kernels use the interpreter that runs the command, whatever kernels the user's folders name.
os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
# The files in reports/ that notebooks show.
COMMITTED = (
    "results/*.csv", "sweeps/*.toml", "models/*/*-[0-9].json", "models/*/metrics.json", "models/*/*.safetensors",
)  # fmt: skip
AT_ONCE = 2  # kernels, of one thread each
STARTS = 3  # attempts at a kernel, which fails if another program takes a port between its choice and its use
README = NOTEBOOKS.parent / "README.md"
ENCRYPTED = Config(AsyncKernelManager={"transport_encryption": "auto"})  # without it each kernel warns


def provenance(device: str) -> list[str]:
    """What numbers were made with: date, hardware, versions, the fingerprint of the code."""
    versions = f"Python {platform.python_version()}", f"torch {torch.__version__}", f"abcnb {abcnb.__version__}"
    machine = hardware(pick_device(device)).partition(",")[0]
    return [date.today().isoformat(), f"on {machine}", *versions, f"code {fingerprint()}"]


@dataclass(frozen=True)
class Execution:
    """How notebooks are executed, and where what they leave goes."""

    preset: str  # of all notebooks that have one
    runs: Path  # folder of trained models
    reports: Path  # folder of committed results
    device: str = "auto"
    fresh: bool = False  # execute what is current too, and use nothing committed under reports/
    live: bool = False  # train live in notebooks that can, which takes minutes

    def __post_init__(self):
        if self.preset not in NOTEBOOK_PRESETS:
            raise ValueError(f"expected a preset among {', '.join(NOTEBOOK_PRESETS)}, got {self.preset!r}")
        pick_device(self.device)

    def output(self, file: Path) -> Path:
        """The file of an executed notebook."""
        return self.reports.resolve() / "executed" / f"{file.stem}-{self.preset}.ipynb"

    def pages(self) -> Path:
        """The folder of the pages."""
        return self.reports.resolve() / ("html" if self.preset == COMMITTED_PRESET else f"html-{self.preset}")

    def parameters(self, file: Path) -> dict:
        """The values passed to a notebook: the common parameters that it has."""
        common = {"preset": self.preset, "device": self.device, "stored": not self.fresh, "live": self.live}
        common |= {"runs_dir": str(self.runs.resolve()), "reports_dir": str(self.reports.resolve())}
        known = papermill.inspect_notebook(file)
        return {name: value for name, value in common.items() if name in known}

    def fingerprint(self, file: Path) -> str:
        """A hash of all that decides a notebook's outputs: cells, parameters, the package, committed results."""
        cells, parameters = [(cell.cell_type, cell.source) for cell in read(file).cells], self.parameters(file)
        package = Path(abcnb.__file__).parent
        files = [*package.rglob("*.py"), *package.rglob("*.j2")]
        if "reports_dir" in parameters:
            files += [known for kind in COMMITTED for known in self.reports.resolve().glob(kind)]
        digest = hashlib.sha256(json.dumps([cells, parameters]).encode())
        for known in sorted(files):
            digest.update(f"{known}\0".encode() + known.read_bytes())
        return digest.hexdigest()

    def done(self, file: Path) -> NotebookNode | None:
        """The executed notebook, however old; None if it did not run to its end, or its file is damaged."""
        try:
            notebook = read(self.output(file))
        except (FileNotFoundError, ValueError):  # never run; killed while it was being written
            return None
        return notebook if "abcnb" in notebook.metadata else None

    def is_current(self, file: Path) -> bool:
        """Whether executing it again would change nothing."""
        notebook = self.done(file)
        return bool(notebook) and notebook.metadata.abcnb.fingerprint == self.fingerprint(file)

    def execute(self, file: Path) -> str:
        """Execute one notebook, and return how long it took, in words.

        A failed cell or a dead kernel raises ValueError; the output, written cell by cell, is kept. Outputs that
        only a live execution makes say when it was, and stay in later ones while the code up to them is the same.
        """
        output, parameters, fingerprint = self.output(file), self.parameters(file), self.fingerprint(file)
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as anywhere:
            # papermill's own `cwd` would change the folder of this process, in which other notebooks are executed.
            where = {"kernel_name": "python3", "resources": {"metadata": {"path": anywhere}}, "config": ENCRYPTED}
            for attempt in range(1, STARTS + 1):
                try:
                    notebook = papermill.execute_notebook(file.resolve(), output, parameters, **where)
                    break
                except PapermillExecutionError as error:
                    reason = error.evalue.strip().splitlines()[:1]
                    raise ValueError(": ".join([f"cell [{error.exec_count}]", error.ename, *reason])) from error
                except RuntimeError as error:
                    if isinstance(error, DeadKernelError) or attempt == STARTS:
                        raise ValueError(str(error).splitlines()[0]) from error
        seconds = notebook.metadata.papermill.duration
        took = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
        passed = [f"{name} = {value}" for name, value in parameters.items() if not name.endswith("_dir")]
        made = provenance(self.device)
        told = [*passed, f"executed in {took}", *made]
        notebook.metadata["abcnb"] = {"fingerprint": fingerprint, "provenance": told}
        if self.live:
            for cell, known in only_live(notebook):
                cell.outputs.append(new_output("stream", text=f"Live: {', '.join(made)}, cells {known}\n"))
        elif self.preset == COMMITTED_PRESET and not self.fresh:
            before = {known: cell.outputs for cell, known in only_live(read(file))}
            for cell, known in only_live(notebook):
                if not cell.outputs and f"cells {known}" in str(before.get(known, [])[-1:]):
                    cell.outputs = before[known]
        write(notebook, output)
        return took


def only_live(notebook: NotebookNode) -> list[tuple[NotebookNode, str]]:
    """The cells that train live, each with a hash of its code and of all code before it."""
    digest, found = hashlib.sha256(), []
    for cell in notebook.cells:
        if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", []):
            digest.update(cell.source.encode())
            found += [(cell, digest.hexdigest()[:12])] if "if live:" in cell.source else []
    return found


def build_pages(execution: Execution, folder: Path = NOTEBOOKS) -> list[str]:
    """Write the pages of notebooks that ran to their end, the README and other texts; returns a line per failure."""
    target = execution.pages()
    files = {"index": README} | {file.stem: file for file in find([], folder)}
    files |= {file.stem: file for file in sorted(execution.reports.glob("*.md"))}
    documents: dict[str, tuple[dict, list[str]]] = {}  # each with what it was made with
    for name, file in files.items():
        if file.suffix == ".md":
            documents[name] = {"cells": [{"source": file.read_text(encoding="utf-8")}]}, []
        elif notebook := execution.done(file):
            documents[name] = clean(notebook), notebook.metadata.abcnb.provenance
    ready = frozenset(name for name in files if name in documents or (target / f"{name}.html").exists())
    made, failures = {}, []
    for name, (document, told) in documents.items():
        site = pages.Site(target, files[name].resolve().parent, tuple(files), ready)
        try:
            made[name] = pages.report_page(document, name, site, told)
        except ValueError as error:
            failures.append(f"{name}: {error}")
    if adding := try_page(execution.reports):
        made["try"] = adding
    target.mkdir(parents=True, exist_ok=True)
    for name, page in made.items():
        write_atomically(target / f"{name}.html", lambda file, page=page: file.write_text(page, encoding="utf-8"))
    return failures


def write_reports(
    execution: Execution, wanted: list[str], write_back: bool = False, folder: Path = NOTEBOOKS
) -> list[str]:
    """Execute the notebooks that are not current, and write their pages and the index; returns a line per failure.

    Args:
        wanted: notebooks by number or name, as in `find`; all if none is named.
        write_back: put the outputs, cleaned, into the committed notebooks; ValueError with any preset but theirs.
    """
    if write_back and execution.preset != COMMITTED_PRESET:
        raise ValueError(f"expected preset {COMMITTED_PRESET!r} to write back, got {execution.preset!r}")

    def execute(file: Path) -> tuple[Path, str, str]:
        if not execution.fresh and execution.is_current(file):
            return file, "current", ""
        try:
            return file, f"executed in {execution.execute(file)}", ""
        except ValueError as error:
            return file, f"failed; what it did is in {execution.output(file)}", str(error)

    files, failures = find(wanted, folder), []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for file, told, problem in pool.map(execute, files):
                print(f"{file.stem}: {told}", flush=True)
                failures += [f"{file.stem}: {problem}"] if problem else []
                if write_back and (notebook := execution.done(file)):
                    write(clean(notebook), file)
        except BaseException:  # Ctrl-C, or a full disk: do not wait for those that still run
            pool.shutdown(wait=False, cancel_futures=True)
            for kernel in psutil.Process().children(recursive=True):
                kernel.terminate()
            raise
    return failures + build_pages(execution, folder)
