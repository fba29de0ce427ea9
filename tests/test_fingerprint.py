"""The fingerprint changes with what decides a number and with nothing else."""

import ast
import re

import pytest

from abcnb.study.fingerprint import (
    EQUAL,
    canonical,
    deciding,
    fingerprint,
    fingerprint_of,
    is_current,
    joint,
    older,
)
from tests.test_house import imports_of

PLAIN = """
import math

class Line:
    def strength(self, x):
        return math.sqrt(x) + 1
"""
SAME = {
    "a comment": PLAIN.replace("import math", "import math  # for the root"),
    "docstrings": '"""Lines."""\n'
    + PLAIN.replace("Line:", 'Line:\n    """One."""').replace("x):", "x):\n        '''How strong.'''"),
    "layout": PLAIN.replace("math.sqrt(x) + 1", "(\n            math.sqrt(x)\n            + 1\n        )"),
    "quotation marks and empty lines": PLAIN.replace("\n\n", "\n\n\n"),
}
OTHER = {
    "an operator": PLAIN.replace("+", "-"),
    "a number": PLAIN.replace("1", "2"),
    "a kind of number": PLAIN.replace("1", "1.0"),
    "a name": PLAIN.replace("strength", "support"),
    "a function": PLAIN.replace("sqrt", "exp"),
    "a text that is no docstring": PLAIN + "\n'Lines.'\n",
    "a default": PLAIN.replace("x)", "x=0)", 1),
    "a decorator": PLAIN.replace("    def", "    @staticmethod\n    def"),
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_what_decides_nothing_changes_nothing(text):
    assert text != PLAIN
    assert fingerprint_of({"lines": text}) == fingerprint_of({"lines": PLAIN})


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_what_may_decide_a_number_changes_the_fingerprint(text):
    assert fingerprint_of({"lines": text}) != fingerprint_of({"lines": PLAIN})


def test_modules_are_told_apart_and_their_order_does_not_matter():
    one, two = {"lines": PLAIN, "tasks": "x = 1"}, {"tasks": "x = 1", "lines": PLAIN}
    assert fingerprint_of(one) == fingerprint_of(two)
    assert fingerprint_of(one) != fingerprint_of({"lines": "x = 1", "tasks": PLAIN})


@pytest.fixture(scope="module")
def sources():
    return {name: file.read_text() for name, file in deciding().items()}


def test_it_is_of_everything_that_the_idea_is_made_of(repository, sources):
    """All that `pipeline`, Algorithm 1, the other tasks, the rivals and the proof import, except what a machine has."""
    files = sorted((repository / "abcnb").rglob("*.py"))
    names = [".".join(file.relative_to(repository).with_suffix("").parts) for file in files]
    trees = dict(zip(names, (ast.parse(file.read_text()) for file in files), strict=True))
    reached = set()
    waiting = ["abcnb.pipeline", "abcnb.lines.algorithm1", "abcnb.study.together"]
    waiting += [name for name in names if re.match(r"abcnb\.(tasks|rivals|other_tasks|proof)\.(?!__init__)", name)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports_of(trees[name], set(trees))
    found = {name.removeprefix("abcnb.").replace(".", "/") for name in reached}
    assert found - {"machine/devices", "machine/files", "machine/checks"} == {
        name for name in sources if not name.endswith("__init__")
    }


def test_versions_of_python_write_one_syntax():
    """Fields that only some versions have, and an empty text that 3.12 leaves in f-strings, do not count."""
    text = "def f(x): return f'{x:>{x}}'"
    newer = ast.parse(text)
    function = newer.body[0]
    function.type_params = []  # of 3.12
    function.body[0].value.values[0].format_spec.values.append(ast.Constant(""))
    assert canonical(newer) == canonical(ast.parse(text))


def test_a_score_names_both_codes_where_they_differ():
    assert joint("aaa", "aaa") == "aaa" and joint("aaa", "bbb") == "aaa+bbb"


def test_code_that_gives_the_same_numbers_counts_as_this():
    equal = min(EQUAL)
    assert is_current(fingerprint()) and is_current(f"{equal}+{fingerprint()}") and not is_current(f"{equal}+aaa")
    assert older({equal, fingerprint()}, "--fresh") == ""


def test_other_code_is_named_in_one_line_with_what_computes_anew():
    assert older(set(), "--fresh") == older({fingerprint()}, "--fresh") == ""
    line = older({"bbb", fingerprint(), "aaa"}, "--fresh", "curves")
    assert line.count("\n") == 0 and "(aaa, bbb; this is " + fingerprint() in line
    assert line.startswith("Note: curves come from other code") and "--fresh computes anew" in line
