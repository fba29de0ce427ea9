"""The interface every attention bias keeps, causality, and ALiBi.

A bias is a callable `bias(rows, columns) -> [heads, rows, columns]`, added to the attention scores before
the softmax. `rows` are decoder steps, [rows]; `columns` is a `Layout` for cross-attention and `Steps` for
self-attention. Columns above the diagonal of self-attention are closed by the model for every method.
"""

from typing import Protocol

import torch

from abcnb.layout import Layout, Steps

CLOSED = float("-inf")


class Bias(Protocol):
    """Anything that can be added to attention scores."""

    def __call__(self, rows: torch.Tensor, columns: Layout | Steps) -> torch.Tensor: ...


def causal(rows: torch.Tensor, columns: Steps) -> torch.Tensor:
    """0 where column j ≤ row i, −inf where it lies in the future; shape [1, rows, columns]."""
    future = columns.columns[None, :] > rows[:, None]
    return torch.zeros(future.shape, device=rows.device).masked_fill(future, CLOSED)[None]


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
        distance = (rows[:, None] - columns.columns[None, :]).abs()
        return -self.slopes.to(rows.device)[:, None, None] * distance
