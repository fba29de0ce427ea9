"""The Transformer: an encoder-decoder, or a decoder alone on one causal sequence.

The encoder is the identity by default, as in the authors' published code: the decoder attends to the embedded
source itself. The paper's text has one encoder layer (`encoder_layers=1`). A decoder-only model, which reads
`$123+748=1780&`, has the same layers without cross-attention.

Source: Vaswani et al. 2017; paper, appendix B (sizes).
"""

import math
from typing import NamedTuple

import torch
from torch import nn

from abcnb.lines.biases import Bias, causal
from abcnb.lines.coordinates import Columns, Stream, in_one
from abcnb.lines.line import LineBias
from abcnb.model.configs import ModelConfig
from abcnb.model.layers import DecoderLayer, EncoderLayer, KeysValues, Recording, needs_keys
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import EQUALS_ID, START_ID

SHAPES_KEPT = 64  # shapes whose biases a model keeps
LayerBiases = list[tuple[torch.Tensor, torch.Tensor | None]]  # of self- and cross-attention


class Memory(NamedTuple):
    """What decoder layers read of the source: each one's keys and values, and `Positions.coordinates`."""

    keys_values: list[KeysValues | None]
    columns: torch.Tensor | None


class Transformer(nn.Module):
    """Token ids in, logits of the next token out.

    Args:
        vocabulary_size: the number of distinct tokens; `Task.vocabulary_size`.
        self_biases, cross_biases: none, one bias for all decoder layers, or one per layer.

    Attributes:
        history: the validations of its training, in order; empty for a model that was not trained here.
        trained_on: the task, base and form that it was trained on; empty if unknown.

    Raises:
        ValueError: a wrong number of biases, or one for the wrong attention or number of heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        self_biases: tuple[Bias, ...] = (),
        cross_biases: tuple[Bias, ...] = (),
    ):
        super().__init__()
        self.crossing = config.architecture == "encoder-decoder"
        if cross_biases and not self.crossing:
            raise ValueError(
                "expected no cross-attention bias in a decoder-only model, which has no cross-attention"
            )
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
        self._known_biases: dict[tuple[int, Stream, bool], LayerBiases] = {}
        if self.positions.biased and not self.crossing:  # the scheme's bias for an attention that is not there
            self.positions.cross_bias.requires_grad_(False)
        if self.gathers:  # nothing is compared, so what makes queries and keys would get no gradient
            for name, module in self.decoder.named_modules():
                if name.endswith(("query", "key", "norm_cross")):
                    module.requires_grad_(False)

    @property
    def along_lines(self) -> bool:
        """Whether all attention is along lines."""
        everywhere = bool(self.self_biases) and (bool(self.cross_biases) or not self.crossing)
        return everywhere and all(isinstance(bias, LineBias) for bias in (*self.self_biases, *self.cross_biases))

    @property
    def gathers(self) -> bool:
        """Whether every head attends to one token at a time, so that values are gathered and nothing is compared."""
        biases = (*self.self_biases, *self.cross_biases)
        return self.along_lines and not self.positions.biased and all(bias.most == 1 for bias in biases)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.head.weight.device

    def stream_of(self, stream: Stream) -> Stream:
        """The coordinates of a task's input as this architecture reads it; raises ValueError if it cannot."""
        if self.crossing and not stream.source:
            raise ValueError(
                "expected a decoder-only model for inputs that are one sequence, got an encoder-decoder"
            )
        return stream if self.crossing else in_one(stream)

    def prompt(self, source: torch.Tensor) -> torch.Tensor:
        """What the decoder reads before its first output, [batch, tokens]: the start token, or the input up to `=`."""
        if self.crossing:
            return torch.full_like(source[:, :1], START_ID)
        return torch.cat([source[:, :-1], torch.full_like(source[:, :1], EQUALS_ID)], dim=1)

    def sequence(self, batch: Batch) -> torch.Tensor:
        """What the decoder reads in teacher forcing, [batch, tokens]: the prompt and all outputs but the last."""
        return torch.cat([self.prompt(batch.source), batch.target[:, :-1]], dim=1)

    def embed(self, tokens: torch.Tensor, columns: Columns, draw: int | torch.Tensor = 0) -> torch.Tensor:
        """[batch, n] token ids to [batch, n, d_model], with their positions."""
        x, vectors = self.embedding(tokens) * math.sqrt(self.config.d_model), self.positions.vectors(columns, draw)
        return self.dropout(x if vectors is None else x + vectors)

    def memory(
        self, source: torch.Tensor, columns: Columns, draw: int | torch.Tensor = 0, keyed: bool = True
    ) -> Memory:
        """What decoder layers read of source columns, if there are any; `keyed` as in `Attention.keys_values`."""
        if not self.crossing:
            return Memory([None] * len(self.decoder), None)
        x, angles = self.embed(source, columns, draw), self.positions.angles(columns)
        for layer in self.encoder:
            x = layer(x, angles)
        keys_values = [layer.cross_attention.keys_values(x, angles, keyed) for layer in self.decoder]
        return Memory(keys_values, self.positions.coordinates(columns))

    def biases_of(self, rows: torch.Tensor, columns: Columns) -> LayerBiases:
        """Each decoder layer's biases for these rows; self-attention's are over `columns`, causality included."""
        selves, crosses = [bias(rows, columns) for bias in self.self_biases], []
        selves = sums_of([causal(rows, columns)], selves, self.positions.biases(rows, columns))
        if self.crossing:
            source = columns.stream.columns(crossing=True)
            crosses = [bias(rows, source) for bias in self.cross_biases]
            crosses = sums_of(crosses, self.positions.biases(rows, source))
        return self.by_layer(selves, crosses)

    def by_layer(self, selves: list, crosses: list) -> LayerBiases:
        """Both attentions' biases for each decoder layer, from one for all layers, one per layer, or none."""
        crosses = crosses or [None]
        return [(selves[i % len(selves)], crosses[i % len(crosses)]) for i in range(len(self.decoder))]

    def run_decoder(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        steps: torch.Tensor,
        memory: Memory,
        biases: LayerBiases,
        past: list | None = None,
        recording: Recording | None = None,
    ) -> tuple[torch.Tensor, list]:
        """Run the decoder layers over embedded tokens; returns hidden states and each layer's keys and values."""
        kept, past = [], past or [None] * len(self.decoder)
        for layer, before, source, bias in zip(self.decoder, past, memory.keys_values, biases, strict=True):
            x, keys_values = layer(x, rows, before, steps, source, memory.columns, bias, recording)
            kept.append(keys_values)
        return x, kept

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states to logits of the next token."""
        return self.head(self.norm(x))

    def forward(
        self, batch: Batch, recording: Recording | None = None, biases: LayerBiases | None = None
    ) -> torch.Tensor:
        """Teacher-forced logits, [batch, steps, vocabulary]: step i predicts target i from the targets before it.

        `biases` replace the model's own in a pass of several models at once (`together`).
        """
        tokens, stream = self.sequence(batch), self.stream_of(batch.stream)
        columns = stream.columns()
        draw = self.positions.draw(stream, len(tokens)) if self.training else 0
        biases = biases or self.kept_biases(columns, self.gathers and recording is None)
        memory = self.memory(batch.source, stream.columns(crossing=True), draw, needs_keys(biases[0][1]))
        x, angles = self.embed(tokens, columns, draw), self.positions.angles(columns)
        x, _ = self.run_decoder(x, angles, angles, memory, biases, None, recording)
        return self.logits(x[:, stream.prompt - 1 - stream.source :])

    @torch.no_grad()
    def predictions(self, batch: Batch) -> torch.Tensor:
        """The argmax of teacher-forced logits, [batch, steps]."""
        return self(batch).argmax(-1)

    def open_tokens(self, rows: torch.Tensor, stream: Stream) -> LayerBiases:
        """The open tokens of each layer's attentions, for a model whose attention is only along lines."""
        both = self.self_biases, self.cross_biases
        return self.by_layer(*([bias.open_tokens(rows, stream) for bias in biases] for biases in both))

    def kept_biases(self, columns: Columns, gathers: bool) -> LayerBiases:
        """Each layer's biases. Unless they have parameters, they depend only on shape, and the latest are kept."""
        if self.positions.biased:
            return self.biases_of(columns.index, columns)
        key = len(columns), columns.stream, gathers, self.self_biases, self.cross_biases
        if key not in self._known_biases:
            if len(self._known_biases) >= SHAPES_KEPT:
                del self._known_biases[next(iter(self._known_biases))]
            with torch.inference_mode(False):  # training may use them later
                rows = columns.index
                made = self.open_tokens(rows, columns.stream) if gathers else self.biases_of(rows, columns)
            self._known_biases[key] = made
        return self._known_biases[key]


def sums_of(*parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sums of lists of biases, as floats; each list is empty, one for all layers, or one per layer."""
    layers = range(max(map(len, parts)))
    return [sum((biases[i % len(biases)] for biases in parts if biases), 0.0) for i in layers]
