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

**unequal**: shapes drawn evenly up to L × L (ten of them, those that there are for small L), numbers as for `random`.
Long numbers are not compared with training numbers, which have at most six digits.
"""

import torch

from abcnb.hard_numbers import NUMBERS, random_digits
from abcnb.nested import NestedLists, nested_cases
from abcnb.numbers import numbers_of_length, split_numbers
from abcnb.rows import ManyAddition, RowTask
from abcnb.tasks import LARGEST, Operands, digits_of, distinct

SHAPES = 10  # of the `unequal` test set


def row_cases(
    task: RowTask, length: int, samples: int, test_set: str, generator: torch.Generator
) -> dict[str, Operands]:
    """Operands of each kind of a test set that the task has, as digits, units first; `samples` over all kinds."""
    if isinstance(task, NestedLists):
        return nested_cases(task, length, samples, test_set, generator)
    if test_set == "random":
        return {"random": distinct(_operands(task, samples, task.shape_of_length(length), length, generator))}
    if test_set == "hard":
        kinds = _hard_kinds(task)
        count = max(1, samples // len(kinds))
        return {kind: _hard(task, kind, count, length, generator) for kind in kinds}
    found = {}
    for _ in range(SHAPES):
        first, second = (int(n) for n in torch.randint(1, length + 1, (2,), generator=generator))
        if isinstance(task, ManyAddition):
            shape, digits = (first + 1, task.width_of(first + 1, second)), second
        else:
            shape, digits = (first, second), 0
        kind = f"{shape[0]} × {digits or second}"
        found.setdefault(kind, distinct(_operands(task, max(1, samples // SHAPES), shape, digits, generator)))
    return found


def _operands(task: RowTask, count: int, shape: tuple[int, int], digits: int, generator) -> Operands:
    """Numbers of exactly so many digits: of `digits` for a sum's terms, of the shape's for a product's operands."""
    if isinstance(task, ManyAddition):
        terms, width = shape
        return tuple(
            torch.nn.functional.pad(_numbers(task, count, digits, generator), (0, width - digits))
            for _ in range(terms)
        )
    return tuple(_numbers(task, count, n, generator) for n in shape)


def _numbers(task: RowTask, count: int, digits: int, generator: torch.Generator) -> torch.Tensor:
    """[count, digits] digits of numbers with exactly so many, held-out ones where training has met such numbers."""
    if task.base**digits - 1 <= LARGEST:
        pool = numbers_of_length(split_numbers()[1], digits, task.base)
        if len(pool):
            return digits_of(pool[torch.randint(len(pool), (count,), generator=generator)], digits, task.base)
    return random_digits(count, digits, task.base, generator)


def _hard_kinds(task: RowTask) -> tuple[str, ...]:
    return (*NUMBERS, "leading zeros", "large digits" if isinstance(task, ManyAddition) else "powers")


def _hard(task: RowTask, kind: str, count: int, length: int, generator: torch.Generator) -> Operands:
    shape = task.shape_of_length(length)
    terms, width = shape if isinstance(task, ManyAddition) else (2, length)
    operands = [_hard_numbers(kind, count, length, task.base, generator) for _ in range(terms)]
    if kind == "powers":
        power = torch.zeros(2, length, dtype=torch.long)
        power[:, -1] = 1
        nines = torch.full((2, length), task.base - 1)
        first = torch.tensor([[True], [False]])
        operands = [torch.where(first, power, nines), torch.where(first, nines, power)]
    return distinct(tuple(torch.nn.functional.pad(operand, (0, width - length)) for operand in operands))


def _hard_numbers(kind: str, count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    if kind in NUMBERS:
        return NUMBERS[kind](count, length, base, generator)
    if kind == "large digits":
        return torch.randint(max(base - 2, 0), base, (count, length), generator=generator)
    digits = torch.randint(1, length + 1, (count, 1), generator=generator)
    return random_digits(count, length, base, generator).masked_fill(torch.arange(length) >= digits, 0)
