"""The `carry` test set: hard cases, in which what one place hands to the next travels far.

Random digits almost never carry far, so a model can be right on 99.99% of them and wrong on 99…9 + 1. Every task
has a few kinds of hard cases, in equal parts; where nothing else is said, an operand has exactly `length` digits
(Parity: bits of the longest number of so many decimal digits). b is the base, so b − 1 is a nine:

    all              every digit b − 1
    one digit        a single digit that is not zero, at any place up to `length`
    run from units   random digits, the lowest k of them b − 1; k up to the whole number
    run              the same, but starting anywhere
    zeros inside     random digits, seven of ten of them zero

For N×1 the second operand is any digit. Addition's pairs:

    full chain       units sum to at least b, every other place to b − 1
    chain            the same over k places from anywhere, random digits elsewhere
    unequal          one operand is shorter, or as long; a carry runs out of its end through nines of the other
    zeros inside     as above, both operands
    named            99…9 + 1, 1 + 99…9, 99…9 + 99…9, 49…95 + 50…05, 50…0 + 50…0 and, last, 10…0 + 0
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

from abcnb.sampling import check_test_request, count_random, first_of_each, random_operands, seeded_generator
from abcnb.tasks import Operands, Task

SAMPLES = 1000


def _random(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    """Digits of numbers with exactly `length` digits, units first, [count, length]."""
    digits = torch.randint(base, (count, length), generator=generator)
    digits[:, -1] = torch.randint(1, base, (count,), generator=generator)
    return digits


def _intervals(count: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random runs of places: which places are inside, [count, length], and where each run starts, [count, 1]."""
    start = torch.randint(length, (count, 1), generator=generator)
    ends = start + 1 + (torch.rand(count, 1, generator=generator) * (length - start)).long()
    place = torch.arange(length)
    return (place >= start) & (place < ends), start


def _all(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    return torch.full((count, length), base - 1)


def _one_digit(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    place = torch.randint(length, (count, 1), generator=generator)
    digit = torch.randint(1, base, (count, 1), generator=generator)
    return torch.zeros(count, length, dtype=torch.long).scatter(1, place, digit)


def _run_from_units(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    ends = torch.randint(1, length + 1, (count, 1), generator=generator)
    return torch.where(torch.arange(length) < ends, base - 1, _random(count, length, base, generator))


def _run(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    inside, _ = _intervals(count, length, generator)
    return torch.where(inside, base - 1, _random(count, length, base, generator))


def _zeros_inside(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    digits = _random(count, length, base, generator)
    zero = torch.rand(count, length, generator=generator) < 0.7
    zero[:, -1] = False
    return digits.masked_fill(zero, 0)


_NUMBERS = {
    "all": _all,
    "one digit": _one_digit,
    "run from units": _run_from_units,
    "run": _run,
    "zeros inside": _zeros_inside,
}


def _complement(
    a: torch.Tensor, where: torch.Tensor, start: torch.Tensor, base: int, other, generator
) -> Operands:
    """Pairs that carry at `start` and hand the carry on through every further place of `where`."""
    starts = torch.arange(a.shape[1]) == start
    a = torch.where(starts, a.clamp(min=1), a)  # the units of a chain must be able to sum to the base
    least = torch.rand(a.shape, generator=generator) * a
    carrying = base - a + least.long()
    return a, torch.where(starts, carrying, torch.where(where, base - 1 - a, other))


def _full_chains(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    a = _random(count, length, base, generator)
    if base > 2:  # in base 2 two leading digits that are not zero cannot sum to 1: there b is one place shorter
        a[:, -1] = torch.randint(1, base - 1, (count,), generator=generator)
    every = torch.ones_like(a, dtype=torch.bool)
    return _complement(a, every, torch.zeros(count, 1, dtype=torch.long), base, a, generator)


def _chains(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    a, b = (_random(count, length, base, generator) for _ in range(2))
    return _complement(a, *_intervals(count, length, generator), base, b, generator)


def _unequal(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    """The shorter operand's leading digit makes a carry, which runs through nines of the longer one."""
    a, b = (_random(count, length, base, generator) for _ in range(2))
    inside, start = _intervals(count, length, generator)
    place = torch.arange(length)
    a = torch.where(inside & (place > start), base - 1, a)
    a, b = _complement(a, place == start, start, base, b.masked_fill(place > start, 0), generator)
    swapped = torch.rand(count, 1, generator=generator) < 0.5
    return torch.where(swapped, b, a), torch.where(swapped, a, b)


def _zeros_inside_both(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    return tuple(_zeros_inside(count, length, base, generator) for _ in range(2))


def _named(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    nine, half = base - 1, base // 2
    zeros = torch.zeros(length, dtype=torch.long)
    nines, one, lead, halves, fours, fives = (zeros.clone() for _ in range(6))
    nines[:], one[0], lead[-1], halves[-1] = nine, 1, 1, half
    fours[:], fives[-1] = nine, base - half
    fours[-1] = max(half - 1, 0)
    fours[0], fives[0] = half, base - half
    pairs = [(nines, one), (one, nines), (nines, nines), (fours, fives), (halves, halves), (lead, zeros)]
    return tuple(torch.stack(operand) for operand in zip(*pairs, strict=True))


_PAIRS = {
    "full chain": _full_chains,
    "chain": _chains,
    "unequal": _unequal,
    "zeros inside": _zeros_inside_both,
    "named": _named,
}


def carry_cases(task: Task, length: int, samples: int = SAMPLES) -> dict[str, Operands]:
    """Hard cases by their kind: distinct samples, seeded by task and length.

    Numbers of up to six digits may be among those of training.

    Args:
        task: the task.
        length: digits of the longer operand; of Parity, decimal digits.
        samples: over all kinds, each an equal part of at least one; a kind with fewer distinct samples has those.

    Returns:
        For each kind the operands as digits, units first, padded to `digits_at(length) + 1`.
    """
    check_test_request(length, samples)
    generator = seeded_generator(task, length, "carry")
    width = task.digits_at(length)
    pairs = task.operands == 2 and not task.single_digit_second
    makers = _PAIRS if pairs else _NUMBERS
    count = max(1, samples // len(makers))
    cases = {}
    for kind, make in makers.items():
        operands = make(count, width, task.base, generator)
        if pairs:
            operands = tuple(operand[:count] for operand in operands)
        else:
            digits = torch.randint(task.base, (count, 1), generator=generator)
            operands = (operands, digits)[: task.operands]
        first = first_of_each(torch.cat(operands, 1))
        operands = tuple(operand[first] for operand in operands)
        cases[kind] = task.widened(operands, width + 1)
    return cases


def carry_operands(task: Task, length: int, samples: int = SAMPLES) -> Operands:
    """The `carry` test set: `carry_cases` of every kind, one after the other."""
    cases = carry_cases(task, length, samples).values()
    return tuple(torch.cat(parts) for parts in zip(*cases, strict=True))


TEST_SETS = {"random": random_operands, "carry": carry_operands}


def evaluations_of(lengths: Sequence[int], samples: int, carry_samples: int) -> list[tuple[str, int, int]]:
    """(test set, length, samples) of every evaluation of a model; 0 samples leave a test set out."""
    sizes = (("random", samples), ("carry", carry_samples))
    return [(name, length, count) for length in lengths for name, count in sizes if count]


@lru_cache(maxsize=4096)
def sample_count(task: Task, length: int, samples: int, test_set: str) -> int:
    """How many samples a test set of this size really has: there are few short numbers, and few hard cases."""
    if test_set == "random":
        return count_random(task, length, samples)
    return len(TEST_SETS[test_set](task, length, samples)[0])
