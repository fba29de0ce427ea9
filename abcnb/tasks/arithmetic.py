"""Tasks whose output is one number: sums, products by a digit, and reductions written out digit by digit.

Source: paper, section 2; version 002, section 3.1 (Parity's scratchpad) and appendix C (ListOps).
"""

from collections.abc import Callable
from functools import cached_property, lru_cache

import torch

from abcnb.lines.coordinates import Segment, Stream, of_number, written_before
from abcnb.tasks.digits import Operands, propagate_carries
from abcnb.tasks.task import Machine, Task, register
from abcnb.tasks.tokens import tokens_of


def carrying(base: int, total: Callable[..., torch.Tensor], first: int = 0) -> Machine:
    """Sums of the digits' `total` and a carry, 0 or 1, at each place; `first` is the carry into the units."""

    def step(carry: torch.Tensor, *digits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = total(*digits) + carry
        return whole % base, whole // base

    return Machine(2, (first,), (0,), step)


def times_a_digit(base: int) -> Machine:
    """Multiplication by a digit; the state holds it and the carry: digit · base + carry."""

    def step(state: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        digit, carry = state // base, state % base
        whole = a * digit + carry
        return whole % base, digit * base + whole // base

    whole = tuple(range(0, base * base, base))
    return Machine(base * base, whole, whole, step, lambda state: state // base)


def running(base: int, joined: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], first: int = 0) -> Machine:
    """A reduction whose running value is written at each place."""

    def step(value: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = joined(value, a)
        return value, value

    return Machine(base, (first,), tuple(range(base)), step)


class Successor(Task):
    """S(n) = n + 1."""

    name = "successor"

    def label(self, a: torch.Tensor) -> torch.Tensor:
        sums = a.clone()
        sums[:, 0] += 1
        return propagate_carries(sums, self.base)

    @cached_property
    def machine(self) -> Machine:
        return carrying(self.base, lambda a: a, first=1)


class OfTwo(Task):
    """A task of two operands, padded to the same width unless the second is a digit."""

    operands = 2
    forms = ("natural", "aligned")

    @lru_cache(maxsize=64)  # noqa: B019
    def stream(self, width: int, form: str = "natural") -> Stream:
        self._check(form, width)
        if form == "aligned":  # $ + a_w b_w … a_1 b_1 &
            end, structure = 2 + 2 * width, {"$": 0, self.symbol: 1}
            operands = tuple(
                Segment(name, end - back, (width,), (-2,), 1, ("place",), outside=(end, 1))
                for name, back in (("a", 2), ("b", 1))
            )
        else:
            end, structure = sum(self.widths(width)) + 2, {"$": 0, self.symbol: width + 1}
            operands = (written_before("a", width, width), written_before("b", end - 1, width))
            if self.second_is_digit:
                operands, structure = operands[:1], structure | {"b": end - 1}
        return of_number((width,), operands, structure | {"&": end}, end + 1, self.steps(width))

    def source(self, operands: Operands, form: str = "natural") -> torch.Tensor:
        self._check(form)
        a, b = (operand.flip(1) for operand in operands)
        if form == "natural":
            return tokens_of("$", a, self.symbol, b, "&")
        return tokens_of("$" + self.symbol, torch.stack([a, b.expand_as(a)], dim=2).flatten(1), "&")


class Addition(OfTwo):
    """a + b."""

    name, symbol = "addition", "+"

    def label(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return propagate_carries(a + b, self.base)

    @cached_property
    def machine(self) -> Machine:
        return carrying(self.base, torch.add)


class NByOne(OfTwo):
    """a × b for a single-digit b."""

    name, symbol = "n-by-1", "*"
    second_is_digit = True

    def label(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return propagate_carries(a * b, self.base)

    @cached_property
    def machine(self) -> Machine:
        return times_a_digit(self.base)


class ListOpsSum(Task):
    """SM: the sum of the arguments modulo the base, written digit by digit from the right, like all reductions."""

    name, symbol, answer_length = "listops-sm", "%", 1

    def label(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(a, dim=1) % self.base

    @cached_property
    def machine(self) -> Machine:
        return running(self.base, lambda value, a: (value + a) % self.base)


class Parity(ListOpsSum):
    """y_i = y_{i-1} xor x_i over the bits; the last bit written is the parity."""

    name, symbol = "parity", ""
    bases = range(2, 3)
    length_base = 10  # test lengths count decimal digits: 60 of them take 200 bits

    def digits_at(self, length: int) -> int:
        """Bits of the largest number of `length` decimal digits."""
        return (10**length - 1).bit_length()


class ParityClassification(Parity):
    """One bit, the parity, with no scratchpad."""

    name = "parity-classification"
    answers_in_places = False
    machine = Task.machine

    def steps(self, width: int) -> int:
        return 2

    def label(self, a: torch.Tensor) -> torch.Tensor:
        return a.sum(1, keepdim=True) % 2


class ListOpsMax(Task):
    """MAX of the arguments."""

    name, symbol, answer_length = "listops-max", ">", 1

    def label(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cummax(a, dim=1).values

    @cached_property
    def machine(self) -> Machine:
        return running(self.base, torch.maximum)


class ListOpsMin(Task):
    """MIN of the arguments. Padding zeros count as arguments, so the last running minimum is always 0."""

    name, symbol, answer_length = "listops-min", "<", 1

    def label(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cummin(a, dim=1).values

    @cached_property
    def machine(self) -> Machine:
        return running(self.base, torch.minimum, first=self.base - 1)


for _task in (Successor, Addition, Parity, ParityClassification, NByOne, ListOpsSum, ListOpsMax, ListOpsMin):
    register(_task)
