from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from abcnb.study.cost import training_flops
from abcnb.study.methods import experiment
from abcnb.tasks.digits import FEW_SAMPLES, digits_of, distinct, length_of, propagate_carries
from abcnb.tasks.numbers import Sampler
from abcnb.tasks.task import TASKS, Task, get_task, register
from abcnb.tasks.tokens import decode

quick = settings(max_examples=60)
bases = st.integers(2, 16)


@st.composite
def one_operand(draw):
    """A base and the digits of one number, units first."""
    base = draw(bases)
    digits = draw(st.lists(st.integers(0, base - 1), min_size=1, max_size=64))
    return base, digits


@st.composite
def two_operands(draw):
    """A base and the digits of two numbers of one width, units first."""
    base, a = draw(one_operand())
    b = draw(st.lists(st.integers(0, base - 1), min_size=len(a), max_size=len(a)))
    return base, a, b


def number(digits, base):
    """The Python integer of digits held units first."""
    value = 0
    for digit in reversed(digits):
        value = value * base + int(digit)
    return value


def label(task, *operands):
    return task.label(*(torch.tensor([digits]) for digits in operands))[0].tolist()


def decimal(value, width):
    return torch.tensor([[int(c) for c in reversed(f"{value:0{width}d}")]])


# Labels against Python integers


@quick
@given(two_operands())
def test_addition_label(case):
    base, a, b = case
    result = label(get_task("addition", base), [*a, 0], [*b, 0])
    assert len(result) == len(a) + 1
    assert all(0 <= digit < base for digit in result)
    assert number(result, base) == number(a, base) + number(b, base)


@quick
@given(one_operand())
def test_successor_label(case):
    base, a = case
    result = label(get_task("successor", base), [*a, 0])
    assert all(0 <= digit < base for digit in result)
    assert number(result, base) == number(a, base) + 1


@quick
@given(two_operands())
def test_n_by_one_label(case):
    base, a, (b, *_) = case
    result = label(get_task("n-by-1", base), [*a, 0], [b])
    assert all(0 <= digit < base for digit in result)
    assert number(result, base) == number(a, base) * b


@quick
@given(st.lists(st.integers(0, 1), min_size=1, max_size=64))
def test_parity_labels(bits):
    running = label(get_task("parity"), bits)
    assert running == [number(bits[: i + 1], 2).bit_count() % 2 for i in range(len(bits))]
    assert label(get_task("parity-classification"), bits) == [number(bits, 2).bit_count() % 2]


@quick
@given(one_operand())
def test_listops_labels(case):
    base, x = case
    prefixes = [x[: i + 1] for i in range(len(x))]
    plus = [reduce(lambda y, z: (y + z) % base, prefix, 0) for prefix in prefixes]
    assert label(get_task("listops-sm", base), x) == plus
    assert label(get_task("listops-max", base), x) == [reduce(max, prefix) for prefix in prefixes]
    assert label(get_task("listops-min", base), x) == [reduce(min, prefix) for prefix in prefixes]


@pytest.mark.parametrize("base", [2, 3, 10, 16])
@pytest.mark.parametrize("length", [1, 7, 60])
def test_all_nines_carry_through(base, length):
    """99…9 + 1 = 100…0, and doubled it is 199…98."""
    nines = [base - 1] * length + [0]
    one = [1] + [0] * length
    assert label(get_task("successor", base), nines) == [0] * length + [1]
    assert label(get_task("addition", base), nines, one) == [0] * length + [1]
    assert label(get_task("addition", base), nines, nines) == [base - 2] + [base - 1] * (length - 1) + [1]


def test_sixty_digit_numbers():
    a = 123456789012345678901234567890123456789012345678901234567890
    b = 987654321098765432109876543210987654321098765432109876543219
    digits_a, digits_b = decimal(a, 61), decimal(b, 61)
    sums = get_task("addition").label(digits_a, digits_b)
    assert number(sums[0].tolist(), 10) == a + b == 1111111110111111111011111111101111111110111111111011111111109
    times = get_task("n-by-1").label(digits_a, torch.tensor([[7]]))
    assert number(times[0].tolist(), 10) == a * 7
    assert number(get_task("successor").label(digits_b)[0].tolist(), 10) == b + 1


def test_propagate_carries_borrows():
    # 100 − 1 = 99, 10 − 1 = 9
    assert propagate_carries(torch.tensor([[-1, 0, 1], [-1, 1, 0]]), 10).tolist() == [[9, 9, 0], [9, 0, 0]]
    # sums of any size: 123 units and 4 tens are 163
    assert propagate_carries(torch.tensor([[123, 4, 0]]), 10).tolist() == [[3, 6, 1]]


@pytest.mark.parametrize("sums, what", [([-1, 0, 0], "negative"), ([0, 0, 10], "larger")])
def test_results_that_do_not_fit_are_refused(sums, what):
    with pytest.raises(ValueError, match=rf"results from 0 to 10\*\*3 - 1.*got a {what} one"):
        propagate_carries(torch.tensor([sums]), 10)


@settings(max_examples=50)
@given(st.lists(st.integers(-500, 500), min_size=1, max_size=8), st.integers(2, 16))
def test_few_samples_and_many_have_the_same_carries(sums, base):
    row = torch.tensor([*sums, 40_000, *[0] * 20])  # large enough that no number is negative
    few, many = (propagate_carries(row.expand(count, -1), base) for count in (1, FEW_SAMPLES))
    assert torch.equal(few.expand_as(many), many)
    value = sum(int(total) * base**place for place, total in enumerate(row))
    assert sum(int(digit) * base**place for place, digit in enumerate(few[0])) == value


def test_no_samples_have_no_digits():
    assert propagate_carries(torch.empty(0, 3, dtype=torch.long), 10).shape == (0, 3)


def test_propagate_carries_leaves_its_input_alone():
    sums = torch.tensor([[12, 0]])
    propagate_carries(sums, 10)
    assert sums.tolist() == [[12, 0]]


def test_digits_of_and_length_of():
    # 748 = 0x2ec = 2·256 + 14·16 + 12
    assert digits_of(torch.tensor([748, 5]), 4, 10).tolist() == [[8, 4, 7, 0], [5, 0, 0, 0]]
    assert digits_of(torch.tensor([748]), 3, 16).tolist() == [[12, 14, 2]]
    assert [length_of(n, 10) for n in (0, 9, 10, 999, 1000)] == [1, 1, 2, 3, 4]
    assert [length_of(n, 2) for n in (0, 1, 2, 2**20)] == [1, 1, 2, 21]


# Sources and batches


def batch_of(name, *numbers, width=4, form="natural", base=None):
    return get_task(name, base).batch(tuple(decimal(value, width) for value in numbers), form)


@pytest.mark.parametrize(
    "name, numbers, form, source, target",
    [
        ("addition", (123, 748), "natural", "$0123+0748&", "1780&"),
        ("addition", (123, 748), "aligned", "$+00172438&", "1780&"),
        ("successor", (1299,), "natural", "$1299&", "0031&"),
        ("parity", (1101,), "natural", "$1101&", "1101&"),
        ("parity-classification", (1101,), "natural", "$1101&", "1&"),
        ("listops-sm", (5678,), "natural", "$%5678&", "8516&"),
        ("listops-max", (3912,), "natural", "$>3912&", "2299&"),
        ("listops-min", (3912,), "natural", "$<3912&", "2111&"),
    ],
)
def test_source_and_target_strings(name, numbers, form, source, target):
    batch = batch_of(name, *numbers, form=form)
    assert decode(batch.source[0]) == source
    assert decode(batch.target[0]) == target
    assert batch.stream.source == len(source)


def test_n_by_one_sources():
    task = get_task("n-by-1")
    operands = (decimal(123, 4), torch.tensor([[7]]))
    # 123 × 7 = 861
    natural, aligned = task.batch(operands), task.batch(operands, "aligned")
    assert decode(natural.source[0]) == "$0123*7&"
    assert decode(aligned.source[0]) == "$*07172737&"
    assert decode(natural.target[0]) == decode(aligned.target[0]) == "1680&"
    assert (natural.stream.source, aligned.stream.source) == (8, 11)


def test_hexadecimal_source():
    task = get_task("addition", 16)
    # 0xff + 0x1 = 0x100
    batch = task.batch((torch.tensor([[15, 15, 0]]), torch.tensor([[1, 0, 0]])))
    assert decode(batch.source[0]) == "$0ff+001&"
    assert decode(batch.target[0]) == "001&"


def test_vocabulary_sizes():
    assert {get_task(name).vocabulary_size for name in ("addition", "successor", "n-by-1", "parity")} == {15}
    # a to f are tokens 15 to 20, the ListOps operators % > < 21 to 23
    assert get_task("addition", 11).vocabulary_size == 16
    assert get_task("addition", 16).vocabulary_size == 21
    assert [get_task(f"listops-{name}").vocabulary_size for name in ("sm", "max", "min")] == [22, 23, 24]


def test_train_length_is_the_longest_whose_numbers_all_fit():
    # 10^6 ≤ 2^20 < 10^7; 2^20 has 21 bits; 2^20 = 16^5, so that 6-digit numbers do not all fit
    assert [get_task("addition", base).train_length for base in (10, 2, 16)] == [6, 20, 5]


def test_parity_measures_length_in_decimal_digits():
    # 9 = 0b1001, 999999 < 2^20, 10^60 − 1 < 2^200
    assert [get_task("parity").digits_at(length) for length in (1, 6, 60)] == [4, 20, 200]
    assert get_task("addition").digits_at(60) == 60


# Typed input


def test_parse_pads_one_beyond_the_longest():
    a, b = get_task("addition").parse("12 + 345")
    assert a.tolist() == [[2, 1, 0, 0]]
    assert b.tolist() == [[5, 4, 3, 0]]


def test_parse_of_each_kind_of_task():
    a, b = get_task("n-by-1").parse("120*7")
    assert (a.tolist(), b.tolist()) == ([[0, 2, 1, 0]], [[7]])
    assert get_task("successor").parse("99")[0].tolist() == [[9, 9, 0]]
    assert get_task("parity").parse("1101")[0].tolist() == [[1, 0, 1, 1, 0]]
    assert get_task("listops-sm").parse("%56")[0].tolist() == [[6, 5, 0]]
    # upper and lower case: 0xFa
    assert get_task("successor", 16).parse("Fa")[0].tolist() == [[10, 15, 0]]


@pytest.mark.parametrize(
    "name, base, text, expected",
    [
        ("addition", None, "12+3a", r"expected NUMBER\+NUMBER with digits 0 to 9, got the character 'a'"),
        ("addition", 8, "18+3", r"expected NUMBER\+NUMBER with digits 0 to 7, got the character '8'"),
        ("addition", 16, "1g+3", r"expected NUMBER\+NUMBER with digits 0 to f, got the character 'g'"),
        ("addition", None, "", r"expected NUMBER\+NUMBER, got ''"),
        ("addition", None, "+", r"expected NUMBER\+NUMBER with digits 0 to 9, got nothing"),
        ("addition", None, "12+", r"expected NUMBER\+NUMBER with digits 0 to 9, got nothing"),
        ("addition", None, "12", r"expected NUMBER\+NUMBER, got '12'"),
        ("addition", None, "1+2+3", r"expected NUMBER\+NUMBER, got '1\+2\+3'"),
        ("addition", None, "12*3", r"expected NUMBER\+NUMBER"),
        ("n-by-1", None, "12*34", "expected a single-digit second operand, got '34'"),
        ("n-by-1", None, "12", r"expected NUMBER\*NUMBER"),
        ("successor", None, "", "expected NUMBER with digits 0 to 9, got nothing"),
        ("successor", None, "-1", "expected NUMBER with digits 0 to 9, got the character '-'"),
        ("parity", None, "102", "expected NUMBER with digits 0 to 1, got the character '2'"),
        ("listops-sm", None, "%", "expected %NUMBER with digits 0 to 9, got nothing"),
        ("listops-sm", None, ">12", "expected %NUMBER with digits 0 to 9, got the character '>'"),
    ],
)
def test_parse_says_what_was_expected(name, base, text, expected):
    with pytest.raises(ValueError, match=expected):
        get_task(name, base).parse(text)


def test_read_of_an_output():
    """An output has its units first; what follows the end token is no part of it."""
    assert get_task("addition").read("1780&") == "871"
    assert get_task("addition").read("1780") == "871"
    assert get_task("addition").read("17&80&") == "71"
    assert get_task("addition").read("00&") == "0"
    assert get_task("addition", 16).read("f10&") == "1f"
    # a scratchpad's answer is the last digit written
    assert get_task("parity").read("1101&") == "1"
    assert get_task("parity").read("110&&1") == "0"
    assert get_task("listops-sm").read("850&") == "0"


# Names and bases


@pytest.mark.parametrize("base", [1, 17])
def test_base_outside_two_to_sixteen(base):
    with pytest.raises(ValueError, match="expected a base from 2 to 16"):
        get_task("addition", base)


# A new task


class Predecessor(Task):
    """P(n) = n − 1."""

    name = "predecessor"
    minimum = 1

    def label(self, a):
        sums = a.clone()
        sums[:, 0] -= 1
        return propagate_carries(sums, self.base)


@pytest.fixture
def predecessor():
    """Predecessor as a registered task, for one test."""
    register(Predecessor)
    yield get_task("predecessor")
    del TASKS["predecessor"]


def test_new_task_works_end_to_end(predecessor):
    sampler = Sampler(predecessor, "even", 7)
    (a,) = sampler.draw(500, torch.Generator().manual_seed(0))
    batch = predecessor.batch((a,))
    for digits, source, target in zip(a.tolist(), batch.source, batch.target, strict=True):
        n = number(digits, 10)
        assert n >= 1
        assert decode(source) == f"${n:07d}&"
        assert decode(target) == f"{n - 1:07d}"[::-1] + "&"
    assert predecessor.read(decode(predecessor.batch(predecessor.parse("1000")).target[0])) == "999"
    assert decode(predecessor.batch(predecessor.smallest(3)).source[0]) == "$001&"
    assert training_flops(experiment("predecessor", "abc", "smoke")) > 0
    assert predecessor.stream(7).operands[0].tokens([torch.arange(-1, 8)]).tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_new_task_draws_its_smallest_number_too(predecessor):
    """A sampler over one-digit numbers in even lengths draws 1 if it is a training number, but never 0."""
    drawn = {number(d, 10) for d in Sampler(predecessor, "even", 7).draw(2000, torch.Generator())[0].tolist()}
    assert 0 not in drawn
    assert len(drawn & set(range(1, 10))) >= 5


def test_registering_a_name_again_replaces_the_task():
    """As when a notebook cell that defines a task is run a second time; a class of another name is refused."""

    def defined():
        class Twice(Task):
            name = "defined-twice"

        return Twice

    try:
        for kind in (defined(), defined()):
            register(kind)
            assert type(get_task("defined-twice")) is kind
        with pytest.raises(ValueError, match="expected a name of its own for Other, got 'defined-twice'"):
            register(type("Other", (Task,), {"name": "defined-twice"}))
    finally:
        del TASKS["defined-twice"]


def test_widened_operands_keep_their_value_and_a_single_digit_stays_one():
    by_one = get_task("n-by-1")
    a, b = by_one.widened(by_one.parse("123*7"), 7)
    assert (a.tolist(), b.tolist()) == ([[3, 2, 1, 0, 0, 0, 0]], [[7]])
    assert by_one.widened((a, b), 3)[0].shape == (1, 7)


class Copies(TorchDispatchMode):
    """Counts what goes from the host to the device that stands in for a GPU here."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "meta":
            self.count += any(isinstance(a, torch.Tensor) and a.device.type == "cpu" for a in args)
        return result


# The shape of lists in lists is read off their brackets, which waits for the device.
@pytest.mark.parametrize("name", [name for name in TASKS if name != "nested"])
def test_a_batch_made_on_a_device_copies_nothing_to_it(name):
    """Each copy would make a training step on a GPU wait."""
    task = get_task(name)
    operands = tuple(operand.to("meta") for operand in task.smallest(8))
    for form in task.forms:
        task.batch(operands, form)  # the tables of tokens go there once
        with Copies() as copies:
            task.batch(operands, form)
        assert copies.count == 0


@quick
@given(st.lists(st.lists(st.integers(0, 15), min_size=3, max_size=3), min_size=1, max_size=40))
def test_of_equal_samples_the_first_is_taken(rows):
    whole = torch.tensor(rows)
    wanted = [row for i, row in enumerate(rows) if row not in rows[:i]]
    assert torch.cat(distinct((whole[:, :2], whole[:, 2:])), 1).tolist() == wanted
    firsts = [row[:1] for row in rows]
    (found,) = distinct((whole[:, :1],))
    assert found.tolist() == [first for i, first in enumerate(firsts) if first not in firsts[:i]]
