"""What a step of a model depends on, computed from its lines, and every window that a correct output can show it.

A model without positions whose heads have one line each gathers: after layer l the hidden state of a token is a
function of its own state after layer l − 1, of the state of one earlier token per head, and of one source token
per head of cross-attention. So a step is a function of finitely many tokens, its *window*, and a `Node` says how.

Steps whose nodes are equal up to how many places lie between their tokens are the same function, whatever the
length of the input: one `Arrangement`. Which windows it has to be right on follows from the task's machine
(`Task.machine`), given that all outputs before the step are right.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from abcnb.lines.coordinates import Stream
from abcnb.lines.line import Line
from abcnb.model.layers import Attention
from abcnb.model.transformer import Transformer
from abcnb.proof.places import (
    DIGIT,
    DONE,
    OUTPUT,
    Number,
    Token,
    Windows,
    inputs_with,
    least_width,
    listed,
    number_of,
)
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import END_ID
from abcnb.tasks.training_data import TrainingData

CONSTANT = "="  # names structural tokens, whose id stands for a place
NOTHING = (CONSTANT, END_ID)  # stands for the tokens of a window that has none
MOST_WINDOWS = 120_000_000  # about twenty minutes
# What a coordinate may follow to keep its distance from the step's place, or from an end.
FOLLOWED = {"none", "first", "place", "first-place"}

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
        below = (node.tokens for node in (self.own, *self.selves) if node)
        return tuple(sorted({token for token in self.reads if token[0] != CONSTANT}.union(*below)))

    def renamed(self, names: dict[Token, Token]) -> "Node":
        """The same node with other names for its tokens."""

        @cache
        def of(node: "Node") -> "Node":
            reads = tuple([names.get(token, token) for token in node.reads])
            return node_of(reads, node.own and of(node.own), tuple(map(of, node.selves)), node.kind)

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


class Arrangement(NamedTuple):
    """Steps that are the same function of the same tokens, whose places are numbered among those read or written.

    Attributes:
        node: that of the step after the last layer.
        right: the token that the step must write.
        number: the number that the step belongs to.
    """

    node: Node
    right: Token
    number: Number


class Met(NamedTuple):
    """A step of inputs of this width, and the places that it reads or writes, in order, then −1."""

    width: int
    step: int
    read: tuple[int, ...]


# Before which places of an arrangement others may lie, and before the number's end; and two steps that have most of
# these, in the narrowest and the widest inputs.
Spread = tuple[tuple[bool, ...], list]


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


def cases(model: Transformer, data: TrainingData) -> list[Case]:
    """All that steps of a number can see, each case shown in a narrow and a wide input."""
    return [
        (one.node, one.right, partial(windows_of, one, apart), partial(shown, data, met))
        for one, (apart, met) in arrangements(model, data).items()
    ]


def arrangements(model: Transformer, data: TrainingData) -> dict[Arrangement, Spread]:
    """The arrangements of all steps of a number.

    Raises:
        ValueError: if a line runs at twice the pace of the steps, or the form's columns run at half of it.
    """
    task, number = data.task, number_of(data.task)
    if data.form != task.forms[0]:
        raise ValueError(f"expected inputs in the form {task.forms[0]!r}, got {data.form!r}")
    for line in (line for heads in heads_by_line(model) for line in heads.lines):
        if not {*line.follows} <= FOLLOWED:
            raise ValueError(f"expected lines that go through the places one by one, got {line}")

    def steps(width: int) -> Iterator[tuple[Arrangement, tuple[bool, ...], Met]]:
        stream = model.stream_of(task.stream(width, data.form))
        for step, node in enumerate(nodes(model, stream, tokens_of(model, data, width))):
            right = (OUTPUT, step) if step < width else (CONSTANT, END_ID)
            kind, apart, read = arranged(node, right, width, number)
            yield kind, apart, Met(width, step, read)

    return of_all_widths(steps, model, least_width(task))


def of_all_widths(
    steps: Callable[[int], Iterable[tuple[Arrangement, tuple[bool, ...], Any]]], model: Transformer, least: int
) -> dict[Arrangement, Spread]:
    """The arrangements of steps of all widths from `least` on, from those of enough widths.

    Every place that a step reads is within `reach` of its own place, of an end of the number, or of the mirror image
    of its own place. Where these are more than 2 · `reach` + 1 places apart, what lies near one is not near, nor
    beside, what lies near another, and their distance changes nothing. So no arrangement is new once a width has
    room for all of them at that distance: the step between two ends or, with its mirror image, four in a row.
    """
    lines = [line for heads in heads_by_line(model) for line in heads.lines]
    farthest = 1 + max((abs(n) for line in lines for n in line.offset), default=0)  # an edge is one place further
    reach = max(1, len(lined_layers(model))) * farthest + 1  # rows before are moved by a place
    mirrored = any("first-place" in line.follows for line in lines)
    found: dict[Arrangement, dict[tuple[bool, ...], list]] = {}
    for width in range(least, least + (3 if mirrored else 2) * (2 * reach + 2) + 1):
        for kind, apart, met in steps(width):
            ends = found.setdefault(kind, {}).setdefault(apart, [met, met])
            ends[1] = met
    return {kind: (tuple(map(any, zip(*of, strict=True))), of[max(of, key=sum)]) for kind, of in found.items()}


def arranged(
    node: Node, right: Token, width: int, number: Number, names: dict[Token, Token] | None = None
) -> tuple[Arrangement, tuple[bool, ...], tuple[int, ...]]:
    """The arrangement of a step of a number, before which of its places, and whether before the end, there are
    unread ones, and the place that each place number in it stands for.

    `names` says what a token is to this step where its own name does not. Tokens with a place below −1 are at no
    place of the number and may be any digit.
    """
    called = {token: (names or {}).get(token, token) for token in node.tokens}
    places = {place for name, place in (*called.values(), right) if name != CONSTANT}
    read, others = sorted(p for p in places if p >= 0), sorted(p for p in places if p < -1)
    met = (*read, *others, -1)
    ranks = {place: n if place >= 0 else n - len(met) for n, place in enumerate(met)}

    def ranked(token: Token) -> Token:
        return token if token[0] == CONSTANT else (token[0], ranks[token[1]])

    kind = node.renamed({token: ranked(other) for token, other in called.items()})
    apart = tuple(after - before > 1 for before, after in pairwise([-1, *read, width]))
    return Arrangement(kind, ranked(right), number), apart, met


def leaves(model: Transformer, stream: Stream, tokens: list[Token]) -> list[Node]:
    """The nodes, before the first layer, of the tokens that self-attention sees."""
    rows = torch.arange(len(stream))
    kinds = 1 + stream.steps_at(rows)[0] if model.config.position == "kinds" else 0 * rows
    seen = zip(tokens[stream.source :], kinds.tolist(), strict=False)  # the last token is not read
    return [node_of((token,), kind=kind) for token, kind in seen]


def nodes(model: Transformer, stream: Stream, tokens: list[Token]) -> list[Node]:
    """The node of each step of an input; `tokens` are those of the whole stream, the source's first."""
    rows, found = torch.arange(len(stream)), leaves(model, stream, tokens)
    for layer, (of_self, of_cross) in zip(model.decoder, model.open_tokens(rows, stream), strict=True):
        selves = _read(of_self, layer.self_attention, rows)
        crosses = _read(of_cross, layer.cross_attention, 0 * rows) if of_cross is not None else [[]] * len(rows)
        found = [
            node_of(tuple([tokens[n] for n in cross]), own, tuple([found[n] for n in others]))
            for own, others, cross in zip(found, selves, crosses, strict=True)
        ]
    return found[-stream.rows :]


def _read(opened: torch.Tensor, attention: Attention, instead: torch.Tensor) -> list[list[int]]:
    """The token that each head reads, by row; heads that are cut read `instead`."""
    tokens = opened[:, :, 0].clone()
    tokens[attention.cut_heads] = instead
    return tokens.T.tolist()


def tokens_of(model: Transformer, data: TrainingData, width: int) -> list[Token]:
    """What each token of an input of this width is, the source's first."""
    batch = data.task.batch(data.task.smallest(width), data.form)
    ids = torch.cat([batch.source] * model.crossing + [model.sequence(batch), batch.target[:, -1:]], 1)[0]
    tokens, stream = [(CONSTANT, number) for number in ids.tolist()], model.stream_of(batch.stream)
    for segment in (*stream.operands, stream.segment(OUTPUT)):
        for place, token in enumerate(segment.tokens(segment.grid()).tolist()):
            tokens[token] = (segment.name, place)
    if data.task.second_is_digit:
        tokens[stream.segment(DIGIT).start] = (DIGIT, -1)
    return tokens


def windows_of(arrangement: Arrangement, apart: tuple[bool, ...], most: int | None = None) -> Windows:
    """Every window of an arrangement: the digit at each of its tokens, and the one that the step must write.

    `apart` says where any number of unread places may lie: before each place, and before the end.

    Raises:
        TooManyWindows: as in `check_count`.
    """
    number, tokens = arrangement.number, {*arrangement.node.tokens, arrangement.right}
    parts, shown = ([number.told], [(DIGIT, -1)]) if number.machine.shown else ([], [])
    for place, unread in enumerate(apart[:-1]):
        names = [name for name in number.names if (name, place) in tokens]
        parts += [number.past] * unread + [number.through(*names)]
        shown += [(name, place) for name in names]
    free = sorted(token for token in tokens if token[0] != CONSTANT and token[1] < -1)
    any_digit = {DONE: {((digit,), DONE) for digit in range(number.base)}}
    parts += [number.past] * apart[-1] + [any_digit] * len(free)
    digits = listed(parts, number.machine.starts, partial(check_count, most=most)).T.contiguous()
    return dict(zip(shown + free, digits, strict=True)) or {NOTHING: torch.zeros(1, dtype=torch.uint8)}


def shown(data: TrainingData, mets: list[Met], windows: Windows) -> list[tuple[Batch, int, Windows]]:
    """Whole inputs with each of these steps, and the windows that it has in them: those of `windows` that it can
    have; digits outside the window are random."""
    found = []
    for met in mets:
        tokens = {(name, met.read[rank]): digits for (name, rank), digits in windows.items()}
        operands, fits = inputs_with(tokens, data.task, met.width, count_of(windows))
        if fits.any():
            few = {token: digits[fits] for token, digits in windows.items()}
            found.append((data.task.batch(operands, data.form), met.step, few))
    return found


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
    index = torch.zeros(count, dtype=torch.int32)
    for column in columns:
        codes = index.long() * (int(column.max()) + 1) + column
        met = torch.zeros(int(codes.max()) + 1, dtype=torch.bool)
        met[codes] = True
        index = met.cumsum(0, dtype=torch.int32)[codes] - 1
    some = torch.empty(int(index.max()) + 1, dtype=torch.long)
    some[index] = torch.arange(count)
    return some, index
