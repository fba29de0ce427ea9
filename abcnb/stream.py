"""One causal stream, `$123*45=5160+5160*2940+3550*&`: coordinates of its tokens, and counters of its steps.

A *segment* is a set of tokens in a grid: the digits of an operand (coordinate: the place, units 0), those of many
operands (operand and place), the digits of an output written in rows (row and place), the separators that end these
rows (row), or one structural token (no coordinate). Every token of a stream is in one segment.

A *step* writes one token of the output and has two counters, the row and the place of the token that it writes, and
a kind: digits of different rows (a row of products, a row of sums) and the ends of rows are steps of different
kinds. An output that is one number has one row. Row t of the attention matrix belongs to the input token t and
writes token t + 1, so the prompt's last token makes the first step.

The end token stands where a further row would begin, or a further place in an output of one row.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from abcnb.layout import NO_PLACE, Layout

PROMPT = -1  # the kind of a matrix row that writes no output


@dataclass(frozen=True)
class Segment:
    """Tokens in a grid: the one at coordinates x is token `start + Σ strides · x`.

    Attributes:
        name: its name in lines.
        start: the token at coordinates 0.
        shape: how many tokens each coordinate counts; () for a single structural token.
        strides: tokens from one value of each coordinate to the next.
        reach: how far the last coordinate may run past either end of the grid, on neighbouring tokens.
        counters: the counter of the step, `row` or `place`, that each coordinate corresponds to in the task: what
            lines by hand and coupled positions are told, and calibration of the output's tokens only.
    """

    name: str
    start: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    reach: int = 0
    counters: tuple[str, ...] = ()

    def tokens(self, coordinates: list[torch.Tensor]) -> torch.Tensor:
        """The token at each of the coordinates, one tensor per dimension, all of one shape; −1 where there is none."""
        token = torch.full_like(coordinates[0], self.start)
        inside = torch.ones_like(token, dtype=torch.bool)
        last = len(self.shape) - 1
        for i, (x, size, stride) in enumerate(zip(coordinates, self.shape, self.strides, strict=False)):
            reach = self.reach if i == last else 0
            inside &= (x >= -reach) & (x < size + reach)
            token = token + stride * x
        return torch.where(inside, token, -1)

    def grid(self) -> list[torch.Tensor]:
        """The coordinates of all its tokens, without those in reach: one [tokens] per dimension."""
        if not self.shape:
            return [torch.zeros(1, dtype=torch.long)]
        axes = torch.meshgrid(*(torch.arange(size) for size in self.shape), indexing="ij")
        return [axis.flatten() for axis in axes]


@dataclass(frozen=True, eq=False)
class Stream:
    """The coordinates of a prompt and its output.

    Attributes:
        segments: of prompt and output.
        prompt: tokens of the prompt, from `$` to `=`.
        kinds: names of the kinds of steps, each that of the segment whose tokens such steps write.
        shape: sizes of the input: digits of the operands, as the task counts them.
        kind, row, place: [steps], the kind (an index into `kinds`) and counters of each step.
    """

    segments: tuple[Segment, ...]
    prompt: int
    kinds: tuple[str, ...]
    shape: tuple[int, ...]
    kind: torch.Tensor
    row: torch.Tensor
    place: torch.Tensor

    def __len__(self) -> int:
        """Rows of the attention matrix: all tokens but the last, which is never read."""
        return self.prompt + len(self.kind) - 1

    @property
    def rows(self) -> int:
        """Steps, the end token's included."""
        return len(self.kind)

    def segment(self, name: str) -> Segment:
        """The segment of that name.

        Raises:
            ValueError: there is none.
        """
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise ValueError(
            f"expected a segment among {', '.join(s.name for s in self.segments)}, got {name!r}; "
            "use lines on the task that they were made for"
        )

    def is_output(self, segment: Segment) -> bool:
        """Whether a segment's tokens are written by the model."""
        return segment.start >= self.prompt

    def steps_at(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Kind, row and place of the steps that rows of the attention matrix make; kind `PROMPT` where none."""
        step = rows - (self.prompt - 1)
        known = step.clamp(min=0)
        return torch.where(step >= 0, self.kind[known], PROMPT), self.row[known], self.place[known]

    def to(self, device: str | torch.device) -> "Stream":
        """The same stream with its tensors on a device."""
        if self.kind.device == torch.device(device):
            return self
        on_device = (part.to(device) for part in (self.kind, self.row, self.place))
        return Stream(self.segments, self.prompt, self.kinds, self.shape, *on_device)

    def own_places(self) -> torch.Tensor:
        """[tokens], the place of each digit in its own number or row; `NO_PLACE` for other tokens."""
        return self._of_tokens(lambda segment: len(segment.shape) - 1 if segment.reach else None)

    def levels(self, counter: str) -> torch.Tensor:
        """[tokens], the coordinate of each token that corresponds to a counter; `NO_PLACE` where none does."""
        return self._of_tokens(
            lambda segment: segment.counters.index(counter) if counter in segment.counters else None
        )

    def _of_tokens(self, dimension_of) -> torch.Tensor:
        values = torch.full((len(self) + 1,), NO_PLACE)
        for segment in self.segments:
            dimension = dimension_of(segment)
            if dimension is not None:
                grid = segment.grid()
                values[segment.tokens(grid)] = grid[dimension]
        return values[: len(self)].to(self.kind.device)


DIGITS = ("row", "place")


def in_rows(
    shape: tuple[int, int],
    prompt: tuple[Segment, ...],
    prompt_length: int,
    names: tuple[str, ...],
    rows: int,
    width: int,
) -> Stream:
    """A stream whose output has `rows` rounds of rows, one row of each name in a round, and the end token.

    Args:
        shape: sizes of the input.
        prompt: the segments of the prompt.
        prompt_length: its tokens.
        names: of the rows of a round, in order.
        rows: rounds.
        width: digits of a row, without the separator that ends it.
    """
    stride = len(names) * (width + 1)
    outputs, kinds = [], []
    for number, name in enumerate(names):
        start = prompt_length + number * (width + 1)
        outputs.append(Segment(name, start, (rows, width), (stride, 1), 1, DIGITS))
        outputs.append(Segment(f"{name} end", start + width, (rows,), (stride,), 0, ("row",)))
        kinds += [name, f"{name} end"]
    steps = torch.arange(rows * stride + 1)
    within = steps % stride
    place = within % (width + 1)
    kind = 2 * (within // (width + 1)) + (place == width)
    return Stream((*prompt, *outputs), prompt_length, tuple(kinds), shape, kind, steps // stride, place)


@lru_cache(maxsize=64)
def one_row(layout: Layout) -> Stream:
    """The stream of a source in the unary or natural form and an output of one row, as wide as the operands.

    Raises:
        ValueError: operands whose digits do not follow one another (the aligned form).
    """
    last, prompt = layout.total_columns, []
    for number, columns in enumerate(layout.column_of_place.tolist()):
        units = columns[1]
        if columns != list(range(units + 1, units - len(columns) + 1, -1)):
            raise ValueError("expected a source in the natural form for a decoder-only model, got the aligned one")
        prompt.append(Segment("ab"[number], units, (layout.width,), (-1,), 1, ("place",)))
    prompt += [Segment(f"token {n}", column) for n, column in enumerate(layout.structural_columns.tolist())]
    places = torch.arange(layout.rows, device=layout.columns.device)
    digits = Segment("digits", last, (layout.rows,), (1,), 1, ("place",))
    zeros = torch.zeros_like(places)
    return Stream((*prompt, digits), last, ("digits",), (layout.width,), zeros, zeros, places)
