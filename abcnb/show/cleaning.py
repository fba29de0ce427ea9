"""The committed notebooks: found, read, cleaned of what changes with every execution, and checked."""

import json
import re
from itertools import count
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode

import abcnb
from abcnb.machine.files import write_atomically

NOTEBOOKS = Path(abcnb.__file__).parents[1] / "notebooks"
COMMITTED_PRESET = "laptop"
WIDGET = "application/vnd.jupyter.widget-view+json"
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_EMBEDDED = re.compile(r'"image/png": "[^"]*"|data:[\w/+.-]+;base64,[A-Za-z0-9+/=\\n]+')
_ABSOLUTE = re.compile(r"(?<![\w.:/-])/(?:work|home|root|tmp|Users)/[^\s\"'\\<]*")


def find(wanted: list[str], folder: Path = NOTEBOOKS) -> list[Path]:
    """Notebooks by number (`05` or `5`) or name, in reading order, all if none is named; ValueError for others."""
    files = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    known = {file.stem: file for file in files} | {file.stem[:2]: file for file in files}
    missing = [name for name in wanted if name.zfill(2) not in known]
    if missing or not files:
        names = ", ".join(file.stem for file in files)
        raise ValueError(f"expected notebooks among {names} in {folder}, got {missing[:1]}")
    return sorted({known[name.zfill(2)] for name in wanted}) or files


def read(file: Path) -> NotebookNode:
    """A notebook of format 4.5, in which every cell has an id; ValueError for a file that is none."""
    try:
        return nbformat.v4.upgrade(nbformat.read(file, as_version=4))
    except (nbformat.ValidationError, AttributeError, ValueError) as error:
        raise ValueError(f"expected a notebook in {file}, got: {str(error).splitlines()[0]}") from None


def write(notebook: NotebookNode, file: Path) -> None:
    """Write a notebook atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda name: name.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8"))


def clean(notebook: NotebookNode) -> NotebookNode:
    """A copy to commit: outputs stay, and what changes from one execution to the next is removed.

    What changes is widget state and views (a panel's HTML beside one stays), stderr, injected parameters and all
    metadata except tags. Cells are numbered 1, 2, 3, as after a restart.
    """
    cells, numbers = [], count(1)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if {"injected-parameters", "papermill-error-cell-tag"} & set(tags):
            continue
        kept = {"cell_type": cell.cell_type, "id": cell.id, "source": cell.source}
        kept["metadata"] = {"tags": tags} if tags else {}
        if cell.cell_type == "code":
            number = None if cell.execution_count is None else next(numbers)
            outputs = [_clean_output(output, number) for output in cell.outputs]
            kept |= {"execution_count": number, "outputs": [output for output in outputs if output]}
        cells.append(kept)
    return nbformat.from_dict({"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5})


def _clean_output(output: NotebookNode, number: int | None) -> dict | None:
    if output.output_type in ("stream", "error"):
        return None if output.get("name") == "stderr" else dict(output)
    data = {mime: content for mime, content in output.data.items() if mime != WIDGET}
    if WIDGET in output.data and set(data) <= {"text/plain"}:
        return None
    counted = {"execution_count": number} if output.output_type == "execute_result" else {}
    return {"output_type": output.output_type, "data": data, "metadata": {}} | counted


def problems(file: Path) -> list[str]:
    """What keeps a notebook from being committed, one line per problem."""
    notebook = read(file)
    found = [] if clean(notebook) == notebook else ["it is not clean: run python -m abcnb reports --clean"]
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if left := sum(cell.execution_count is None for cell in codes):
        found.append(f"{left} of {len(codes)} code cells were not executed")
    failed = [n for n, cell in enumerate(codes, 1) if any(o.output_type == "error" for o in cell.outputs)]
    found += [f"code cell {number} failed" for number in failed]
    tagged = sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells)
    if tagged != 1:
        found.append(f"{tagged} cells tagged parameters, expected one")
    for name, known in papermill.inspect_notebook(file).items():
        if not known["help"]:
            found.append(f"parameter {name} has no help that papermill finds: end its line in a comment")
        if name == "preset" and known["default"].strip("'\"") != COMMITTED_PRESET:
            found.append(f"preset is {known['default']}, expected {COMMITTED_PRESET!r}")
    first = notebook.cells[0]
    if first.cell_type != "markdown" or not re.match(r"# .+\n[\s\S]*\*\*Question\.", first.source):
        found.append("the first cell is not Markdown with a title and a **Question.**")
    if path := _ABSOLUTE.search(_EMBEDDED.sub("", json.dumps(notebook.cells))):
        found.append(f"a path of one machine: {path[0]}")
    return found


def clean_all(folder: Path = NOTEBOOKS) -> list[str]:
    """Clean the committed notebooks in place; returns what is left to do by hand, one line per problem."""
    files = find([], folder)
    for file in files:
        notebook = read(file)
        if (cleaned := clean(notebook)) != notebook:
            write(cleaned, file)
    return [f"{file.stem}: {problem}" for file in files for problem in problems(file)]
