"""Right at every length: a model along lines, run on every window that a correct output can show one of its steps.

If every step writes the right token whenever the outputs before it are right, then, by induction over the steps, greedy
decoding is right from the first token to the end token, however long the input. A step is a function of its window
(`windows`), so finitely many windows decide it. They go through the model's own layers, and the right logit must lead
every other by more than rounding can move it. How much that is, is measured: some windows, the closest ones among them,
are run again in double precision, and within whole inputs of two lengths.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from abcnb.machine.devices import bar
from abcnb.model.layers import OpenTokens
from abcnb.model.transformer import Transformer
from abcnb.pipeline import check_data
from abcnb.proof.windows import (
    CONSTANT,
    OUTPUT,
    Arrangement,
    Node,
    Token,
    Windows,
    arrangements,
    inputs_with,
    nodes,
    places_of,
    windows_of,
)
from abcnb.tasks.digits import Operands
from abcnb.tasks.task import Task
from abcnb.tasks.tokens import DIGITS, END_ID, decode, encode
from abcnb.tasks.training_data import TrainingData

CHUNK = 16384  # windows at a time
AGAIN = 200  # windows of each arrangement that are run again because they are the closest, and as many random ones
SAFETY = 100  # the least margin must be so many times the largest difference that rounding makes
TABLE = 10_000_000  # codes that are told apart by a table rather than by sorting


@dataclass(frozen=True)
class Part:
    """What came of the windows of one arrangement.

    Attributes:
        width, step: an input's digits and its step that have it.
        margins: the lead of the right logit over every other, [windows].
    """

    arrangement: Arrangement
    width: int
    step: int
    margins: torch.Tensor


@dataclass(frozen=True)
class Certificate:
    """What came of all windows.

    Attributes:
        parts: by arrangement; where the model is wrong, up to the one that shows it.
        rounding: the largest difference between logits of one window that were computed in different ways.
        wrong: an input on which the model is wrong, as its source is written; empty where there is none.
    """

    parts: tuple[Part, ...]
    rounding: float
    wrong: str = ""

    @property
    def leads(self) -> torch.Tensor:
        """The lead of the right logit over every other, [windows]."""
        return torch.cat([part.margins for part in self.parts])

    @property
    def windows(self) -> int:
        """How many were tried."""
        return len(self.leads)

    @property
    def margin(self) -> float:
        """The least lead."""
        return float(self.leads.min())

    @property
    def holds(self) -> bool:
        """Whether the model is right at every length."""
        return not self.wrong and self.margin > SAFETY * self.rounding

    def __str__(self) -> str:
        if self.wrong:
            return f"wrong on {self.wrong}"
        told = f"{self.windows:,} windows, least margin {self.margin:.2f}, rounding {self.rounding:.0e}"
        return f"correct at every length: {told}" if self.holds else f"not decided: {told}"


@torch.no_grad()
def certify(model: Transformer, data: TrainingData, progress: bool = True) -> Certificate:
    """Run a model on every window.

    Args:
        model: its heads have one line each, and it has no positions; it is put in evaluation mode.
        data: what it was trained on, of a task that is made place by place (`Task.machine`).
        progress: show a bar.

    Raises:
        ValueError: a model whose steps depend on more than a window, a task that is not made place by place, or more
            windows than can be tried.
    """
    check_data(data, model)
    check_certifiable(model)
    model.eval()
    task, form, parts, rounding = data.task, data.form, [], 0.0
    layers, precise = Layers(model), Layers(copy.deepcopy(model).double())
    found = arrangements(model, task, form)
    for number, (arrangement, met) in enumerate(found.items()):
        windows, node = windows_of(arrangement, task), arrangement.node
        count = _count(windows)
        target = windows.get((OUTPUT, arrangement.place), torch.full((count,), END_ID)).long()
        chunks = bar(
            layers.logits(node, windows, count),
            total=-(-count // CHUNK),
            desc=f"{number + 1} of {len(found)}",
            disable=not progress,
        )
        margins = torch.cat([lead(part, target[first : first + CHUNK]) for first, part in chunks])
        parts.append(Part(arrangement, *met[0], margins))
        again = torch.cat([margins.argsort()[:AGAIN], torch.randint(count, (AGAIN,))])
        few = {token: digits[again] for token, digits in windows.items()}
        inputs = [inputs_of(few, model, task, form, *place) for place in met]
        if margins.min() <= 0:
            first = tuple(operand[:1] for operand in inputs[0])
            return Certificate(tuple(parts), rounding, decode(task.batch(first, form).source[0]))
        ours = layers.logits_of(node, few)
        others = [model(task.batch(x, form))[:, step] for x, (_, step) in zip(inputs, met, strict=True)]
        for other in (precise.logits_of(node, few), *others):
            rounding = max(rounding, float((ours - other).abs().max()))
    return Certificate(tuple(parts), rounding)


def check_certifiable(model: Transformer) -> None:
    """Refuse a model whose steps depend on more than a window."""
    reasons = {
        "some head chooses among several tokens": not model.gathers,
        "its encoder sees the whole source": model.config.encoder_layers > 0,
        f"it has positions, {model.config.position!r}": model.config.position != "none",
    }
    for reason, given in reasons.items():
        if given:
            raise ValueError(
                f"expected a model without positions and with one line a head, whose steps depend on a window: {reason}"
            )


def lead(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The lead of the right logit over the largest other one, [windows]."""
    target = target[:, None]
    return logits.gather(1, target)[:, 0] - logits.scatter(1, target, float("-inf")).amax(1)


class Layers:
    """A model's layers on windows: what several windows share is computed once."""

    def __init__(self, model: Transformer):
        self.model, self.digits = model, encode(DIGITS)
        ids = torch.arange(model.embedding.num_embeddings)[None]
        self.crossed = [  # values of every token of a source, [heads, tokens, d_head]
            layer.cross_attention.keys_values(model.embed(ids, None), None, False)[1][0]
            for layer in model.decoder
            if model.crossing
        ]

    def ids(self, token: Token, windows: Windows, count: int) -> torch.Tensor:
        """The id of a token, [windows]."""
        return torch.full((count,), token[1]) if token[0] == CONSTANT else self.digits[windows[token].long()]

    def logits_of(self, node: Node, windows: Windows) -> torch.Tensor:
        """Logits of a step, [windows, vocabulary]."""
        return torch.cat([logits for _, logits in self.logits(node, windows, _count(windows))])

    def logits(self, node: Node, windows: Windows, count: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The same in chunks, each with the number of its first window."""
        for first, x in self.after(node, len(self.model.decoder), windows, count):
            yield first, self.model.logits(x)

    def states(self, node: Node, layer: int, windows: Windows, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The different states that a node has after a layer, [states, d_model], and which each window has."""
        some, index = different([windows[token] for token in node.tokens], count)
        few = {token: windows[token][some] for token in node.tokens}
        if layer == 0:
            return self.model.embed(self.ids(node.own, few, len(some))[:, None], None)[:, 0], index
        return torch.cat([x for _, x in self.after(node, layer, few, len(some))]), index

    def after(self, node: Node, layer: int, windows: Windows, count: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The states after a layer, [windows, d_model], in chunks, each with the number of its first window."""
        module, tokens = self.model.decoder[layer - 1], list(dict.fromkeys(node.crosses))
        seen = [other for other in dict.fromkeys(node.selves) if other != node.own]
        own, of_own = self.states(node.own, layer - 1, windows, count)
        past = []
        for other in seen:
            x, of_other = self.states(other, layer - 1, windows, count)
            past.append(
                (module.self_attention.keys_values(module.norm_self(x)[:, None], None, False)[1], of_other)
            )
        opened = OpenTokens(torch.tensor([[[[*seen, node.own].index(other)]] for other in node.selves]))
        crossed = OpenTokens(torch.tensor([[[tokens.index(token)]] for token in node.crosses])) if tokens else None
        ids = [self.ids(token, windows, count) for token in tokens]
        for first in range(0, count, CHUNK):
            part = slice(first, first + CHUNK)
            before, memory = None, None
            if past:
                before = None, torch.cat([values[index[part]] for values, index in past], 2)
            if tokens:
                at = torch.stack([of_token[part] for of_token in ids], 1)
                memory = None, self.crossed[layer - 1][:, at].transpose(0, 1)
            x, _ = module(own[of_own[part]][:, None], None, before, None, memory, None, (opened, crossed))
            yield first, x[:, 0]


def _count(windows: Windows) -> int:
    return len(next(iter(windows.values())))


def different(columns: list[torch.Tensor], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A window of each different row of digits, [rows], and the row of each window, [windows]."""
    codes, most = torch.zeros(count, dtype=torch.long), 1
    for column in columns:
        codes = codes * (base := int(column.max()) + 1) + column
        most *= base
        if most > 2**58:  # one digit more may not fit
            codes = codes.unique(return_inverse=True)[1]
            most = int(codes.max()) + 1
    if most <= TABLE:
        met = torch.zeros(most, dtype=torch.long)
        met[codes] = 1
        index = (met.cumsum(0) - 1)[codes]
    else:
        index = codes.unique(return_inverse=True)[1]
    some = torch.empty(int(index.max()) + 1, dtype=torch.long)
    some[index] = torch.arange(count)
    return some, index


def inputs_of(windows: Windows, model: Transformer, task: Task, form: str, width: int, step: int) -> Operands:
    """Whole inputs of a width in which a step has these windows, one for each; random where no window says what."""
    places = {**dict(enumerate(places_of(nodes(model, task, width, form)[step], step, width))), -1: -1}
    tokens = {(name, places[rank]): digits for (name, rank), digits in windows.items()}
    return inputs_with(tokens, task, width, _count(windows))
