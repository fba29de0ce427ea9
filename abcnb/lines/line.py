"""Lines: offsets between the counters of a step and the coordinates of the token that it looks at.

A line belongs to a kind of step and a segment, says which counter each of the segment's coordinates follows, and adds
an offset. A coordinate counts from its 0, such as the units of a number, or from its other end, the first digit:

    follows       coordinate of the token looked at       printed
    none          offset                                  a[3]
    place         place + offset                          a[place-1]
    2place        2 · place + offset                      a[2place]
    first         last − offset                           a[first]
    first-place   last − (place + offset)                 a[first-place]

and likewise with `row`. A structural token has no coordinates, so it is one line. Being written in coordinates,
lines mean the same at every length, and a step opens at most one token per line. A row of the attention matrix
that no line of a head reaches sees the start token, which looks like nothing else.

Source: paper, appendix D, for lines over matrix columns, counted from the matrix's edges; coordinates of tokens
are this project's.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import cycle
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import torch

from abcnb.lines.biases import CLOSED, Biases
from abcnb.lines.coordinates import Columns, Segment, Stream

START_TOKEN = 0  # the first column of either attention, seen by a row without a line


class Follows(NamedTuple):
    """What a coordinate follows: slope · counter, from its 0 or from its last value."""

    counter: str
    slope: int
    from_first: bool


FOLLOWS = {
    f"{'first-' * from_first}{slope if slope > 1 else ''}{counter}": Follows(counter, slope, from_first)
    for from_first in (False, True)
    for counter in ("place", "row")
    for slope in (1, 2)
} | {"none": Follows("", 0, False), "first": Follows("", 0, True)}


class Line(NamedTuple):
    """One open line of one head, for steps of one kind."""

    head: int
    step: str
    segment: str
    follows: tuple[str, ...] = ()
    offset: tuple[int, ...] = ()

    def __str__(self) -> str:
        at = []
        for follows, offset in zip(self.follows, self.offset, strict=True):
            shown = -offset if FOLLOWS[follows].from_first else offset
            name = "" if follows == "none" else follows
            at.append(f"{name}{shown:+d}" if name and shown else name or str(shown))
        return f"{self.segment}[{', '.join(at)}]" if at else self.segment


def tokens_on(line: Line, segment: Segment, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The token (of the whole stream) that a line opens at these rows and places; −1 outside its segment."""
    coordinates = []
    for follows, add, size in zip(line.follows, line.offset, segment.shape, strict=True):
        counter, slope, from_first = FOLLOWS[follows]
        x = slope * (row if counter == "row" else place) + add
        coordinates.append(size - 1 - x if from_first else x)
    return segment.tokens(coordinates or [row])


class SavedLines:
    """Base of dataclasses saved as JSON, whose `lines` are named tuples of their `line_type`."""

    line_type: ClassVar[type]

    def as_dict(self) -> dict:
        """Its fields, as JSON can hold them."""
        return asdict(self) | {"lines": [line._asdict() for line in self.lines]}

    @classmethod
    def of_dict(cls, content: dict) -> Self:
        """Rebuild the lines from what `as_dict` returned, or from JSON made of it."""
        lines = [
            {name: tuple(part) if isinstance(part, list) else part for name, part in dict(line).items()}
            for line in content["lines"]
        ]
        return cls(**content | {"lines": tuple(cls.line_type(**line) for line in lines)})

    def save(self, file: Path | str) -> None:
        """Write the lines as JSON."""
        Path(file).write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, file: Path | str) -> Self:
        """Read what `save` wrote; raises ValueError if the file holds no such lines."""
        try:
            return cls.of_dict(json.loads(Path(file).read_text()))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"expected the lines of a {cls.__name__} as JSON in {file}, got: {error}") from error


@dataclass(frozen=True)
class LineBias(SavedLines):
    """An attention bias made of the lines of all heads and kinds of steps: 0 on their tokens, −∞ elsewhere.

    Raises:
        ValueError: an attention that is neither `self` nor `cross`, a head out of range, an unknown counter, or
            anything but one whole offset per counter.
    """

    line_type = Line
    attention: str
    heads: int
    lines: tuple[Line, ...]

    def __post_init__(self):
        if self.attention not in ("self", "cross"):
            raise ValueError(f"expected an attention among ('self', 'cross'), got {self.attention!r}")
        check_heads(self.heads)
        for line in self.lines:
            if type(line.head) is not int or not 0 <= line.head < self.heads:
                raise ValueError(f"expected a head from 0 to {self.heads - 1}, got {line!r}")
            tuples = isinstance(line.follows, tuple) and isinstance(line.offset, tuple)
            whole = tuples and all(type(offset) is int for offset in line.offset)
            if not whole or set(line.follows) - set(FOLLOWS) or len(line.follows) != len(line.offset):
                known = ", ".join(FOLLOWS)
                raise ValueError(
                    f"expected counters among {known} and a whole offset for each, as tuples, got {line!r}"
                )

    @cached_property
    def _groups(self) -> dict[tuple[int, str], list[Line]]:
        """The lines by head and kind of step."""
        groups = defaultdict(list)
        for line in self.lines:
            groups[line.head, line.step].append(line)
        return groups

    @property
    def most(self) -> int:
        """The most lines that any head has for one kind of step, at least 1."""
        return max(map(len, self._groups.values()), default=1)

    def open_tokens(self, rows: torch.Tensor, stream: Stream) -> torch.Tensor:
        """The columns that rows of the attention matrix open, [heads, rows, most lines], padded with −1.

        In each row no column is listed twice, none lies in the future, and there is at least one.

        Raises:
            ValueError: a line whose segment, coordinates or kind of step the stream does not have.
        """
        found = self.on_lines(rows, stream)
        found[..., 0] = torch.where((found < 0).all(-1), START_TOKEN, found[..., 0])
        return found

    def on_lines(self, rows: torch.Tensor, stream: Stream) -> torch.Tensor:
        """As `open_tokens`, but a row that no line reaches has only −1."""
        crossing = self.attention == "cross"
        if crossing and not stream.source:
            raise ValueError(
                "expected the stream of an encoder-decoder for lines of cross-attention, got one sequence"
            )
        kind, row, place = stream.steps_at(rows)
        found = torch.full((self.heads, len(rows), self.most), -1, device=rows.device)

        @cache  # heads mostly share lines
        def opened(line: Line) -> torch.Tensor:
            _check(line, stream, crossing)
            tokens = tokens_on(line, stream.segment(line.segment), row, place) - (0 if crossing else stream.source)
            seen = (kind == stream.kinds.index(line.step)) & (tokens >= 0)
            return torch.where(seen & (tokens < stream.source if crossing else tokens <= rows), tokens, -1)

        for (head, _), lines in self._groups.items():
            for k, line in enumerate(lines):
                tokens = opened(line._replace(head=0))
                new = (tokens >= 0) & (found[head, :, :k] != tokens[:, None]).all(-1)
                found[head, :, k] = torch.where(new, tokens, found[head, :, k])
        return found

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias of rows and columns, [heads, rows, columns]."""
        found, total = self.open_tokens(rows, columns.stream), columns.total
        # One extra column takes the −1 of the padding.
        bias = torch.full((self.heads, len(rows), total + 1), CLOSED, device=rows.device)
        bias.scatter_(2, torch.where(found < 0, total, found), 0.0)
        return bias[..., :total] if len(columns) == total else bias[..., columns.index]


def _check(line: Line, stream: Stream, crossing: bool) -> None:
    dimensions = len(stream.segment(line.segment).shape)
    if len(line.follows) != dimensions:
        raise ValueError(
            f"expected a counter for each of {dimensions} coordinates of {line.segment!r}, got {line!r}"
        )
    if any(FOLLOWS[follows].from_first for follows in line.follows) and not stream.segment(line.segment).ends:
        raise ValueError(
            f"expected lines that count from where {line.segment!r} begins, since its end is not known yet, got {line}"
        )
    if stream.is_crossed(line.segment) != crossing:
        raise ValueError(
            f"expected lines to tokens that this attention sees, got {line!r} in "
            f"{'cross' if crossing else 'self'}-attention"
        )
    if line.step not in stream.kinds:
        raise ValueError(
            f"expected lines of steps among {', '.join(stream.kinds)}, got {line.step!r}; "
            "use lines on the task that they were made for"
        )


def dealt(attention: str, heads: int, lines: Iterable[Line]) -> LineBias:
    """Deal each kind of step's lines, most important first, to heads in turn until all lines and heads are used.

    With at least as many heads as lines, no head has to tell the tokens of several lines apart.
    """
    check_heads(heads)
    by_step = defaultdict(dict)  # a dictionary keeps each line once, in order
    for line in lines:
        by_step[line.step][line._replace(head=0)] = None
    found = [
        line._replace(head=number % heads)
        for of_step in by_step.values()
        for number, line in zip(range(max(heads, len(of_step))), cycle(of_step), strict=False)
    ]
    return LineBias(attention, heads, tuple(found))


def parted(lines: Iterable[Line], stream: Stream) -> tuple[list[Line], list[Line]]:
    """The lines of self-attention, and those of cross-attention."""
    parts = ([], [])
    for line in lines:
        parts[stream.is_crossed(line.segment)].append(line)
    return parts


def deal(lines: Iterable[Line], stream: Stream, heads: int) -> Biases:
    """Lines, most important first, dealt to the heads of each attention of a model, the same in all its layers.

    The stream may have any shape of the task, in the form that the model's architecture reads.
    """
    of_self, of_cross = parted(lines, stream)
    crosses = (dealt("cross", heads, of_cross),) if stream.source else ()
    return Biases((dealt("self", heads, of_self),), crosses)


def by_hand(stream: Stream, heads: int, offsets: dict[str, tuple[tuple[str, tuple[int, ...]], ...]]) -> Biases:
    """ABS: lines written by hand, dealt to the heads.

    `offsets` has, for each kind of step, the segments that it looks at and their offsets; each coordinate follows
    the counter that it corresponds to in the task (`Segment.counters`).

    Source: paper, appendix C.4, for windows over one number; one line per head, and rows, are this project's.
    """
    lines = [
        Line(0, step, segment, stream.segment(segment).counters, offset)
        for step, seen in offsets.items()
        for segment, offset in seen
    ]
    return deal(lines, stream, heads)


def windows(stream: Stream, heads: int, w: int = 1, sides: str = "past") -> Biases:
    """The paper's ABS: the windows of both attentions, the same for all heads and layers.

    In cross-attention a step sees its own place in every operand that has places, and w places beside it; in
    self-attention, its own input and w inputs before it. The w places are those already processed (`sides="past"`,
    the authors' code) or w on either side (`both`, the paper's text). The stream may have any shape of the task.

    Raises:
        ValueError: one causal sequence, several outputs, fewer than 1 head, w below 0, or unknown sides.

    Source: paper, appendix C.4 "Windowed Attention Biasing".
    """
    check_window(w, sides)
    if not stream.source or len(stream.kinds) > 1:
        got = f"outputs {', '.join(stream.kinds)}" if stream.source else "one sequence; use lines_by_hand"
        raise ValueError(f"expected the stream of an encoder-decoder for windows, with one output, got {got}")
    (step,), (output,) = stream.kinds, (s for s in stream.segments if stream.is_output(s))
    beside = range(-w, w + 1 if sides == "both" else 1)
    own = [(output.name, -1 - lag) for lag in range(w + 1)]
    crossed = [(operand.name, offset) for operand in stream.operands for offset in beside]

    def of_all_heads(attention: str, seen: list[tuple[str, int]]) -> LineBias:
        lines = [Line(head, step, name, ("place",), (n,)) for head in range(heads) for name, n in seen]
        return LineBias(attention, heads, tuple(lines))

    return Biases((of_all_heads("self", own),), (of_all_heads("cross", crossed),))


def in_first_layer(biases: Biases, layers: int) -> Biases:
    """Keep lines in the first of `layers` layers only; in the others every row sees the start token.

    A step then depends on the tokens of its own lines, not on what those tokens have read.
    """
    if any(len(part) > 1 or not all(isinstance(bias, LineBias) for bias in part) for part in biases):
        raise ValueError("expected lines that are the same in all layers, got other biases")
    closed = (tuple(replace(bias, lines=()) for bias in part) for part in biases)
    return Biases(*((*part, *other * (layers - 1)) for part, other in zip(biases, closed, strict=True)))


def check_heads(heads: int) -> None:
    """Raise ValueError unless `heads` is a whole number of at least 1."""
    if type(heads) is not int or heads < 1:
        raise ValueError(f"expected heads as a whole number of at least 1, got {heads!r}")


def check_window(w: int, sides: str) -> None:
    """Raise ValueError if w is below 0 or sides are unknown."""
    if w < 0 or sides not in ("past", "both"):
        raise ValueError(f"expected w ≥ 0 and sides 'past' or 'both', got {w} and {sides!r}")
