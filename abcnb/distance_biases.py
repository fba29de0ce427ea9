"""Attention biases that depend on the distance between a step and a step or source column: ALiBi, T5, KERPLE, FIRE.

Each is called `bias(rows, columns) -> [heads, rows, columns]`, as every bias is (`biases`). The sources bias the
self-attention of a decoder-only model, which gets all its positions so; here the source text stands behind
cross-attention, which gets a bias of its own.
"""

import math

import torch
from torch import nn

from abcnb.layout import Layout, Steps


def _distance(rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
    """j − i, [rows, columns]."""
    return columns.columns[None, :] - rows[:, None]


class ALiBi:
    """Attention with linear biases: b[h, i, j] = −m_h · |i − j|, m_h = 2^(−8h/H) for h = 1 … H.

    Args:
        heads: number of heads; a power of two.

    Raises:
        ValueError: heads is not a power of two, for which the source defines no single sequence of slopes.

    Source: Press, Smith, Lewis, "Train short, test long", section 3. As published it biases causal
    self-attention only; the cross-attention and the source then carry no position at all. Over cross-attention,
    which the source leaves open, |i − j| is taken between the decoder step and the source column.
    """

    def __init__(self, heads: int):
        if heads < 1 or heads & (heads - 1):
            raise ValueError(f"expected a power of two for ALiBi's heads, got {heads}")
        self.heads = heads
        self.slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)

    def __call__(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        return -self.slopes.to(rows.device)[:, None, None] * _distance(rows, columns).abs()


class T5Bias(nn.Module):
    """A learned number for each head and bucket of j − i; buckets widen logarithmically.

    Half of the buckets hold one distance each, the others grow up to `max_distance`. Causal attention spends all
    on the past, cross-attention half on either side.

    Args:
        heads: number of heads.
        causal: for self-attention.
        buckets, max_distance: the source's 32 and 128.

    Source: Raffel et al. 2020, section 2.1, and the bucket function of the published code.
    """

    def __init__(self, heads: int, causal: bool, buckets: int = 32, max_distance: int = 128):
        super().__init__()
        self.causal, self.buckets, self.max_distance = causal, buckets, max_distance
        self.values = nn.Parameter(torch.zeros(buckets, heads))

    def bucket(self, relative: torch.Tensor) -> torch.Tensor:
        """The bucket of each j − i."""
        buckets = self.buckets if self.causal else self.buckets // 2
        side = torch.zeros_like(relative) if self.causal else (relative > 0) * buckets
        distance = (-relative).clamp(min=0) if self.causal else relative.abs()
        exact = buckets // 2
        share = (distance.clamp(min=1) / exact).log() / math.log(self.max_distance / exact)
        wide = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
        return side + torch.where(distance < exact, distance, wide)

    def forward(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        return self.values[self.bucket(_distance(rows, columns))].permute(2, 0, 1)


class KerpleBias(nn.Module):
    """b = −r₁ log(1 + r₂ |i − j|), with learned positive r₁ and r₂ for each head.

    Source: Chi et al. 2022, equation 4 (logarithmic variant). r₁ and r₂ are kept positive as exponentials, where
    the published code clips them.
    """

    def __init__(self, heads: int, causal: bool = True):
        super().__init__()
        self.log_r1 = nn.Parameter((0.01 + 2 * torch.rand(heads)).log())
        self.log_r2 = nn.Parameter((0.01 + torch.rand(heads)).log())

    def forward(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        distance = _distance(rows, columns).abs()
        r1, r2 = self.log_r1.exp()[:, None, None], self.log_r2.exp()[:, None, None]
        return -r1 * (1 + r2 * distance).log()


FIRE_LENGTH = 512.0  # L at first


class FireBias(nn.Module):
    """b = f(ψ(|i − j|) / ψ(max(L, i, j))), ψ(x) = log(c x + 1), f a small network with a value for each head.

    Source: Li et al. 2024, equations 5 to 8, where j ≤ i; c starts at 0.1, L = 512 m with a learned m that starts
    at 1, f has 32 hidden units. In cross-attention, which the source leaves open, j may be the larger.
    """

    def __init__(self, heads: int, causal: bool = True, hidden: int = 32):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, heads))
        self.c = nn.Parameter(torch.tensor(0.1))
        self.multiplier = nn.Parameter(torch.tensor(1.0))

    def _psi(self, x: torch.Tensor) -> torch.Tensor:
        return (self.c.abs() * x + 1).log()

    def forward(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        distance = _distance(rows, columns).abs().float()
        furthest = torch.maximum(rows[:, None], columns.columns[None, :])
        threshold = (self.multiplier * FIRE_LENGTH).abs()
        share = self._psi(distance) / (self._psi(torch.maximum(furthest, threshold)) + 1e-6)
        return self.network(share[..., None]).permute(2, 0, 1)
