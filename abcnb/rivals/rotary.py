"""Rotary positions (RoPE)."""

import math

import torch

from abcnb.model.positions import Positions


class Rotary(Positions):
    """RoPE: queries and keys are rotated by their column or step number, in self- and cross-attention.

    At widths above `rotary_width`, indices are scaled down to its range (position interpolation); 0 never scales.

    Source: Su et al., RoFormer, equation 34; Chen et al. 2023, equation 4, without their fine-tuning on longer inputs.
    """

    absolute = False

    def __init__(self, rotary_width: int = 0):
        super().__init__()
        self.rotary_width = rotary_width

    def angles(self, columns):
        share = self.rotary_width / columns.stream.width
        return columns.index * share if 0 < share < 1 else columns.index

    def turn(self, x, index):
        return rotate(x, index)


def rotate(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x_k, x_{k + d/2}) of [..., n, d] by the angle index · 10000^(−2k/d)."""
    half = x.shape[-1] // 2
    rate = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
    angle = index[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
