"""Position schemes: how a model is told where a token stands. One class a scheme; `SCHEMES` has them by name.

A scheme overrides what it needs of `Positions` and nothing else:

    source, target   vectors added to the embeddings         sinusoidal, cyclic, learned and indexed schemes
    stream           the same in a decoder-only model        sinusoidal, abacus, coupled, kinds, coupled-rows
    turn             a change of queries and keys            rotary
    biases           biases with parameters                  T5, KERPLE, FIRE
    relative         vectors met by the query in one layer   Shaw
    coordinates      what `relative` takes distances from    Shaw
    draw             what training draws anew for a batch    cyclic-places, randomized, abacus, coupled

Its constructor's parameters are the fields of `model.ModelConfig` that it reads. ALiBi learns nothing: it is a plain
bias (`distance_biases`), handed to the model like a `LineBias`.
"""

import math

import torch
from torch import nn

from abcnb.distance_biases import FireBias, KerpleBias, RelativeKeys, T5Bias, coordinates
from abcnb.layout import NO_PLACE, Layout, Steps
from abcnb.stream import Stream


def sinusoid(index: torch.Tensor, d_model: int) -> torch.Tensor:
    """PE(i, 2k) = sin(i / 10000^(2k/d)), PE(i, 2k+1) = cos(i / 10000^(2k/d)); shape [..., d_model].

    Source: Vaswani et al. 2017, section 3.5.
    """
    rate = torch.exp(torch.arange(0, d_model, 2, device=index.device) * (-math.log(10000.0) / d_model))
    angle = index[..., None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


class Positions(nn.Module):
    """No positions (NoPE), and what every scheme can override.

    Attributes:
        absolute: a token's position depends on the token alone, so that parts of an input can be evaluated apart.
        biased: the scheme has `biases`.
        in_streams, only_in_streams: it can stand in a decoder-only model, and in no other.
    """

    absolute = True
    biased = False
    in_streams = False
    only_in_streams = False

    def draw(self, layout: Layout | Stream, batch: int) -> int | torch.Tensor:
        """What a training batch draws at random, passed on to `source` and `target`; 0 in evaluation."""
        return 0

    def source(self, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor | None:
        """Vectors added to the source's embeddings, [columns, d_model] or [batch, columns, d_model], or None."""
        return None

    def target(self, rows: torch.Tensor, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor | None:
        """Vectors added to the decoder input's embeddings at steps `rows`, likewise."""
        return None

    def stream(self, stream: Stream, draw: int | torch.Tensor = 0) -> torch.Tensor | None:
        """Vectors added to the embeddings of a decoder-only model's tokens, likewise."""
        return None

    def angles(self, index: torch.Tensor, layout: Layout) -> torch.Tensor:
        """The index that `turn` turns a column or step by."""
        return index

    def turn(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Queries or keys [batch, heads, n, d_head] with their positions in them."""
        return x

    def coordinates(self, layout: Layout) -> torch.Tensor:
        """What `relative` takes the distance of each source column from, [columns]."""
        return layout.columns

    def relative(self, d_head: int, crossing: bool) -> RelativeKeys | None:
        """The relative vectors of one attention; `crossing` where it attends to the source."""
        return None

    def biases(self, rows: torch.Tensor, columns: Layout | Steps) -> list[torch.Tensor]:
        """What is added to attention scores, [heads, rows, columns]: nothing, one for all layers or one for each."""
        return []


class NoPositions(Positions):
    """NoPE."""

    in_streams = True


class Sinusoidal(Positions):
    """The sinusoid of the column number on the source side, of the step number on the target side.

    Source: Vaswani et al. 2017, section 3.5; paper: Vanilla.
    """

    in_streams = True

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def source(self, layout, draw=0):
        return sinusoid(layout.columns, self.d_model)

    def target(self, rows, layout, draw=0):
        return sinusoid(rows, self.d_model)

    def stream(self, stream, draw=0):
        return sinusoid(torch.arange(len(stream), device=stream.kind.device), self.d_model)


class Cyclic(Positions):
    """Cyclic position indexing (CPI): the sinusoid of an index modulo T.

    Args:
        d_model: size of the vectors.
        period: T.
        random_phase: in training, shift source and target by the same random phase, so that no phase belongs to
            the training width alone: at one width the last step always has the same phase, and a model may learn
            to end its output only there.

    Source: paper, appendix C.4. That it is counted from the units digit on both sides is our reading; without it the
    phase shifts with the width. The random phase is ours.
    """

    def __init__(self, d_model: int, period: int = 3, random_phase: bool = False):
        super().__init__()
        self.d_model, self.period, self.random_phase = d_model, period, random_phase

    def draw(self, layout, batch):
        return int(torch.randint(self.period, ())) if self.random_phase else 0

    def phases(self, layout: Layout, phase: int = 0) -> torch.Tensor:
        """The phase of each source column, [columns]; −1 where a token has none."""
        raise TypeError(f"the scheme {type(self).__name__!r} does not define phases()")

    def source(self, layout, draw=0):
        phases = self.phases(layout, draw)
        return sinusoid(phases.clamp(min=0), self.d_model) * (phases >= 0)[:, None]

    def target(self, rows, layout, draw=0):
        return sinusoid((rows + draw) % self.period, self.d_model)


class CyclicColumns(Cyclic):
    """The paper's CPI: the index is counted in columns from the units digit."""

    def phases(self, layout: Layout, phase: int = 0) -> torch.Tensor:
        """The phase of each source column, [columns]."""
        return (layout.units_column - layout.columns + phase) % self.period


class CyclicPlaces(Cyclic):
    """Ours: the index is the place, the same for every operand's digit of that place.

    Structural tokens have no phase, so that nothing depends on the width.
    """

    def phases(self, layout: Layout, phase: int = 0) -> torch.Tensor:
        """The phase of each digit, [columns]; −1 for structural tokens."""
        digit = layout.digit_places > NO_PLACE
        return torch.where(digit, (layout.digit_places + phase) % self.period, -1)


class Rotary(Positions):
    """RoPE: queries and keys are turned by their column or step number, in self- and cross-attention.

    Args:
        rotary_width: position interpolation: above this width indices are scaled down to its range; 0 never scales.

    Source: Su et al., RoFormer, equation 34; Chen et al. 2023, equation 4, without their fine-tuning on longer
    inputs.
    """

    absolute = False
    in_streams = True

    def __init__(self, rotary_width: int = 0):
        super().__init__()
        self.rotary_width = rotary_width

    def angles(self, index, layout):
        if not 0 < self.rotary_width < layout.width:
            return index
        return index * (self.rotary_width / layout.width)

    def turn(self, x, index):
        return rotate(x, index)


def rotate(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Turn each pair (x_k, x_{k + d/2}) of [..., n, d] by the angle index · 10000^(−2k/d)."""
    half = x.shape[-1] // 2
    rate = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
    angle = index[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RelativeSelf(Positions):
    """Shaw's learned vectors for the clipped distance, in self-attention, as published.

    Args:
        relative_clip: largest distance told apart.

    Source: Shaw et al. 2018 (`distance_biases.RelativeKeys`).
    """

    absolute = False
    in_streams = True

    def __init__(self, relative_clip: int):
        super().__init__()
        self.relative_clip = relative_clip

    def relative(self, d_head, crossing):
        return None if crossing else RelativeKeys(d_head, self.relative_clip)


class Relative(RelativeSelf):
    """The same in self- and cross-attention.

    Args:
        relative_clip: largest distance told apart.
        cross_distance: what the distance is taken from in cross-attention (`distance_biases`).
    """

    def __init__(self, relative_clip: int, cross_distance: str):
        super().__init__(relative_clip)
        self.cross_distance = cross_distance

    def relative(self, d_head, crossing):
        return RelativeKeys(d_head, self.relative_clip, structural=crossing and self.cross_distance == "places")

    def coordinates(self, layout):
        return coordinates(layout, self.cross_distance)


# --- a vector of one of `max_position` indices is added


class Indexed(Positions):
    """Schemes that give each token an index, and the index a vector.

    Args:
        d_model: size of the vectors.
        max_position: how many indices there are.
    """

    absolute = False

    def __init__(self, d_model: int, max_position: int):
        super().__init__()
        self.d_model, self.max_position = d_model, max_position
        self.table = nn.Embedding(max_position, d_model)

    def needed(self, layout: Layout) -> int:
        """How many indices an input of this layout takes."""
        raise TypeError(f"the scheme {type(self).__name__!r} does not define needed()")

    def source_index(self, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """The index of each source column, [columns] or [batch, columns]; −1 where a token has none."""
        raise TypeError(f"the scheme {type(self).__name__!r} does not define source_index()")

    def target_index(self, rows: torch.Tensor, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """The index of the decoder's input at each step, [rows] or [batch, rows]: at step i of place i − 1."""
        return rows + draw

    def vectors(self, index: torch.Tensor) -> torch.Tensor:
        """The vector of each index, [..., d_model]; zero for −1."""
        return self.table(index.clamp(min=0)) * (index >= 0)[..., None]

    def check(self, layout: Layout) -> None:
        """Refuse an input that takes more indices than there are.

        Raises:
            ValueError: says how many it takes.
        """
        self.check_count(self.needed(layout))

    def check_count(self, needed: int) -> None:
        """The same for a number of indices."""
        if needed > self.max_position:
            raise ValueError(
                f"expected an input that takes at most {self.max_position} positions, got {needed}: "
                f"such a model reads no longer input; train it with a larger model.max_position"
            )

    def source(self, layout, draw=0):
        self.check(layout)
        return self.vectors(self.source_index(layout, draw))

    def target(self, rows, layout, draw=0):
        self.check(layout)
        return self.vectors(self.target_index(rows, layout, draw))


class Learned(Indexed):
    """A learned vector of the column on the source side, of the step on the target side, from one table.

    Source: Gehring et al. 2017, section 3.1.
    """

    def needed(self, layout):
        return max(layout.total_columns, layout.rows)

    def source_index(self, layout, draw=0):
        return layout.columns


class Randomized(Indexed):
    """Sinusoids of sorted random positions out of `max_position`, drawn anew for each training batch.

    Source and target are drawn together. In evaluation the draw is fixed.

    Source: Ruoss et al. 2023, section 3; they draw in evaluation too.
    """

    def __init__(self, d_model: int, max_position: int):
        Positions.__init__(self)
        self.d_model, self.max_position = d_model, max_position

    def draw(self, layout, batch):
        return int(torch.randint(2**31, ()))

    def needed(self, layout):
        return layout.total_columns + layout.rows

    def _drawn(self, layout: Layout, draw: int) -> torch.Tensor:
        order = torch.randperm(self.max_position, generator=torch.Generator().manual_seed(draw))
        positions, device = order[: self.needed(layout)].sort().values, layout.columns.device
        if device.type == "cuda":  # from pinned memory a copy makes no training step wait
            positions = positions.pin_memory()
        return positions.to(device, non_blocking=True)

    def source_index(self, layout, draw=0):
        return self._drawn(layout, draw)[layout.columns]

    def target_index(self, rows, layout, draw=0):
        return self._drawn(layout, draw)[layout.total_columns + rows]

    def vectors(self, index):
        return sinusoid(index, self.d_model)


class _FromRandomOffset(Indexed):
    """Schemes that count from an offset which each training sample draws at random."""

    in_streams = True

    def draw(self, layout, batch):
        needed, device = (
            (self.needed_in(layout), layout.kind.device)
            if isinstance(layout, Stream)
            else (self.needed(layout), layout.columns.device)
        )
        return torch.randint(max(1, self.max_position - needed + 1), (batch, 1), device=device)

    def stream_index(self, stream: Stream) -> torch.Tensor:
        """The index of each token of a stream before the offset, [tokens]; −1 where a token has none."""
        raise TypeError(f"the scheme {type(self).__name__!r} does not define stream_index()")

    def needed_in(self, stream: Stream) -> int:
        """How many indices a stream takes."""
        return int(self.stream_index(stream).max()) + 1

    def stream(self, stream, draw=0):
        self.check_count(self.needed_in(stream))
        index = self.stream_index(stream)
        return self.vectors(torch.where(index >= 0, index + draw, -1))


class Abacus(_FromRandomOffset):
    """A learned vector for each digit's place in its own number, counted from a random offset.

    A number of one digit that is always written so (N×1's second) has none.

    Source: McLeish et al. 2024, section 3.
    """

    def needed(self, layout):
        return layout.width

    def stream_index(self, stream):
        return stream.own_places().clamp(min=-1)

    def source_index(self, layout, draw=0):
        return torch.where(layout.digit_places > NO_PLACE, layout.digit_places + draw, -1)

    def target_index(self, rows, layout, draw=0):
        return torch.where(rows > 0, rows - 1 + draw, -1)


class Coupled(_FromRandomOffset):
    """Position coupling: as Abacus, but the token right of a number shares the place −1.

    Source: Cho et al. 2024, section 3.1, written for decoder-only models: their operator and equality sign are our
    tokens right of either operand and the decoder's start token.
    """

    def needed(self, layout):
        return layout.rows

    def source_index(self, layout, draw=0):
        right_of_a_number = torch.isin(layout.columns, layout.column_of_place[:, 0])
        elsewhere = torch.where(right_of_a_number, draw, -1)
        return torch.where(layout.digit_places > NO_PLACE, layout.digit_places + 1 + draw, elsewhere)

    def stream_index(self, stream):
        # The step that writes place p reads the token of place p − 1, so `=` is of place −1, as in the source.
        return torch.where(stream.levels("place") > NO_PLACE, stream.levels("place") + 1, -1).index_fill(
            0, torch.tensor([stream.prompt - 1], device=stream.kind.device), 0
        )


# --- a learned bias of the distance


class Biased(Positions):
    """Schemes that are a learned bias of the distance: one for self-attention, another for cross-attention.

    Args:
        heads: number of heads.
        decoder_layers: number of layers.
        cross_distance: what the distance is taken from in cross-attention (`distance_biases`).
        own_bias_per_layer: each layer has biases of its own, as in FIRE; otherwise all layers share them, as in
            T5, FIRE-S and the published code of KERPLE.
    """

    absolute = False
    biased = True
    in_streams = True
    kind: type[nn.Module]

    def __init__(self, heads: int, decoder_layers: int, cross_distance: str, own_bias_per_layer: bool):
        super().__init__()

        def made(**choices) -> nn.Module:
            if own_bias_per_layer:
                return nn.ModuleList(self.kind(heads, **choices) for _ in range(decoder_layers))
            return self.kind(heads, **choices)

        self.self_bias, self.cross_bias = made(causal=True), made(causal=False, cross_distance=cross_distance)

    def biases(self, rows, columns):
        found = self.self_bias if isinstance(columns, Steps) else self.cross_bias
        return [bias(rows, columns) for bias in (found if isinstance(found, nn.ModuleList) else [found])]


class T5(Biased):
    """T5's bucketed relative bias."""

    kind = T5Bias


class Kerple(Biased):
    """KERPLE's logarithmic bias."""

    kind = KerpleBias


class Fire(Biased):
    """FIRE's bias."""

    kind = FireBias


# --- only in a decoder-only model


class Kinds(Positions):
    """A learned vector for the kind of step that a token makes (`stream`), and one for the prompt: no positions.

    Args:
        d_model: size of the vectors.
    """

    in_streams = only_in_streams = True
    MOST = 8  # kinds of steps that there is a vector for

    def __init__(self, d_model: int):
        super().__init__()
        self.table = nn.Embedding(self.MOST + 1, d_model)

    def stream(self, stream, draw=0):
        kind, _, _ = stream.steps_at(torch.arange(len(stream), device=stream.kind.device))
        return self.table(kind + 1)


class CoupledRows(Kinds):
    """Position coupling on two levels: a vector of the row and one of the place, each from a random offset.

    Tokens that belong to the same row of the output share the first, those of the same place the second: in a
    product the multiplier's digits have the row of their products and the multiplicand's their place. The kind of
    step is told as well.

    Args:
        d_model: size of the vectors.
        max_position: how many indices there are on each level.

    Source: Cho et al. 2024 (arXiv 2410.15787), section 4, for sums of many terms; for products it is ours.
    """

    absolute = False

    def __init__(self, d_model: int, max_position: int):
        super().__init__(d_model)
        self.max_position = max_position
        self.rows, self.places = nn.Embedding(max_position, d_model), nn.Embedding(max_position, d_model)

    def draw(self, stream, batch):
        spare = [max(1, self.max_position - int(self._index(stream, level).max())) for level in ("row", "place")]
        return torch.stack([torch.randint(n, (batch, 1), device=stream.kind.device) for n in spare])

    @staticmethod
    def _index(stream: Stream, level: str) -> torch.Tensor:
        """[tokens], −1 where a token has no such index."""
        return stream.levels(level).clamp(min=-1)

    def stream(self, stream, draw=0):
        vectors = super().stream(stream)
        draws = draw if isinstance(draw, torch.Tensor) else (0, 0)
        for table, level, offset in zip((self.rows, self.places), ("row", "place"), draws, strict=True):
            index = self._index(stream, level)
            if int(index.max()) >= self.max_position:
                raise ValueError(
                    f"expected a stream of at most {self.max_position} rows and places, got {int(index.max()) + 1}; "
                    "train with a larger model.max_position"
                )
            index = torch.where(index >= 0, index + offset, -1)
            vectors = vectors + table(index.clamp(min=0)) * (index >= 0)[..., None]
        return vectors


SCHEMES: dict[str, type[Positions]] = {
    "none": NoPositions,
    "sinusoidal": Sinusoidal,
    "cyclic-columns": CyclicColumns,
    "cyclic-places": CyclicPlaces,
    "rotary": Rotary,
    "relative": Relative,
    "relative-self": RelativeSelf,
    "learned": Learned,
    "randomized": Randomized,
    "abacus": Abacus,
    "coupled": Coupled,
    "t5": T5,
    "kerple": Kerple,
    "fire": Fire,
    "kinds": Kinds,
    "coupled-rows": CoupledRows,
}
