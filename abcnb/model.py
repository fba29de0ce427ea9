"""The encoder-decoder Transformer; its one attention takes a bias and can return its weights.

    scores = Q Kᵀ / √d_head + bias        weights = softmax(scores)        output = weights V

The encoder is the identity by default, as in the authors' published code: the decoder then attends to the
embedded source itself. The paper's text has one encoder layer (`encoder_layers=1`). Layers normalise before
each block (pre-norm), which the paper leaves open.

Source: Vaswani et al. 2017; paper, appendix B (sizes) and equation 2 (bias added to the scores).
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
import torch.nn.functional as F
from torch import nn

from abcnb.biases import Bias, causal
from abcnb.distance_biases import CROSS_DISTANCES
from abcnb.layout import Layout, Steps
from abcnb.positions import SCHEMES, Biased, Positions
from abcnb.tasks import Batch


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and position scheme.

    Attributes:
        encoder_layers: 0 is the identity encoder.
        decoder_layers, heads, d_model, d_ff: sizes; d_model is a multiple of twice the heads.
        dropout: share of activations dropped in training.
        position: the scheme, one of `positions.SCHEMES`; what follows is read by the schemes that have a
            parameter of that name, and explained there.
        period, random_phase: of the cyclic schemes.
        relative_clip: of the relative schemes.
        cross_distance, own_bias_per_layer: of the schemes that go by distance (`distance_biases`).
        rotary_width: of the rotary scheme.
        max_position: of the learned, randomized, abacus and coupled schemes.

    Raises:
        ValueError: a size out of range, an unknown scheme, or a parameter that the scheme does not have.
    """

    encoder_layers: int = 0
    decoder_layers: int = 3
    heads: int = 8
    d_model: int = 128
    d_ff: int = 512
    dropout: float = 0.0
    position: str = "sinusoidal"
    period: int = 3
    random_phase: bool = False
    relative_clip: int = 16
    rotary_width: int = 0
    max_position: int = 512
    cross_distance: str = "left"
    own_bias_per_layer: bool = False

    def __post_init__(self):
        if self.position not in SCHEMES:
            raise ValueError(f"expected a position among {', '.join(SCHEMES)}, got {self.position!r}")
        if self.heads < 1 or self.d_model < 1 or self.d_model % (2 * self.heads):
            raise ValueError(f"expected d_model to be a multiple of 2 × {self.heads} heads, got {self.d_model}")
        if self.decoder_layers < 1 or self.encoder_layers < 0 or self.d_ff < 1:
            raise ValueError(f"expected at least 1 decoder layer, 0 encoder layers and d_ff 1, got {self}")
        if self.encoder_layers and issubclass(SCHEMES[self.position], Biased):
            raise ValueError(f"expected no encoder layers with {self.position!r}, which has no bias for them")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"expected a dropout in [0, 1), got {self.dropout}")
        if self.period < 1 or self.relative_clip < 1:
            raise ValueError(f"expected a period and a relative_clip of at least 1, got {self}")
        if self.max_position < 1 or self.rotary_width < 0:
            raise ValueError(f"expected a max_position of at least 1 and a rotary_width of at least 0, got {self}")
        if self.cross_distance not in CROSS_DISTANCES:
            raise ValueError(
                f"expected a cross_distance among {', '.join(CROSS_DISTANCES)}, got {self.cross_distance!r}"
            )
        for part in fields(self):
            unread = part.name in OF_SCHEMES and part.name not in read_by(SCHEMES[self.position])
            if unread and getattr(self, part.name) != part.default:
                raise ValueError(
                    f"expected {part.name}={part.default} with {self.position!r} positions, which do not read it, "
                    f"got {getattr(self, part.name)}"
                )

    def positions(self) -> Positions:
        """The position scheme, with the parameters that it reads."""
        scheme = SCHEMES[self.position]
        return scheme(**{name: getattr(self, name) for name in read_by(scheme)})


def read_by(scheme: type[Positions]) -> list[str]:
    """The fields of `ModelConfig` that a scheme's constructor takes."""
    names = {part.name for part in fields(ModelConfig)}
    return [name for name in inspect.signature(scheme).parameters if name in names]


# The fields of `ModelConfig` that position schemes alone read.
OF_SCHEMES = set().union(*map(read_by, SCHEMES.values())) - {"d_model", "heads", "decoder_layers"}


@dataclass
class Recording:
    """What the attention of every decoder layer is asked to leave behind.

    Attributes:
        what: `weights` (after the softmax), `scores` (before it, without any bias) or `bias` (all that is
            added to the scores: line biases, relative positions, causality).
        self_attention, cross_attention: one [batch, heads, rows, columns] for each layer.
    """

    what: str = "weights"
    self_attention: list[torch.Tensor] = field(default_factory=list)
    cross_attention: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self):
        if self.what not in ("weights", "scores", "bias"):
            raise ValueError(f"expected weights, scores or bias to be recorded, got {self.what!r}")


class Attention(nn.Module):
    """Multi-head attention with an additive bias, and positions in queries and keys where the scheme has them.

    Args:
        config: sizes.
        positions: the position scheme.
        crossing: it attends from the decoder to the source.
    """

    def __init__(self, config: ModelConfig, positions: Positions, crossing: bool = False):
        super().__init__()
        d = config.d_model
        self.heads = config.heads
        self.query, self.key, self.value, self.output = (nn.Linear(d, d) for _ in range(4))
        for projection in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)
        self.turn = positions.turn
        self.relative = positions.relative(d // config.heads, crossing)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, n, d_model] to [batch, heads, n, d_head]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def keys_values(self, memory: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of [batch, columns, d_model], each [batch, heads, columns, d_head]."""
        key, value = self._split(self.key(memory)), self._split(self.value(memory))
        return self.turn(key, columns), value

    def forward(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        keys_values: tuple[torch.Tensor, torch.Tensor],
        columns: torch.Tensor,
        bias: torch.Tensor | None,
        record: tuple[str, list] | None = None,
    ) -> torch.Tensor:
        """Attend from x to keys and values.

        Args:
            x: [batch, rows, d_model].
            rows: [rows], step numbers.
            keys_values: from `keys_values`.
            columns: [columns], step numbers or coordinates of source columns (`Positions.coordinates`).
            bias: [heads or 1, rows, columns] added to the scores, or None.
            record: (`weights`, `scores` or `bias`, the list to append them to); takes the explicit path.

        Returns:
            [batch, rows, d_model].
        """
        key, value = keys_values
        query = self.turn(self._split(self.query(x)), rows)
        if self.relative is not None:
            relative = self.relative(query, rows, columns)
            bias = relative if bias is None else relative + bias
        if bias is not None:
            bias = bias.to(query.dtype)
            bias = bias[None] if bias.dim() == 3 else bias  # the fused kernels take four dimensions only
        if record is None:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        else:
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            weights = (scores if bias is None else scores + bias).softmax(-1)
            added = torch.zeros_like(scores) if bias is None else bias.expand_as(scores)
            record[1].append({"weights": weights, "scores": scores, "bias": added}[record[0]])
            mixed = weights @ value
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Linear, ReLU, linear."""

    def __init__(self, config: ModelConfig):
        super().__init__(
            nn.Linear(config.d_model, config.d_ff), nn.ReLU(inplace=True), nn.Linear(config.d_ff, config.d_model)
        )


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward block."""

    def __init__(self, config: ModelConfig, positions: Positions):
        super().__init__()
        self.attention, self.feed_forward = Attention(config, positions), FeedForward(config)
        self.norm_attention, self.norm_feed_forward = (nn.LayerNorm(config.d_model) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """[batch, columns, d_model] to the same shape."""
        normed = self.norm_attention(x)
        keys_values = self.attention.keys_values(normed, columns)
        x = x + self.dropout(self.attention(normed, columns, keys_values, columns, None))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, then the feed-forward block."""

    def __init__(self, config: ModelConfig, positions: Positions):
        super().__init__()
        self.self_attention = Attention(config, positions)
        self.cross_attention = Attention(config, positions, crossing=True)
        self.feed_forward = FeedForward(config)
        self.norm_self, self.norm_cross, self.norm_feed_forward = (nn.LayerNorm(config.d_model) for _ in range(3))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor] | None,
        steps: torch.Tensor,
        memory: tuple[torch.Tensor, torch.Tensor],
        columns: torch.Tensor,
        biases: tuple[torch.Tensor, torch.Tensor | None],
        recording: Recording | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """One layer.

        Args:
            x: [batch, rows, d_model].
            rows: [rows], step numbers of x.
            past: keys and values of earlier steps, or None.
            steps: step numbers of past and present keys.
            memory: the source's keys and values for this layer.
            columns: coordinates of the source's columns.
            biases: of self- and of cross-attention.
            recording: where to leave attention weights or scores.

        Returns:
            x of the next layer, and the keys and values of all steps so far.
        """
        ask = recording and (recording.what, recording.self_attention)
        normed = self.norm_self(x)
        keys_values = self.self_attention.keys_values(normed, rows)
        if past is not None:
            keys_values = tuple(torch.cat(pair, dim=2) for pair in zip(past, keys_values, strict=True))
        x = x + self.dropout(self.self_attention(normed, rows, keys_values, steps, biases[0], ask))
        ask = recording and (recording.what, recording.cross_attention)
        crossed = self.cross_attention(self.norm_cross(x), rows, memory, columns, biases[1], ask)
        x = x + self.dropout(crossed)
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x))), keys_values


class Transformer(nn.Module):
    """Token ids in, logits of the next token out.

    Args:
        config: sizes and position scheme.
        vocabulary_size: tokens told apart; `Task.vocabulary_size`.
        self_biases, cross_biases: one bias for all decoder layers, or one for each layer, or None.

    Attributes:
        history: the validations of its training, in order; empty for a model that was not trained here.
        trained_on: the task, base and form that it was trained on; empty where that is not known.

    Raises:
        ValueError: the number of biases is neither one nor the number of decoder layers, or a bias is for another
            number of heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        self_biases: tuple[Bias, ...] = (),
        cross_biases: tuple[Bias, ...] = (),
    ):
        super().__init__()
        for name, biases in (("self", self_biases), ("cross", cross_biases)):
            if len(biases) not in (0, 1, config.decoder_layers):
                raise ValueError(
                    f"expected 1 or {config.decoder_layers} {name}-attention biases, got {len(biases)}"
                )
            for bias in biases:
                if getattr(bias, "attention", name) != name:
                    raise ValueError(f"expected a {name}-attention bias, got one of {bias.attention}-attention")
                if getattr(bias, "heads", config.heads) != config.heads:
                    raise ValueError(f"expected a {name}-attention bias of {config.heads} heads, got {bias.heads}")
        self.config = config
        self.self_biases, self.cross_biases = self_biases, cross_biases
        self.history: list[dict] = []
        self.trained_on = ""
        self.embedding = nn.Embedding(vocabulary_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.positions = config.positions()
        self.encoder = nn.ModuleList(EncoderLayer(config, self.positions) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, self.positions) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, vocabulary_size)
        self.dropout = nn.Dropout(config.dropout)
        self._known_biases: dict[tuple[int, Layout], list] = {}

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.head.weight.device

    def _embed(self, tokens: torch.Tensor, vectors: torch.Tensor | None) -> torch.Tensor:
        x = self.embedding(tokens) * math.sqrt(self.config.d_model)
        return self.dropout(x if vectors is None else x + vectors)

    def embed_source(self, source: torch.Tensor, layout: Layout, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """[batch, columns] token ids to the encoder's output, [batch, columns, d_model]."""
        x = self._embed(source, self.positions.source(layout, draw))
        for layer in self.encoder:
            x = layer(x, self.positions.angles(layout.columns, layout))
        return x

    def embed_target(
        self, tokens: torch.Tensor, rows: torch.Tensor, layout: Layout, draw: int | torch.Tensor = 0
    ) -> torch.Tensor:
        """[batch, rows] token ids to [batch, rows, d_model]."""
        return self._embed(tokens, self.positions.target(rows, layout, draw))

    def memory(
        self, source: torch.Tensor, layout: Layout, draw: int | torch.Tensor = 0
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The source's keys and values for each decoder layer."""
        encoded = self.embed_source(source, layout, draw)
        columns = self.positions.angles(layout.columns, layout)
        return [layer.cross_attention.keys_values(encoded, columns) for layer in self.decoder]

    def biases_of(
        self, rows: torch.Tensor | int, steps: Steps | None, layout: Layout
    ) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """The expanded (self, cross) biases of each decoder layer, causality included.

        Args:
            rows: step numbers, or how many steps from 0.
            steps: the steps attended to; all of `rows` when None.
            layout: the source's columns.
        """
        if isinstance(rows, int):
            rows = torch.arange(rows, device=self.device)
        steps = steps or Steps(rows, len(rows))
        mask = causal(rows, steps)
        selves = [bias(rows, steps) + mask for bias in self.self_biases] or [mask]
        selves = _sums(selves, self.positions.biases(rows, steps))
        crosses = [bias(rows, layout) for bias in self.cross_biases]
        crosses = _sums(crosses, self.positions.biases(rows, layout)) or [None]
        layers = len(self.decoder)
        selves, crosses = selves * (layers // len(selves)), crosses * (layers // len(crosses))
        return list(zip(selves, crosses, strict=True))

    def run_decoder(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        steps: torch.Tensor,
        memory: list[tuple[torch.Tensor, torch.Tensor]],
        columns: torch.Tensor,
        biases: list[tuple[torch.Tensor, torch.Tensor | None]],
        past: list | None = None,
        recording: Recording | None = None,
    ) -> tuple[torch.Tensor, list]:
        """Run the decoder layers over embedded targets; returns logits and each layer's keys and values."""
        kept = []
        for i, layer in enumerate(self.decoder):
            before = past[i] if past else None
            x, keys_values = layer(x, rows, before, steps, memory[i], columns, biases[i], recording)
            kept.append(keys_values)
        return self.head(self.norm(x)), kept

    def forward(self, batch: Batch, recording: Recording | None = None) -> torch.Tensor:
        """Teacher-forced logits, [batch, rows, vocabulary]: row i predicts target i from targets before it."""
        tokens, layout = batch.decoder_input, batch.layout
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        draw = self._draw(layout, len(tokens)) if self.training else 0
        biases_of = self.biases_of if self.positions.biased else self._kept_biases
        memory = self.memory(batch.source, layout, draw)
        x = self.embed_target(tokens, rows, layout, draw)
        angles, biases = self.positions.angles(rows, layout), biases_of(len(rows), None, layout)
        columns = self.positions.coordinates(layout)
        return self.run_decoder(x, angles, angles, memory, columns, biases, None, recording)[0]

    def _kept_biases(
        self, rows: int, steps: None, layout: Layout
    ) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """`biases_of` without parameters, the same at every training step of one width: the last two are kept."""
        key = rows, layout
        if key not in self._known_biases:
            while len(self._known_biases) > 1:
                del self._known_biases[next(iter(self._known_biases))]
            self._known_biases[key] = self.biases_of(rows, steps, layout)
        return self._known_biases[key]

    def _draw(self, layout: Layout, batch: int) -> int | torch.Tensor:
        return self.positions.draw(layout, batch)


def _sums(some: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sums of two lists of biases, each of them empty, one for all layers, or one for each layer."""
    if not some or not others:
        return some or others
    count = max(len(some), len(others))
    pairs = zip(some * (count // len(some)), others * (count // len(others)), strict=True)
    return [one + other for one, other in pairs]


def compiled(model: Transformer, mode: str = "default") -> Callable[[Batch], torch.Tensor]:
    """The model through `torch.compile`, except for what must stay Python.

    Those are what a batch draws at random for its positions, and the biases without parameters, which would be made
    anew at every step.
    """
    model._draw = torch.compiler.disable(model._draw)
    model._kept_biases = torch.compiler.disable(model._kept_biases)
    return torch.compile(model, mode=mode)
