"""Further tasks: answers against plain Python."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.other_tasks.further import MORE
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import decode


def both(source, sign, base=10):
    return [int(part, base) for part in source.split(sign)]


def runs(string):
    found = []
    for i, symbol in enumerate(string):
        found.append((found[-1] + 1) % 10 if i and string[i - 1] == symbol else 1)
    return "".join(map(str, found))


# The answer of each, from the input as text.
ANSWERS = {
    "copy": lambda s: s,
    "palindrome": lambda s: str(int(s == s[::-1])),
    "run-lengths": runs,
    "majority": lambda s: str(int(s.count("1") > s.count("0"))),
    "mod-seven": lambda s: str(int(s) % 7),
    "divided-by-three": lambda s: str(int(s) // 3).zfill(len(s)),
    "plus-seven": lambda s: str(int(s) + 7),
    "times-seven": lambda s: str(int(s) * 7),
    "times-ten": lambda s: str(int(s) * 10),
    "subtraction": lambda s: str((both(s, "%")[0] - both(s, "%")[1]) % 10 ** s.index("%")),
    "bitwise-xor": lambda s: f"{both(s, '>', 2)[0] ^ both(s, '>', 2)[1]:b}",
    "bitwise-and": lambda s: f"{both(s, '<', 2)[0] & both(s, '<', 2)[1]:b}",
    "comparison": lambda s: "0" if both(s, ">")[0] == both(s, ">")[1] else "12"[both(s, ">")[0] < both(s, ">")[1]],
    "maximum": lambda s: str(max(both(s, "<"))),
}


@settings(max_examples=150)
@given(st.sampled_from(sorted(ANSWERS)), st.integers(1, 40), st.sampled_from(["random", "hard"]))
def test_answers_are_those_of_plain_python(name, length, test_set):
    task = get_task(name)
    for operands in task.cases(test_set if test_set in task.test_sets else "random", length, 12).values():
        batch = task.batch(operands)
        assert batch.stream.rows == batch.target.shape[1]
        for source, target in zip(batch.source, batch.target, strict=True):
            assert task.read(decode(target)) == ANSWERS[name](decode(source).strip("$&"))


def test_there_is_an_answer_for_every_further_task():
    assert set(ANSWERS) == {task.name for task in MORE}


def test_equal_numbers_have_no_larger_one():
    task = get_task("comparison")
    assert task.read(decode(task.batch(task.parse("17>17")).target[0])) == "0"


def test_half_of_the_strings_are_palindromes():
    task = get_task("palindrome")
    for length in (1, 8, 9):
        batch = task.batch(task.cases("random", length, 2000)["random"])
        share = (batch.target[:, -2] == 1).float().mean()
        # one flaw in the middle of an odd string leaves it a palindrome
        assert share == pytest.approx(0.5 + 0.5 * (length % 2) / length, abs=0.05)
