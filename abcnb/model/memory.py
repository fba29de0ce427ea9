"""What fits into memory: models, training steps and tests that do not are refused before they begin.

The counts are of what is needed at the very least, so that nothing is refused that could work.
"""

import torch

from abcnb.machine.devices import CPU, check_memory
from abcnb.model.configs import ModelConfig

# Bytes of a token, of a number, and of a trained weight: itself, its gradient and the two moments of AdamW.
PER_TOKEN, PER_FLOAT, PER_WEIGHT = 8, 4, 16


def parameters(config: ModelConfig, vocabulary: int) -> int:
    """Weights of a model's layers, embedding and head, without norms, biases and positions."""
    attention, feed_forward = 4 * config.d_model**2, 2 * config.d_model * config.d_ff
    attentions = 1 if config.architecture == "decoder-only" else 2
    decoder = config.decoder_layers * (attentions * attention + feed_forward)
    return decoder + config.encoder_layers * (attention + feed_forward) + 2 * vocabulary * config.d_model


def check_model(config: ModelConfig, vocabulary: int) -> None:
    """Refuse a model whose weights do not fit."""
    needed = PER_FLOAT * parameters(config, vocabulary)
    sizes = f"{config.decoder_layers:,} layers of d_model {config.d_model:,} and d_ff {config.d_ff:,}"
    check_memory(needed, f"a model of {sizes}", "take smaller ones")


def check_training(config: ModelConfig, vocabulary: int, batch: int, rows: int, device: torch.device) -> None:
    """Refuse a training step, on so many samples of so many output tokens, that does not fit."""
    # Inputs of the layer's products: of the query, key and value, of the output, of both halves of the feed-forward.
    activations = batch * rows * config.decoder_layers * (3 * config.d_model + config.d_ff)
    needed = PER_WEIGHT * parameters(config, vocabulary) + PER_FLOAT * activations
    what = f"a training step on {batch:,} samples of {rows:,} tokens"
    check_memory(needed, what, "take a smaller training.batch_size, width or model", device)


def check_test(samples: int, digits: float, operands: int) -> None:
    """Refuse a test set that does not fit: all digits thrice while distinct samples are sought, and, of a sample that
    is evaluated, its source, target, decoder input and layout."""
    needed = PER_TOKEN * digits * operands * (3 * samples + 4)
    check_memory(needed, f"a test of {samples:,} samples of {digits:,.0f} digits", "ask for fewer or shorter ones")


def check_dense(rows: float, device: torch.device = CPU) -> None:
    """Refuse attention over all pairs of tokens that does not fit; models without lines need it, and its mask."""
    advice = "ask for shorter inputs, or a model with lines"
    check_memory(PER_FLOAT * rows**2, f"attention over {rows:,.0f} tokens", advice, device)
