"""Position schemes with a vector for each index that a token may have: learned, or sinusoids of random positions.

They differ in what they count: columns and steps, or places from a random offset. They cannot read an input that
needs more indices than there are.
"""

import torch
from torch import nn

from abcnb.lines.coordinates import COUNTERS, Columns, Stream
from abcnb.model.positions import Kinds, Positions, sinusoid
from abcnb.rivals.distances import at_place


def vectors_of(table: nn.Embedding, index: torch.Tensor) -> torch.Tensor:
    """The vector of each index, [..., d_model]; zero for −1."""
    return table(index.clamp(min=0)) * (index >= 0)[..., None]


def check_count(needed: int, max_position: int) -> None:
    """Raise ValueError if an input needs more indices than there are."""
    if needed > max_position:
        raise ValueError(
            f"expected an input that takes at most {max_position} positions, got {needed}: "
            f"such a model reads no longer input; train it with a larger model.max_position"
        )


def unused(needed: int, max_position: int) -> int:
    """How many indices an input leaves unused; 0 if it needs more than there are."""
    return max(0, max_position - needed)


class Indexed(Positions):
    """Schemes that give each token one of `max_position` indices, and the index a vector."""

    absolute, in_streams, learned = False, False, True

    def __init__(self, d_model: int, max_position: int):
        super().__init__()
        self.d_model, self.max_position = d_model, max_position
        if self.learned:
            self.table = nn.Embedding(max_position, d_model)

    def needed(self, stream: Stream) -> int:
        """How many indices an input needs."""
        raise NotImplementedError

    def index(self, columns: Columns, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """The index of each token, [tokens] or [batch, tokens]; −1 where it has none."""
        raise NotImplementedError

    def vectors(self, columns, draw=0):
        check_count(self.needed(columns.stream), self.max_position)
        index = self.index(columns, draw)
        return vectors_of(self.table, index) if self.learned else sinusoid(index, self.d_model)


class Learned(Indexed):
    """A learned vector for the column on the source side and for the step on the target side, from one table.

    Source: Gehring et al. 2017, section 3.1.
    """

    def needed(self, stream):
        return max(stream.source, stream.rows)

    def index(self, columns, draw=0):
        return columns.index + draw


class Randomized(Indexed):
    """Sinusoids of sorted random positions out of `max_position`, drawn anew for each training batch.

    Source and target are drawn together. In evaluation the draw is fixed.

    Source: Ruoss et al. 2023, section 3; they draw in evaluation too.
    """

    learned = False

    def draw(self, stream, batch):
        return int(torch.randint(2**31, ()))

    def needed(self, stream):
        return stream.source + stream.rows

    def index(self, columns, draw=0):
        order = torch.randperm(self.max_position, generator=torch.Generator().manual_seed(draw))
        positions, device = order[: self.needed(columns.stream)].sort().values, columns.index.device
        if device.type == "cuda":  # copying from pinned memory makes no training step wait
            positions = positions.pin_memory()
        return positions.to(device, non_blocking=True)[columns.tokens]


class _FromRandomOffset(Indexed):
    """Schemes that count from an offset which each training sample draws at random.

    With `from_middle`, evaluation leaves equally many indices unused at either end, instead of counting from the
    first. Those near an end are trained least: a sample uses the first at one offset only, one in the middle at as
    many offsets as the sample has indices.
    """

    in_streams, from_middle = True, False

    def draw(self, stream, batch):
        return torch.randint(unused(self.needed(stream), self.max_position) + 1, (batch, 1), device=stream.device)

    def counted(self, columns: Columns) -> torch.Tensor:
        """The index of each token without the offset, [tokens]; −1 where it has none."""
        raise NotImplementedError

    def needed(self, stream):
        parts = [stream.columns(), *([stream.columns(crossing=True)] if stream.source else [])]
        return max(int(self.counted(part).max()) for part in parts) + 1

    def index(self, columns, draw=0):
        if self.from_middle and not isinstance(draw, torch.Tensor):
            draw = unused(self.needed(columns.stream), self.max_position) // 2
        counted = self.counted(columns)
        return torch.where(counted >= 0, counted + draw, -1)


class Abacus(_FromRandomOffset):
    """A learned vector for each digit's place in its own number, counted from a random offset; from 0 in evaluation.

    A number that is always written as one digit (N×1's second) has none.

    Source: McLeish et al. 2024, section 3.
    """

    def counted(self, columns):
        return columns.stream.own_places[columns.tokens].clamp(min=-1)


class Coupled(_FromRandomOffset):
    """Position coupling: as Abacus, but the token right of a number shares the place −1.

    Source: Cho et al. 2024, section 3.1, written for decoder-only models: their operator and equality sign are our
    tokens right of either operand and the decoder's start token. Their tests count from the first index.
    """

    from_middle = True

    def counted(self, columns):
        places = columns.stream.levels("place")[columns.tokens]
        first_input = columns.tokens == columns.stream.prompt - 1  # step i reads the token of place i − 1
        return torch.where(at_place(columns, -1) | first_input, 0, (places + 1).clamp(min=-1))


class CoupledRows(Kinds):
    """Position coupling on two levels: vectors for the row and the place, each from an offset as in `Coupled`.

    Tokens of the same row of the output share the first, those of the same place the second: in a product, the
    multiplier's digits have the row of their products, and the multiplicand's have their place. The kind of step
    has a vector as well. There are `max_position` indices on each level.

    Source: Cho et al. 2024 (arXiv 2410.15787), section 4, for sums of many terms; for products it is ours.
    """

    absolute = False

    def __init__(self, d_model: int, max_position: int):
        super().__init__(d_model)
        self.max_position = max_position
        self.rows, self.places = nn.Embedding(max_position, d_model), nn.Embedding(max_position, d_model)

    def _needed(self, stream: Stream) -> list[int]:
        """How many indices an input needs on each level."""
        return [int(stream.levels(level).max().clamp(min=-1)) + 1 for level in COUNTERS]

    def draw(self, stream, batch):
        counts = [unused(needed, self.max_position) + 1 for needed in self._needed(stream)]
        return torch.stack([torch.randint(count, (batch, 1), device=stream.device) for count in counts])

    def vectors(self, columns, draw=0):
        stream, vectors = columns.stream, super().vectors(columns)
        tables = zip(COUNTERS, (self.rows, self.places), self._needed(stream), strict=True)
        for number, (level, table, needed) in enumerate(tables):
            check_count(needed, self.max_position)
            offset = draw[number] if isinstance(draw, torch.Tensor) else unused(needed, self.max_position) // 2
            index = stream.levels(level)[columns.tokens]
            vectors = vectors + vectors_of(table, torch.where(index >= 0, index + offset, -1))
        return vectors
