"""The coordinates of an input's tokens and the counters of its steps, in which lines are written.

A *segment* is a set of tokens in a grid: the digits of an operand (coordinate: the place, units 0), those of many
operands (operand and place), the digits of an output written in rows (row and place), the separators that end these
rows (row), or one structural token (no coordinate). Every token is in one segment.

A *step* writes one token of the output. It has two counters, the row and the place of the token that it writes,
and a kind: digits of different rows (a row of products, a row of sums) and the ends of rows are written by
different kinds of steps. An output that is one number has one row.

A *stream* is a whole input with its output. In a decoder-only model it is one causal sequence, `$123+748=1780&`.
In an encoder-decoder, attention to it is split into two softmaxes: cross-attention to the source `$123+748&`, and
self-attention to the start token and the output so far, `$1780`. Rows and columns of an attention matrix are
counted within their part, from 0. The row of a token writes the token after it, so the start token, or the
prompt's last, makes the first step. The end token stands at the next row, or at the next place of a single row.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F

NO_PLACE = -2  # the place of a token that has none
COLUMN = "column"  # a segment of the whole source, counted from the right edge of the attention matrix
PROMPT = -1  # the kind of a matrix row that writes no output
COUNTERS = ("row", "place")


def locate(columns: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Index of each wanted column in sorted `columns`, −1 where it is missing."""
    index = torch.searchsorted(columns, wanted.contiguous()).clamp(max=len(columns) - 1)
    return torch.where(columns[index] == wanted, index, -1)


@dataclass(frozen=True)
class Segment:
    """Tokens in a grid: the one at coordinates x is token `start + Σ strides · x`.

    Attributes:
        shape: how many tokens each coordinate counts; () for a single structural token.
        reach: how far the last coordinate may run past either end of the grid, onto neighbouring tokens.
        counters: the counter of the step, `row` or `place`, that each coordinate corresponds to in the task; for
            lines by hand and coupled positions.
        outside: with a reach of 1, the tokens at −1 and past the end, if they are not the neighbours by stride.
        ends: whether its end is known even while it is being written, so that lines may count from there.
    """

    name: str
    start: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    reach: int = 0
    counters: tuple[str, ...] = ()
    outside: tuple[int, int] | None = None
    ends: bool = True

    def tokens(self, coordinates: list[torch.Tensor]) -> torch.Tensor:
        """The token at each of the coordinates (tensors of one shape, one per dimension); −1 if there is none."""
        token = torch.full_like(coordinates[0], self.start)
        inside = torch.ones_like(token, dtype=torch.bool)
        reaches = (*[0] * (len(self.shape) - 1), self.reach)
        for x, size, stride, reach in zip(coordinates, self.shape, self.strides, reaches, strict=False):
            inside &= (x >= -reach) & (x < size + reach)
            token = token + stride * x
        if self.outside:
            below, above = self.outside
            token = torch.where(x == -1, below, torch.where(x == size, above, token))
        return torch.where(inside, token, -1)

    def grid(self) -> list[torch.Tensor]:
        """The coordinates of all its tokens, not those in reach: one [tokens] per dimension; 0 if structural."""
        return [*torch.ones(self.shape).nonzero(as_tuple=True)]


@dataclass(frozen=True)
class Table(Segment):
    """Tokens at no regular strides: `listed` has the one at each grid point, row by row; −1 for none."""

    listed: tuple[int, ...] = ()

    @cached_property
    def _bordered(self) -> torch.Tensor:
        """The tokens in their grid, and −1 past the end of each dimension."""
        return F.pad(torch.tensor(self.listed).view(self.shape), (0, 1) * len(self.shape), value=-1)

    def tokens(self, coordinates: list[torch.Tensor]) -> torch.Tensor:
        inside = [torch.where((x >= 0) & (x < n), x, n) for x, n in zip(coordinates, self.shape, strict=True)]
        return self._bordered.to(inside[0].device)[tuple(inside)]

    def grid(self) -> list[torch.Tensor]:
        return [*(self._bordered >= 0).nonzero(as_tuple=True)]


@dataclass(frozen=True, eq=False)
class Stream:
    """The coordinates of an input and its output.

    Attributes:
        segments: those of prompt and output.
        prompt: the number of tokens before the output: the source and the start token, or `$` to `=`.
        kinds: names of the kinds of steps, each named after the segment whose tokens its steps write.
        shape: sizes of the input: digits of the operands, as the task counts them.
        kind, row, place: [steps], the kind (an index into `kinds`) and counters of each step.
        source: the number of tokens in the source, which cross-attention sees; 0 in one causal sequence.
    """

    segments: tuple[Segment, ...]
    prompt: int
    kinds: tuple[str, ...]
    shape: tuple[int, ...]
    kind: torch.Tensor
    row: torch.Tensor
    place: torch.Tensor
    source: int = 0

    def __post_init__(self):
        names = [segment.name for segment in self.segments]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"expected a name of its own for each segment, got {', '.join(sorted(twice))} twice")

    def __len__(self) -> int:
        """Rows of the self-attention matrix: all tokens of its part except the last, which is never read."""
        return self.prompt - self.source + len(self.kind) - 1

    @property
    def width(self) -> int:
        """The first size of the shape: for numbers, the digits that operands are padded to."""
        return self.shape[0]

    @property
    def rows(self) -> int:
        """The number of steps, the end token's included."""
        return len(self.kind)

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.kind.device

    def segment(self, name: str) -> Segment:
        """The segment of that name; raises ValueError if there is none."""
        known = {segment.name: segment for segment in self.segments}
        if name in known:
            return known[name]
        if name == COLUMN and self.source:
            return Segment(COLUMN, self.source - 1, (self.source,), (-1,))
        raise ValueError(
            f"expected a segment among {', '.join(known)}, got {name!r}; "
            "use lines on the task that they were made for"
        )

    def is_output(self, segment: Segment) -> bool:
        """Whether the model writes a segment's tokens."""
        return segment.start >= self.prompt

    def is_crossed(self, name: str) -> bool:
        """Whether cross-attention sees the tokens of the segment of that name; raises as `segment` does."""
        return self.segment(name).start < self.source

    @property
    def operands(self) -> tuple[Segment, ...]:
        """The segments of the numbers in the source or prompt."""
        return tuple(s for s in self.segments if s.reach and not self.is_output(s))

    def steps_at(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Kind, row and place of the steps that rows of the attention matrix make; kind `PROMPT` if none."""
        step = rows - (self.prompt - 1 - self.source)
        known = step.clamp(min=0)
        return torch.where(step >= 0, self.kind[known], PROMPT), self.row[known], self.place[known]

    def columns(self, crossing: bool = False) -> "Columns":
        """All columns of cross-attention, or of self-attention."""
        count = self.source if crossing else len(self)
        return Columns(self, torch.arange(count, device=self.device), crossing)

    def to(self, device: str | torch.device) -> "Stream":
        """The same stream with its tensors on a device."""
        if self.device == torch.device(device):
            return self
        return replace(self, **{name: getattr(self, name).to(device) for name in ("kind", "row", "place")})

    @cached_property
    def own_places(self) -> torch.Tensor:
        """[tokens], the place of each digit in its own number or row; `NO_PLACE` for other tokens."""
        return self._of_tokens((s, len(s.shape) - 1) for s in self.segments if s.reach)

    @lru_cache(maxsize=8)  # noqa: B019  one per counter of the streams in use
    def levels(self, counter: str) -> torch.Tensor:
        """[tokens], the coordinate of each token that corresponds to a counter; `NO_PLACE` if none does."""
        return self._of_tokens((s, s.counters.index(counter)) for s in self.segments if counter in s.counters)

    def _of_tokens(self, dimensions: Iterable[tuple[Segment, int]]) -> torch.Tensor:
        values = torch.full((self.source + len(self) + 1,), NO_PLACE)
        for segment, dimension in dimensions:
            grid = segment.grid()
            values[segment.tokens(grid)] = grid[dimension]
        return values[:-1].to(self.device)


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of an attention matrix: of a stream's source if `crossing`, else of the decoder's sequence.

    `index` holds the number of each column within its part, [n], sorted.
    """

    stream: Stream
    index: torch.Tensor
    crossing: bool = False

    def __len__(self) -> int:
        return len(self.index)

    @property
    def total(self) -> int:
        """Columns of the whole part."""
        return self.stream.source if self.crossing else len(self.stream)

    @property
    def tokens(self) -> torch.Tensor:
        """[n], the number of each column's token in the whole stream."""
        return self.index if self.crossing else self.index + self.stream.source


def of_number(
    shape: tuple[int, ...],
    operands: tuple[Segment, ...],
    structure: dict[str, int],
    source: int,
    steps: int | dict[str, int],
) -> Stream:
    """The stream of an encoder-decoder whose output is one number, or a few written one after another.

    Args:
        shape: sizes of the input.
        operands, structure: the segments of the source's operands, and the columns of its other tokens, by name.
        source: the number of tokens in the source.
        steps: those of the output, end token included; or those of each number by name, end token in the last.
    """
    steps = steps if isinstance(steps, dict) else {"digits": steps}
    counts = torch.tensor([*steps.values()])
    starts = counts.cumsum(0) - counts
    segments = [*operands, *(Segment(*token) for token in structure.items()), Segment("start", source)]
    for (name, count), start in zip(steps.items(), starts.tolist(), strict=True):
        segments.append(Segment(name, source + 1 + start, (count,), (1,), 1, ("place",)))
    kind = torch.repeat_interleave(torch.arange(len(counts)), counts)
    place = torch.arange(len(kind)) - starts[kind]
    return Stream(tuple(segments), source + 1, tuple(steps), shape, kind, torch.zeros_like(kind), place, source)


def of_matrix(stream: Stream) -> Stream:
    """The same input of an encoder-decoder in the paper's frame, the attention matrix: its source is one `COLUMN`."""
    own = (segment for segment in stream.segments if not stream.is_crossed(segment.name))
    return replace(stream, segments=(stream.segment(COLUMN), *own))


def written_before(name: str, units: int, width: int) -> Segment:
    """The segment of a number written most significant digit first, with its units at column `units`."""
    return Segment(name, units, (width,), (-1,), 1, ("place",))


@lru_cache(maxsize=256)
def in_one(stream: Stream) -> Stream:
    """The same as one causal sequence, with `=` for the source's end and the start token; itself if it is one."""
    if not stream.source:
        return stream
    end = stream.source - 1
    read = [
        replace(s, name="=") if s.start == end and not s.shape else s for s in stream.segments if s.start <= end
    ]
    written = [replace(s, start=s.start - 1) for s in stream.segments if stream.is_output(s)]
    return replace(stream, segments=(*read, *written), prompt=stream.source, source=0)


def in_rows(
    shape: tuple[int, int],
    prompt: tuple[Segment, ...],
    prompt_length: int,
    names: tuple[str, ...],
    rows: int,
    widths: tuple[int, ...],
) -> Stream:
    """One causal sequence whose output is `rows` rounds, each with one row of each name, and the end token.

    Args:
        shape: sizes of the input.
        prompt, prompt_length: the segments of the prompt, and how many tokens it has.
        names, widths: of the rows of a round, in order; their digits, without the separator that ends each.
        rows: the number of rounds.
    """
    tokens = torch.tensor(widths) + 1
    stride, starts = int(tokens.sum()), tokens.cumsum(0) - tokens
    outputs, kinds = [], []
    for name, width, within in zip(names, widths, starts.tolist(), strict=True):
        start = prompt_length + within
        outputs.append(Segment(name, start, (rows, width), (stride, 1), 1, COUNTERS))
        outputs.append(Segment(f"{name} end", start + width, (rows,), (stride,), 0, ("row",)))
        kinds += [name, f"{name} end"]
    steps = torch.arange(rows * stride + 1)
    number = torch.searchsorted(starts, steps % stride, right=True) - 1
    place = steps % stride - starts[number]
    kind = 2 * number + (place == tokens[number] - 1)
    return Stream((*prompt, *outputs), prompt_length, tuple(kinds), shape, kind, steps // stride, place)
