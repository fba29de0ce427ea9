"""Tasks as machines that go through the places of their operands, units first.

At each place a machine reads one digit of each operand, writes one digit of the output and hands a state to the next
place: a carry, a running parity. It says what the task is at every length, which a label, made for one length, cannot.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class Machine(NamedTuple):
    """A task at one place."""

    states: int  # how many there are, counted from 0
    starts: tuple[int, ...]  # those before the units
    ends: tuple[int, ...]  # those after the last place; others do not fit into the operands' width
    step: Step  # (state, digit of each operand) to (digit written, next state), on tensors of any shape
    shown: Callable[[torch.Tensor], torch.Tensor] | None = None  # by state, a one-digit second operand


def carrying(base: int, total: Callable[..., torch.Tensor], first: int = 0) -> Machine:
    """Sums of one place, `total` without the carry into it, that carry 0 or 1 into the next."""

    def step(carry: torch.Tensor, *digits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = total(*digits) + carry
        return whole % base, whole // base

    return Machine(2, (first,), (0,), step)


def times_a_digit(base: int) -> Machine:
    """Multiplication by a digit, which the state holds beside the carry: digit · base + carry."""

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
