"""Attention biases with parameters, of later work: T5's buckets, KERPLE, FIRE.

Each is a module with the interface of every bias, `bias(rows, columns) -> [heads, rows, columns]`, on the distance
between a decoder step and a step or source column. The sources bias self-attention, and give a decoder-only model
all its positions so; here the source text stands behind cross-attention, which gets a bias of its own, and all
decoder layers share the two. An encoder would need a third: `ModelConfig` refuses these schemes with one.
"""

import math

import torch
from torch import nn

from abcnb.layout import Layout, Steps


def _relative(rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
    """j − i, [rows, columns]."""
    return columns.columns[None, :] - rows[:, None]


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
        return self.values[self.bucket(_relative(rows, columns))].permute(2, 0, 1)


class Kerple(nn.Module):
    """b = −r₁ log(1 + r₂ |i − j|), with learned positive r₁ and r₂ for each head.

    Source: Chi et al. 2022, equation 4 (logarithmic variant). r₁ and r₂ are kept positive as exponentials, where
    the published code clips them.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.log_r1 = nn.Parameter((0.01 + 2 * torch.rand(heads)).log())
        self.log_r2 = nn.Parameter((0.01 + torch.rand(heads)).log())

    def forward(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        distance = _relative(rows, columns).abs()
        r1, r2 = self.log_r1.exp()[:, None, None], self.log_r2.exp()[:, None, None]
        return -r1 * (1 + r2 * distance).log()


FIRE_LENGTH = 512.0  # L at first


class Fire(nn.Module):
    """b = f(ψ(|i − j|) / ψ(max(L, i, j))), ψ(x) = log(c x + 1), f a small network with a value for each head.

    Source: Li et al. 2024, equations 5 to 8, where j ≤ i; c starts at 0.1, L = 512 m with a learned m that starts
    at 1, f has 32 hidden units. In cross-attention, which the source leaves open, j may be the larger.
    """

    def __init__(self, heads: int, hidden: int = 32):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, heads))
        self.c = nn.Parameter(torch.tensor(0.1))
        self.multiplier = nn.Parameter(torch.tensor(1.0))

    def _psi(self, x: torch.Tensor) -> torch.Tensor:
        return (self.c.abs() * x + 1).log()

    def forward(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor:
        """The bias, [heads, rows, columns]."""
        distance = _relative(rows, columns).abs().float()
        furthest = torch.maximum(rows[:, None], columns.columns[None, :])
        threshold = (self.multiplier * FIRE_LENGTH).abs()
        share = self._psi(distance) / (self._psi(torch.maximum(furthest, threshold)) + 1e-6)
        return self.network(share[..., None]).permute(2, 0, 1)


LEARNED_BIASES = ("t5", "kerple", "fire")


def learned_bias(scheme: str, heads: int, causal: bool) -> nn.Module | None:
    """The bias of a position scheme; None for schemes that are no such bias."""
    if scheme not in LEARNED_BIASES:
        return None
    return T5Bias(heads, causal) if scheme == "t5" else {"kerple": Kerple, "fire": Fire}[scheme](heads)
