"""One Transformer for both architectures: layers, training, decoding, evaluation."""
