"""The test sets: random digits, and what each kind of the others promises, in Python integers."""

import signal
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.tasks import testsets
from abcnb.tasks.digits import length_of
from abcnb.tasks.numbers import split_numbers
from abcnb.tasks.task import TASKS, get_task
from abcnb.tasks.testsets import (
    HARD_SAMPLES,
    TEST_SETS,
    hard_cases,
    padded_cases,
    random_operands,
    sample_count,
    unequal_operands,
)
from tests.little import BY_ITSELF, ONE_ROW, integers


@contextmanager
def at_most(seconds):
    """Turn a call that never ends into a failure."""

    def stop(*_):
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def held_out():
    return set(split_numbers()[1].tolist())


# Random digits


@pytest.mark.parametrize("length", [1, 2, 3, 6, 7, 20, 60])
@pytest.mark.parametrize("name", ["addition", "successor", "listops-sm"])
def test_random_operands_have_exactly_the_length(name, length):
    for operand in random_operands(get_task(name), length, samples=300):
        assert operand.shape[1] == length + 1
        assert all(n < 10**length and (length == 1 or n >= 10 ** (length - 1)) for n in integers(operand))
        assert operand.min() >= 0


def test_random_n_by_one_operands():
    a, b = random_operands(get_task("n-by-1"), 20, samples=500)
    assert (a.shape, b.shape) == ((500, 21), (500, 1))
    assert all(10**19 <= n < 10**20 for n in integers(a))
    assert set(b.flatten().tolist()) == set(range(10))


@pytest.mark.parametrize("name", ["addition", "successor", "n-by-1", "parity", "listops-max"])
@pytest.mark.parametrize("length", [2, 4, 7, 30])
def test_random_samples_are_distinct(name, length):
    rows = torch.cat(random_operands(get_task(name), length, samples=2_000), dim=1).tolist()
    assert len({tuple(row) for row in rows}) == len(rows) > 0


@pytest.mark.parametrize(
    "length, samples, count",
    [
        (3, 10_000, 900),
        (4, 10_000, 9_000),
        (5, 10_000, 10_000),
        (6, 10_000, 10_000),
        (7, 400, 400),
        (3, 50, 50),
        (60, 10_000, 10_000),
    ],
)
def test_count_is_that_of_the_paper(length, samples, count):
    """min(10^L − 10^(L−1), samples)."""
    a, b = random_operands(get_task("addition"), length, samples)
    assert len(a) == len(b) == count


@pytest.mark.parametrize("length", [2, 3, 5, 6])
@pytest.mark.parametrize("name", ["addition", "successor", "n-by-1", "parity"])
def test_up_to_six_digits_are_held_out(name, length, held_out):
    task = get_task(name)
    operands = random_operands(task, length, samples=1_000)
    for operand in operands[: 1 if name == "n-by-1" else 2]:
        assert set(integers(operand, task.base)) <= held_out


@pytest.mark.parametrize("name", ["parity", "parity-classification"])
@pytest.mark.parametrize("length, bits", [(1, 4), (2, 7), (6, 20), (7, 24), (20, 67), (60, 200)])
def test_parity_is_handed_the_bits_of_decimal_numbers(name, length, bits):
    (operand,) = random_operands(get_task(name), length, samples=200)
    assert operand.shape[1] == bits + 1
    assert set(operand.flatten().tolist()) <= {0, 1}
    numbers = integers(operand, 2)
    assert all(len(str(n)) == length for n in numbers)
    labels = get_task("parity-classification").label(operand).flatten().tolist()
    assert labels == [n.bit_count() % 2 for n in numbers]


def test_hexadecimal_test_set_has_its_count():
    """16^6 − 16^5 ≈ 15.7 million six-digit numbers hold 10000 distinct ones."""
    (a,) = random_operands(get_task("successor", 16), 6)
    assert len(a) == 10_000


def test_binary_test_set_longer_than_six_ends():
    """Seven bits make 64 numbers and 4096 pairs: fewer than asked for, but the call comes back."""
    with at_most(60):
        a, b = random_operands(get_task("addition", 2), 7)
    assert 0 < len(a) <= 4096
    assert all(64 <= n < 128 for n in integers(a, 2) + integers(b, 2))


def test_ten_million_digits_take_no_power_of_ten():
    with at_most(25):
        assert random_operands(get_task("successor"), 10_000_000, 1)[0].shape == (1, 10_000_001)


def test_binary_test_set_of_six_bits():
    a, _ = random_operands(get_task("addition", 2), 6)
    assert all(32 <= n < 64 for n in integers(a, 2))


@pytest.mark.parametrize("length, samples", [(0, 10), (-1, 10), (5, 0)])
@pytest.mark.parametrize("draw", [random_operands, hard_cases, unequal_operands, padded_cases])
def test_impossible_test_sets(draw, length, samples):
    with pytest.raises(ValueError, match="a length and a sample count that are whole numbers of at least 1"):
        draw(get_task("addition"), length, samples)


def test_no_base_is_asked_for_more_numbers_than_it_has(monkeypatch):
    """Where they are not listed: 64 numbers have exactly seven bits, and asking for more must not draw for ever."""
    monkeypatch.setattr(testsets, "LARGEST", 100)
    assert len(random_operands(get_task("successor", 2), 7, 1000)[0]) == 64
    assert len(random_operands(get_task("n-by-1", 3), 5, 1000)[0]) == 2 * 3**4 * 3


# Hard cases


def cases(task, kind, length, base=None, samples=HARD_SAMPLES):
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
def test_hard_numbers(task):
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


@pytest.mark.parametrize("task", ONE_ROW)
@pytest.mark.parametrize("length", [1, 6, 61])
def test_every_task_has_distinct_repeatable_cases(task, length):
    chosen = get_task(task)
    for operands in hard_cases(chosen, length).values():
        rows = torch.cat(operands, 1)
        assert 0 < len(rows) <= 250 and len(rows.unique(dim=0)) == len(rows)
        assert operands[0].shape[1] == chosen.digits_at(length) + 1 and not operands[0][:, -1].any()
        assert all(operand.min() >= 0 and operand.max() < chosen.base for operand in operands)


# Unequal lengths, more padding


@settings(max_examples=30)
@given(task=st.sampled_from(sorted(BY_ITSELF)), length=st.integers(1, 40), base=st.sampled_from([2, 3, 10, 16]))
def test_unequal_operands_are_distinct_numbers_of_at_most_the_length(task, length, base):
    chosen = get_task(task, base if base in TASKS[task].bases else None)
    operands = unequal_operands(chosen, length, 60)
    rows = torch.cat(operands, 1)
    assert 0 < len(rows) <= 60 and len(rows.unique(dim=0)) == len(rows)
    width = chosen.digits_at(length)
    assert operands[0].shape[1] == width + 1 and not operands[0][:, -1].any()


@settings(max_examples=30)
@given(task=st.sampled_from(sorted(BY_ITSELF)), length=st.integers(1, 40), base=st.sampled_from([2, 3, 10, 16]))
def test_padded_numbers_have_the_length_behind_one_to_twenty_more_zeros(task, length, base):
    chosen = get_task(task, base if base in TASKS[task].bases else None)
    kinds = padded_cases(chosen, length, 100)
    width = chosen.digits_at(length) + 1
    assert [operands[0].shape[1] for operands in kinds.values()] == list(range(width + 1, width + 21))
    names = list(kinds)
    assert (names[0], names[-1]) == ("1 zero", "20 zeros")
    for operands in kinds.values():
        rows = torch.cat(operands, 1)
        assert 0 < len(rows) <= 5 and len(rows.unique(dim=0)) == len(rows)
        for number in integers(operands[0], chosen.base):
            assert length_of(number, chosen.length_base) == length


@pytest.mark.parametrize("task, most", [("addition", 12), ("successor", 12), ("n-by-1", 12), ("parity", 40)])
def test_every_number_of_digits_is_about_as_likely_as_any_other(task, most):
    chosen = get_task(task)
    for operand in unequal_operands(chosen, 12, 12_000)[: 1 if chosen.second_is_digit else 2]:
        lengths = [length_of(number, chosen.base) for number in integers(operand, chosen.base)]
        counts = [lengths.count(n) for n in range(1, most + 1)]
        assert set(lengths) == set(range(1, most + 1))
        long = [count * most / 12_000 for count in counts[most // 2 :]]  # there are fewer short numbers than draws
        assert min(long) > 0.8 and max(long) < 1.2


def test_second_operand_of_n_by_one_is_any_digit_in_every_test_set():
    for draw in TEST_SETS.values():
        for _, b in draw(get_task("n-by-1"), 20, 1000).values():
            assert b.shape[1] == 1 and b.min() >= 0 and b.max() <= 9


@pytest.mark.parametrize("test_set", ["random", "unequal", "padded"])
@pytest.mark.parametrize("length", [2, 3, 30])
def test_numbers_of_a_new_task_are_not_below_its_minimum(test_set, length):
    class FromFifty(type(get_task("successor"))):
        name, minimum = "from-fifty", 50

    for (a,) in TEST_SETS[test_set](FromFifty(), length, 400).values():
        assert min(integers(a)) >= 50


@pytest.mark.parametrize("test_set", list(TEST_SETS))
@pytest.mark.parametrize("task", ONE_ROW)
def test_a_test_set_is_the_same_every_time(test_set, task):
    for length in (3, 9):  # of listed and of drawn numbers
        found = []
        for seed in (1, 2):
            torch.manual_seed(seed)  # which does not matter
            found.append(TEST_SETS[test_set](get_task(task), length, 100))
        first, again = found
        assert list(first) == list(again)
        for kind in first:
            assert all(torch.equal(x, y) for x, y in zip(first[kind], again[kind], strict=True))


@pytest.mark.parametrize("test_set", list(TEST_SETS))
@pytest.mark.parametrize("task, length", [("successor", 1), ("successor", 6), ("addition", 20), ("parity", 2)])
def test_how_many_samples_a_test_set_has_is_known_by_its_name(test_set, task, length):
    chosen = get_task(task)
    for samples in (7, 1000):
        kinds = TEST_SETS[test_set](chosen, length, samples)
        assert sample_count(chosen, length, samples, test_set) == sum(len(kind[0]) for kind in kinds.values())
