"""Small untrained decoders of Hugging Face transformers, and lines for them."""

import pytest
import torch

from abcnb.lines.line import Line, LineBias
from abcnb.tasks.tokens import IDS, encode
from abcnb.yours.pytorch import TokenRule

transformers = pytest.importorskip("transformers")

RULE = TokenRule(digits=[IDS[d] for d in "0123456789"], prompt_end=IDS["="])
HEADS = 4
LINES = LineBias(
    "self",
    HEADS,
    (
        Line(0, "digits", "a", ("place",), (0,)),
        Line(1, "digits", "b", ("place",), (-1,)),
        Line(2, "digits", "digits", ("place",), (-1,)),
        Line(3, "digits", "token 0"),
    ),
)
SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": HEADS}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 64}
FAMILIES = {
    "Llama": GROUPED,
    "Mistral": GROUPED | {"sliding_window": 8},
    "Qwen2": GROUPED,
    "Qwen3": GROUPED | {"head_dim": 8},
    "Gemma2": GROUPED | {"head_dim": 8, "sliding_window": 8},
    "Gemma3Text": GROUPED | {"head_dim": 8, "sliding_window": 8},
    "Phi": {"intermediate_size": 64},
    "GPTNeoX": {"intermediate_size": 64},
    "GPT2": {},
    "Falcon": {"alibi": False, "bos_token_id": 0},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32, "pad_token_id": 1},
}
WRITE = {"do_sample": False, "pad_token_id": IDS["@"], "eos_token_id": None}  # how `generate` is asked


def model_of(family, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES.get(family, {}) | more)
    name = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(family, f"{family}ForCausalLM")
    return getattr(transformers, name)(config).eval()


@torch.no_grad()
def logits(model, ids, **more):
    """Of token ids, or of a text alone."""
    return model(input_ids=encode(ids)[None] if isinstance(ids, str) else ids, **more).logits
