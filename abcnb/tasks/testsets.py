"""The test sets: random digits, hard cases, operands of unequal length, and more padding than in training.

Each is a dict of kinds, and the samples of a kind have one width; they are seeded by task and length, so that
every method meets the same. Unless stated otherwise, an operand has exactly `length` digits (Parity: as many bits
as the largest number of that many decimal digits), and N×1's second is any digit.

**random**: distinct samples. Up to six digits they are held-out numbers, which no model was trained on, except for the
shortest, of which none are held out (one digit in base 10). Longer operands are drawn from all numbers, so a few of the
shortest may have been trained on as `uniform` numbers (0.5% at seven decimal digits, a third at 13 digits in base 3 and
at six in base 12), and those of up to twelve digits as `long` ones. Pairs are not compared with training pairs, but
hardly ever coincide.

**hard**: inputs in which what one place hands to the next travels far. Random digits almost never carry far, so a
model can be right on 99.99% of them and wrong on 99…9 + 1. Every task has a few kinds, in equal parts; b is the base,
so b − 1 is a nine:

    all              every digit b − 1
    one digit        a single digit that is not zero, at any place up to `length`
    run from units   random digits, the lowest k of them b − 1; k up to all of them
    run              the same, but starting anywhere
    zeros inside     random digits, seven in ten of them zero

Addition's pairs:

    full chain       units sum to at least b, every other place to b − 1
    chain            the same over k places from anywhere, random digits elsewhere
    unequal          one operand is shorter, or as long; a carry leaves its end and runs through nines of the other
    zeros inside     as above, both operands
    named            99…9 + 1, 1 + 99…9, 99…9 + 99…9, 49…95 + 50…05, 50…0 + 50…0 and, last, 10…0 + 0

**unequal**: every operand's number of digits is drawn evenly from 1 to `length` (Parity: bits, up to those of the
largest number), so that two operands seldom have equally many (one time in `length`), and a single one usually has
more leading zeros than in `random`. Numbers of up to six digits may have been trained on.

**padded**: operands drawn as for `random` and padded to one to twenty columns more than in the other test sets, in
equal parts.

Source: paper, appendix B (random numbers, how many); the other test sets are this project's.
"""

import math
import random
from collections.abc import Callable
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from abcnb.tasks.digits import Operands, digits_of, distinct, length_of
from abcnb.tasks.numbers import LARGEST, NUMBERS, intervals, numbers_of_length, random_digits, split_numbers

if TYPE_CHECKING:
    from abcnb.tasks.task import Task

HARD_SAMPLES = 1000
MANY = 60  # digits that give more numbers, in any base, than samples can be asked for
MORE_ZEROS = 20  # the most leading zeros that `padded` adds


def random_operands(task: "Task", length: int, samples: int = 10_000) -> Operands:
    """The `random` test set: distinct samples whose operands have exactly `length` digits.

    There are min(10^L − 10^(L−1), samples), or all if the base has fewer, as digits, units first, padded to
    `width_at(length)`. Parity measures length in decimal digits and gets the bits.
    """
    check_test_request(length, samples)
    generator = seeded_generator(task, length, "random")
    base, pools = task.length_base, _pools(task, length)
    counted = min(length, MANY)
    numbers = math.prod((base - 1) * base ** (n - 1) if n > 1 else base for n in task.widths(counted))
    count = min(samples, 9 * 10 ** (counted - 1), numbers)
    total = math.prod(len(pool) for pool in pools)
    if pools and total <= 4 * count:
        found = _pick(pools, torch.randperm(total, generator=generator))
    else:
        found = _drawn(task, length, count, pools, generator)
        while len((found := distinct(found))[0]) < count:
            more = _drawn(task, length, count, pools, generator)
            found = tuple(map(torch.cat, zip(found, more, strict=True)))
    return task.widened(tuple(operand[:count] for operand in found), task.width_at(length))


def check_test_request(length: int, samples: int, test_set: str = "random", task: "Task | None" = None) -> None:
    """Raise ValueError for a test set without digits or samples, or one that the task does not have."""
    if task is not None and test_set not in task.test_sets:
        known = ", ".join(task.test_sets)
        raise ValueError(f"expected a test set among {known} for {task.name}, got {test_set!r}")
    if not all(isinstance(count, Integral) and count >= 1 for count in (length, samples)):
        raise ValueError(
            f"expected a length and a sample count that are whole numbers of at least 1, got {length} and {samples}"
        )


def seeded_generator(task: "Task", length: int, test_set: str) -> torch.Generator:
    """The generator of a test set: the same for every method."""
    seed = random.Random(f"{task.name} {task.base} {length} {test_set}").getrandbits(60)
    return torch.Generator().manual_seed(seed)


def _pools(task: "Task", length: int) -> list[torch.Tensor]:
    """All digits that each operand may have, [numbers, digits]; empty where there are too many to list."""
    width, base = task.digits_at(length), task.length_base
    if length >= length_of(LARGEST, base):
        return []
    numbers = numbers_of_length(split_numbers()[1], length, base)
    numbers = numbers[numbers >= task.minimum]
    if not len(numbers):
        numbers = torch.arange(max(task.minimum, base ** (length - 1) if length > 1 else 0), base**length)
    first = digits_of(numbers, width, task.base)
    second = torch.arange(task.base)[:, None] if task.second_is_digit else first
    return [first, second][: task.operands]


def _pick(pools: list[torch.Tensor], codes: torch.Tensor) -> Operands:
    """Operands as digits; each code is the number of a combination of the pools' entries."""
    indices = [codes % len(pools[0]), torch.div(codes, len(pools[0]), rounding_mode="floor")]
    return tuple(pool[index] for pool, index in zip(pools, indices, strict=False))


def _drawn(task: "Task", length: int, count: int, pools: list, generator: torch.Generator) -> Operands:
    """Operands of `count` samples as digits, each [count, digits], perhaps with repetitions."""
    if pools:
        total = math.prod(len(pool) for pool in pools)
        return _pick(pools, torch.randint(total, (count,), generator=generator))
    width = task.digits_at(length)
    if task.length_base != task.base:
        return (_bits_of_random_decimals(length, width, count, generator),)
    operands = tuple(torch.randint(task.base, (count, n), generator=generator) for n in task.widths(width))
    for operand in operands:
        if operand.shape[1] == length:
            operand[:, -1] = torch.randint(1, task.base, (count,), generator=generator)
    return operands


def _bits_of_random_decimals(length: int, bits: int, count: int, generator: torch.Generator) -> torch.Tensor:
    draw = random.Random(int(torch.randint(2**60, (1,), generator=generator)))
    low, high = 10 ** (length - 1), 10**length
    texts = "".join(f"{draw.randrange(low, high):0{bits}b}" for _ in range(count))
    ascii_bits = torch.frombuffer(bytearray(texts.encode()), dtype=torch.uint8).view(count, bits)
    return (ascii_bits - ord("0")).long().flip(1)


def _complement(
    a: torch.Tensor, where: torch.Tensor, start: torch.Tensor, base: int, other, generator
) -> Operands:
    """Pairs that carry at `start` and hand the carry on through every further place of `where`."""
    starts = torch.arange(a.shape[1]) == start
    a = torch.where(starts, a.clamp(min=1), a)  # the units of a chain must be able to sum to the base
    least = torch.rand(a.shape, generator=generator) * a
    carrying = base - a + least.long()
    return a, torch.where(starts, carrying, torch.where(where, base - 1 - a, other))


def _full(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    a = random_digits(count, length, base, generator)
    if base > 2:  # in base 2 two nonzero leading digits cannot sum to 1, so b is one place shorter
        a[:, -1] = torch.randint(1, base - 1, (count,), generator=generator)
    every = torch.ones_like(a, dtype=torch.bool)
    return _complement(a, every, torch.zeros(count, 1, dtype=torch.long), base, a, generator)


def _chains(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    a, b = (random_digits(count, length, base, generator) for _ in range(2))
    return _complement(a, *intervals(count, length, generator), base, b, generator)


def _unequal(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    """The shorter operand's leading digit makes a carry, which runs through nines of the longer one."""
    a, b = (random_digits(count, length, base, generator) for _ in range(2))
    inside, start = intervals(count, length, generator)
    place = torch.arange(length)
    a = torch.where(inside & (place > start), base - 1, a)
    a, b = _complement(a, place == start, start, base, b.masked_fill(place > start, 0), generator)
    swapped = torch.rand(count, 1, generator=generator) < 0.5
    return torch.where(swapped, b, a), torch.where(swapped, a, b)


def _zeros(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    return tuple(NUMBERS["zeros inside"](count, length, base, generator) for _ in range(2))


def _named(count: int, length: int, base: int, generator: torch.Generator) -> Operands:
    nine, half, last = base - 1, base // 2, F.one_hot(torch.tensor(length - 1), length)
    zeros, one = torch.zeros_like(last), last.flip(0)
    nines, lead, halves = zeros + nine, last, half * last
    fours, fives = zeros + nine, (base - half) * last
    fours[-1] = max(half - 1, 0)
    fours[0], fives[0] = half, base - half
    pairs = [(nines, one), (one, nines), (nines, nines), (fours, fives), (halves, halves), (lead, zeros)]
    return tuple(torch.stack(operand) for operand in zip(*pairs, strict=True))


_PAIRS = {"full chain": _full, "chain": _chains, "unequal": _unequal, "zeros inside": _zeros, "named": _named}


def hard_cases(task: "Task", length: int, samples: int = HARD_SAMPLES) -> dict[str, Operands]:
    """The `hard` test set by kind, each an equal part of `samples`, at least one, distinct within a kind."""
    check_test_request(length, samples)
    generator = seeded_generator(task, length, "carry")  # the name that the committed samples were drawn under
    width = task.digits_at(length)
    pairs = task.operands == 2 and not task.second_is_digit
    makers = _PAIRS if pairs else NUMBERS
    count = max(1, samples // len(makers))
    cases = {}
    for kind, make in makers.items():
        operands = make(count, width, task.base, generator)
        if pairs:
            operands = tuple(operand[:count] for operand in operands)
        else:
            digits = torch.randint(task.base, (count, 1), generator=generator)
            operands = (operands, digits)[: task.operands]
        cases[kind] = task.widened(distinct(operands), task.width_at(length))
    return cases


def unequal_operands(task: "Task", length: int, samples: int = 1000) -> Operands:
    """The `unequal` test set: at most `samples`, all distinct, so fewer at the shortest lengths."""
    check_test_request(length, samples)
    generator = seeded_generator(task, length, "unequal")
    width = task.digits_at(length)
    operands = [_any_length(task, samples, width, generator) for _ in range(task.operands)]
    if task.second_is_digit:
        operands[1] = torch.randint(task.base, (samples, 1), generator=generator)
    return task.widened(distinct(tuple(operands)), task.width_at(length))


def _any_length(task: "Task", count: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Digits of numbers whose number of digits is drawn evenly up to `width`, [count, width]."""
    shortest = length_of(task.minimum, task.base)
    digits = torch.randint(shortest, width + 1, (count, 1), generator=generator)
    leading = torch.randint(1, task.base, (count, 1), generator=generator)
    place = torch.arange(width)
    numbers = torch.randint(task.base, (count, width), generator=generator).masked_fill(place >= digits, 0)
    numbers = torch.where(place == digits - 1, leading, numbers)
    small = torch.randint(task.minimum, task.base**shortest, (count,), generator=generator)
    return torch.where(digits == shortest, digits_of(small, width, task.base), numbers)


def padded_cases(task: "Task", length: int, samples: int = 1000) -> dict[str, Operands]:
    """The `padded` test set by number of zeros, each an equal part of `samples`, at least one, all distinct."""
    check_test_request(length, samples)
    generator = seeded_generator(task, length, "padded")
    pools, width = _pools(task, length), task.width_at(length)
    cases = {}
    for zeros in range(1, MORE_ZEROS + 1):
        operands = distinct(_drawn(task, length, max(1, samples // MORE_ZEROS), pools, generator))
        cases[f"{zeros} zero{'s' if zeros > 1 else ''}"] = task.widened(operands, width + zeros)
    return cases


# By name; each is called with a task, a length and the most samples, and returns operands by kind.
TEST_SETS: dict[str, Callable[["Task", int, int], dict[str, Operands]]] = {
    "random": lambda *asked: {"random": random_operands(*asked)},
    "hard": hard_cases,
    "unequal": lambda *asked: {"unequal": unequal_operands(*asked)},
    "padded": padded_cases,
}


def test_cases(task: "Task", length: int, samples: int, test_set: str) -> dict[str, Operands]:
    """Operands of each kind of a test set, as digits, units first; raises ValueError if the task lacks it."""
    check_test_request(length, samples, test_set, task)
    return task.cases(test_set, length, samples)


@lru_cache(maxsize=4096)
def sample_count(task: "Task", length: int, samples: int, test_set: str) -> int:
    """How many of `samples` a test set really has: there are few short numbers, and few hard cases."""
    return sum(len(operands[0]) for operands in test_cases(task, length, samples, test_set).values())
