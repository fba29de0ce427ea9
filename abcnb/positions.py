"""Position schemes: how a model is told where a token stands. One class a scheme; `model_config.SCHEMES` has them
by name, and `indexed_positions` those with a learned vector for each index.

A scheme overrides what it needs of `Positions` and nothing else:

    vectors          what is added to the embeddings         sinusoidal, cyclic, indexed schemes, kinds, coupled-rows
    turn, angles     a change of queries and keys            rotary
    biases           biases with parameters                  T5, KERPLE, FIRE
    relative         vectors met by the query in one layer   Shaw
    coordinates      what `relative` takes distances from    Shaw
    draw             what training draws anew for a batch    randomized, abacus and coupled schemes

Its constructor's parameters are the fields of `ModelConfig` that it reads. ALiBi learns nothing: it is a plain
bias (`distance_biases`), handed to the model like a `LineBias`.
"""

import math

import torch
from torch import nn

from abcnb.biases import FireBias, KerpleBias, RelativeKeys, T5Bias, coordinates
from abcnb.coordinates import Columns, Stream


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

    def draw(self, stream: Stream, batch: int) -> int | torch.Tensor:
        """What a training batch draws at random, passed on to `vectors`; 0 in evaluation."""
        return 0

    def vectors(self, columns: Columns, draw: int | torch.Tensor = 0) -> torch.Tensor | None:
        """What is added to the embeddings of these tokens, [tokens, d_model] or [batch, tokens, d_model], or None."""
        return None

    def angles(self, columns: Columns) -> torch.Tensor:
        """The index that `turn` turns each token by."""
        return columns.index

    def turn(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Queries or keys [batch, heads, n, d_head] with their positions in them."""
        return x

    def coordinates(self, columns: Columns) -> torch.Tensor:
        """What `relative` takes the distance of each source column from, [columns]."""
        return columns.index

    def relative(self, d_head: int, crossing: bool) -> RelativeKeys | None:
        """The relative vectors of one attention; `crossing` where it attends to the source."""
        return None

    def biases(self, rows: torch.Tensor, columns: Columns) -> list[torch.Tensor]:
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

    def vectors(self, columns, draw=0):
        return sinusoid(columns.index, self.d_model)


class CyclicColumns(Positions):
    """Cyclic position indexing (CPI): the sinusoid of an index modulo T, in columns from the units digit, and in steps.

    Args:
        d_model: size of the vectors.
        period: T.

    Source: paper, appendix C.4. That it is counted from the units digit on both sides is our reading; without it the
    phase shifts with the width.
    """

    def __init__(self, d_model: int, period: int = 3):
        super().__init__()
        self.d_model, self.period = d_model, period

    def phases(self, columns: Columns) -> torch.Tensor:
        """The phase of each source column, [columns]."""
        units = max(operand.start for operand in columns.stream.operands)
        return (units - columns.index) % self.period

    def vectors(self, columns, draw=0):
        phases = self.phases(columns) if columns.crossing else columns.index % self.period
        return sinusoid(phases, self.d_model)


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

    def angles(self, columns):
        width = columns.stream.width
        if not 0 < self.rotary_width < width:
            return columns.index
        return columns.index * (self.rotary_width / width)

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

    def coordinates(self, columns):
        return coordinates(columns, self.cross_distance)


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
        found = self.cross_bias if columns.crossing else self.self_bias
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
