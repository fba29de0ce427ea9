"""Numbers that are written place by place, and every way through their places, from the task's machine."""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from abcnb.tasks.task import Machine, Task

OUTPUT, DIGIT = "digits", "b"  # names: of the digits written, and of a one-digit operand
OUTPUTS_OF = ("label", "answer", "batch", "source", "stream", "steps", "outputs", "segments")  # what decides them
LATEST = 100  # a machine must have settled within this many places


class Number(NamedTuple):
    """What is written place by place: the output of a task, or a row of one.

    Attributes:
        names: of the digits at a place: those that the machine reads, and `OUTPUT`.
        ended: the names of shorter operands, whose digit in the last place is 0.
    """

    base: int
    machine: Machine
    names: tuple[str, ...]
    ended: tuple[str, ...]


@cache
def number_of(task: Task) -> Number:
    """The output of a task, as long as its operands; raises ValueError if its machine is for other outputs."""
    machine, kinds = task.machine, type(task).__mro__
    of_machine, *others = (next((k for k in kinds if name in vars(k)), Task) for name in ("machine", *OUTPUTS_OF))
    if {*OUTPUTS_OF} & {*vars(task)} or not all(issubclass(of_machine, other) for other in others):
        raise ValueError(
            f"expected a machine for the outputs of {task.name!r}, got the one of {of_machine.name!r}"
        )
    if (symbols := getattr(task, "symbols", task.base)) != task.base:
        raise ValueError(f"expected inputs of {task.base} symbols, as many as outputs have, got {symbols}")
    if task.spare > 1:
        raise ValueError(f"expected operands padded with one zero at most, got {task.spare}")
    read = ("a", DIGIT)[: task.operands - task.second_is_digit]
    number = Number(task.base, machine, (*read, OUTPUT), read * (task.spare > 0))
    before, after = ways_of(number)[:, [0, -1]].T
    if machine.shown and not torch.equal(machine.shown(before), machine.shown(after)):
        raise ValueError(f"expected states of {task.name!r} that keep the digit that they show, got others")
    if not all(_writes_labels(task, machine, least_width(task) + more) for more in (0, 1)):
        raise ValueError(f"expected a machine that writes the labels of {task.name!r}, got other digits, or none")
    return number


def least_width(task: Task) -> int:
    """The width of the narrowest inputs, with a digit besides the padding and room for the shortest number."""
    return max(task.spare + 1, task.shortest)


def _writes_labels(task: Task, machine: Machine, width: int) -> bool:
    """Whether a machine writes every label of a width: it ends from some start, and is right whenever it ends."""
    widths = task.widths(width)
    free = [n - task.spare * (n == width) for n in widths]
    every = torch.cartesian_prod(*[torch.arange(task.base)] * sum(free)).view(-1, sum(free))
    operands = [F.pad(a, (0, n - a.shape[1])) for a, n in zip(every.split(free, 1), widths, strict=True)]
    label, ended = task.label(*operands), torch.zeros(len(every), dtype=torch.bool)
    for start in machine.starts:
        state = torch.full((len(every),), start)
        fits = machine.shown(state) == operands[1][:, 0] if machine.shown else state == start
        right = torch.ones(len(every), dtype=torch.bool)
        for place in range(width):
            digit, state = machine.step(state, *(a[:, place] for a in operands[: 1 + (machine.shown is None)]))
            right &= digit == label[:, place]
        fits &= torch.isin(state, torch.tensor(machine.ends))
        if bool((fits & ~right).any()):
            return False
        ended |= fits
    return bool(ended.all())


@cache
def ways_of(number: Number) -> torch.Tensor:
    """Every way through a place: state, digits and next state, [ways, 2 + names]."""
    axes = [torch.arange(number.machine.states)] + [torch.arange(number.base)] * (len(number.names) - 1)
    before = [axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")]
    return torch.stack([*before, *number.machine.step(*before)], 1)


def may_be_last(number: Number) -> torch.Tensor:
    """Which ways can lead through the last place, where shorter operands have a 0, [ways]."""
    return (ways_of(number)[:, [1 + number.names.index(name) for name in number.ended]] == 0).all(1)


def _reached(ways: torch.Tensor, good: torch.Tensor) -> torch.Tensor:
    """Whether a way leads from each state to a good one, [states, …], the shape of `good`."""
    reached = torch.zeros(good.shape, dtype=torch.long)
    return reached.index_add(0, ways[:, 0], good[ways[:, -1]].long()) > 0


@cache
def leads_on(number: Number, places: int) -> torch.Tensor:
    """Whether one state can lead to another through so many places, the last one excluded, [states, states]."""
    if not places:
        return torch.eye(number.machine.states) > 0
    return _reached(ways_of(number), leads_on(number, places - 1))


def ends_of(number: Number, places: int) -> torch.Tensor:
    """Whether an input can end so many places after each state, [states]."""
    if places > 1:
        return _reached(ways_of(number), ends_of(number, places - 1))
    good = torch.isin(torch.arange(number.machine.states), torch.tensor(number.machine.ends))
    return _reached(ways_of(number)[may_be_last(number)], good) if places else good


@cache
def short_of(number: Number) -> int:
    """How many unread places are as good as any more: after them the machine can be in the same states.

    Raises:
        ValueError: if there is no such number below `LATEST`, as when every second place differs.
    """
    for count in range(LATEST):
        if torch.equal(leads_on(number, count), leads_on(number, count + 1)):
            return count + bool(number.ended)
    raise ValueError(f"expected states that do not depend on how many places were before, got {number.machine}")
