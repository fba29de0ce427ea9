"""The numbers models are trained and tested on.

Training numbers never exceed the paper's 2^20, but for `long` ones. A fixed permutation of [0, 2^20] is split
7:1; the held-out eighth is never trained on, by any method, and supplies validation and the test sets of up to
six digits.

    uniform   drawn evenly from the training numbers (the paper: under 5% have seven digits, 86% have six)
    even      lengths drawn evenly over one to six digits (bits for Parity), then a number of that length
    mixed     half of the samples as `even`, half as `uniform`
    long      as `even`, but over lengths of one to twelve digits: for `lora-long`, no other frozen method has them
    carry     `even`, but three of ten samples are built so that half of their places sum to base − 1 and
              carries travel far; where that takes a number that is not one of training, the sample stays
              `even` (Addition only)

Tests longer than every number's length up to 2^20 are drawn from all numbers, so some of the first such length
were trained on as `uniform`: of seven decimal digits 0.5%, but in base 3 (13 digits) or 12 (6) a third. Tests of
two operands do not repeat pairs of training.

Source: paper, appendix B; the authors' published code draws lengths evenly, their text does not.
"""

import math
import random
from functools import lru_cache

import torch

from abcnb.tasks import LARGEST, Operands, Task, digits_of, length_of

SPLIT_SEED = 20  # one split for every run, so that no method trains on another's test numbers
TRAIN_NUMBERS = ("uniform", "even", "mixed", "carry", "long")
MIXED = ("even", "uniform")  # what `mixed` numbers are half of each
LONG_FACTOR = 2  # the longest of the `long` numbers has this many times the digits of the longest `even` one
CARRY_SHARE = 0.3  # share of `carry` samples that are built, and …
CARRY_PLACE = 0.5  # … chance that a place of a built sample sums to base − 1


@lru_cache(maxsize=1)
def split_numbers() -> tuple[torch.Tensor, torch.Tensor]:
    """The training and held-out numbers, each sorted."""
    order = torch.randperm(LARGEST + 1, generator=torch.Generator().manual_seed(SPLIT_SEED))
    cut = len(order) * 7 // 8
    return order[:cut].sort().values, order[cut:].sort().values


def numbers_of_length(numbers: torch.Tensor, length: int, base: int) -> torch.Tensor:
    """The numbers with exactly `length` digits in the base; zero has one digit."""
    low = 0 if length == 1 else base ** (length - 1)
    return numbers[(numbers >= low) & (numbers < base**length)]


def smallest_width(task: Task, kind: str) -> int:
    """Digits that the largest result of training numbers takes."""
    if kind == "mixed":
        return max(smallest_width(task, part) for part in MIXED)
    longest = task.train_length * (LONG_FACTOR if kind == "long" else 1)
    largest = LARGEST if kind == "uniform" else task.base**longest - 1
    if task.operands == 1:
        return length_of(largest + 1, task.base)
    return length_of(largest * (task.base - 1 if task.single_digit_second else 2), task.base)


def check_numbers(task: Task, kind: str, width: int) -> None:
    """Refuse training numbers that do not exist, do not fit the task, or whose results do not fit the width.

    Raises:
        ValueError: says which, and what would do.
    """
    if kind not in TRAIN_NUMBERS:
        raise ValueError(f"expected training numbers among {', '.join(TRAIN_NUMBERS)}, got {kind!r}")
    if kind == "carry" and task.name != "addition":
        raise ValueError(f"'carry' numbers are for addition, got the task {task.name!r}; use 'even'")
    least = smallest_width(task, kind)
    if width < least:
        raise ValueError(
            f"expected a width of at least {least} digits for {task.name} on {kind!r} numbers, got {width}"
        )


class Sampler:
    """Draws operands of the training or the held-out numbers.

    Args:
        task: the task.
        kind: one of `TRAIN_NUMBERS`.
        width: digits that operands are padded to.
        held_out: draw from the held-out numbers instead of the training numbers.
        device: where the digits are made.

    Raises:
        ValueError: unknown kind, `carry` for a task that is not Addition, or a width too small for the sums.
    """

    def __init__(self, task: Task, kind: str, width: int, held_out: bool = False, device: str = "cpu"):
        check_numbers(task, kind, width)
        self.task, self.kind, self.width = task, kind, width
        if kind == "mixed":
            self.kinds = [Sampler(task, part, width, held_out, device) for part in MIXED]
            return
        numbers = split_numbers()[held_out]
        numbers = numbers[numbers >= task.minimum].to(device)
        if kind != "uniform":
            by_length = [numbers_of_length(numbers, n + 1, task.base) for n in range(task.train_length)]
            by_length = [group for group in by_length if len(group)]
            numbers = torch.cat(by_length)
            self.counts = torch.tensor([len(group) for group in by_length], device=device)
        else:
            self.counts = torch.tensor([len(numbers)], device=device)
        self.starts = self.counts.cumsum(0) - self.counts
        self.numbers = numbers
        self.known = torch.zeros(LARGEST + 1, dtype=torch.bool, device=device)
        self.known[numbers] = True

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """`batch` operands as digits, units first, each [batch, width]."""
        if self.kind == "mixed":
            even, uniform = (sampler.draw(batch, generator) for sampler in self.kinds)
            chosen = torch.rand(batch, 1, generator=generator, device=even[0].device) < 0.5
            return tuple(torch.where(chosen, *pair) for pair in zip(even, uniform, strict=True))
        a = self._numbers(batch, generator)
        if self.task.operands == 1:
            return (digits_of(a, self.width, self.task.base),)
        if self.task.single_digit_second:
            b = torch.randint(self.task.base, (batch, 1), generator=generator, device=self.numbers.device)
            return digits_of(a, self.width, self.task.base), b
        b = self._numbers(batch, generator)
        if self.kind == "carry":
            b = self._carrying(a, b, generator)
        return tuple(digits_of(number, self.width, self.task.base) for number in (a, b))

    def _numbers(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        device = self.numbers.device
        group = torch.randint(len(self.counts), (batch,), generator=generator, device=device)
        fraction = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
        numbers = self.numbers[self.starts[group] + (fraction * self.counts[group]).long()]
        if self.kind != "long":
            return numbers
        short, longest = self.task.train_length, LONG_FACTOR * self.task.train_length
        length = torch.randint(1, longest + 1, (batch,), generator=generator, device=device)
        low = self.task.base ** (length - 1)
        longer = low + (fraction * low * (self.task.base - 1)).long()
        return torch.where(length > short, longer, numbers)

    def _carrying(self, a: torch.Tensor, b: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Replace some of b by numbers half of whose places complete a's to base − 1."""
        base, length = self.task.base, self.task.train_length
        device = a.device
        digits = digits_of(a, length, base)
        complete = torch.rand(digits.shape, generator=generator, device=device) < CARRY_PLACE
        other = torch.randint(base, digits.shape, generator=generator, device=device)
        built = torch.where(complete, base - 1 - digits, other)
        # A built number is at most as long as a, so that short chains are seen too.
        built = torch.where(digits.flip(1).cummax(1).values.flip(1) > 0, built, 0)
        numbers = (built * base ** torch.arange(length, device=device)).sum(1)
        chosen = torch.rand(len(a), generator=generator, device=device) < CARRY_SHARE
        return torch.where(chosen & self.known[numbers.clamp(max=LARGEST)], numbers, b)


def random_operands(task: Task, length: int, samples: int = 10_000) -> Operands:
    """The `random` test set: distinct samples whose operands have exactly `length` digits.

    min(10^L − 10^(L−1), samples) of them, or all where a base has fewer, seeded by task and length alone, so that
    every method meets the same. Where the trained range covers the length (six digits and fewer) operands are
    held-out numbers, if there are any; the shortest lengths then have fewer samples. N×1's second operand is any
    digit. Parity measures length in decimal digits and is handed the bits.

    Returns:
        Operands as digits, units first, padded to `digits_at(length) + 1`.
    """
    check_test_request(length, samples)
    generator = seeded_generator(task, length, "random")
    count = _most_samples(task, length, samples)
    pools = _pools(task, length)
    total = math.prod(len(pool) for pool in pools)
    if pools and total <= 4 * count:
        rows = _pick(pools, torch.randperm(total, generator=generator)[:count])
        return _split_rows(task, rows, task.digits_at(length) + 1)
    rows = _draw_rows(task, length, count, pools, generator)
    while True:
        # One sample is a row of all its operands' digits, so that distinct samples are distinct rows.
        rows = rows[first_of_each(rows)]
        if len(rows) >= count:
            return _split_rows(task, rows[:count], task.digits_at(length) + 1)
        rows = torch.cat([rows, _draw_rows(task, length, count, pools, generator)])


def count_random(task: Task, length: int, samples: int) -> int:
    """How many samples `random_operands` returns, without making them where that is known."""
    if _numbers_are_few(task, length):
        return len(random_operands(task, length, samples)[0])
    return _most_samples(task, length, samples)


def _most_samples(task: Task, length: int, samples: int) -> int:
    most = min(samples, 10**length - 10 ** (length - 1))
    if _numbers_are_few(task, length):
        return most
    base = _base_of_length(task, length)
    return min(most, math.prod((base - 1) * base ** (n - 1) if n > 1 else base for n in task.widths(length)))


def _base_of_length(task: Task, length: int) -> int:
    """The base in which a test's length counts digits: ten where the task writes other ones."""
    return 10 if task.digits_at(length) != length else task.base


def _numbers_are_few(task: Task, length: int) -> bool:
    """Whether the numbers of a length can be listed: none is larger than those of training."""
    return _base_of_length(task, length) ** length - 1 <= LARGEST


def check_test_request(length: int, samples: int) -> None:
    """Refuse a test set without digits or samples."""
    if length < 1 or samples < 1:
        raise ValueError(f"expected a length and a sample count of at least 1, got {length} and {samples}")


def seeded_generator(task: Task, length: int, test_set: str) -> torch.Generator:
    """The generator of a test set: the same for every method."""
    seed = random.Random(f"{task.name} {task.base} {length} {test_set}").getrandbits(60)
    return torch.Generator().manual_seed(seed)


def _pools(task: Task, length: int) -> list[torch.Tensor]:
    """All digits that each operand may have, [numbers, digits]; empty where there are too many to list."""
    if not _numbers_are_few(task, length):
        return []
    width, base = task.digits_at(length), _base_of_length(task, length)
    numbers = numbers_of_length(split_numbers()[1], length, base)
    numbers = numbers[numbers >= task.minimum]
    if not len(numbers):
        numbers = torch.arange(max(task.minimum, base ** (length - 1) if length > 1 else 0), base**length)
    first = digits_of(numbers, width, task.base)
    second = torch.arange(task.base)[:, None] if task.single_digit_second else first
    return [first, second][: task.operands]


def _pick(pools: list[torch.Tensor], codes: torch.Tensor) -> torch.Tensor:
    """Rows of operand digits; a code numbers a combination of the pools' entries."""
    indices = [codes % len(pools[0]), torch.div(codes, len(pools[0]), rounding_mode="floor")]
    return torch.cat([pool[index] for pool, index in zip(pools, indices, strict=False)], dim=1)


def _draw_rows(
    task: Task, length: int, count: int, pools: list[torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    """`count` rows of operand digits, [count, sum of operand lengths], perhaps with repetitions."""
    if pools:
        total = math.prod(len(pool) for pool in pools)
        return _pick(pools, torch.randint(total, (count,), generator=generator))
    width = task.digits_at(length)
    if width != length:
        return _bits_of_random_decimals(length, width, count, generator)
    rows = [torch.randint(task.base, (count, n), generator=generator) for n in task.widths(width)]
    for operand in rows:
        if operand.shape[1] == length:
            operand[:, -1] = torch.randint(1, task.base, (count,), generator=generator)
    return torch.cat(rows, dim=1)


def _bits_of_random_decimals(length: int, bits: int, count: int, generator: torch.Generator) -> torch.Tensor:
    draw = random.Random(int(torch.randint(2**60, (1,), generator=generator)))
    low, high = 10 ** (length - 1), 10**length
    texts = "".join(f"{draw.randrange(low, high):0{bits}b}" for _ in range(count))
    ascii_bits = torch.frombuffer(bytearray(texts.encode()), dtype=torch.uint8).view(count, bits)
    return (ascii_bits - ord("0")).long().flip(1)


def first_of_each(rows: torch.Tensor) -> torch.Tensor:
    """Indices of the first occurrence of each distinct row, in order."""
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(rows))
    first.scatter_reduce_(0, group, torch.arange(len(rows)), "amin")
    return first.sort().values


def _split_rows(task: Task, rows: torch.Tensor, width: int) -> Operands:
    """Cut rows into operands and pad each with zeros on its most significant side."""
    lengths = [width - 1, rows.shape[1] - (width - 1)]
    return task.widened(rows.split(lengths[: task.operands], dim=1), width)
