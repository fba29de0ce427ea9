"""Position schemes: which index a token gets, and what becomes of it.

    sinusoidal       column number on the source side, step number on the target side (paper: Vanilla)
    none             nothing (NoPE)
    cyclic-columns   the paper's CPI: the index modulo T, counted in columns from the units digit
    cyclic-places    ours: the place modulo T, the same for every operand's digit of that place; structural
                     tokens get no position, so that nothing depends on the width
    rotary           queries and keys turned by their index (RoPE), self- and cross-attention
    relative         Shaw's learned vectors for the clipped distance, self- and cross-attention
    relative-self    the same in self-attention only, as published
    learned          a learned vector for each index: of the column on the source side, of the step on the target
                     side, from one table
    randomized       sinusoidal, but at sorted random positions: source and target together draw them anew for
                     each training batch, out of `max_position`; in evaluation the draw is fixed
    abacus           a learned vector for each digit's place in its own number, counted from a random offset; a
                     number of one digit that is always written so (N×1's second) has none
    coupled          position coupling: as abacus, but the token right of a number shares the place −1
    t5, kerple, fire biases with parameters (`learned_biases`), self- and cross-attention

Source: Vaswani et al. 2017, section 3.5 (sinusoidal); paper, appendix C.4 (cyclic position indexing; that it
is counted from the units digit on both sides is our reading, without it the phase shifts with the width);
Su et al., RoFormer, equation 34 (rotary); Shaw et al. 2018, equation 4 (relative, on keys only); Gehring et al.
2017, section 3.1 (learned); Ruoss et al. 2023, section 3 (randomized; they draw in evaluation too); McLeish et al.
2024, section 3 (abacus); Cho et al. 2024, section 3.1 (position coupling, written for decoder-only models: their
operator and equality sign are our tokens right of either operand and the decoder's start token).
"""

import math

import torch
from torch import nn

from abcnb.layout import NO_PLACE, Layout

POSITIONS = (
    "sinusoidal", "none", "cyclic-columns", "cyclic-places", "rotary", "relative", "relative-self",
    "learned", "randomized", "abacus", "coupled", "t5", "kerple", "fire",
)  # fmt: skip
ADDED = ("sinusoidal", "cyclic-columns", "cyclic-places")  # a fixed vector is added to the embedding
INDEXED = ("learned", "randomized", "abacus", "coupled")  # a vector of one of `max_position` indices is added


def sinusoid(index: torch.Tensor, d_model: int) -> torch.Tensor:
    """PE(i, 2k) = sin(i / 10000^(2k/d)), PE(i, 2k+1) = cos(i / 10000^(2k/d)); shape [n, d_model]."""
    rate = torch.exp(torch.arange(0, d_model, 2, device=index.device) * (-math.log(10000.0) / d_model))
    angle = index[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


def cyclic_phases(scheme: str, layout: Layout, period: int, phase: int = 0) -> torch.Tensor:
    """The phase of each source column, [columns]; −1 where a token has none (structure, over places)."""
    if scheme == "cyclic-columns":
        return (layout.units_column - layout.columns + phase) % period
    if scheme != "cyclic-places":
        raise ValueError(f"expected cyclic-columns or cyclic-places, got {scheme!r}")
    return torch.where(layout.digit_places > NO_PLACE, (layout.digit_places + phase) % period, -1)


def source_vectors(scheme: str, layout: Layout, period: int, d_model: int, phase: int = 0) -> torch.Tensor:
    """What a scheme adds to the source embeddings, [columns, d_model]; `phase` shifts the cyclic ones."""
    if scheme == "sinusoidal":
        return sinusoid(layout.columns, d_model)
    index = cyclic_phases(scheme, layout, period, phase)
    return sinusoid(index.clamp(min=0), d_model) * (index >= 0)[:, None]


def target_vectors(scheme: str, rows: torch.Tensor, period: int, d_model: int, phase: int = 0) -> torch.Tensor:
    """What a scheme adds to the target embeddings, [rows, d_model]; `phase` shifts the cyclic ones."""
    if scheme not in ADDED:
        raise ValueError(f"expected a scheme among {', '.join(ADDED)}, got {scheme!r}")
    return sinusoid(rows if scheme == "sinusoidal" else (rows + phase) % period, d_model)


class IndexedPositions(nn.Module):
    """The schemes of `INDEXED`: which index each token gets, and its vector.

    Args:
        scheme: one of `INDEXED`.
        d_model: size of the vectors.
        max_position: how many indices there are.
    """

    def __init__(self, scheme: str, d_model: int, max_position: int):
        super().__init__()
        self.scheme, self.d_model, self.max_position = scheme, d_model, max_position
        self.table = None if scheme == "randomized" else nn.Embedding(max_position, d_model)

    def draw(self, layout: Layout, batch: int) -> int | torch.Tensor:
        """What training draws anew: an offset for each sample, [batch, 1], or the seed of random positions."""
        if self.scheme == "learned":
            return 0
        if self.scheme == "randomized":
            return int(torch.randint(2**31, ()))
        most = max(1, self.max_position - self._needed(layout) + 1)
        return torch.randint(most, (batch, 1), device=layout.columns.device)

    def _needed(self, layout: Layout) -> int:
        """How many indices an input of this layout takes."""
        return {
            "learned": max(layout.total_columns, layout.rows),
            "randomized": layout.total_columns + layout.rows,
            "abacus": layout.width,
            "coupled": layout.rows,
        }[self.scheme]

    def _check(self, layout: Layout) -> None:
        if self._needed(layout) > self.max_position:
            raise ValueError(
                f"expected at most {self.max_position} {self.scheme} positions, got {self._needed(layout)}: such "
                f"a model reads no longer input; train it with a larger model.max_position"
            )

    def _random_positions(self, layout: Layout, draw: int) -> torch.Tensor:
        order = torch.randperm(self.max_position, generator=torch.Generator().manual_seed(draw))
        positions, device = order[: self._needed(layout)].sort().values, layout.columns.device
        if device.type == "cuda":  # from pinned memory a copy makes no training step wait
            positions = positions.pin_memory()
        return positions.to(device, non_blocking=True)

    def source_index(self, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """The index of each source column, [columns] or [batch, columns]; −1 where a token has none.

        Raises:
            ValueError: the input takes more indices than there are.
        """
        self._check(layout)
        if self.scheme == "learned":
            return layout.columns
        if self.scheme == "randomized":
            return self._random_positions(layout, draw)[layout.columns]
        digit = layout.digit_places > NO_PLACE
        if self.scheme == "abacus":
            return torch.where(digit, layout.digit_places + draw, -1)
        right_of_a_number = torch.isin(layout.columns, layout.column_of_place[:, 0])
        return torch.where(digit, layout.digit_places + 1 + draw, torch.where(right_of_a_number, draw, -1))

    def target_index(self, rows: torch.Tensor, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """The index of the decoder's input at each step, [rows] or [batch, rows]: at step i of place i − 1."""
        self._check(layout)
        if self.scheme == "randomized":
            return self._random_positions(layout, draw)[layout.total_columns + rows]
        if self.scheme == "abacus":
            return torch.where(rows > 0, rows - 1 + draw, -1)
        return rows + draw

    def vectors(self, index: torch.Tensor) -> torch.Tensor:
        """The vector of each index, [..., d_model]; zero for −1."""
        known = index.clamp(min=0)
        found = sinusoid(known, self.d_model) if self.table is None else self.table(known)
        return found * (index >= 0)[..., None]


def rotate(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Turn each pair (x_k, x_{k + d/2}) of [..., n, d] by the angle index · 10000^(−2k/d)."""
    half = x.shape[-1] // 2
    rate = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
    angle = index[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RelativeKeys(nn.Module):
    """Learned vectors w_{clip(j − i, k)}, met by the query: the bias q_i · w / √d of cell (i, j).

    Args:
        d_head: size of a head; the vectors are shared by all heads, as in the source.
        clip: largest distance k told apart.
    """

    def __init__(self, d_head: int, clip: int):
        super().__init__()
        self.clip = clip
        self.vectors = nn.Parameter(torch.randn(2 * clip + 1, d_head) * d_head**-0.5)

    def forward(self, query: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Queries [batch, heads, rows, d_head] to biases [batch, heads, rows, columns]."""
        distance = (columns[None, :] - rows[:, None]).clamp(-self.clip, self.clip) + self.clip
        scores = query @ self.vectors.T / math.sqrt(query.shape[-1])
        return scores.gather(-1, distance.expand(*scores.shape[:2], -1, -1))
