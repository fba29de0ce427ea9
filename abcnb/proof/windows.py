"""What a step of a model depends on, computed from its lines, and every window that a correct output can show it.

A model whose heads have one line each, and no positions, gathers: after layer l the hidden state of a token is a
function of its own state after layer l − 1, of that of one earlier token for each head, and of one source token for
each head of cross-attention. So a step is a function of finitely many tokens, its *window*, and a `Node` says how.

Steps of inputs of any length whose nodes are equal, up to how many places lie between their tokens, are the same
function of the same windows: one `Arrangement`. Which windows there are follows from the task's machine
(`tasks.machines`), given that all outputs before the step are right.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import torch

from abcnb.lines.line import Line
from abcnb.model.layers import OpenTokens
from abcnb.model.transformer import Transformer
from abcnb.tasks.digits import Operands
from abcnb.tasks.task import Task

OUTPUT, CONSTANT, DIGIT = "digits", "=", "b"
MOST_WINDOWS = 50_000_000
FEW = 1_000_000  # windows that are cheap to compare with one another
LATEST = 100  # places after which a machine must have settled
SETTLED = 12  # widths in a row without a new arrangement, after which none is expected

Token = tuple[
    str, int
]  # a name and a place, of an operand or the output; of a structural token `CONSTANT` and its id
Windows = dict[Token, torch.Tensor]  # the digit at each token, each [windows]


@dataclass(frozen=True)
class Node:
    """A hidden state, of a token after some layers.

    Attributes:
        own: the node of the same token one layer down; at layer 0 the token.
        selves: the node that each head of self-attention reads, one layer down.
        crosses: the token that each head of cross-attention reads.
    """

    own: "Node | Token"
    selves: tuple["Node", ...] = ()
    crosses: tuple[Token, ...] = ()

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens that it depends on, without structural ones."""
        below = {self.own, *self.selves} if self.selves else set()
        found = {token for node in below for token in node.tokens} | (set(self.crosses) if below else {self.own})
        return tuple(sorted(token for token in found if token[0] != CONSTANT))

    def moved(self, places: dict[int, int]) -> "Node":
        """The same node with its tokens at other places."""

        @cache
        def of(part: "Node | Token") -> "Node | Token":
            if isinstance(part, Node):
                return Node(of(part.own), tuple(map(of, part.selves)), tuple(map(of, part.crosses)))
            return part if part[0] == CONSTANT else (part[0], places[part[1]])

        return of(self)


class Heads(NamedTuple):
    """The heads of one attention that have the same lines."""

    layer: int
    attention: str
    lines: tuple[Line, ...]  # one for each kind of step
    numbers: tuple[int, ...]

    @property
    def module(self) -> str:
        """The attention's name in the model."""
        return f"decoder.{self.layer}.{self.attention}"

    def __str__(self) -> str:
        return " / ".join(map(str, self.lines))


@dataclass(frozen=True)
class Arrangement:
    """Steps that are the same function of the same windows.

    Attributes:
        node: of the step, after the last layer; its places are counted among those that are read or written.
        place: that the step writes, counted likewise; −1 for the end token.
        skipped: places before each of these, and after the last, that nothing reads; many are as good as a few.
    """

    node: Node
    place: int
    skipped: tuple[int, ...]

    def covers(self, other: "Arrangement", task: Task) -> bool:
        """Whether all windows of another one are windows of this one, and the same function."""
        if (self.node, self.place) != (other.node, other.place) or (other.skipped[-1] and not self.skipped[-1]):
            return False
        *between, (mine, theirs) = zip(self.skipped, other.skipped, strict=True)
        extra = [_leads(task, n) & ~_leads(task, m) for m, n in between]
        extra.append((_ends(task, theirs) & ~_ends(task, mine))[:, None])
        extra[0] = extra[0][list(task.machine.starts)]
        return not any(part.any() for part in extra)


def heads_by_line(model: Transformer) -> list[Heads]:
    """The heads of every layer and attention that are not cut, those with the same line together."""
    found: dict[tuple[int, str, tuple[Line, ...]], list[int]] = {}
    for attention, biases in (("self_attention", model.self_biases), ("cross_attention", model.cross_biases)):
        for layer, module in enumerate(model.decoder if biases else ()):
            cut = getattr(module, attention).cut_heads
            for head in set(range(model.config.heads)) - set(cut):
                lines = (line._replace(head=0) for line in biases[layer % len(biases)].lines if line.head == head)
                found.setdefault((layer, attention, tuple(lines)), []).append(head)
    return [Heads(*key, tuple(numbers)) for key, numbers in found.items()]


def arrangements(model: Transformer, task: Task, form: str) -> dict[Arrangement, list[tuple[int, int]]]:
    """The arrangements of all steps that no other covers, each with the first and the last width and step that have it.

    Every place that a step reads is at a fixed distance from its own place, from an end of the number, or from the
    place as far from the other end. So nothing new comes once a width has room for all groups apart; `SETTLED` widths
    more are tried all the same.

    Raises:
        ValueError: a line that runs at twice the pace of the steps.
    """
    lines = [line for heads in heads_by_line(model) for line in heads.lines]
    for line in lines:
        if not set(line.follows) <= {"none", "first", "place", "first-place"}:
            raise ValueError(f"expected lines that go through the places one by one, got {line}")
    found: dict[Arrangement, list[tuple[int, int]]] = {}
    short, width, newest = settled(task) + task.spare, task.spare, 0
    farthest = 1 + max(abs(n) for line in lines for n in (0, *line.offset))  # an edge is one place further
    mirrored = any("first-place" in line.follows for line in lines)
    least = (6 if mirrored else 4) * (len(model.decoder) * farthest + short + 1)
    while width < max(least, newest + SETTLED):
        width += 1
        for step, node in enumerate(nodes(model, task, width, form)):
            met = _arranged(node, step, width, short)
            if met not in found:
                found[met], newest = [(width, step)] * 2, width
            found[met][1] = (width, step)
    kept: dict[Arrangement, list[tuple[int, int]]] = {}
    for one in sorted(found, key=lambda arrangement: -sum(arrangement.skipped)):
        if not any(other.covers(one, task) for other in kept):
            kept[one] = found[one]
    return kept


def _arranged(node: Node, step: int, width: int, short: int) -> Arrangement:
    read = places_of(node, step, width)
    ranks = {place: rank for rank, place in enumerate(read)} | {-1: -1}
    skipped = [after - before - 1 for before, after in zip([-1, *read], [*read, width], strict=True)]
    return Arrangement(node.moved(ranks), ranks.get(step, -1), tuple(min(n, short) for n in skipped))


def places_of(node: Node, step: int, width: int) -> list[int]:
    """The places that a step reads or writes, in order."""
    return sorted({place for _, place in node.tokens if place >= 0} | ({step} if step < width else set()))


def nodes(model: Transformer, task: Task, width: int, form: str) -> list[Node]:
    """What each step of an input of this width depends on, the units' first."""
    stream, tokens = model.stream_of(task.stream(width, form)), tokens_of(model, task, width, form)
    opened, every = model.open_tokens(torch.arange(len(stream)), stream), torch.arange(len(stream))
    selves, crosses = [], []  # of each layer, by row, what each head reads
    for layer, (of_self, of_cross) in zip(model.decoder, opened, strict=True):
        selves.append(_read(of_self, layer.self_attention.cut_heads, every))
        crosses.append(
            _read(of_cross, layer.cross_attention.cut_heads, every * 0) if of_cross else [[]] * len(stream)
        )

    @cache
    def node(layer: int, row: int) -> Node:
        if layer == 0:
            return Node(tokens[stream.source + row])
        below = {other: node(layer - 1, other) for other in {row, *selves[layer - 1][row]}}
        reads = tuple(below[other] for other in selves[layer - 1][row])
        return Node(below[row], reads, tuple(tokens[other] for other in crosses[layer - 1][row]))

    first = stream.prompt - 1 - stream.source
    return [node(len(model.decoder), first + step) for step in range(stream.rows)]


def _read(opened: OpenTokens, cut: list[int], instead: torch.Tensor) -> list[list[int]]:
    """The token that each head reads, by row; heads that are cut read any."""
    tokens = opened.tokens[:, :, 0].clone()
    tokens[cut] = instead
    return tokens.T.tolist()


def tokens_of(model: Transformer, task: Task, width: int, form: str) -> list[Token]:
    """What each token of an input of this width is, the source's first."""
    batch = task.batch(task.smallest(width), form)
    ids = torch.cat([batch.source] * model.crossing + [model.sequence(batch)], 1)[0]
    tokens, stream = [(CONSTANT, number) for number in ids.tolist()], model.stream_of(batch.stream)
    for segment in (*stream.operands, stream.segment(OUTPUT)):
        grid = segment.grid()
        for place, token in zip(grid[0].tolist(), segment.tokens(grid).tolist(), strict=True):
            if token < len(tokens):  # the end token is not read
                tokens[token] = (segment.name, place)
    if task.second_is_digit:
        tokens[stream.segment(DIGIT).start] = (DIGIT, -1)
    return tokens


def all_ways(task: Task) -> torch.Tensor:
    """Every way through a place: [ways, 3 + operands], the state, the digits, the digit written, the next state."""
    machine, operands = task.machine, task.operands - task.second_is_digit
    axes = torch.meshgrid(torch.arange(machine.states), *[torch.arange(task.base)] * operands, indexing="ij")
    state, *digits = (axis.flatten() for axis in axes)
    return torch.stack([state, *digits, *machine.step(state, *digits)], 1)


def last_ways(task: Task) -> torch.Tensor:
    """Those through the last place, where the operands of a task whose result may be longer have a 0."""
    ways = all_ways(task)
    return ways[(ways[:, 1:-2] == 0).all(1)] if task.spare else ways


def _shown(task: Task, ways: torch.Tensor, shown: tuple[str, ...] = ()) -> torch.Tensor:
    """The same, [ways, 2 + shown], with what is shown of the place alone; each once."""
    operands = ("a", DIGIT)[: task.operands - task.second_is_digit]
    at = [1 + (*operands, OUTPUT).index(name) for name in shown]
    return ways[:, [0, *at, -1]].unique(dim=0)


@cache
def _leads(task: Task, places: int) -> torch.Tensor:
    """[states, states], whether one can follow another after so many places, the last not among them."""
    if not places:
        return torch.eye(task.machine.states) > 0
    step, ways = torch.zeros(task.machine.states, task.machine.states), all_ways(task)
    step[ways[:, 0], ways[:, -1]] = 1
    return _leads(task, places - 1).float() @ step > 0


def _ends(task: Task, places: int) -> torch.Tensor:
    """[states], whether an input can end so many places after one."""
    good = torch.isin(torch.arange(task.machine.states), torch.tensor(task.machine.ends))
    if places:
        ways = last_ways(task)
        good = torch.zeros_like(good).index_put((ways[:, 0],), good[ways[:, -1]], accumulate=True)
        good = (_leads(task, places - 1) & good).any(1)
    return good


def settled(task: Task) -> int:
    """After how many places a machine can be in all states in which it can be after more.

    Raises:
        ValueError: it never is, as where every second place is another.
    """
    for count in range(LATEST):
        if torch.equal(_leads(task, count), _leads(task, count + 1)):
            return count
    raise ValueError(
        f"expected a machine whose states do not depend on how many places were before, got {task.name!r}"
    )


def windows_of(arrangement: Arrangement, task: Task) -> Windows:
    """Every window of an arrangement: the digit at each of its tokens and, of the output, at the place that it writes.

    Raises:
        ValueError: more than `MOST_WINDOWS`.
    """
    tokens, windows = {*arrangement.node.tokens, (OUTPUT, arrangement.place)}, {}
    state, (*before, after) = torch.tensor(task.machine.starts), arrangement.skipped
    for place, skipped in enumerate(before):
        for _ in range(skipped):
            windows, state = _onwards(windows, state, _shown(task, all_ways(task)), [])
        names = tuple(name for name in ("a", DIGIT, OUTPUT) if (name, place) in tokens)
        ways = all_ways(task) if after or place < len(before) - 1 else last_ways(task)
        windows, state = _onwards(windows, state, _shown(task, ways, names), [(name, place) for name in names])
    if task.second_is_digit:
        windows[DIGIT, -1] = task.machine.shown(state).to(torch.uint8)
    fits = _ends(task, after)[state]
    return {token: digits[fits] for token, digits in windows.items()}


def _onwards(
    windows: Windows, state: torch.Tensor, ways: torch.Tensor, shown: list[Token]
) -> tuple[Windows, torch.Tensor]:
    """Windows that end in a state, each continued in every way through one more place."""
    each = ways[:, 0].bincount(minlength=int(state.max()) + 1)
    first, many = (each.cumsum(0) - each)[state], each[state]
    total = int(many.sum())
    if total > MOST_WINDOWS:
        raise ValueError(
            f"expected at most {MOST_WINDOWS:,} windows for a step, got {total:,} or more: its lines show it too many "
            "digits that it does not need; prune it, or take a larger tau"
        )
    before = torch.arange(len(state)).repeat_interleave(many)
    way = torch.arange(total) - (many.cumsum(0) - many - first)[before]
    windows = {token: digits[before] for token, digits in windows.items()}
    windows |= {token: ways[way, 1 + n].to(torch.uint8) for n, token in enumerate(shown)}
    state = ways[way, -1]
    if total <= FEW and len(windows) < 16:  # ways that differ in what nothing reads are one
        once = torch.stack([*(digits.long() for digits in windows.values()), state], 1).unique(dim=0)
        windows, state = {token: once[:, n].to(torch.uint8) for n, token in enumerate(windows)}, once[:, -1]
    return windows, state


def inputs_with(
    tokens: Windows, task: Task, width: int, count: int, generator: torch.Generator | None = None
) -> Operands:
    """Inputs of a width with these digits; the others are random, and every state as likely to follow as any other."""
    ways, states = all_ways(task), torch.arange(task.machine.states)
    column = dict(zip(("a", DIGIT, OUTPUT) if ways.shape[1] == 5 else ("a", OUTPUT), ways.T[1:], strict=False))
    pairs = ways[:, 0] * len(states) + ways[:, -1]
    rare = 1 / pairs.bincount()[pairs].float()
    good, fits = _ends(task, 0).expand(count, -1), []
    for place in reversed(range(width)):  # which ways through it lead on to an end
        fit = good[:, ways[:, -1]]
        if place == width - 1 and task.spare:
            fit = fit & (ways[:, 1:-2] == 0).all(1)
        for name in column:
            if (name, place) in tokens:
                fit = fit & (tokens[name, place][:, None] == column[name])
        fits.append(fit)
        good = torch.zeros(good.shape, dtype=torch.bool).scatter_reduce(1, ways[:, 0].expand_as(fit), fit, "amax")
    if (DIGIT, -1) in tokens:
        good = good & (task.machine.shown(states) == tokens[DIGIT, -1][:, None])
    good = good & torch.isin(states, torch.tensor(task.machine.starts))
    state, digits = good.float().multinomial(1, generator=generator), []
    for fit in reversed(fits):
        likely = (fit & (ways[:, 0] == state)) * rare
        way = likely.multinomial(1, generator=generator)[:, 0]
        digits.append(ways[way, 1:-2])
        state = ways[way, -1:]
    operands = tuple(torch.stack(digits, 2).unbind(1))
    return (*operands, task.machine.shown(state)) if task.second_is_digit else operands
