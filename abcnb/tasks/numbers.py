"""The numbers that models are trained on, and numbers for hard cases.

Training numbers never exceed the paper's 2^20, except `long` ones. A fixed permutation of [0, 2^20] is split 7:1;
the held-out eighth is never trained on, except for a few of its seven-digit numbers among `long` ones. It supplies
validation and the test sets of up to six digits. It has no one-digit number (base 10), so the shortest tests use
numbers that were trained on.

    uniform   drawn evenly from the training numbers (the paper: under 5% have seven digits, 86% have six)
    even      lengths drawn evenly over one to six digits (Parity: 1 to 20 bits), then a number of that length
    bucketed  as `even`, but all samples of a batch have operands of the same lengths, padded to one digit more
              than the longest of them instead of to the width, so that inputs have several widths
    long      as `even`, but over lengths of one to twelve digits; of the frozen methods only `lora-long` uses them

Source: paper, appendix B; the authors' published code draws lengths evenly, their text does not.

Hard cases are numbers in which what one place hands to the next travels far (`NUMBERS`). Each kind is a function
of count, length, base and generator, and returns digits, units first, [count, length].
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from abcnb.tasks.digits import Operands, digits_of, length_of

if TYPE_CHECKING:
    from abcnb.tasks.task import Task

LARGEST = 2**20  # no larger number is trained on, except with the `long` training numbers
SPLIT_SEED = 20  # one split for every run, so that no method trains on another's test numbers
TRAIN_NUMBERS = ("uniform", "even", "bucketed", "long")
LONG_FACTOR = 2  # the longest `long` number has this many times the digits of the longest `even` one


@lru_cache(maxsize=1)
def split_numbers() -> tuple[torch.Tensor, torch.Tensor]:
    """The training and held-out numbers, each sorted."""
    order = torch.randperm(LARGEST + 1, generator=torch.Generator().manual_seed(SPLIT_SEED))
    cut = len(order) * 7 // 8
    return order[:cut].sort().values, order[cut:].sort().values


def numbers_of_length(numbers: torch.Tensor, length: int, base: int) -> torch.Tensor:
    """Those of the sorted `numbers` that have exactly `length` digits in the base; zero has one digit."""
    ends = torch.tensor([0 if length == 1 else base ** (length - 1), base**length], device=numbers.device)
    first, last = torch.searchsorted(numbers, ends).tolist()
    return numbers[first:last]


def smallest_width(task: "Task", kind: str) -> int:
    """The digits that the largest operand and the largest result need in training."""
    longest = task.train_length * (LONG_FACTOR if kind == "long" else 1)
    largest = LARGEST if kind == "uniform" else task.base**longest - 1
    if task.operands == 1:
        return length_of(largest + 1, task.base)
    return length_of(largest * (task.base - 1 if task.second_is_digit else 2), task.base)


class Sampler:
    """Draws operands from the training or the held-out numbers.

    They are padded to `width` digits, `bucketed` ones to at most that many; held-out `bucketed` ones all have the
    greatest length. Raises ValueError for a kind not in `TRAIN_NUMBERS` or a width too small for the results.
    """

    def __init__(self, task: "Task", kind: str, width: int, held_out: bool = False, device: str = "cpu"):
        if kind not in TRAIN_NUMBERS:
            raise ValueError(f"expected training numbers among {', '.join(TRAIN_NUMBERS)}, got {kind!r}")
        least = smallest_width(task, kind)
        if width < least:
            raise ValueError(
                f"expected a width of at least {least} digits for {task.name} on {kind!r} numbers, got {width}"
            )
        self.task, self.kind, self.width, self.held_out = task, kind, width, held_out
        self.alike = kind == "bucketed"  # each operand has one length throughout a batch
        numbers = split_numbers()[held_out]
        numbers = numbers[int(torch.searchsorted(numbers, task.minimum)) :]
        lengths = () if kind == "uniform" else range(1, task.train_length + 1)
        counts = [len(numbers_of_length(numbers, n, task.base)) for n in lengths] or [len(numbers)]
        self.counts = torch.tensor([count for count in counts if count], device=device)
        self.starts = self.counts.cumsum(0) - self.counts
        self.numbers = numbers[: sum(counts)].to(device)

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """Operands of `batch` samples as digits, units first, each [batch, digits], of at most `width` digits."""
        drawn = self.task.operands - self.task.second_is_digit
        numbers = [self._numbers(batch, generator) for _ in range(drawn)]
        width = self.width
        if self.alike:  # on a GPU this waits for the device once a step
            width = self.task.spare + length_of(int(torch.stack(numbers).max()), self.task.base)
        return self.task.completed(tuple(digits_of(n, width, self.task.base) for n in numbers), generator)

    def _numbers(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        device = self.numbers.device
        first = len(self.counts) - 1 if self.alike and self.held_out else 0
        groups = 1 if self.alike else batch
        group = torch.randint(first, len(self.counts), (groups,), generator=generator, device=device).expand(batch)
        fraction = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
        numbers = self.numbers[self.starts[group] + (fraction * self.counts[group]).long()]
        if self.kind != "long":
            return numbers
        short, longest = self.task.train_length, LONG_FACTOR * self.task.train_length
        length = torch.randint(1, longest + 1, (batch,), generator=generator, device=device)
        low = self.task.base ** (length - 1)
        longer = low + (fraction * low * (self.task.base - 1)).long()
        return torch.where(length > short, longer, numbers)


def random_digits(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    """Digits of numbers with exactly `length` digits, units first, [count, length]."""
    digits = torch.randint(base, (count, length), generator=generator)
    digits[:, -1] = torch.randint(1, base, (count,), generator=generator)
    return digits


def intervals(count: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
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


def _run_up(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    ends = torch.randint(1, length + 1, (count, 1), generator=generator)
    return torch.where(torch.arange(length) < ends, base - 1, random_digits(count, length, base, generator))


def _run(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    inside, _ = intervals(count, length, generator)
    return torch.where(inside, base - 1, random_digits(count, length, base, generator))


def _zeros(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    digits = random_digits(count, length, base, generator)
    zero = torch.rand(count, length, generator=generator) < 0.7
    zero[:, -1] = False
    return digits.masked_fill(zero, 0)


NUMBERS = {"all": _all, "one digit": _one_digit, "run from units": _run_up, "run": _run, "zeros inside": _zeros}
