"""The benchmark of Huang et al.: its inputs, and its labels against plain Python."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.study.other_tasks import IN_RANGES
from abcnb.tasks.huang import HUANG
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import decode

ANSWERS = {
    "huang-copy": lambda s: s,
    "huang-parity": lambda s: str(s.count("1") % 2),
    "huang-addition": lambda s: f"{sum(int(a, 2) for a in s.split('+')):b}",
}


def test_there_is_an_answer_and_a_published_number_for_every_task():
    assert set(ANSWERS) == set(IN_RANGES) == {task.name for task in HUANG}


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(sorted(ANSWERS)), st.sampled_from([50, 100, 150]))
def test_answers_are_those_of_plain_python(name, length):
    task = get_task(name)
    for operands in task.cases("random", length, 150).values():
        batch = task.batch(operands)
        assert batch.stream.rows == batch.target.shape[1]
        for source, target in zip(batch.source, batch.target, strict=True):
            assert task.read(decode(target)) == ANSWERS[name](decode(source).strip("$&="))


def test_a_test_has_fifty_lengths_in_equal_parts():
    cases = get_task("huang-copy").cases("random", 100, 2000)
    assert [len(a) for (a,) in cases.values()] == [40] * 50
    assert [a.shape[1] for (a,) in cases.values()] == list(range(51, 101))


def test_every_number_of_ones_is_as_likely_as_any_other():
    ones = get_task("huang-parity").drawn(8000, 9, torch.Generator().manual_seed(0)).sum(1)
    assert (torch.bincount(ones, minlength=10) / 800 - 1).abs().max() < 0.15


def test_sums_have_their_lengths_and_begin_with_one():
    """`1+0=` is the shortest; of 12 tokens, signs included, the first number has 1 to 9 bits, evenly."""
    task = get_task("huang-addition")
    assert next(iter(task.cases("random", 50, 470))) == "4 tokens"
    operands = task.cases("random", 50, 20_000)["12 tokens"]
    bits = torch.stack([(a * torch.arange(1, a.shape[1] + 1)).max(1).values for a in operands])
    long = bits.min(0).values > 1
    assert (bits.sum(0)[long] == 10).all() and (bits.sum(0) <= 10).all()
    assert bits.max() == 9
