"""Low-rank adapters (LoRA) on the query and key projections of a trained, frozen model.

    W' = W + (α / r) · B A        A: [r, d_model], B: [d_model, r], B = 0 at first

Query and key alone decide where a head attends, so this is what an adapter would have to change to repair the
attention that ABC calibrates.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1 (α fixed to the rank, so
that the scale is 1); paper, appendix E.2, which compares LoRA on W_Q and W_K with ABC and measures nothing.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from abcnb.model.configs import LoRAConfig
from abcnb.model.layers import Attention
from abcnb.model.transformer import Transformer


class LowRankLinear(nn.Module):
    """A trained linear map, frozen, plus one of low rank, at most its smaller side."""

    def __init__(self, frozen: nn.Linear, rank: int):
        super().__init__()
        if rank > (most := min(frozen.in_features, frozen.out_features)):
            raise ValueError(f"expected a rank of at most {most}, got {rank}")
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d_in] to [..., d_out]."""
        return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)


def is_adapted(model: Transformer) -> bool:
    """Whether a model has adapters."""
    return any(isinstance(module, LowRankLinear) for module in model.modules())


def add_adapters(model: Transformer, config: LoRAConfig) -> None:
    """Freeze a model and give every query and key projection of its decoder an adapter, in place."""
    model.requires_grad_(False)
    for module in model.decoder.modules():
        if isinstance(module, Attention):
            module.query = LowRankLinear(module.query, config.rank)
            module.key = LowRankLinear(module.key, config.rank)
