"""Certificates of trained runs (`proof`), kept in results/certificates.csv of a folder of reports."""

import time
from collections.abc import Iterator
from itertools import chain, groupby, product

import pandas as pd

from abcnb.machine.devices import CPU, hardware
from abcnb.model.evaluation import count_errors, test_inputs
from abcnb.model.transformer import Transformer
from abcnb.proof.certificate import certify
from abcnb.proof.pruning import prune
from abcnb.proof.windows import TooManyWindows, heads_by_line
from abcnb.study import results, views
from abcnb.study.fingerprint import fingerprint
from abcnb.study.methods import architecture_of
from abcnb.study.published import LENGTHS
from abcnb.study.results import CORRECT
from abcnb.study.runs import Run, today
from abcnb.study.tables import ranges
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData

# Attempts at pruning, each on other inputs: the share of the least lead to keep. The smaller, the fewer lines.
SHARES = (0.5, 0.25, 0.1, 0.5, 0.25)
FEW = 2_000_000  # windows; more are tried only if no attempt with at most this many holds
TESTED, TESTED_IN_ROWS, TESTED_TO = 1000, 100, 20  # samples per test set, and digits, tested before windows

Attempt = tuple[Transformer, dict, str]  # the model certified, the columns of its outcome, and a text


def certified(run: Run, pruned: bool = False) -> tuple[dict, str]:
    """Certify a run's model or, if `pruned`, the model without the heads that it does not need.

    Of several attempts at pruning, with few windows first, the first that holds counts, or else the first of all.
    Returns the row of certificates.csv, whose `outcome` is `correct` or says what happened instead, and a summary.
    """
    e, whole, started = run.experiment, run.model(), time.monotonic()
    attempts = _pruned(whole, e.data()) if pruned else iter([_attempt(whole, e.data(), [])])
    first = next(attempts)
    right = (attempt for attempt in chain([first], attempts) if attempt[1]["outcome"] == CORRECT)
    model, values, text = next(right, first)
    seconds = round(time.monotonic() - started, 1)
    row = results.names(e) | {"run": e.digest, "pruned": int(pruned), "lines": len(heads_by_line(model))} | values
    row |= {"seconds": seconds, "hardware": hardware(CPU), "code": fingerprint(), "date": today()}
    told = f"{e.task} {e.method} seed {e.seed}"
    if model is not whole:
        told += f", pruned from {len(heads_by_line(whole))} to {row['lines']} lines"
        text += "".join(f"\n  {layer}: {lines}" for layer, lines in lines_of_layers(model).items())
    return row, f"{told}: {text} ({seconds:.0f} s)"


def _pruned(whole: Transformer, data: TrainingData) -> Iterator[Attempt]:
    """Yield attempts at a pruned model; inputs that one got wrong are used to prune the next."""
    many, also = [], []
    try:
        for seed, share in enumerate(SHARES):
            model = prune(whole, data, seed, also, share)
            try:
                yield _attempt(model, data, also, FEW)
            except TooManyWindows:
                many.append(model)
    except ValueError:  # the model cannot be pruned
        yield _attempt(whole, data, also)
    for model in many:
        yield _attempt(model, data, also)


def _attempt(model: Transformer, data: TrainingData, also: list[Batch], most: int | None = None) -> Attempt:
    """Test a model, then certify it; add an input it gets wrong to `also`. Raises TooManyWindows above `most`."""
    values, holds, wrong = {"windows": 0, "margin": 0.0, "rounding": 0.0}, False, wrong_input(model, data)
    if wrong:
        text = f"wrong on {decode(wrong.source[0])}"
    else:
        try:
            found = certify(model, data, most=most)
            text, wrong, holds = str(found), found.counterexample, found.holds
            values = {"windows": found.windows, "margin": round(found.margin, 4), "rounding": found.rounding}
        except ValueError as error:
            if most and isinstance(error, TooManyWindows):
                raise
            text = f"refused: {error}"
    also += [wrong] if wrong else []
    return model, values | {"outcome": CORRECT if holds else text}, text


def wrong_input(model: Transformer, data: TrainingData) -> Batch | None:
    """A short input of the test sets on which a model is wrong; None if there is none."""
    task = data.task
    samples, longest = TESTED_IN_ROWS if task.in_rows else TESTED, min(task.longest or TESTED_TO, TESTED_TO)
    for length, test_set in product((n for n in LENGTHS if n <= longest), task.test_sets):
        for operands in test_inputs(task, length, samples, test_set, data.width).values():
            wrong = count_errors(model, task, operands, data.form).nonzero()
            if len(wrong):
                return task.batch(tuple(part[wrong[0]] for part in operands), data.form)
    return None


def lines_of_layers(model: Transformer) -> dict[str, str]:
    """The lines that the heads of each layer look along, except heads that are cut, from `layer 0` on."""
    layers = groupby(sorted(heads_by_line(model), key=lambda heads: heads.layer), lambda heads: heads.layer)
    return {f"layer {layer}": ", ".join(map(str, heads)) for layer, heads in layers}


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """certificates.csv as a table for readers: one row per task, architecture and method, whole or pruned."""
    shown, names, rows = [], ["task", "preset", "method", "settings", "pruned"], views.in_order(rows)
    rows = rows.iloc[rows.groupby(names[:2], sort=False).ngroup().argsort(kind="stable")]
    for (task, preset, method, settings, pruned), group in rows.groupby(names, sort=False):
        holds = group["outcome"] == CORRECT
        right = group[holds]
        others = group[~holds].groupby(group["outcome"].str.extract(r"^(not decided|\w+)")[0])["seed"]
        shown.append(
            {"task": task, "architecture": architecture_of(task, preset)}
            | {"method": " ".join(filter(None, [method, settings, "pruned" * pruned]))}
            | {"right at every length": f"{len(right)} of {len(group)}", "lines": views.span(right["lines"])}
            | {"windows": views.span(right["windows"]), "seconds": views.span(right["seconds"].round())}
            | {"least margin": f"{right['margin'].min():.3g}" if len(right) else "–"}
            | {"not proved": "; ".join(f"{kind}: {ranges(set(of))}" for kind, of in others) or "–"}
        )
    return pd.DataFrame(shown)
