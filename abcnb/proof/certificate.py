"""Right at every length: a model with lines, run on every window that a correct output can show one of its steps.

If every step writes the right token whenever the outputs before it are right, then, by induction over the steps, greedy
decoding is right from the first token to the end token, however long the input. A step is a function of its window
(`windows`), so finitely many windows decide it. They go through the model's own layers, and the right logit must lead
every other by more than rounding can move it. Rounding is measured: some windows, the closest among them, are run
again in double precision and within whole inputs of two lengths.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F

from abcnb.lines.line import LineBias
from abcnb.machine.devices import bar
from abcnb.model.layers import Attention
from abcnb.model.transformer import Transformer
from abcnb.pipeline import check_data
from abcnb.proof import lists, rows
from abcnb.proof.windows import CONSTANT, Node, Token, Windows, cases, check_count, count_of, different
from abcnb.tasks.nested import NestedLists
from abcnb.tasks.rows import ManyAddition, Multiplication
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData

CHUNK = 2048  # windows at a time
AGAIN = 200  # this many of the closest windows of each case, and as many random ones, are run again
IN_ROWS = {NestedLists: lists.cases, Multiplication: rows.cases, ManyAddition: rows.cases}
LARGEST = 1e6  # the largest weight allowed: a state that is not finite would reach even heads that are cut
SAFETY = 100  # the margin must exceed this many times the largest difference due to rounding


@dataclass(frozen=True)
class Certificate:
    """The outcome of running all windows.

    Attributes:
        leads: of the right logit over every other, [windows]; if the model is wrong, up to the case that shows it.
        rounding: the largest difference between logits of the same window computed in different ways.
        counterexample: one input on which the model is wrong; None if none was found.
    """

    leads: torch.Tensor
    rounding: float
    counterexample: Batch | None = None

    @property
    def wrong(self) -> str:
        """The source of the counterexample as text; empty if there is none."""
        return decode(self.counterexample.source[0]) if self.counterexample else ""

    @property
    def windows(self) -> int:
        """How many windows were tried."""
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
def certify(model: Transformer, data: TrainingData, progress: bool = True, most: int | None = None) -> Certificate:
    """Run a model on every window.

    Args:
        model: one without positions whose heads have one line each; it is put in evaluation mode.
        data: what it was trained on; the task's output is made place by place (`Task.machine`) or in rows.
        progress: show a progress bar.
        most: the most windows that may be tried, `MOST_WINDOWS` by default.

    Raises:
        ValueError: if the model's steps depend on more than a window, the task's output is made neither place by
            place nor in rows, or there are more than `most` windows.
    """
    check_data(data, model)
    check_certifiable(model)
    layers, precise = Layers(model.eval()), Layers(copy.deepcopy(model).double())
    # Exact types only: a subclass may have other rows.
    found = IN_ROWS.get(type(data.task), cases)(model, data)
    # Before any is run, and those of wide inputs first, which are most.
    for counted in accumulate(count_of(windows_of(most)) for _, _, windows_of, _ in reversed(found)):
        check_count(counted, most)
    leads, rounding = [], 0.0
    for n, (node, right, windows_of, shown_by) in enumerate(found, 1):
        windows = windows_of(most)
        targets = bar(layers.ids(right, windows).split(CHUNK), desc=f"{n} of {len(found)}", disable=not progress)
        chunks = zip(targets, layers.logits(node, windows), strict=True)
        leads.append(torch.cat([lead(logits, target) for target, logits in chunks]))
        again = torch.cat([leads[-1].argsort()[:AGAIN], torch.randint(count_of(windows), (AGAIN,))])
        few = {token: digits[again] for token, digits in windows.items()}
        whole = shown_by(few)
        if not all(torch.equal(layers.ids(right, of), batch.target[:, step]) for batch, step, of in whole):
            raise ValueError(f"expected a machine that writes the labels of {data.task.name!r}, got other digits")
        if leads[-1].min() <= 0:
            return Certificate(torch.cat(leads), rounding, failure(model, [batch for batch, _, _ in whole]))
        pairs = [(torch.cat([*precise.logits(node, few)]), few)]
        pairs += [(model(batch)[:, step], shown) for batch, step, shown in whole]
        moved = [float((torch.cat([*layers.logits(node, of)]) - other).abs().max()) for other, of in pairs]
        rounding = float(torch.tensor([rounding, *moved], dtype=torch.float64).max())  # unlike max(), keeps NaN
    return Certificate(torch.cat(leads), rounding)


def failure(model: Transformer, batches: list[Batch]) -> Batch | None:
    """The first input in these batches on which the model is wrong; None if there is none."""
    for batch in batches:
        wrong = (model.predictions(batch) != batch.target).any(1)
        if wrong.any():
            return Batch(batch.source[wrong][:1], batch.target[wrong][:1], batch.stream)
    return None


def check_certifiable(model: Transformer) -> None:
    """Raise ValueError if the model's steps depend on more than a window."""
    biases = {*map(type, (*model.self_biases, *model.cross_biases))}
    reasons = {
        f"a weight is not finite, or above {LARGEST:g}": not all(
            p.abs().max() <= LARGEST for p in model.parameters()
        ),
        "its biases are no LineBias": not biases <= {LineBias},
        "some head chooses among several tokens": not model.gathers,
        "its encoder sees the whole source": model.config.encoder_layers > 0,
        f"it has positions, {model.config.position!r}": model.config.position not in ("none", "kinds"),
    }
    if given := [reason for reason, holds in reasons.items() if holds]:
        raise ValueError(
            "expected a model as retrain() returns, without positions and with one line a head, whose steps depend on "
            f"a window: {given[0]}"
        )


def lead(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The lead of the right logit over the largest other one, [windows]."""
    target = target[:, None]
    return logits.gather(1, target)[:, 0] - logits.scatter(1, target, float("-inf")).amax(1)


class Layers:
    """A model's layers applied to windows; what several windows share is computed once."""

    def __init__(self, model: Transformer):
        self.model = model
        self.embedded = model.embedding.weight * math.sqrt(model.config.d_model)
        if model.config.position == "kinds":  # every token as a step of every kind
            self.embedded = (self.embedded + model.positions.table.weight[:, None]).flatten(0, 1)

    def ids(self, token: Token, windows: Windows) -> torch.Tensor:
        """The id of a token in each window, [windows]."""
        if token[0] == CONSTANT:
            return torch.full((count_of(windows),), token[1])
        return lists.KNOWN[windows[token].long()]

    def logits(self, node: Node, windows: Windows) -> Iterator[torch.Tensor]:
        """Logits of a step, [windows, vocabulary], in chunks."""
        return map(self.model.logits, self.after(node, len(self.model.decoder), windows))

    def states(self, node: Node, layer: int, windows: Windows) -> tuple[torch.Tensor, torch.Tensor]:
        """The states a node can have after a layer, [states, d_model], and the index of each window's state."""
        if layer == 0:
            ids = self.ids(node.reads[0], windows)
            return self.embedded, ids + node.kind * self.model.embedding.num_embeddings
        some, index = different([windows[token] for token in node.tokens], count_of(windows))
        few = {token: digits[some] for token, digits in windows.items()}
        return torch.cat([*self.after(node, layer, few)]), index

    def after(self, node: Node, layer: int, windows: Windows) -> Iterator[torch.Tensor]:
        """The states of a node after a layer, [windows, d_model], in chunks."""
        module = self.model.decoder[layer - 1]
        below = {n: self.states(n, layer - 1, windows) for n in dict.fromkeys((node.own, *node.selves))}
        own, of_own = below[node.own]
        biases = [module.self_attention.output.bias, *([module.cross_attention.output.bias] if node.reads else [])]
        summands = [(own + sum(biases), of_own)]
        for other in dict.fromkeys(node.selves):
            heads = [head for head, read in enumerate(node.selves) if read == other]
            x, index = below[other]
            summands.append((written_by(module.self_attention, module.norm_self(x), heads), index))
        for token in dict.fromkeys(node.reads):
            heads = [head for head, read in enumerate(node.reads) if read == token]
            summands.append((written_by(module.cross_attention, self.embedded, heads), self.ids(token, windows)))
        for part in torch.arange(count_of(windows)).split(CHUNK):
            x = sum(F.embedding(index[part], table) for table, index in summands)
            yield x + module.feed_forward(module.norm_feed_forward(x))


def written_by(attention: Attention, x: torch.Tensor, heads: list[int]) -> torch.Tensor:
    """What these heads add to the state of a token when they read each of the states x, [states, d_model]."""
    values = attention.value(x).view(len(x), attention.heads, -1)[:, heads]
    onto = attention.output.weight.view(x.shape[1], attention.heads, -1)[:, heads]
    return torch.einsum("shd, ohd -> so", values, onto)
