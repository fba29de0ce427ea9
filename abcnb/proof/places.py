"""Numbers that are written place by place: which digits go together, from the task's machine."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from abcnb.tasks.digits import Operands
from abcnb.tasks.task import Machine, Task

OUTPUT, DIGIT = "digits", "b"  # names: of the digits written, and of a one-digit operand
OUTPUTS_OF = ("label", "answer", "batch", "source", "stream", "steps", "outputs", "segments")  # what decides them
DONE = -1  # the state after the last place

# The name of an operand or the output, and a place; `DIGIT` and −1; or a structural token (`windows.CONSTANT`).
Token = tuple[str, int]
Windows = dict[Token, torch.Tensor]  # the digit at each token, [windows]; operators are numbered after digits
# Ways through a part of a number: by the state before, the digits that they show and the state after.
Ways = dict[int, set[tuple[tuple[int, ...], int]]]


@dataclass(frozen=True, eq=False)
class Number:
    """What is written place by place: the output of a task, or a row of one.

    Attributes:
        names: of the digits at a place: those that the machine reads, and `OUTPUT`.
        ended: the names of shorter operands, whose digit in the last place is 0.
    """

    base: int
    machine: Machine
    names: tuple[str, ...]
    ended: tuple[str, ...]

    @cached_property
    def table(self) -> torch.Tensor:
        """Every way through a place: state, digits and next state, [ways, 2 + names]."""
        axes = [torch.arange(self.machine.states)] + [torch.arange(self.base)] * (len(self.names) - 1)
        before = torch.cartesian_prod(*axes).unbind(1)
        return torch.stack([*before, *self.machine.step(*before)], 1)

    @cached_property
    def last(self) -> torch.Tensor:
        """Which ways of the table can lead through the last place, [ways]."""
        zero = (self.table[:, [1 + self.names.index(name) for name in self.ended]] == 0).all(1)
        return zero & torch.isin(self.table[:, -1], torch.tensor(self.machine.ends))

    @cached_property
    def told(self) -> Ways:
        """Those before the first place, which show the one-digit operand that a state holds."""
        digits = self.machine.shown(torch.tensor(self.machine.starts)).tolist()
        return {start: {((digit,), start)} for start, digit in zip(self.machine.starts, digits, strict=True)}

    @cache  # noqa: B019  there are few numbers
    def through(self, *names: str) -> Ways:
        """Those through a place, which show its digits of these names; through the last place they lead to `DONE`."""
        ends, ways = self.table[self.last], defaultdict(set)
        ends[:, -1] = DONE
        columns = [0, *(1 + self.names.index(name) for name in names), -1]
        for before, *digits, after in torch.cat([self.table, ends])[:, columns].tolist():
            ways[before].add((tuple(digits), after))
        return dict(ways)

    @cached_property
    def past(self) -> Ways:
        """Those past any number of places, or none, which show nothing."""
        one, past = self.through(), {}
        for state in (DONE, *one):
            past[state] = {((), state)}
            while more := {way for _, after in past[state] for way in one.get(after, ())} - past[state]:
                past[state] |= more
        return past


def listed(
    parts: list[Ways], starts: Iterable[int], check: Callable[[int], None] = lambda count: None
) -> torch.Tensor:
    """All that ways through these parts, from a start to `DONE`, show: each once, [windows, digits].

    States that the same digits lead to are followed together, as when an automaton is made deterministic. `check`
    is told how many windows there are, before they are made.
    """
    first, moves = frozenset(starts), []
    sets = {first}
    for ways in parts:  # forwards: from each set of states, the set that each combination of digits leads to
        moves.append({states: _moves(states, ways) for states in sets})
        sets = {after for of in moves[-1].values() for after in of.values()}
    counts = {states: int(DONE in states) for states in sets}
    rest = {states: torch.zeros(count, 0, dtype=torch.uint8) for states, count in counts.items()}
    for move in reversed(moves):  # backwards: what shows from each set of states on
        counts = {states: sum(counts[after] for after in of.values()) for states, of in move.items()}
    check(counts[first])
    for move in reversed(moves):
        rest = {
            states: _joined([(digits, rest[after]) for digits, after in of.items()]) for states, of in move.items()
        }
    return rest[first]


def _moves(states: frozenset[int], ways: Ways) -> dict[tuple[int, ...], frozenset[int]]:
    """All states that each combination of digits leads to from these."""
    onto = defaultdict(set)
    for digits, after in (way for state in states for way in ways.get(state, ())):
        onto[digits].add(after)
    return {digits: frozenset(after) for digits, after in onto.items()}


def _joined(parts: list[tuple[tuple[int, ...], torch.Tensor]]) -> torch.Tensor:
    """Each combination of digits, followed by all that may come after it, [windows, digits]."""
    found = [
        torch.cat([torch.tensor(digits, dtype=torch.uint8).expand(len(rest), -1), rest], 1)
        for digits, rest in parts
        if len(rest)
    ]
    return torch.cat(found) if found else torch.zeros(0, 0, dtype=torch.uint8)


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
    shaped = task.shaped(tuple(torch.full((1, 1), task.base - 1) for _ in range(task.operands)))
    if task.spare and any(operand[0, -1] for operand in shaped[: len(read)]):
        raise ValueError(f"expected operands of {task.name!r} padded with a zero, as its `spare` says, got none")
    number = Number(task.base, machine, (*read, OUTPUT), read * (task.spare > 0))
    if not all(_writes_labels(task, number, least_width(task) + more) for more in (0, 1)):
        raise ValueError(f"expected a machine that writes the labels of {task.name!r}, got other digits, or none")
    return number


def least_width(task: Task) -> int:
    """The width of the narrowest inputs, with a digit besides the padding and room for the shortest number."""
    return max(task.spare + 1, task.shortest)


def _writes_labels(task: Task, number: Number, width: int) -> bool:
    """Whether a machine writes the label of every input of a width, and nothing else."""
    told = [number.told] if task.second_is_digit else []
    digits = listed(told + [number.through(*number.names)] * width, number.machine.starts).long()
    *operands, written = digits[:, len(told) :].unflatten(1, (width, -1)).unbind(2)
    operands += [digits[:, :1]] * len(told)
    inputs = task.base ** (sum(task.widths(width)) - len(number.ended))
    return len(digits) == inputs and torch.equal(task.label(*operands), written)


def inputs_with(
    windows: Windows, task: Task, width: int, count: int, generator: torch.Generator | None = None
) -> tuple[Operands, torch.Tensor]:
    """Inputs of a width with these digits, and which of `count` windows have one, [count]; the others are left out.

    Other digits are random, every possible next state equally likely.
    """
    number = number_of(task)
    table, states = number.table, torch.arange(task.machine.states)
    pairs = table[:, 0] * len(states) + table[:, -1]
    rare = 1 / pairs.bincount()[pairs].float()
    good, fits = torch.ones(count, len(states), dtype=torch.bool), []
    for place in reversed(range(width)):  # which ways through this place lead to an end
        fit = good[:, table[:, -1]] & (number.last | (place < width - 1))
        for name, digits in zip(number.names, table.T[1:-1], strict=True):
            if (name, place) in windows:
                fit = fit & (windows[name, place][:, None] == digits)
        fits.append(fit)
        good = torch.zeros_like(good).scatter_reduce(1, table[:, 0].expand_as(fit), fit, "amax")
    if (DIGIT, -1) in windows:
        good = good & (task.machine.shown(states) == windows[DIGIT, -1][:, None])
    good = good & torch.isin(states, torch.tensor(task.machine.starts))
    found = good.any(1)
    first = state = good[found].float().multinomial(1, generator=generator)
    digits = []
    for fit in reversed(fits):
        likely = (fit[found] & (table[:, 0] == state)) * rare
        way = likely.multinomial(1, generator=generator)[:, 0]
        digits.append(table[way, 1:-2])
        state = table[way, -1:]
    operands = tuple(torch.stack(digits, 2).unbind(1))
    return (*operands, task.machine.shown(first)) if task.second_is_digit else operands, found
