"""Low-rank adapters, against hand-computed weights and an independent count."""

import pytest
import torch
from torch import nn

from abcnb.model.configs import ModelConfig
from abcnb.model.transformer import Transformer
from abcnb.rivals.lora import LoRAConfig, LowRankLinear, add_adapters
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run


def test_an_adapter_adds_b_times_a():
    frozen = nn.Linear(2, 2, bias=False)
    frozen.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    adapted = LowRankLinear(frozen, 1)
    adapted.down.data, adapted.up.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [-1.0]])
    # B A = [[3, 6], [-1, -2]]; x = (1, 1): (1, 1) + (9, -3)
    assert adapted(torch.tensor([1.0, 1.0])).tolist() == [10.0, -2.0]


def test_a_rank_beyond_the_matrix_is_refused():
    with pytest.raises(ValueError, match="at most 2, got 3"):
        LowRankLinear(nn.Linear(2, 4), 3)
    with pytest.raises(ValueError, match="at least 1"):
        LoRAConfig(0)


def test_only_queries_and_keys_of_the_decoder_are_trained():
    model = Transformer(ModelConfig(decoder_layers=2, d_model=32, heads=2, d_ff=64), 15)
    before = sum(p.numel() for p in model.parameters())
    add_adapters(model, LoRAConfig(4))
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    # 2 layers × (self, cross) × (query, key) × 2 matrices of 4 × 32
    assert sum(trained.values()) == 2 * 2 * 2 * 2 * 4 * 32
    assert all(".query." in name or ".key." in name for name in trained)
    assert sum(p.numel() for p in model.parameters()) == before + sum(trained.values())


def test_training_leaves_the_adapted_model_as_it_was(shared_runs):
    wanted = experiment("addition", "lora", "smoke")
    run = fit(wanted, shared_runs, "cpu", progress=False)
    base = load_run(shared_runs / wanted.interpolation.digest).model().state_dict()
    adapted = load_run(run.folder).model()
    found = {name.replace(".frozen.", "."): value for name, value in adapted.state_dict().items()}
    assert set(base) <= set(found)
    for name, value in base.items():
        assert torch.equal(value, found[name]), name
    ups = [value for name, value in found.items() if name.endswith(".up")]
    assert len(ups) == 8 and all(value.abs().max() > 0 for value in ups)
    assert run.metrics["parameters"] == sum(v.numel() for n, v in found.items() if n.endswith((".up", ".down")))
