"""Ours against independent implementations: transformers, x-transformers, peft."""

import pytest
import torch

from abcnb.lines.coordinates import Columns
from abcnb.model.configs import ModelConfig
from abcnb.model.transformer import Transformer
from abcnb.rivals.distances import ALiBi, T5Bias
from abcnb.rivals.lora import LoRAConfig, add_adapters
from abcnb.rivals.rotary import rotate
from abcnb.tasks.task import get_task

HEADS, D_HEAD = 8, 16


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows, columns", [(1, 1), (7, 7), (200, 200)])
def test_alibi_equals_x_transformers(rows, columns):
    reference = pytest.importorskip("x_transformers.x_transformers").AlibiPositionalBias(HEADS)
    close(ALiBi(HEADS)(torch.arange(rows), Columns(None, torch.arange(columns))), reference(rows, columns))


@pytest.mark.parametrize("causal", [True, False])
def test_t5_equals_transformers(causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(num_heads=HEADS, is_decoder=causal, d_model=32, d_kv=4)
    reference = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Bias(HEADS, causal)
    ours.values.data = reference.relative_attention_bias.weight.data.clone().normal_()
    reference.relative_attention_bias.weight.data = ours.values.data
    columns = get_task("addition").stream(150).columns(crossing=True)  # beyond the largest distance told apart
    columns = Columns(columns.stream, columns.index, crossing=not causal)
    close(ours(torch.arange(180), columns), reference.compute_bias(180, len(columns))[0])


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rotary_equals_transformers(scale):
    """Scaled positions are their linear scaling by 1 / scale, which is position interpolation."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    rope = {"rope_type": "linear", "factor": 1 / scale, "rope_theta": 10_000.0}
    config = llama.LlamaConfig(hidden_size=HEADS * D_HEAD, num_attention_heads=HEADS, rope_parameters=rope)
    query, key = torch.randn(2, 3, HEADS, 50, D_HEAD)
    positions = torch.arange(50)
    cos, sin = llama.LlamaRotaryEmbedding(config)(query, positions[None])
    theirs = llama.apply_rotary_pos_emb(query, key, cos, sin)
    close(rotate(query, positions * scale), theirs[0])
    close(rotate(key, positions * scale), theirs[1])


def test_lora_equals_peft():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config, task = ModelConfig(decoder_layers=2, d_model=32, heads=2, d_ff=64), get_task("addition")
    base = Transformer(config, 15).eval()
    ours = Transformer(config, 15).eval()
    ours.load_state_dict(base.state_dict())
    add_adapters(ours, LoRAConfig(4))
    wanted = peft.LoraConfig(r=4, lora_alpha=4, target_modules=r"decoder\..*\.(query|key)")
    theirs = peft.get_peft_model(base, wanted).eval()
    updates = {name: value for name, value in ours.named_parameters() if value.requires_grad}
    trained = [name for name, value in theirs.named_parameters() if value.requires_grad]
    assert len(trained) == len(updates) == 2 * 2 * 2 * 2
    for name, value in theirs.named_parameters():
        if value.requires_grad:
            name = name.removeprefix("base_model.model.")
            name = name.replace("lora_A.default.weight", "down").replace("lora_B.default.weight", "up")
            updates[name].data.normal_()  # B is zero at first
            value.data = updates[name].data
    batch = task.batch(task.widened(tuple(torch.randint(10, (5, 5)) for _ in range(2)), 6))
    with torch.no_grad():
        expected = theirs(batch)
        close(ours(batch), expected)
        with theirs.disable_adapter():
            assert not torch.allclose(theirs(batch), expected, atol=1e-3)
