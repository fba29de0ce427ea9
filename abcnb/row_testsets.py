"""The test sets of tasks whose output is in rows; `testsets` hands on to these.

The length L of a product's test is the digits of both operands, that of a sum its terms and their digits. Each kind has
one shape, and `samples` are divided among kinds. Lists in lists have their own test sets (`nested`).

**random**: operands of exactly L digits, the leading one not zero; up to six digits they are held-out numbers.

**hard**: operands made of

    all              every digit b − 1, for the base b
    one digit        a single digit that is not zero
    run from units   a run of b − 1 from units up, random digits above it
    run              a run of b − 1 at random places among random digits
    zeros inside     zeros at 70% of the places below the leading one
    leading zeros    any number of digits from 1 to L, behind zeros up to L
    powers           10…0 × 99…9 and 99…9 × 10…0 (products)
    large digits     digits of b − 2 and b − 1, so that carries are as large as they get (sums)

**unequal**: ten shapes drawn evenly, fewer where they coincide: factors of 1 to L digits, or 2 to L + 1 terms of 1 to
L digits; numbers as for `random`.

Held-out numbers of one digit do not exist, so numbers that short are drawn from all. Long numbers are not compared with
training numbers, which have at most six digits.
"""

import torch

from abcnb.hard_numbers import NUMBERS, random_digits
from abcnb.nested import NestedLists, nested_cases
from abcnb.numbers import numbers_of_length, split_numbers
from abcnb.rows import RowTask
from abcnb.tasks import LARGEST, Operands, digits_of, distinct

SHAPES = 10  # of the `unequal` test set


def row_cases(
    task: RowTask, length: int, samples: int, test_set: str, generator: torch.Generator
) -> dict[str, Operands]:
    """Operands of each kind of a test set that the task has, as digits, units first; `samples` over all kinds."""
    if isinstance(task, NestedLists):
        return nested_cases(task, length, samples, test_set, generator)
    if test_set == "random":
        return {"random": distinct(_operands(task, samples, task.size(length, length), generator))}
    if test_set == "hard":
        kinds = (*NUMBERS, "leading zeros", task.hard_kind)
        count = max(1, samples // len(kinds))
        return {kind: _hard(task, kind, count, length, generator) for kind in kinds}
    found = {}
    for _ in range(SHAPES):
        first, second = (int(n) for n in torch.randint(1, length + 1, (2,), generator=generator))
        first += task.has_terms  # there are two at least
        operands = _operands(task, max(1, samples // SHAPES), task.size(first, second), generator)
        found.setdefault(f"{first} × {second}", distinct(operands))
    return found


def _operands(task: RowTask, count: int, size: tuple[int, ...], generator: torch.Generator) -> Operands:
    """Numbers of exactly so many digits."""
    return task.shaped(tuple(_numbers(task, count, digits, generator) for digits in size))


def _numbers(task: RowTask, count: int, digits: int, generator: torch.Generator) -> torch.Tensor:
    """[count, digits] digits of numbers with exactly so many, held-out ones where training has met such numbers."""
    if task.base**digits - 1 <= LARGEST:
        pool = numbers_of_length(split_numbers()[1], digits, task.base)
        if len(pool):
            return digits_of(pool[torch.randint(len(pool), (count,), generator=generator)], digits, task.base)
    return random_digits(count, digits, task.base, generator)


def _hard(task: RowTask, kind: str, count: int, length: int, generator: torch.Generator) -> Operands:
    size = task.size(length, length)
    operands = [_hard_numbers(kind, count, digits, task.base, generator) for digits in size]
    if kind == "powers":
        power = torch.zeros(2, length, dtype=torch.long)
        power[:, -1] = 1
        nines = torch.full((2, length), task.base - 1)
        first = torch.tensor([[True], [False]])
        operands = [torch.where(first, power, nines), torch.where(first, nines, power)]
    return distinct(task.shaped(tuple(operands)))


def _hard_numbers(kind: str, count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    if kind in NUMBERS:
        return NUMBERS[kind](count, length, base, generator)
    if kind == "large digits":
        return torch.randint(max(base - 2, 0), base, (count, length), generator=generator)
    digits = torch.randint(1, length + 1, (count, 1), generator=generator)
    return random_digits(count, length, base, generator).masked_fill(torch.arange(length) >= digits, 0)
