"""Outputs in rows, of any number of rows of any length: products of two numbers and sums of many terms.

A row is a number written place by place, like the output of a task: a row of products is a times a digit of b, a
row of running sums is the row of products, or the term, plus the previous sum. What a row is made of was written
earlier or is in the prompt, so the induction runs over rows and places. Any other digit that a step sees, unless it
is padding, is taken as arbitrary, which may ask too much of a model, never too little. If a line's coordinate follows
the other counter or runs at twice the pace, its heads may read any token of a segment (`anywhere`).
"""

from collections.abc import Iterator
from functools import cache, lru_cache, partial
from typing import NamedTuple

import torch

from abcnb.lines.coordinates import Segment, Stream
from abcnb.lines.line import Line
from abcnb.model.transformer import Transformer
from abcnb.proof.anywhere import Anything, Loose, all_read, anywhere, called, loosened
from abcnb.proof.lists import KNOWN
from abcnb.proof.places import DIGIT, OUTPUT, Number
from abcnb.proof.windows import (
    CONSTANT,
    FOLLOWED,
    Arrangement,
    Case,
    Node,
    Token,
    Windows,
    arranged,
    count_of,
    heads_by_line,
    lined_layers,
    nodes,
    of_all_widths,
    windows_of,
)
from abcnb.tasks.arithmetic import carrying, running, times_a_digit
from abcnb.tasks.digits import Operands
from abcnb.tasks.rows import RowTask
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import IDS
from abcnb.tasks.training_data import TrainingData, generator_for

FREE = "free"  # a digit that may be any; its place is −2 minus its token's number
FIXED = {"row": {"row", "none", "first"}, "place": FOLLOWED}  # what a coordinate at a fixed distance may follow
EXTREME = 0.5  # share of digits set to 0 or the largest in inputs that show windows


class Seen(NamedTuple):
    """A step of inputs of these sizes, the number of each token that it reads or writes, and what heads
    read whose lines keep no fixed distance, by the token that stands for it."""

    sizes: tuple[int, ...]
    step: int
    numbers: dict[Token, int]
    read: dict[Token, Node]


@cache
def numbers_of(task: RowTask) -> dict[str, Number]:
    """What rows are as numbers, by name; the first sum is `copied`, and the one after it adds two terms."""
    base = task.base
    copied = Number(base, running(base, lambda _, digit: digit), ("a", OUTPUT), ())
    ended = ("a",) if task.has_terms else ("b",)  # terms are padded; a sum moved by a place is shorter
    added, two = (Number(base, carrying(base, torch.add), ("a", "b", OUTPUT), of) for of in (ended, ("a", "b")))
    times = Number(base, times_a_digit(base), ("a", OUTPUT), ("a",))
    return {"copied": copied, "sums": added, "two terms": two, "products": times}


def names_in(stream: Stream, name: str, row: int, terms: bool) -> dict[int, Token]:
    """What an input's digits are to the steps of a row, by token number; digits that play no part are left out."""
    moved, found = 0 if terms else 1, {}
    for padded in ("terms", "sums") if terms else ():  # of the sums the first, a copy of a term
        segment = stream.segment(padded)
        for token, first, place in digits_of(segment):
            if place == segment.shape[1] - 1 and (padded == "terms" or first == 0):
                found[token] = (CONSTANT, IDS["0"])
    if name == "products":
        parts = [("a", "a", None, 0), (DIGIT, "b", row, 0)]
    else:
        parts = [("a", "terms" if terms else "products", row, 0), ("b", "sums", row - 1, moved)]
    for named, segment, at, places in [*parts, (OUTPUT, name, row, 0)]:
        segment = stream.segment(segment)
        for token, first, place in digits_of(segment):
            if at in (None, first) and place >= places:
                found[token] = (named, -1 if segment.counters == ("row",) else place - places)
    return found


@lru_cache(maxsize=16)
def digits_of(segment: Segment) -> list[tuple[int, int, int]]:
    """The number of each token of a segment, with its first and last coordinates."""
    grid = segment.grid()
    return [*zip(segment.tokens(grid).tolist(), grid[0].tolist(), grid[-1].tolist(), strict=True)]


def tokens_of(batch: Batch) -> list[Token]:
    """What each token of an input is: a digit that may be any, or a structural token."""
    tokens = [(CONSTANT, number) for number in torch.cat([batch.source, batch.target[:, :-1]], 1)[0].tolist()]
    for segment in batch.stream.segments:
        for token in segment.tokens(segment.grid()).tolist() if segment.reach else ():
            tokens[token] = (FREE, -2 - token)
    return tokens


def anything(model: Transformer, task: RowTask) -> tuple[Loose, Anything]:
    """The heads whose lines keep no fixed distance, and what they may read; 3 rows and places have all tokens."""
    small = task.batch(drawn(task, task.size(3, 3), 1, torch.Generator()))
    return anywhere(model, small.stream, tokens_of(small), lambda line: is_fixed(line, small.stream))


def is_fixed(line: Line, stream: Stream) -> bool:
    """Whether a line keeps a fixed distance from a step, or from an end, in rows and in places."""
    counters = stream.segment(line.segment).counters
    return all(follows in FIXED[of] for of, follows in zip(counters, line.follows, strict=True))


def steps_of(
    model: Transformer, task: RowTask, sizes: tuple[int, ...], loose: Loose
) -> Iterator[tuple[Arrangement, tuple[bool, ...], Seen]]:
    """Yield what `arranged` says of each step of inputs of these sizes, and where it was met."""
    numbers = numbers_of(task)
    batch = task.batch(drawn(task, sizes, 1, torch.Generator()))
    stream, tokens = batch.stream, tokens_of(batch)
    kinds, rows, places = stream.kind, stream.row, stream.place

    @cache
    def of_row(name: str, row: int) -> tuple[dict[Token, Token], dict[Token, int]]:
        """What tokens are to the steps of a row, and the number of each."""
        names = names_in(stream, name, row, task.has_terms)
        return {tokens[number]: token for number, token in names.items()}, {t: n for n, t in names.items()}

    for step, node in enumerate(nodes(model, stream, tokens)):
        kind, row, last = stream.kinds[kinds[step]], int(rows[step]), step == stream.rows - 1
        name = kind.removesuffix(" end")
        width, (called_here, known) = stream.segment(name).shape[-1], of_row(name, row)
        place = width if last else int(places[step])
        right = (OUTPUT, place) if place < width else (CONSTANT, int(batch.target[0, step]))
        node, read = loosened(node, loose[kind])
        number = "copied" if name == "sums" and row == 0 else name
        # The first sum's padding is no digit that such a step adds. One that adds it is asked about any digit there.
        elsewhere = task.has_terms and row == 1 and place != width - 1
        if elsewhere and ("b", width - 1) in map(called_here.get, node.tokens):
            number = "two terms"
        one, apart, met = arranged(node, right, width, numbers[number], called_here)
        known = known | {
            token: -2 - other.reads[0][1] for token, other in read.items() if other.reads[0][0] == FREE
        }
        seen = {}
        for token, rank in (*one.node.tokens, one.right):
            # Others stand for structural tokens.
            if token == FREE or (token != CONSTANT and (token, met[rank]) in known):
                seen[token, rank] = -2 - met[rank] if token == FREE else known[token, met[rank]]
        yield one, apart, Seen(sizes, step, seen, {token: called(token, other) for token, other in read.items()})


def cases(model: Transformer, data: TrainingData) -> list[Case]:
    """All that steps of outputs in rows can see.

    Raises:
        ValueError: if layers after the first have lines, whose windows would be too many.
    """
    task, farthest = data.task, 1  # what a row is made of is in the row before
    if lined_layers(model) - {0}:
        raise ValueError("expected lines in the first layer alone, as with look_once=True, got them in others")
    lines = (line for heads in heads_by_line(model) for line in heads.lines)
    for line in filter(lambda line: is_fixed(line, data.stream), lines):
        counters = data.stream.segment(line.segment).counters
        for counter, offset in zip(counters, line.offset, strict=True):
            farthest = max(farthest, abs(offset)) if counter == "row" else farthest
    loose, read_anywhere = anything(model, task)
    # Enough rows to keep apart those near either end and those near the step's, each with one more beside them.
    counts = range(task.has_terms + 1, 4 * farthest + 6)

    def steps(width: int) -> Iterator[tuple[Arrangement, tuple[bool, ...], Seen]]:
        for count in counts:
            sizes = task.size(count, width) if task.has_terms else (width, count)
            yield from steps_of(model, task, sizes, loose)

    found: list[Case] = []
    for kind, (apart, met) in of_all_widths(steps, model, 1).items():
        for node, read in all_read(kind.node, read_anywhere):
            one, fits = kind._replace(node=node), tuple(seen for seen in met if seen.read.items() >= read.items())
            found.append((one.node, one.right, partial(windows_of, one, apart), partial(shown, task, fits)))
    return found


def drawn(task: RowTask, sizes: tuple[int, ...], count: int, generator: torch.Generator) -> Operands:
    """Random operands of these numbers of digits, more than half of which are 0 or the largest."""
    operands = []
    for digits in sizes:
        picked, ends = torch.rand(2, count, digits, generator=generator)
        extreme = (ends < 0.5) * (task.base - 1)
        any_digit = torch.randint(task.base, (count, digits), generator=generator)
        operands.append(torch.where(picked < EXTREME, extreme, any_digit))
    return task.shaped(tuple(operands))


def shown(task: RowTask, met: tuple[Seen, ...], windows: Windows) -> list[tuple[Batch, int, Windows]]:
    """Random inputs with the step, and the windows that it has in them."""
    found, generator = [], generator_for("windows", 0)
    for sizes, step, numbers, _ in met:
        batch = task.batch(drawn(task, sizes, count_of(windows), generator))
        whole = torch.cat([batch.source, batch.target], 1)
        digits = {token: (whole[:, number, None] == KNOWN).long().argmax(1) for token, number in numbers.items()}
        found.append((batch, step, digits or windows))
    return found
