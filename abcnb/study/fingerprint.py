"""The fingerprint of the code that determines a number, so that a stale number can be recognized.

It is a hash of the syntax of the modules that decide it; comments, docstrings and layout change nothing."""

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

import abcnb

DECIDING = ("lines", "tasks", "model", "rivals", "other_tasks", "proof")  # rooms; and `ALONE`
ALONE = ("pipeline.py", "study/together.py")
# Earlier code that gives the same numbers for every method that still exists. For 93686251e83d this holds for
# lines by hand; its plain models, and so the development rows of `abc` with another tau, differ by rounding. For
# 7ab44aeccaa2 it does not hold for expressions in brackets, of which it has no rows, nor up to 77d7abe268a2 for
# position coupling of an operator in one stream, of which development rows remain. Up to 532ccfc942d3 certificates
# of sums also tried windows in which the first sum's padding was no zero.
EQUAL = {
    "aefe30ffad85", "93686251e83d", "bf430fc15655", "fa0c13312a8b", "2af28773a10b", "efbae45cb772",
    "a65a6e3c954b", "dc12fc88b193", "3503182ebca4", "aadba598ab1b", "43719872a285", "81a840aba424",
    "bba603f573c9", "3946f6c21893", "88c3640cdb87", "8075dc3b1eda", "4fdefcddcc61", "1598f8d39d60",
    "44b03504b706", "8d7358a7102f", "7ab44aeccaa2", "065679e8b60c", "9984ad3df8b5", "9d1982e77ded",
    "655743964548", "a83de922a6ef", "43a488b2f101", "1e4e0c0aa868", "d4ff0c58e030", "0629d5f8bc38",
    "8ad96c058fb7", "77d7abe268a2", "e97a8417d8c7", "3c18f03bb97f", "26df105defc4", "bb9aba23126e",
    "027b5ad27584", "d8bd553fd269", "a2444e0c1dfb", "7f9a3b9cdfe0", "8d90ecf0a4e9", "5e2defb28537",
    "05d468f542bc", "532ccfc942d3",
}  # fmt: skip
UNKNOWN = "unknown"  # for what was made before there were fingerprints


def canonical(node: object) -> str:
    """The text of a syntax tree, or of part of one, without docstrings; the same in every version of Python."""
    if isinstance(node, list):
        return "[" + ",".join(map(canonical, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = dict(ast.iter_fields(node))
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
        parts["body"] = parts["body"][1:]
    if isinstance(node, ast.JoinedStr):  # Python 3.12 ends a format inside a format with an empty text
        parts["values"] = [part for part in parts["values"] if getattr(part, "value", None) != ""]
    # Empty fields are left out: which ones exist differs between versions of Python.
    kept = ",".join(f"{name}={canonical(value)}" for name, value in parts.items() if value not in (None, []))
    return f"{type(node).__name__}({kept})"


def fingerprint_of(sources: dict[str, str]) -> str:
    """Twelve hexadecimal digits for modules given by name and source text."""
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name}\0{canonical(ast.parse(sources[name]))}\0".encode())
    return digest.hexdigest()[:12]


def deciding() -> dict[str, Path]:
    """The modules that decide a number: their names and files."""
    folder = Path(abcnb.__file__).parent
    files = [file for room in DECIDING for file in (folder / room).glob("*.py")]
    files += [folder / name for name in ALONE]
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """The fingerprint of this code."""
    return fingerprint_of({name: file.read_text(encoding="utf-8") for name, file in deciding().items()})


def joint(trained: str, measured: str) -> str:
    """The fingerprint of a score: of the code that trained the model and, if different, that measured it."""
    return "+".join(dict.fromkeys([*trained.split("+"), *measured.split("+")]))


def is_current(code: str) -> bool:
    """Whether a fingerprint, or a joint one, is of this code or of code that gives the same numbers."""
    return set(code.split("+")) <= {fingerprint(), *EQUAL}


def older(codes: set[str], switch: str, what: str = "stored results") -> str:
    """One line saying which other code `what` come from and which switch computes anew; empty if none."""
    others = sorted(code for code in codes if not is_current(code))
    if not others:
        return ""
    return f"Note: {what} come from other code ({', '.join(others)}; this is {fingerprint()}). {switch} computes anew."


fingerprint()  # at import: a file that is edited later is not the code that runs
