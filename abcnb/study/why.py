"""Why the rule works: each of its choices undone, on the attention of the same plain models.

`python -m abcnb why` retrains a model for each variant and adds its scores to results/why.csv in a reports folder.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from abcnb import pipeline
from abcnb.lines.biases import Biases
from abcnb.lines.calibration import AveragedAttention, Pick, Sought, calibrate_attention, lines_of_heads
from abcnb.lines.coordinates import Columns, Stream
from abcnb.lines.line import FOLLOWS, Line, LineBias, parted
from abcnb.machine.devices import CPU, hardware
from abcnb.model.configs import ModelConfig
from abcnb.study import results
from abcnb.study.fingerprint import fingerprint
from abcnb.study.runs import Run, today

TASKS = ("addition", "parity", "multiplication")
TAUS = (0.05, 0.15, 0.2, 0.3, 0.4, 0.5)
KAPPAS = (2.0, 4.5)
TESTS = (("random", 6, 1000), ("random", 60, 1000), ("hard", 60, 1000))  # (test set, length, samples)
IN_ROWS = (("random", 6, 300), ("random", 60, 50), ("hard", 60, 100))


def _shares(sought: Sought, weights: list[torch.Tensor]) -> torch.Tensor:
    """The share of every candidate, with nothing set to zero; a single 0 if there are none."""
    if not sought.lines or not sought.steps:
        return torch.zeros(1)
    return sought.shares([torch.cat([of_shape.flatten(), torch.zeros(1)]) for of_shape in weights])


def without_zeros(sought: Sought, weights: list[torch.Tensor], tau: float) -> list[tuple[Line, float]]:
    """Every line of a head with a share of more than τ, so that lines that cross a strong one borrow from it."""
    shares = _shares(sought, weights)
    return [(sought.lines[i], float(shares[i])) for i in shares.argsort(descending=True) if shares[i] > tau]


def above_the_mean(kappa: float) -> Pick:
    """Algorithm 1's threshold in place of τ: shares above κσ + μ of a head's candidates."""

    def pick(sought: Sought, weights: list[torch.Tensor], tau: float) -> list[tuple[Line, float]]:
        shares = _shares(sought, weights)
        return sought.strongest(weights, float(kappa * shares.std(correction=0) + shares.mean()))

    return pick


def nearest(sought: Sought, weights: list[torch.Tensor], tau: float) -> list[tuple[Line, float]]:
    """No calibration: whatever the attention, all lines that move with the step, ranked by nearness."""
    inside = [cells < of_shape.numel() for cells, of_shape in zip(sought.cells, weights, strict=True)]
    kept = []
    for line, somewhere in zip(sought.lines, torch.cat(inside, 1).any(1), strict=True):
        ways = [FOLLOWS[follows] for follows in line.follows]
        moves = ways and all(way.counter and way.slope == 1 and not way.from_first for way in ways)
        if somewhere and moves:
            kept.append((line, 1 / (1 + sum(map(abs, line.offset)))))
    return kept


class OwnToken(LineBias):
    """Lines, but a row of self-attention that none of them reaches sees its own token."""

    def open_tokens(self, rows: torch.Tensor, stream: Stream) -> torch.Tensor:
        found = self.on_lines(rows, stream)
        own = rows if self.attention == "self" else torch.zeros_like(rows)
        found[..., 0] = torch.where((found < 0).all(-1), own, found[..., 0])
        return found


@dataclass(frozen=True)
class OpenRow:
    """Lines, but a row that none of them reaches is open, as in Algorithm 1."""

    bias: LineBias

    def __call__(self, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
        """The bias of rows and columns, [heads, rows, columns]."""
        nothing = (self.bias.on_lines(rows, columns.stream) < 0).all(-1)
        return self.bias(rows, columns).masked_fill(nothing[..., None], 0.0)


def own_heads(attention: list[AveragedAttention], tau: float, heads: int) -> Biases:
    """Every head of every layer keeps its own lines: if several, it has to choose among them."""
    found, stream, biases = lines_of_heads(attention, tau), attention[0].stream, ([], [])
    for layer in range(len(attention[0].self_attention)):
        own = [f.line._replace(head=f.head) for f in found if f.layer == layer]
        for name, kept, lines in zip(("self", "cross"), biases, parted(own, stream), strict=True):
            kept.append(LineBias(name, heads, tuple(lines)))
    return Biases(tuple(biases[0]), tuple(biases[1]) if stream.source else ())


def variants(run: Run) -> dict[str, tuple[Biases, ModelConfig]]:
    """The biases and the model of every variant, from the attention behind a run of `abc`; `rule` is the run's own."""
    attention, model, tau = run.attention(), run.experiment.model, run.experiment.tau
    last = [
        replace(shape, self_attention=shape.self_attention[-1:], cross_attention=shape.cross_attention[-1:])
        for shape in attention
    ]
    asked = {"rule": (attention, tau, None), "last layer": (last, tau, None)}
    asked |= {f"τ {other:g}": (attention, other, None) for other in TAUS}
    asked |= {f"κσ + μ, κ {kappa:g}": (attention, tau, above_the_mean(kappa)) for kappa in KAPPAS}
    asked |= {"without zeros": (attention, tau, without_zeros), "nearest lines": (attention, tau, nearest)}
    made = {}
    for name, arguments in asked.items():
        with contextlib.suppress(ValueError):  # no line at all
            made[name] = calibrate_attention(*arguments).biases(model.heads), model
    rule, heads = made["rule"][0], run.experiment.interpolation.model.heads
    made["own heads"] = own_heads(attention, tau, heads), replace(model, heads=heads)
    own = [OwnToken(bias.attention, bias.heads, bias.lines) for bias in rule.self_biases]
    made["own token where no line leads"] = rule._replace(self_biases=tuple(own)), model
    if not run.experiment.in_one_stream:
        made["open where no line leads"] = Biases(*(tuple(map(OpenRow, biases)) for biases in rule)), model
        made["places modulo 3"] = rule, replace(model, position="cyclic-columns")
    return made


def measure(run: Run, csv: Path, only: Collection[str] = ()) -> None:
    """Retrain and test the variants of a run of `abc` that the CSV lacks, each recorded as it comes.

    `only` names the variants, all of them if empty; raises ValueError for an unknown one.
    """
    e, data, made = run.experiment, run.experiment.data(), variants(run)
    tests = IN_ROWS if e.get_task().in_rows else TESTS
    if unknown := [name for name in only if name not in made]:
        raise ValueError(f"expected variants among {', '.join(made)}, got {unknown[0]!r}")
    for name in only or made:
        biases, model = made[name]
        mine = results.read(csv).query("task == @e.task and seed == @e.seed and variant == @name")
        known = set(zip(mine["test_set"], mine["length"], strict=True))
        if not (lacking := [test for test in tests if test[:2] not in known]):
            continue
        trained = run.model()
        if name != "rule":
            label = f"{e.task} seed {e.seed}, {name}"
            trained = pipeline.retrain(data, biases, model, e.training, e.seed, label=label)
        parts = (getattr(part, "bias", part) for part in (*biases.self_biases, *biases.cross_biases))
        different = {line._replace(head=0) for bias in parts for line in bias.lines}
        row = {"task": e.task, "seed": e.seed, "variant": name, "lines": len(different)}
        row |= {"hardware": hardware(CPU), "code": fingerprint(), "date": today()}
        rows = [
            vars(score) | row | {"test_set": test_set}
            for test_set, length, samples in lacking
            for score in pipeline.evaluate(trained, data, length, samples, test_set)
        ]
        results.record(csv, rows)
