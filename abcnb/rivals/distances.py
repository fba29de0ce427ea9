"""Schemes that go by distance: ALiBi, T5, KERPLE, FIRE and Shaw's relative vectors.

As published, T5 and Shaw bias the self-attention of encoder and decoder, the others that of a decoder-only model, where
it is all that tells positions apart. Here the input is read through cross-attention, which gets a bias of its own.

In self-attention the distance between step i and step j is j − i. In cross-attention it is c_j − i, and
`cross_distance` chooses the coordinate c_j of a source column (w digits in an operand, N columns in the source):

    left    the column number, counted from the left: j
    right   the column number, counted from the right: N − 1 − j
    places  the digit's place in its own operand; w for the token left of an operand, none for other tokens

Numbers are written units last in the source and units first in the output, and step i writes place i. The digit that
it must read is at distance 0 with `places`. With `left` its distance changes with the step and the width. With `right`
it changes with neither in the last padded operand of the unary and natural forms.
"""

import math

import torch
from torch import nn

from abcnb.lines.coordinates import NO_PLACE, Columns
from abcnb.model.positions import Positions


def coordinates(columns: Columns, cross_distance: str = "left") -> torch.Tensor:
    """The coordinate of each column, [columns]: in self-attention always its number; `NO_PLACE` if it has none."""
    if not columns.crossing or cross_distance == "left":
        return columns.index
    if cross_distance == "right":
        return columns.total - 1 - columns.index
    places, width = columns.stream.own_places[columns.tokens], columns.stream.width
    elsewhere = torch.where(at_place(columns, width), width, NO_PLACE)
    return torch.where(places > NO_PLACE, places, elsewhere)


def at_place(columns: Columns, place: int) -> torch.Tensor:
    """Which columns are at this place of an operand: −1 is the token right of it, its width the one left of it."""
    wanted = torch.tensor([place])
    tokens = torch.cat([operand.tokens([wanted]) for operand in columns.stream.operands])
    return torch.isin(columns.tokens, tokens.to(columns.tokens.device))


class ALiBi:
    """Attention with linear biases: b[h, i, j] = −m_h · |i − j|, m_h = 2^(−8h/H) for h = 1 … H.

    In cross-attention a column without a distance gets 0.

    Raises:
        ValueError: if heads is not a power of two, since the source then defines no single sequence of slopes.

    Source: Press, Smith, Lewis, "Train short, test long", section 3; every layer has the same slopes. As published
    it biases causal self-attention only; the source leaves open how it would bias cross-attention.
    """

    def __init__(self, heads: int, cross_distance: str = "left"):
        if heads < 1 or heads & (heads - 1):
            raise ValueError(f"expected a power of two for ALiBi's heads, got {heads}")
        self.heads, self.cross_distance = heads, cross_distance
        self.slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        found = coordinates(columns, self.cross_distance)
        bias = -self.slopes.to(rows.device)[:, None, None] * (found - rows[:, None]).abs()
        return bias.masked_fill(found == NO_PLACE, 0.0)


class T5Bias(nn.Module):
    """A learned number for each head and bucket of the distance; buckets widen logarithmically.

    Half of the buckets hold one distance each, the others widen up to the largest. Causal attention uses all for
    the past, cross-attention half on either side. With `places` there is one more, for columns without a distance.

    Source: Raffel et al. 2020, section 2.1, and the bucket function of the published code. The source shares the
    numbers among all layers, and biases no cross-attention.
    """

    BUCKETS, MAX_DISTANCE = 32, 128

    def __init__(self, heads: int, causal: bool, cross_distance: str = "left"):
        super().__init__()
        self.causal, self.cross_distance = causal, cross_distance
        self.values = nn.Parameter(torch.zeros(self.BUCKETS + (cross_distance == "places"), heads))

    def bucket(self, relative: torch.Tensor) -> torch.Tensor:
        """The bucket of each distance."""
        buckets = self.BUCKETS if self.causal else self.BUCKETS // 2
        side = torch.zeros_like(relative) if self.causal else (relative > 0) * buckets
        distance = (-relative).clamp(min=0) if self.causal else relative.abs()
        exact = buckets // 2
        share = (distance.clamp(min=1) / exact).log() / math.log(self.MAX_DISTANCE / exact)
        wide = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
        return side + torch.where(distance < exact, distance, wide)

    def forward(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        found = coordinates(columns, self.cross_distance)
        bucket = torch.where(found == NO_PLACE, self.BUCKETS, self.bucket(found - rows[:, None]))
        return self.values[bucket].permute(2, 0, 1)


class _Formula(nn.Module):
    """Biases that are a formula of the distance; a column without a distance gets a learned number for each head."""

    def __init__(self, heads: int, cross_distance: str):
        super().__init__()
        self.cross_distance = cross_distance
        self.structural = nn.Parameter(torch.zeros(heads)) if cross_distance == "places" else None

    def of_distance(self, rows: torch.Tensor, coordinate: torch.Tensor) -> torch.Tensor:
        """The formula, [heads, rows, columns]."""
        raise NotImplementedError

    def forward(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        found = coordinates(columns, self.cross_distance)
        bias = self.of_distance(rows, found)
        return bias if self.structural is None else bias.where(found != NO_PLACE, self.structural[:, None, None])


class KerpleBias(_Formula):
    """b = −r₁ log(1 + r₂ |distance|), with learned positive r₁ and r₂ for each head.

    Source: Chi et al. 2022, equation 4 (logarithmic variant). r₁ and r₂ are kept positive as exponentials, where
    the published code clips them. That code makes one such bias and hands it to all layers.
    """

    def __init__(self, heads: int, causal: bool = True, cross_distance: str = "left"):
        super().__init__(heads, cross_distance)
        self.log_r1 = nn.Parameter((0.01 + 2 * torch.rand(heads)).log())
        self.log_r2 = nn.Parameter((0.01 + torch.rand(heads)).log())

    def of_distance(self, rows, coordinate):
        distance = (coordinate - rows[:, None]).abs()
        r1, r2 = self.log_r1.exp()[:, None, None], self.log_r2.exp()[:, None, None]
        return -r1 * (1 + r2 * distance).log()


class FireBias(_Formula):
    """b = f(ψ(|c_j − i|) / ψ(max(L, i, c_j))), ψ(x) = log(c x + 1), f a small network with a value for each head.

    Source: Li et al. 2024, equations 5 to 8, where c_j = j ≤ i; c starts at 0.1, L = 512 m with a learned m that
    starts at 1, f has 32 hidden units. Every layer of the source has an f, c and m of its own, except in its
    variant FIRE-S. In cross-attention, which the source leaves open, the coordinate c_j may be larger than i.
    """

    def __init__(self, heads: int, causal: bool = True, cross_distance: str = "left", hidden: int = 32):
        super().__init__(heads, cross_distance)
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, heads))
        self.c = nn.Parameter(torch.tensor(0.1))
        self.multiplier = nn.Parameter(torch.tensor(1.0))

    def of_distance(self, rows, coordinate):
        def psi(x: torch.Tensor) -> torch.Tensor:
            return (self.c.abs() * x + 1).log()

        distance, furthest = (coordinate - rows[:, None]).abs().float(), torch.maximum(rows[:, None], coordinate)
        share = psi(distance) / (psi(torch.maximum(furthest, (self.multiplier * 512.0).abs())) + 1e-6)
        return self.network(share[..., None]).permute(2, 0, 1)


class RelativeKeys(nn.Module):
    """Learned vectors w_{clip(distance, k)}, multiplied by the query: the bias q_i · w / √d of cell (i, j).

    With `structural` there is one more vector, for the columns without a distance.

    Source: Shaw et al. 2018, equation 4, on keys only. Heads share vectors as in section 3.3 and layers do not; the
    source's base model has vectors for each head as well (section 4.1).
    """

    def __init__(self, d_head: int, clip: int, structural: bool = False):
        super().__init__()
        self.clip = clip
        self.vectors = nn.Parameter(torch.randn(2 * clip + 1 + structural, d_head) * d_head**-0.5)

    def forward(self, query: torch.Tensor, rows: torch.Tensor, coordinate: torch.Tensor) -> torch.Tensor:
        """Queries [batch, heads, rows, d_head] to biases [batch, heads, rows, columns]."""
        distance = (coordinate - rows[:, None]).clamp(-self.clip, self.clip) + self.clip
        which = torch.where(coordinate == NO_PLACE, 2 * self.clip + 1, distance)
        scores = query @ self.vectors.T / math.sqrt(query.shape[-1])
        return scores.gather(-1, which.expand(*scores.shape[:2], -1, -1))


class RelativeSelf(Positions):
    """Shaw's learned vectors (`RelativeKeys`) in self-attention, as published; `relative_clip` is their k."""

    absolute = False

    def __init__(self, relative_clip: int):
        super().__init__()
        self.relative_clip = relative_clip

    def relative(self, d_head, crossing):
        return None if crossing else RelativeKeys(d_head, self.relative_clip)


class Relative(RelativeSelf):
    """The same in self- and cross-attention."""

    def __init__(self, relative_clip: int, cross_distance: str):
        super().__init__(relative_clip)
        self.cross_distance = cross_distance

    def relative(self, d_head, crossing):
        return RelativeKeys(d_head, self.relative_clip, structural=crossing and self.cross_distance == "places")

    def coordinates(self, columns):
        return coordinates(columns, self.cross_distance)


class Biased(Positions):
    """Schemes that are a learned bias of the distance: one for self-attention, another for cross-attention.

    With `own_bias_per_layer` each layer has biases of its own, as in FIRE; otherwise all layers share them, as in T5,
    FIRE-S and the published code of KERPLE.
    """

    absolute, biased = False, True
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
