"""Configurations of a model and of its training. Frozen, and checked when they are made."""

import inspect
from dataclasses import dataclass, fields

from abcnb.machine.checks import check_among, check_least, check_types
from abcnb.model.positions import SCHEMES, Positions

ARCHITECTURES = ("encoder-decoder", "decoder-only")
AT_LEAST_ONE = ("decoder_layers", "heads", "d_model", "d_ff", "period", "relative_clip", "max_position")
CROSS_DISTANCES = ("left", "right", "places")  # `rivals.distances`


@dataclass(frozen=True)
class ModelConfig:
    """Sizes, architecture and position scheme.

    Attributes:
        encoder_layers: 0 is the identity encoder.
        decoder_layers, heads, d_model, d_ff: sizes; d_model is a multiple of twice the heads.
        dropout: share of activations dropped in training.
        position: the scheme, one of `SCHEMES`. Other fields are read, and explained, by some schemes: `period`
            by the cyclic one, `relative_clip` by the relative ones, `cross_distance` and `own_bias_per_layer` by
            those that go by distance, `rotary_width` by the rotary one, and `max_position` by the learned,
            randomized, abacus and coupled ones.
        architecture: `encoder-decoder`, or `decoder-only`: input and output in one causal stream.

    Raises:
        ValueError: a size out of range, an unknown choice, or one that the scheme or architecture does not allow.
    """

    encoder_layers: int = 0
    decoder_layers: int = 3
    heads: int = 8
    d_model: int = 128
    d_ff: int = 512
    dropout: float = 0.0
    position: str = "sinusoidal"
    period: int = 3
    relative_clip: int = 16
    rotary_width: int = 0
    max_position: int = 512
    cross_distance: str = "left"
    own_bias_per_layer: bool = False
    architecture: str = "encoder-decoder"

    def __post_init__(self):
        check_types(self)
        check_among(self, position=SCHEMES, cross_distance=CROSS_DISTANCES, architecture=ARCHITECTURES)
        check_least(self, encoder_layers=0, rotary_width=0)
        check_least(self, **dict.fromkeys(AT_LEAST_ONE, 1))
        scheme, in_stream = SCHEMES[self.position], self.architecture == "decoder-only"
        if self.d_model % (2 * self.heads):
            raise ValueError(f"expected d_model to be a multiple of 2 × {self.heads} heads, got {self.d_model}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"expected a dropout in [0, 1), got {self.dropout}")
        if self.encoder_layers and scheme.biased:
            raise ValueError(f"expected no encoder layers with {self.position!r}, which has no bias for them")
        if self.encoder_layers and in_stream:
            raise ValueError(f"expected no encoder layers in a decoder-only model, got {self.encoder_layers}")
        if in_stream and not scheme.in_streams:
            known = [name for name, other in SCHEMES.items() if other.in_streams]
            raise ValueError(
                f"expected a position among {', '.join(known)} in a decoder-only model, got {self.position!r}"
            )
        if not in_stream and scheme.only_in_streams:
            raise ValueError(f"{self.position!r} positions are for decoder-only models")
        unread = {*OF_SCHEMES} - {*read_by(scheme)} | ({"cross_distance", "rotary_width"} if in_stream else set())
        for part in fields(self):
            if part.name in unread and getattr(self, part.name) != part.default:
                raise ValueError(
                    f"expected {part.name}={part.default} with {self.position!r} positions"
                    f"{' in a decoder-only model' * in_stream}, which do not read it, got {getattr(self, part.name)}"
                )

    def positions(self) -> Positions:
        """The position scheme, with the parameters that it reads."""
        scheme = SCHEMES[self.position]
        return scheme(**{name: getattr(self, name) for name in read_by(scheme)})


def read_by(scheme: type[Positions]) -> list[str]:
    """The fields of `ModelConfig` that a scheme's constructor takes."""
    names = {part.name for part in fields(ModelConfig)}
    return [name for name in inspect.signature(scheme).parameters if name in names]


OF_SCHEMES = ("period", "relative_clip", "rotary_width", "max_position", "cross_distance", "own_bias_per_layer")


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        steps: optimizer steps, over which the learning rate falls to zero.
        batch_size: samples per step.
        learning_rate, warmup_steps: its peak (paper's text: 1e-5, authors' code: 1e-4), and steps up to it.
        weight_decay, clip: AdamW's weight decay, and the largest gradient norm.
        validate_every, validation_samples: steps between validations, and held-out samples in each.
        precision: `fp32`, `bf16` (autocast), or `auto`: bf16 on CUDA, fp32 elsewhere.
    """

    steps: int = 1500
    batch_size: int = 256
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    validate_every: int = 100
    validation_samples: int = 1000
    precision: str = "auto"

    def __post_init__(self):
        check_types(self)
        check_least(
            self, steps=1, batch_size=1, validate_every=1, validation_samples=1, warmup_steps=0, weight_decay=0
        )
        check_among(self, precision=("auto", "fp32", "bf16"))
        if not 0 < self.learning_rate < 1 or self.clip <= 0:
            raise ValueError(f"expected a learning rate in (0, 1) and a positive clip, got {self}")
