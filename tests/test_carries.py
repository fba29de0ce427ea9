"""The hard test set: what each kind of case promises, in Python integers."""

import pytest
import torch

from abcnb.tasks import TASKS, get_task
from abcnb.testsets import SAMPLES, hard_cases, hard_operands


def integers(digits, base):
    return [sum(d * base**place for place, d in enumerate(row)) for row in digits.tolist()]


def cases(task, kind, length, base=None, samples=SAMPLES):
    """The operands of a kind as lists of integers."""
    chosen = get_task(task, base)
    return [integers(operand, chosen.base) for operand in hard_cases(chosen, length, samples)[kind]]


def carries(a, b, base):
    """Places of a + b that carry."""
    found, carry, place = [], 0, 0
    while a or b or carry:
        carry = (a % base + b % base + carry) // base
        if carry:
            found.append(place)
        a, b, place = a // base, b // base, place + 1
    return found


@pytest.mark.parametrize("base", [2, 3, 10, 16])
@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_full_chains_carry_through_every_place(base, length):
    for a, b in zip(*cases("addition", "full chain", length, base), strict=True):
        assert base ** (length - 1) <= a < base**length
        assert b < base**length
        assert carries(a, b, base) == list(range(length))
        if base > 2:
            assert b >= base ** (length - 1)


def test_chains_of_every_length_start_anywhere():
    found = [carries(a, b, 10) for a, b in zip(*cases("addition", "chain", 12, samples=20_000), strict=True)]
    longest = [max(len(run) for run in runs(places)) for places in found]
    assert set(longest) == set(range(1, 13))


def runs(places):
    """Consecutive runs among sorted places."""
    groups = [[places[0]]]
    for place in places[1:]:
        if place == groups[-1][-1] + 1:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def test_unequal_operands_carry_out_of_the_shorter_one():
    pairs = list(zip(*cases("addition", "unequal", 12), strict=True))
    for a, b in pairs:
        short, long = sorted((a, b))
        assert max(len(str(a)), len(str(b))) == 12
        assert len(str(short)) - 1 in carries(short, long, 10)
    assert {len(str(min(pair))) for pair in pairs} >= set(range(1, 12))
    assert any(a < b for a, b in pairs) and any(a > b for a, b in pairs)
    ends = [len(str(min(pair))) for pair in pairs]
    assert any(set(range(end - 1, 12)) <= set(carries(*p, 10)) for end, p in zip(ends, pairs, strict=True))


def test_the_named_pairs():
    a, b = cases("addition", "named", 5)
    assert list(zip(a, b, strict=True)) == [
        (99999, 1), (1, 99999), (99999, 99999), (49995, 50005), (50000, 50000), (10000, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("task", ["successor", "n-by-1", "listops-max"])
def test_numbers(task):
    assert set(cases(task, "all", 4)[0]) == {9999}
    ones = cases(task, "one digit", 4)[0]
    assert set(ones) == {digit * 10**place for digit in range(1, 10) for place in range(4)}
    from_units = cases(task, "run from units", 4)[0]
    assert all(1000 <= n <= 9999 and n % 10 == 9 for n in from_units)
    assert {len(str(n)) - len(str(n).rstrip("9")) for n in from_units} == {1, 2, 3, 4}
    assert all("9" in str(n) for n in cases(task, "run", 4)[0])
    inside = "".join(str(n)[1:] for n in cases(task, "zeros inside", 6)[0])
    assert 0.5 < inside.count("0") / len(inside) < 0.8


@pytest.mark.parametrize("length", [1, 6])
def test_nines_times_every_digit(length):
    a, b = cases("n-by-1", "all", length)
    assert sorted(zip(a, b, strict=True)) == [(10**length - 1, digit) for digit in range(10)]


@pytest.mark.parametrize("samples", [1, 20, 1000])
def test_each_kind_has_an_equal_part_of_at_least_one(samples):
    for task in ("addition", "successor", "n-by-1"):
        kinds = hard_cases(get_task(task), 20, samples)
        assert all(1 <= len(operands[0]) <= max(1, samples // len(kinds)) for operands in kinds.values())


def test_parity_of_all_ones_and_of_a_single_one():
    bits = get_task("parity").digits_at(6)
    assert cases("parity", "all", 6) == [[2**bits - 1]]
    assert sorted(cases("parity", "one digit", 6)[0]) == [2**place for place in range(bits)]


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("length", [1, 6, 61])
def test_every_task_has_distinct_repeatable_cases(task, length):
    chosen = get_task(task)
    for operands in hard_cases(chosen, length).values():
        rows = torch.cat(operands, 1)
        assert 0 < len(rows) <= 250 and len(rows.unique(dim=0)) == len(rows)
        assert operands[0].shape[1] == chosen.digits_at(length) + 1 and not operands[0][:, -1].any()
        assert all(operand.min() >= 0 and operand.max() < chosen.base for operand in operands)
    first, again = hard_operands(chosen, length), hard_operands(chosen, length)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert 0 < len(first[0]) <= SAMPLES


@pytest.mark.parametrize("length, samples", [(0, 10), (-1, 10), (5, 0)])
def test_impossible_test_sets(length, samples):
    with pytest.raises(ValueError, match="expected a length and a sample count of at least 1"):
        hard_operands(get_task("addition"), length, samples)
