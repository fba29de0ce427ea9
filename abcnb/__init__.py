"""abcnb: small Transformers that learn arithmetic and generalize in length.

The package reads from the ground floor up: tokens, layout, tasks, biases, lines, positions, model,
decoding, evaluation, training, calibration, experiments. Each module states its subject in its first line.
"""

__version__ = "0.1.0"
