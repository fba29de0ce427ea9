"""Tasks whose output is in rows: what they are trained on, a shape per batch, and what they are tested on.

Numbers have at most six digits and sums at most six terms, and only the seven eighths of the numbers that every task
trains on (`numbers.split_numbers`) are used.

    even      half of the operands have all digits of the shape, of the others each number of digits is equally likely;
              three in ten are made of digits that are 0, b − 1 or any, for the base b
    repeated  `even`, but in half of the samples all operands are made of the same two digits, where that gives a
              number of training: equal digits above one another are rare otherwise

In the test sets the length L of a product's test is the digits of both operands, that of a sum its terms and their
digits. Each kind has one shape, and `samples` are divided among kinds. Lists in lists have their own (`nested`).

**random**: operands of exactly L digits, the leading one not zero; up to six digits they are held-out numbers.

**hard**: operands of the kinds that single numbers have (`testsets`), and

    leading zeros    any number of digits from 1 to L, behind zeros up to L
    powers           10…0 × 99…9 and 99…9 × 10…0 (products)
    large digits     digits of b − 2 and b − 1, so that carries are as large as they get (sums)

**unequal**: ten shapes drawn evenly, fewer where they coincide: factors of 1 to L digits, or 2 to L + 1 terms of 1 to
L digits; numbers as for `random`.

Held-out numbers of one digit do not exist, so numbers that short are drawn from all. Long numbers are not compared with
training numbers, which have at most six digits.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from abcnb.tasks.digits import Operands, digits_of, distinct, length_of
from abcnb.tasks.numbers import LARGEST, NUMBERS, numbers_of_length, random_digits, split_numbers

if TYPE_CHECKING:
    from abcnb.tasks.rows import RowTask

FULL = 0.5  # share of operands that have all digits of the shape
# Share of operands whose digits are 0, b − 1 or any, a third each, where that gives a number of training: with random
# digits alone a step that has to tell a carry from the digit next to it is rare (0 + no carry, or b − 1 + a carry).
EXTREME = 0.3
REPEATED = 0.5  # share of the `repeated` samples that are made of two digits
ROW_NUMBERS = ("even", "repeated")
SHAPES = ("all", "largest")


class RowSampler:
    """Draws operands of shapes up to a width: of a sum, up to `terms` terms, where 0 is as many as `width`.

    Held-out operands have the largest shape alone, and so have all where `shapes` is `largest` and not `all`. `numbers`
    is one of `ROW_NUMBERS`. A ValueError for what is never trained on.
    """

    def __init__(self, task, width, held_out=False, device="cpu", numbers="even", terms=0, shapes="all"):
        most, counted = task.train_length, (terms or width) if task.has_terms else 2
        if not 1 <= width <= most or not 2 <= counted <= most:
            asked = f"a width from 1 and terms from 2 to {most}" if task.has_terms else f"a width from 1 to {most}"
            raise ValueError(f"expected {asked} for {task.name}, got {width}" + f" and {counted}" * task.has_terms)
        if terms and not task.has_terms:
            raise ValueError(f"expected terms 0 for {task.name}, which has none, got {terms}")
        if numbers not in ROW_NUMBERS:
            raise ValueError(f"expected numbers among {', '.join(ROW_NUMBERS)} for {task.name}, got {numbers!r}")
        if shapes not in SHAPES:
            raise ValueError(f"expected shapes as {' or '.join(SHAPES)}, got {shapes!r}")
        self.task, self.device, self.kind = task, device, numbers
        sizes = task.sizes(width, terms)
        self.sizes = sizes[-1:] if held_out or shapes == "largest" else sizes
        pool, trained = split_numbers()[held_out], split_numbers()[0]
        groups = [numbers_of_length(pool, n + 1, task.base) for n in range(width)]
        # None of the shortest numbers are held out: those of training stand in for them.
        groups = [g if len(g) else numbers_of_length(trained, n + 1, task.base) for n, g in enumerate(groups)]
        self.numbers = torch.cat(groups).to(device)
        self.known = torch.zeros(LARGEST + 1, dtype=torch.bool, device=device)
        self.known[self.numbers] = True
        self.counts = torch.tensor([len(group) for group in groups], device=device)
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """`batch` operands of one shape as digits, units first, each [batch, digits]."""
        # On a GPU this waits for the device once a step: the shape decides the sizes of all tensors.
        chosen = torch.randint(len(self.sizes), (), generator=generator, device=self.device)
        alphabet = self._alphabet(batch, generator) if self.kind == "repeated" else None
        operands = (self._digits(batch, n, generator, alphabet) for n in self.sizes[int(chosen)])
        return self.task.shaped(tuple(operands))

    def _alphabet(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        """The two digits that a sample is made of, [batch, 2]; −1 for a sample that is made of any."""
        some = torch.rand(batch, 1, generator=generator, device=self.device) < REPEATED
        pair = torch.randint(self.task.base, (batch, 2), generator=generator, device=self.device)
        return torch.where(some, pair, -1)

    def _digits(self, batch: int, digits: int, generator: torch.Generator, alphabet) -> torch.Tensor:
        """Digits of numbers of up to so many, made of an `_alphabet` if there is one."""
        base, device = self.task.base, self.device
        draws = torch.rand(4, batch, generator=generator, device=device, dtype=torch.float64)
        length = torch.where(draws[0] < FULL, digits - 1, (draws[1] * digits).long())
        numbers = self.numbers[self.starts[length] + (draws[2] * self.counts[length]).long()]
        places = torch.arange(digits, device=device)
        pick = torch.randint(3, (batch, digits), generator=generator, device=device)
        other = torch.randint(base, (batch, digits), generator=generator, device=device)
        extreme = torch.where(pick == 0, 0, torch.where(pick == 1, base - 1, other))
        wanted = [(draws[3] < EXTREME, extreme)]
        if alphabet is not None:
            which = torch.randint(2, (batch, digits), generator=generator, device=device)
            wanted.append((alphabet[:, 0] >= 0, alphabet.clamp(min=0).gather(1, which)))
        for chosen, built in wanted:
            value = (built.masked_fill(places > length[:, None], 0) * base**places).sum(1).clamp(max=LARGEST)
            numbers = torch.where(chosen & self.known[value], value, numbers)
        return digits_of(numbers, digits, base)


TEST_SHAPES = 10  # of the `unequal` test set


def row_cases(task: "RowTask", length: int, samples: int, test_set: str, generator) -> dict[str, Operands]:
    """Operands of each kind of a test set that the task has, as digits, units first; `samples` over all kinds."""
    if test_set == "random":
        return {"random": _of_digits(task, samples, task.size(length, length), generator)}
    if test_set == "hard":
        kinds = (*NUMBERS, "leading zeros", task.hard_kind)
        count = max(1, samples // len(kinds))
        return {kind: _hard(task, kind, count, length, generator) for kind in kinds}
    found = {}
    for _ in range(TEST_SHAPES):
        first, second = (int(n) for n in torch.randint(1, length + 1, (2,), generator=generator))
        first += task.has_terms  # there are two at least
        operands = _of_digits(task, max(1, samples // TEST_SHAPES), task.size(first, second), generator)
        found.setdefault(f"{first} × {second}", operands)
    return found


def _of_digits(task: "RowTask", count: int, size: tuple[int, ...], generator: torch.Generator) -> Operands:
    """Distinct samples of numbers of exactly so many digits."""
    return distinct(task.shaped(tuple(_numbers(task, count, digits, generator) for digits in size)))


def _numbers(task: "RowTask", count: int, digits: int, generator: torch.Generator) -> torch.Tensor:
    """[count, digits] digits of numbers with exactly so many, held-out ones where training has met such numbers."""
    if digits < length_of(LARGEST, task.base):
        pool = numbers_of_length(split_numbers()[1], digits, task.base)
        if len(pool):
            return digits_of(pool[torch.randint(len(pool), (count,), generator=generator)], digits, task.base)
    return random_digits(count, digits, task.base, generator)


def _hard(task: "RowTask", kind: str, count: int, length: int, generator: torch.Generator) -> Operands:
    if kind == "powers":
        power, nines = F.one_hot(torch.tensor(length - 1), length), torch.full((length,), task.base - 1)
        operands = [torch.stack([power, nines]), torch.stack([nines, power])]
    else:
        make = HARD_NUMBERS[kind]
        operands = [make(count, digits, task.base, generator) for digits in task.size(length, length)]
    return distinct(task.shaped(tuple(operands)))


def _large_digits(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(max(base - 2, 0), base, (count, length), generator=generator)


def _leading_zeros(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    digits = torch.randint(1, length + 1, (count, 1), generator=generator)
    return random_digits(count, length, base, generator).masked_fill(torch.arange(length) >= digits, 0)


HARD_NUMBERS = NUMBERS | {"leading zeros": _leading_zeros, "large digits": _large_digits}
