"""Low-rank adapters (LoRA) on the query and key projections of a trained, frozen model.

    W' = W + (α / r) · B A        A: [r, d_model], B: [d_model, r], B = 0 at first

Queries and keys alone decide where a head attends, so they are what an adapter would have to change to repair the
attention that ABC calibrates.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1 (α fixed to the rank, so
that the scale is 1); paper, appendix E.2, which compares LoRA on W_Q and W_K with ABC and measures nothing.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from abcnb.lines.biases import NO_BIASES, Biases
from abcnb.machine.checks import check_least, check_types
from abcnb.model.configs import ModelConfig, TrainingConfig
from abcnb.model.layers import Attention
from abcnb.model.transformer import Transformer
from abcnb.pipeline import TRAINING, check_data, new_model, trained
from abcnb.tasks.task import Task
from abcnb.tasks.training_data import TrainingData


@dataclass(frozen=True)
class LoRAConfig:
    """The adapters' rank r, at least 1."""

    rank: int = 8

    def __post_init__(self):
        check_types(self)
        check_least(self, rank=1)


class LowRankLinear(nn.Module):
    """A frozen, trained linear map plus a low-rank one; raises ValueError if the rank exceeds its smaller side."""

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


def add_adapters(model: Transformer, config: LoRAConfig) -> None:
    """Freeze a model and give every query and key projection of its decoder an adapter, in place."""
    model.requires_grad_(False)
    for module in model.decoder.modules():
        if isinstance(module, Attention):
            module.query = LowRankLinear(module.query, config.rank)
            module.key = LowRankLinear(module.key, config.rank)


def new_adapted(
    task: Task,
    config: ModelConfig,
    seed: int,
    lora: LoRAConfig,
    weights: dict[str, torch.Tensor] | None = None,
    biases: Biases = NO_BIASES,
) -> Transformer:
    """A model with fresh adapters, the same for the same seed; `weights` are those of a trained one without."""

    def adapters(model: Transformer) -> None:
        if weights:
            model.load_state_dict(weights)
        add_adapters(model, lora)

    return new_model(task, config, seed, biases, adapters)


def adapt(
    data: TrainingData,
    plain: Transformer,
    lora: LoRAConfig,
    training: TrainingConfig = TRAINING,
    seed: int = 0,
    **watch,
) -> Transformer:
    """A new model: a frozen copy of `plain` with trained adapters on its queries and keys.

    `training`, `seed` and `watch` are as in `pipeline.interpolate`.

    Raises:
        ValueError: if the data are not of the model's task, the model has adapters, or its heads have one line
            each, so that queries and keys decide nothing.
    """
    check_data(data, plain)
    if any(isinstance(module, LowRankLinear) for module in plain.modules()):
        raise ValueError("expected a model without adapters, got one that has them")
    if plain.gathers:
        raise ValueError(
            "expected a model whose attention has a choice to adapt, got one with a single line a head"
        )
    biases = Biases(plain.self_biases, plain.cross_biases)
    model = new_adapted(data.task, plain.config, seed, lora, plain.state_dict(), biases)
    return trained(model, data, training, seed, **watch)
