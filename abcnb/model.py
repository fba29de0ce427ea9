"""The encoder-decoder Transformer.

The encoder is the identity by default, as in the authors' published code: the decoder then attends to the
embedded source itself. The paper's text has one encoder layer (`encoder_layers=1`).

Source: Vaswani et al. 2017; paper, appendix B (sizes).
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from abcnb.biases import Bias, causal
from abcnb.layers import DecoderLayer, EncoderLayer, Recording
from abcnb.layout import Layout, Steps
from abcnb.model_config import ModelConfig
from abcnb.stream import Stream
from abcnb.tasks import Batch


class Transformer(nn.Module):
    """Token ids in, logits of the next token out.

    Args:
        config: sizes and position scheme.
        vocabulary_size: tokens told apart; `Task.vocabulary_size`.
        self_biases, cross_biases: none, one bias for all decoder layers, or one for each layer.

    Attributes:
        history: the validations of its training, in order; empty for a model that was not trained here.
        trained_on: the task, base and form that it was trained on; empty where that is not known.

    Raises:
        ValueError: there are biases, but neither one nor one for each decoder layer, or a bias is for the other
            attention or another number of heads.
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
        self._known_biases: dict[tuple[int, Layout] | Stream, list] = {}

    @property
    def opens_few(self) -> bool:
        """Whether every row of a stream attends to a bounded number of tokens; only a decoder-only model's can."""
        return False

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
        selves = sums_of(selves, self.positions.biases(rows, steps))
        crosses = [bias(rows, layout) for bias in self.cross_biases]
        crosses = sums_of(crosses, self.positions.biases(rows, layout)) or [None]
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
        memory = self.memory(batch.source, layout, draw)
        x = self.embed_target(tokens, rows, layout, draw)
        angles = self.positions.angles(rows, layout)
        if self.positions.biased:
            biases = self.biases_of(len(rows), None, layout)
        else:
            biases = self._kept((len(rows), layout), lambda: self.biases_of(len(rows), None, layout), 2)
        columns = self.positions.coordinates(layout)
        return self.run_decoder(x, angles, angles, memory, columns, biases, None, recording)[0]

    @torch.no_grad()
    def predictions(self, batch: Batch) -> torch.Tensor:
        """The argmax of teacher-forced logits, [batch, rows]."""
        return self(batch).argmax(-1)

    def _kept(self, key: tuple[int, Layout] | Stream, make: Callable[[], list], most: int) -> list:
        """Biases without parameters, which are the same at every step of one shape: the last `most` are kept."""
        if key not in self._known_biases:
            while len(self._known_biases) >= most:
                del self._known_biases[next(iter(self._known_biases))]
            with torch.inference_mode(False):  # they may be trained with later
                self._known_biases[key] = make()
        return self._known_biases[key]

    def _draw(self, layout: Layout, batch: int) -> int | torch.Tensor:
        return self.positions.draw(layout, batch)


def sums_of(some: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
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
    model._kept = torch.compiler.disable(model._kept)
    return torch.compile(model, mode=mode)
