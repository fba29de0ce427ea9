"""What a step of a model depends on, computed from its lines, and every window that a correct output can show it.

A model without positions whose heads have one line each gathers: after layer l the hidden state of a token is a
function of its own state after layer l − 1, of the state of one earlier token per head, and of one source token
per head of cross-attention. So a step is a function of finitely many tokens, its *window*, and a `Node` says how.

Steps whose nodes are equal up to how many places lie between their tokens are the same function of the same
windows, whatever the length of the input: one `Arrangement`. Which windows there are follows from the task's
machine (`Task.machine`), given that all outputs before the step are right.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Stream
from abcnb.lines.line import Line
from abcnb.model.layers import Attention, OpenTokens
from abcnb.model.transformer import Transformer
from abcnb.proof.places import (
    DIGIT,
    OUTPUT,
    Number,
    ends_of,
    leads_on,
    least_width,
    may_be_last,
    number_of,
    short_of,
    ways_of,
)
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import END_ID
from abcnb.tasks.training_data import TrainingData

CONSTANT = "="
NOTHING = (CONSTANT, END_ID)  # stands for the tokens of a window that has none
MOST_WINDOWS = 120_000_000  # about twenty minutes
# What a coordinate may follow to keep its distance from the step's place, or from an end.
FOLLOWED = {"none", "first", "place", "first-place"}
SETTLED = 12  # the search ends after this many widths in a row without a new arrangement

# The name of an operand or the output, and a place; `DIGIT` and −1; or `CONSTANT` and a structural token's id.
Token = tuple[str, int]
Windows = dict[Token, torch.Tensor]  # the digit at each token, [windows]; operators are numbered after digits
# Steps that are the same function of the same windows: their node, the token that they write, a function that
# makes the windows, given how many there may be, and one that makes whole inputs that show some windows or others:
# batches, each with the step and its windows.
Case = tuple["Node", Token, Callable[[int | None], Windows], Callable[[Windows], list[tuple[Batch, int, Windows]]]]


@dataclass(frozen=True, eq=False)
class Node:
    """The hidden state of a token after some layers; made by `node_of`, which makes each node once.

    Attributes:
        reads: the token that each head of cross-attention reads; before the first layer the token itself.
        own: the node of the same token one layer down; None before the first layer.
        selves: the node that each head of self-attention reads, one layer down.
        kind: before the first layer, the number of the kind of step that the token makes, if the model is told it.
    """

    reads: tuple[Token, ...]
    own: "Node | None" = None
    selves: tuple["Node", ...] = ()
    kind: int = 0

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens that it depends on, except structural ones."""
        found, below = set(), {self}
        while below:
            found.update(*(node.reads for node in below))
            below = {other for node in below if node.own for other in (node.own, *node.selves)}
        return tuple(sorted(token for token in found if token[0] != CONSTANT))

    def renamed(self, names: dict[Token, Token]) -> "Node":
        """The same node with other names for its tokens."""
        known: dict[Node, Node] = {}

        def of(node: "Node") -> "Node":
            if node not in known:
                reads = tuple([names.get(token, token) for token in node.reads])
                known[node] = node_of(reads, node.own and of(node.own), tuple(map(of, node.selves)), node.kind)
            return known[node]

        return of(self)


@cache
def node_of(
    reads: tuple[Token, ...], own: Node | None = None, selves: tuple[Node, ...] = (), kind: int = 0
) -> Node:
    """The node with these parts, always the same object: trees are looked up over and over."""
    return Node(reads, own, selves, kind)


class Heads(NamedTuple):
    """The heads of one attention that have the same lines, one for each kind of step."""

    layer: int
    attention: str
    lines: tuple[Line, ...]
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return " / ".join(map(str, self.lines))


@dataclass(frozen=True)
class Arrangement:
    """Steps that are the same function of the same windows.

    Attributes:
        node: that of the step after the last layer; places are numbered among those that are read or written.
        place: the place that the step writes, numbered likewise; −1 for the token that ends the number.
        skipped: how many unread places lie before each of these, and after the last; a few stand for many.
        number: the number that the step belongs to.
        end: the id of the token that ends it.
    """

    node: Node
    place: int
    skipped: tuple[int, ...]
    number: Number
    end: int

    @property
    def right(self) -> Token:
        """The token that the step must write."""
        return (OUTPUT, self.place) if self.place >= 0 else (CONSTANT, self.end)

    def covers(self, other: "Arrangement") -> bool:
        """Whether all windows of the other are windows of this one, with the same function."""
        kinds = ((one.node, one.place, one.number, one.end) for one in (self, other))
        if len({*kinds}) > 1 or (other.skipped[-1] and not self.skipped[-1]):
            return False
        *between, (mine, theirs) = zip(self.skipped, other.skipped, strict=True)
        extra = [leads_on(self.number, n) & ~leads_on(self.number, m) for m, n in between]
        extra[:1] = [part[list(self.number.machine.starts)] for part in extra[:1]]
        ends = ends_of(self.number, theirs) & ~ends_of(self.number, mine)
        return not any(part.any() for part in (*extra, ends))


class Found(NamedTuple):
    """The windows so far, each once, and the states that the machine may be in after each.

    Attributes:
        which: the set of states that each window has, [windows].
        states: the distinct sets, 1 for each state in a set, [sets, states].
    """

    windows: Windows
    which: torch.Tensor
    states: torch.Tensor
    most: int | None  # the most windows that there may be


class Met(NamedTuple):
    """A step of inputs of this width, and the places that it reads or writes, in order, then −1."""

    width: int
    step: int
    read: tuple[int, ...]


def heads_by_line(model: Transformer) -> list[Heads]:
    """The heads of every layer and attention that have lines and are not cut, grouped by their lines."""
    found: dict[tuple[int, str, tuple[Line, ...]], list[int]] = {}
    for attention, biases in (("self_attention", model.self_biases), ("cross_attention", model.cross_biases)):
        for layer, module in enumerate(model.decoder if biases else ()):
            lines = biases[layer % len(biases)].lines
            open_heads = {line.head for line in lines} - set(getattr(module, attention).cut_heads)
            for head in sorted(open_heads):
                own = tuple(line._replace(head=0) for line in lines if line.head == head)
                found.setdefault((layer, attention, own), []).append(head)
    return [Heads(*key, tuple(numbers)) for key, numbers in found.items()]


def lined_layers(model: Transformer) -> set[int]:
    """The layers in which some head has a line, counted from 0."""
    return {heads.layer for heads in heads_by_line(model)}


def arrangements(model: Transformer, data: TrainingData) -> dict[Arrangement, tuple[Met, Met]]:
    """The arrangements of all steps of a number that no other covers, each with its narrowest and widest `Met`.

    Raises:
        ValueError: if a line runs at twice the pace of the steps, or the form's columns run at half of it.
    """
    task, number = data.task, number_of(data.task)
    if data.form != task.forms[0]:
        raise ValueError(f"expected inputs in the form {task.forms[0]!r}, got {data.form!r}")
    for line in (line for heads in heads_by_line(model) for line in heads.lines):
        if not {*line.follows} <= FOLLOWED:
            raise ValueError(f"expected lines that go through the places one by one, got {line}")

    def steps(width: int) -> Iterator[tuple[Arrangement, Met]]:
        stream = model.stream_of(task.stream(width, data.form))
        for step, node in enumerate(nodes(model, stream, tokens_of(model, data, width))):
            kind, read = arranged(node, step, width, number)
            yield kind, Met(width, step, read)

    return of_all_widths(steps, model, short_of(number), least_width(task) - 1)


def of_all_widths(
    steps: Callable[[int], Iterable[tuple[Arrangement, Any]]], model: Transformer, short: int, width: int
) -> dict[Arrangement, list]:
    """The arrangements of steps of all widths above `width` that no other covers, each with where it was first and
    last met; `short` unread places are as good as any more.

    Every place that a step reads is at a fixed distance from its own place, from an end of the number, or from the
    mirror image of its own place. So nothing new appears once a width has room for all these groups apart, and the
    search ends only after `SETTLED` widths in a row have brought nothing.
    """
    lines = [line for heads in heads_by_line(model) for line in heads.lines]
    farthest = 1 + max((abs(n) for line in lines for n in line.offset), default=0)  # an edge is one place further
    mirrored = any("first-place" in line.follows for line in lines)
    least, newest = (6 if mirrored else 4) * (max(1, len(lined_layers(model))) * farthest + short + 1), 0
    found: dict[Arrangement, list] = {}
    while width < max(least, newest + SETTLED):
        width += 1
        for kind, met in steps(width):
            ends = found.setdefault(kind, [met, met])
            ends[1], newest = met, width if ends[0] is met else newest
    kept: dict[Arrangement, list] = {}
    for one in sorted(found, key=lambda arrangement: -sum(arrangement.skipped)):
        if not any(other.covers(one) for other in kept):
            kept[one] = found[one]
    return kept


def arranged(
    node: Node, step: int, width: int, number: Number, end: int = END_ID, names: dict[Token, Token] | None = None
) -> tuple[Arrangement, tuple[int, ...]]:
    """The arrangement of a step of a number, and the place that each place number in it stands for.

    `names` says what a token is to this step where its own name does not. Tokens with a place below −1 are at no
    place of the number and may be any digit.
    """
    written = {step} if step < width else set()
    called = {token: (names or {}).get(token, token) for token in node.tokens}
    places = {place for name, place in called.values() if name != CONSTANT} | written
    read, others = sorted(p for p in places if p >= 0), sorted(p for p in places if p < -1)
    met = (*read, *others, -1)
    ranks = {place: n if place >= 0 else n - len(met) for n, place in enumerate(met)}
    skipped = (after - before - 1 for before, after in zip([-1, *read], [*read, width], strict=True))
    short = short_of(number)
    ranked = {token: (name, ranks[place]) for token, (name, place) in called.items() if name != CONSTANT}
    kind = node.renamed(called | ranked)
    place = ranks[step] if step < width else -1
    return Arrangement(kind, place, tuple(min(n, short) for n in skipped), number, end), met


def leaves(model: Transformer, stream: Stream, tokens: list[Token]) -> list[Node]:
    """The nodes, before the first layer, of the tokens that self-attention sees."""
    rows = torch.arange(len(stream))
    kinds = 1 + stream.steps_at(rows)[0] if model.config.position == "kinds" else 0 * rows
    return [
        node_of((token,), kind=kind)
        for token, kind in zip(tokens[stream.source : stream.source + len(rows)], kinds.tolist(), strict=True)
    ]


def nodes(model: Transformer, stream: Stream, tokens: list[Token]) -> list[Node]:
    """The node of each step of an input; `tokens` are those of the whole stream, the source's first."""
    rows, first_nodes = torch.arange(len(stream)), leaves(model, stream, tokens)
    selves, crosses = [], []  # by layer and row, what each head reads
    for layer, (of_self, of_cross) in zip(model.decoder, model.open_tokens(rows, stream), strict=True):
        selves.append(_read(of_self, layer.self_attention, rows))
        crosses.append(_read(of_cross, layer.cross_attention, 0 * rows) if of_cross else [[]] * len(stream))

    @cache
    def node(layer: int, row: int) -> Node:
        if layer == 0:
            return first_nodes[row]
        own, *others = (node(layer - 1, other) for other in (row, *selves[layer - 1][row]))
        return node_of(tuple(tokens[other] for other in crosses[layer - 1][row]), own, tuple(others))

    first = stream.prompt - 1 - stream.source
    return [node(len(model.decoder), first + step) for step in range(stream.rows)]


def _read(opened: OpenTokens, attention: Attention, instead: torch.Tensor) -> list[list[int]]:
    """The token that each head reads, by row; heads that are cut read `instead`."""
    tokens = opened.tokens[:, :, 0].clone()
    tokens[attention.cut_heads] = instead
    return tokens.T.tolist()


def tokens_of(model: Transformer, data: TrainingData, width: int) -> list[Token]:
    """What each token of an input of this width is, the source's first."""
    batch = data.task.batch(data.task.smallest(width), data.form)
    ids = torch.cat([batch.source] * model.crossing + [model.sequence(batch)], 1)[0]
    tokens, stream = [(CONSTANT, number) for number in ids.tolist()], model.stream_of(batch.stream)
    for segment in (*stream.operands, stream.segment(OUTPUT)):
        grid = segment.grid()
        for place, token in zip(grid[0].tolist(), segment.tokens(grid).tolist(), strict=True):
            if token < len(tokens):  # the end token is not read
                tokens[token] = (segment.name, place)
    if data.task.second_is_digit:
        tokens[stream.segment(DIGIT).start] = (DIGIT, -1)
    return tokens


def windows_of(arrangement: Arrangement, most: int | None = None) -> Windows:
    """Every window of an arrangement: the digit at each of its tokens, and the one that the step must write.

    Raises:
        TooManyWindows: as in `check_count`.
    """
    tokens, number = {*arrangement.node.tokens, arrangement.right}, arrangement.number
    machine, (*before, after), ways, names = number.machine, arrangement.skipped, ways_of(number), number.names
    found = Found({}, torch.zeros(1, dtype=torch.long), torch.zeros(1, machine.states), most)
    found.states[0, list(machine.starts)] = 1
    if machine.shown:
        states = torch.arange(machine.states)
        found = _onwards(found, torch.stack([states, machine.shown(states), states], 1), [(DIGIT, -1)])
    for place, skipped in enumerate(before):
        for _ in range(skipped):
            found = _onwards(found, ways[:, [0, -1]], [])
        if place == len(before) - 1 and not after:
            ways = ways[may_be_last(number)]
        shown = [(name, place) for name in names if (name, place) in tokens]
        found = _onwards(found, ways[:, [0, *(1 + names.index(name) for name, _ in shown), -1]], shown)
    fits = (found.states @ ends_of(number, after).float() > 0)[found.which]
    found = found._replace(windows={token: digits[fits] for token, digits in found.windows.items()})
    found = found._replace(which=found.which[fits])
    for token in sorted(token for token in tokens if token[0] != CONSTANT and token[1] < -1):
        any_digit = torch.cartesian_prod(torch.arange(machine.states), torch.arange(number.base))
        found = _onwards(found, any_digit[:, [0, 1, 0]], [token])
    return found.windows or {NOTHING: torch.zeros(1, dtype=torch.uint8)}


def _onwards(found: Found, ways: torch.Tensor, shown: list[Token]) -> Found:
    """The windows continued through one more place, once for each combination of the digits shown there."""
    seen, which = F.pad(ways[:, 1:-1], (0, 1)).unique(dim=0, return_inverse=True)  # at least one column
    step = torch.zeros(len(seen), *[found.states.shape[1]] * 2)
    step[which, ways[:, 0], ways[:, -1]] = 1
    reached = (found.states @ step > 0).float()  # [seen, which, states]
    way, before = reached.any(2).nonzero().T
    states, after = reached[way, before].unique(dim=0, return_inverse=True)
    check_count(int(before.bincount(minlength=len(found.states))[found.which].sum()), found.most)
    pairs = (((found.which == one).nonzero()[:, 0], (before == one).nonzero()[:, 0]) for one in before.unique())
    window, onto = torch.cat([torch.cartesian_prod(*pair) for pair in pairs]).T
    windows = {token: digits[window] for token, digits in found.windows.items()}
    windows |= {token: seen[way[onto], n].to(torch.uint8) for n, token in enumerate(shown)}
    return Found(windows, after[onto], states, found.most)


class TooManyWindows(ValueError):
    """Raised if lines show steps too many digits."""


def check_count(windows: int, most: int | None = None) -> None:
    """Raise TooManyWindows above `most`, by default `MOST_WINDOWS`."""
    most = MOST_WINDOWS if most is None else most
    if windows > most:
        raise TooManyWindows(
            f"expected at most {most:,} windows, got {windows:,} or more: lines show steps too many digits "
            "that they do not need; prune the model, or take a larger tau"
        )


def count_of(windows: Windows) -> int:
    """The number of windows."""
    return len(next(iter(windows.values())))


def different(columns: list[torch.Tensor], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of a window for each distinct row of digits, [rows], and the row of each window, [windows]."""
    index = torch.zeros(count, dtype=torch.long)
    for column in columns:
        codes = index * (int(column.max()) + 1) + column
        met = torch.zeros(int(codes.max()) + 1, dtype=torch.bool)
        met[codes] = True
        index = met.cumsum(0, dtype=torch.int32)[codes].long() - 1
    some = torch.empty(int(index.max()) + 1, dtype=torch.long)
    some[index] = torch.arange(count)
    return some, index
