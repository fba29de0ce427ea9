"""Numbers for hard cases: digits in which what one place hands to the next travels far.

Each kind is a function of how many numbers, of how many digits, in which base, and a generator; it returns digits units
first, [count, length]. `testsets` says which kinds each test set has.
"""

import torch


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


def _run_from_units(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    ends = torch.randint(1, length + 1, (count, 1), generator=generator)
    return torch.where(torch.arange(length) < ends, base - 1, random_digits(count, length, base, generator))


def _run(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    inside, _ = intervals(count, length, generator)
    return torch.where(inside, base - 1, random_digits(count, length, base, generator))


def _zeros_inside(count: int, length: int, base: int, generator: torch.Generator) -> torch.Tensor:
    digits = random_digits(count, length, base, generator)
    zero = torch.rand(count, length, generator=generator) < 0.7
    zero[:, -1] = False
    return digits.masked_fill(zero, 0)


NUMBERS = {
    "all": _all,
    "one digit": _one_digit,
    "run from units": _run_from_units,
    "run": _run,
    "zeros inside": _zeros_inside,
}
