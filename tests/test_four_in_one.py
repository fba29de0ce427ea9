"""The paper's four tasks as one: what is written, what is answered, and what it is tested on."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import abcnb
from abcnb.tasks import testsets
from abcnb.tasks.four_in_one import SIGNS
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import decode

quick = settings(max_examples=60)
numbers = st.integers(0, 10**30)


@pytest.fixture(scope="module")
def task():
    return get_task("four-in-one")


def written(task, text, form="natural"):
    batch = task.batch(task.parse(text), form)
    return decode(batch.source[0]), decode(batch.target[0])


@pytest.mark.parametrize(
    "text, source, aligned, target",
    [
        ("123+748", "$0123+0748&", "$+00172438&", "1780&"),
        ("123*7", "$0123*7777&", "$*07172737&", "1680&"),
        (">999", "$0999>0000&", "$>00909090&", "0001&"),
        ("%1011", "$01011%00000&", "$%0010001010&", "10011&"),
    ],
)
def test_what_is_written_and_answered(task, text, source, aligned, target):
    assert written(task, text) == (source, target)
    assert written(task, text, "aligned") == (aligned, target)


@quick
@given(numbers, numbers, st.integers(0, 9))
def test_answers_are_those_of_python_integers(a, b, digit):
    task = get_task("four-in-one")
    answers = {f"{a}+{b}": a + b, f"{a}*{digit}": a * digit, f">{a}": a + 1}
    for text, answer in answers.items():
        assert int(task.read(written(task, text)[1])) == answer
    bits = f"{a:b}"
    assert [int(bit) for bit in written(task, f"%{bits}")[1][: len(bits)]] == [
        bits[len(bits) - 1 - place :].count("1") % 2 for place in range(len(bits))
    ]


@pytest.mark.parametrize("text", ["123", "12a+3", "%12", "123*45", ""])
def test_what_is_no_input_is_refused(task, text):
    with pytest.raises(ValueError, match="expected"):
        task.parse(text)


@pytest.mark.parametrize("form", ["natural", "aligned"])
@pytest.mark.parametrize("numbers", ["even", "uniform"])
def test_a_training_batch_has_samples_of_every_task_in_equal_parts(numbers, form):
    data = abcnb.TrainingData("four-in-one", numbers, form=form)
    batch = data.train(4000, torch.Generator().manual_seed(0))
    signs = [sign for source in batch.source for sign in SIGNS.values() if sign in decode(source)]
    assert len(signs) == 4000
    operands = [re.split("[>%+*]", decode(source)[1:-1]) for source in batch.source] if form == "natural" else []
    assert all(int(a) <= 2**20 and (len(set(b)) == 1 or int(b) <= 2**20) for a, b in operands)
    assert all(900 < signs.count(sign) < 1100 for sign in SIGNS.values())


@pytest.mark.parametrize("test_set", testsets.TEST_SETS)
@pytest.mark.parametrize("length", [3, 20])
def test_the_samples_and_answers_of_a_test_are_those_of_each_task_by_itself(task, test_set, length):
    cases = testsets.test_cases(task, length, 400, test_set)
    for name in SIGNS:
        single = get_task(name)
        for kind, operands in testsets.test_cases(single, length, 100, test_set).items():
            mine = task.batch(cases.pop(f"{name}, {kind}"))
            alone = single.batch(operands)
            assert torch.equal(mine.target, alone.target)
            assert torch.equal(
                mine.source[:, 1 : alone.target.shape[1]], alone.source[:, 1 : alone.target.shape[1]]
            )
    assert not cases


def test_wider_operands_are_the_same_samples(task):
    narrow = task.parse("123*7")
    wide = task.widened(narrow, 9)
    assert [part.shape[1] for part in wide] == [9, 9, 1]
    assert decode(task.batch(wide).source[0]) == "$000000123*777777777&"
