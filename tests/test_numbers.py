"""The numbers that models are trained on, and the batches made of them."""

import pytest
import torch

from abcnb.tasks.arithmetic import Addition
from abcnb.tasks.numbers import Sampler, numbers_of_length, split_numbers
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData
from tests.little import integers

LARGEST = 1_048_576  # 2^20


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def held_out():
    return set(split_numbers()[1].tolist())


# The split


def test_split_is_seven_to_one_of_all_numbers():
    train, held = split_numbers()
    # 1048577 · 7/8 = 917504.9
    assert (len(train), len(held)) == (917_504, 131_073)
    both = torch.cat([train, held]).sort().values
    assert torch.equal(both, torch.arange(LARGEST + 1))


def test_split_is_the_same_every_time():
    before = split_numbers()
    split_numbers.cache_clear()
    after = split_numbers()
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_held_out_numbers_are_spread_over_the_range():
    """Each eighth of [0, 2^20] holds out about an eighth of its 131072 numbers: 16384 ± 5 standard deviations."""
    counts = torch.histc(split_numbers()[1].float(), bins=8, min=0, max=LARGEST)
    assert (counts - 16384).abs().max() < 5 * (131072 * 1 / 8 * 7 / 8) ** 0.5


def test_numbers_of_length():
    numbers = torch.tensor([0, 1, 7, 8, 9, 10, 63, 64, 99, 100])
    assert numbers_of_length(numbers, 1, 10).tolist() == [0, 1, 7, 8, 9]
    assert numbers_of_length(numbers, 2, 10).tolist() == [10, 63, 64, 99]
    assert numbers_of_length(numbers, 2, 8).tolist() == [8, 9, 10, 63]


# Training numbers


@pytest.mark.parametrize(
    "name, kind",
    [(name, kind) for name in ("addition", "n-by-1", "parity") for kind in ("uniform", "even", "bucketed")],
)
def test_training_numbers_are_never_held_out_nor_too_large(name, kind, held_out):
    task = get_task(name)
    operands = Sampler(task, kind, 22 if name == "parity" else 8).draw(20_000, generator())
    for operand in operands[: 1 if name == "n-by-1" else 2]:
        numbers = set(integers(operand, task.base))
        assert max(numbers) <= LARGEST
        assert not numbers & held_out


@pytest.mark.parametrize("kind", ["uniform", "even", "bucketed"])
def test_held_out_draws_are_only_held_out(kind, held_out):
    for operand in Sampler(get_task("addition"), kind, 8, held_out=True).draw(5_000, generator()):
        assert set(integers(operand)) <= held_out


@pytest.mark.parametrize("base, longest", [(2, 20), (16, 5)])
def test_training_numbers_of_other_bases(base, longest, held_out):
    for operand in Sampler(get_task("addition", base), "even", longest + 1).draw(5_000, generator()):
        assert operand.max() < base
        numbers = set(integers(operand, base))
        assert max(numbers) < base**longest
        assert not numbers & held_out


def test_draw_is_repeatable_and_padded():
    sampler = Sampler(get_task("addition"), "even", 9)
    first, again = sampler.draw(100, generator(3)), sampler.draw(100, generator(3))
    other = sampler.draw(100, generator(4))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert [operand.shape for operand in first] == [(100, 9), (100, 9)]
    assert not first[0][:, 6:].any()


def test_n_by_one_draws_every_single_digit():
    a, b = Sampler(get_task("n-by-1"), "even", 7).draw(2_000, generator())
    assert (a.shape, b.shape) == ((2_000, 7), (2_000, 1))
    assert set(b.flatten().tolist()) == set(range(10))


def lengths(operand):
    """Digits of each row, zero having one."""
    places = torch.arange(1, operand.shape[1] + 1)
    return ((operand > 0) * places).amax(1).clamp(min=1)


@pytest.mark.parametrize("operand", [0, 1])
def test_even_draws_each_length_evenly(operand):
    """12000 draws over six lengths: χ² with 5 degrees of freedom stays below 25.7 with chance 0.9999."""
    drawn = Sampler(get_task("addition"), "even", 7).draw(12_000, generator())[operand]
    counts = torch.bincount(lengths(drawn), minlength=7)[1:]
    assert len(counts) == 6
    assert ((counts - 2000) ** 2 / 2000).sum() < 25.7


def test_even_draws_each_bit_length_evenly():
    """40000 draws over twenty bit lengths: χ² with 19 degrees of freedom stays below 53 with chance 0.9999."""
    (drawn,) = Sampler(get_task("parity"), "even", 21).draw(40_000, generator())
    counts = torch.bincount(lengths(drawn), minlength=21)[1:]
    assert len(counts) == 20
    assert ((counts - 2000) ** 2 / 2000).sum() < 53


def test_uniform_mostly_draws_six_digits():
    """900000 of 1048577 numbers have six digits (85.8%), 48577 have seven (4.6%)."""
    drawn, _ = Sampler(get_task("addition"), "uniform", 8).draw(20_000, generator())
    share = torch.bincount(lengths(drawn), minlength=8) / 20_000
    assert share[6] == pytest.approx(0.858, abs=0.015)
    assert share[7] == pytest.approx(0.046, abs=0.01)


def test_bucketed_draws_one_shape_a_batch_and_pads_to_the_longest():
    """3600 batches over 36 pairs of lengths: χ² with 35 degrees of freedom stays below 80 with chance 0.9999."""
    sampler, draws = Sampler(get_task("addition"), "bucketed", 7), generator()
    counts = torch.zeros(7, 7)
    for _ in range(3_600):
        a, b = sampler.draw(4, draws)
        of_a, of_b = set(lengths(a).tolist()), set(lengths(b).tolist())
        assert len(of_a) == len(of_b) == 1
        assert a.shape[1] == b.shape[1] == 1 + max(*of_a, *of_b)
        counts[of_a.pop(), of_b.pop()] += 1
    assert ((counts[1:, 1:] - 100) ** 2 / 100).sum() < 80


def test_bucketed_validates_on_the_longest_numbers():
    for operand in Sampler(get_task("addition"), "bucketed", 7, held_out=True).draw(1_000, generator()):
        assert operand.shape == (1_000, 7) and set(lengths(operand).tolist()) == {6}


def test_bucketed_bits_and_single_digits():
    (bits,) = Sampler(get_task("parity"), "bucketed", 21).draw(10, generator())
    assert bits.shape[1] == 1 + lengths(bits)[0] and len(set(lengths(bits).tolist())) == 1
    a, digit = Sampler(get_task("n-by-1"), "bucketed", 7).draw(1_000, generator())
    assert a.shape[1] == 1 + lengths(a)[0] and digit.shape == (1_000, 1)
    assert set(digit.flatten().tolist()) == set(range(10))


def test_even_draws_evenly_within_a_length():
    """Of the six-digit numbers drawn, each leading digit 1 to 9 is about a ninth."""
    drawn, _ = Sampler(get_task("addition"), "even", 7).draw(30_000, generator())
    leading = drawn[lengths(drawn) == 6][:, 5]
    share = torch.bincount(leading, minlength=10)[1:] / len(leading)
    assert (share - 1 / 9).abs().max() < 0.02


@pytest.mark.parametrize(
    "name, kind, base, width",
    [
        # 999999 + 999999, 999999 · 9 and 2^20 + 2^20 have seven digits
        ("addition", "even", None, 6),
        ("n-by-1", "even", None, 6),
        ("addition", "uniform", None, 6),
        # 999999 + 1 = 1000000
        ("successor", "even", None, 6),
        # 2^20 itself has seven digits
        ("successor", "uniform", None, 6),
        # 0xfffff + 1 = 0x100000
        ("successor", "even", 16, 5),
        ("addition", "even", 2, 20),
        # 2^20 + 2^20 has 22 bits
        ("addition", "uniform", 2, 21),
        ("addition", "long", None, 12),
    ],
)
def test_a_width_without_room_for_the_result_is_refused(name, kind, base, width):
    with pytest.raises(ValueError, match=f"expected a width of at least {width + 1} digits"):
        Sampler(get_task(name, base), kind, width)
    assert Sampler(get_task(name, base), kind, width + 1).width == width + 1


@pytest.mark.parametrize("task", ["addition", "parity", "n-by-1"])
def test_long_numbers_reach_twice_the_training_length_and_keep_to_the_split(task):
    chosen = get_task(task)
    longest = 2 * chosen.train_length
    sampler = Sampler(chosen, "long", longest + 1)
    digits = sampler.draw(20_000, torch.Generator().manual_seed(0))[0]
    lengths = (digits.flip(1).cummax(1).values > 0).sum(1).clamp(min=1)
    counts = torch.bincount(lengths, minlength=longest + 2)
    assert counts[longest + 1] == 0
    long = counts[chosen.train_length + 1 : longest + 1].float() * longest / 20_000
    assert (long - 1).abs().max() < 0.25  # evenly over the long lengths
    numbers = (digits * chosen.base ** torch.arange(longest + 1)).sum(1)
    short = numbers[lengths <= chosen.train_length]
    assert torch.isin(short, split_numbers()[0]).all()


# Batches


def written_numbers(batch):
    """The numbers of sources such as `$0123+0456&`."""
    return {int(part) for row in batch.source for part in decode(row).strip("$&").split("+")}


def test_batches_hold_training_numbers_and_validation_held_out_ones(held_out):
    data = TrainingData("addition", "uniform")
    train, (validation,) = data.train(300, generator()), data.validation(300, generator())
    assert not written_numbers(train) & held_out and written_numbers(validation) <= held_out
    assert train.source.shape == (300, train.stream.source) and train.stream.width == data.width == 7
    for batch in (train, validation):
        for source, target in zip(batch.source, batch.target, strict=True):
            a, b = decode(source).strip("$&").split("+")
            assert int(decode(target)[:-1][::-1]) == int(a) + int(b)


@pytest.mark.parametrize(
    "arguments, width",
    [
        (("successor", "even"), 7),
        (("successor", "uniform"), 7),
        (("addition", "long"), 13),
        (("addition", "even", 21), 21),
        (("parity", "even"), 21),
        ((get_task("addition", 2), "even"), 21),
    ],
)
def test_the_width_has_room_for_numbers_and_results(arguments, width):
    data = TrainingData(*arguments)
    assert data.width == width
    assert data.train(4, generator()).stream.width == width


def test_batches_are_of_the_form_and_generator_that_are_asked_for():
    data = TrainingData("addition", form="aligned")
    first, again = data.train(20, generator(1)), data.train(20, generator(1))
    assert torch.equal(first.source, again.source) and torch.equal(first.target, again.target)
    assert not torch.equal(first.source, data.train(20, generator(2)).source)
    assert all(decode(row).startswith("$+") for row in first.source)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("sums",), "expected a task among"),
        ((Addition,), "expected a task or its name, such as 'addition', got <class"),
        ((5,), "expected a task or its name, such as 'addition', got 5"),
        (("addition", "odd"), "expected training numbers among"),
        (("addition", "even", 6), "expected a width of at least 7 digits"),
        (("successor", "even", 0, "aligned"), "written in forms natural, got 'aligned'"),
    ],
)
def test_training_data_that_cannot_be(arguments, told):
    with pytest.raises(ValueError, match=told):
        TrainingData(*arguments)
