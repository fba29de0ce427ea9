"""Certificates of trained runs (`proof`), kept in results/certificates.csv of a folder of reports."""

import time

import pandas as pd

from abcnb.machine.devices import hardware, pick_device
from abcnb.model.transformer import Transformer
from abcnb.proof.certificate import certify
from abcnb.proof.pruning import prune
from abcnb.proof.windows import heads_by_line
from abcnb.study import results, views
from abcnb.study.fingerprint import fingerprint
from abcnb.study.methods import architecture_of
from abcnb.study.results import CORRECT
from abcnb.study.runs import Run, today
from abcnb.study.tables import ranges
from abcnb.tasks.task import Batch
from abcnb.tasks.training_data import TrainingData

ATTEMPTS = 3  # at pruning, each with other inputs


def certified(run: Run, pruned: bool = False) -> tuple[dict, str]:
    """Certify a run, or what is left of it when heads that it does not need are cut.

    What can be cut depends on the inputs that decide it: of `ATTEMPTS` the first that holds counts, or else the first;
    inputs on which one was wrong are among those of the next.
    Returns the row of certificates.csv, whose `outcome` is `correct` or says what came instead, and a reader's text.
    """
    e, whole, started = run.experiment, run.model(), time.monotonic()
    attempts, also = [], []
    for seed in range(ATTEMPTS) if pruned else (None,):
        attempts.append(_attempt(whole, e.data(), seed, also))
        if attempts[-1][1]["outcome"] == CORRECT:
            attempts = attempts[-1:]
            break
    model, values, text = attempts[0]
    seconds = round(time.monotonic() - started, 1)
    row = results.names(e) | {"run": e.digest, "pruned": int(pruned), "lines": len(heads_by_line(model))} | values
    row |= {"seconds": seconds, "hardware": hardware(pick_device("cpu")), "code": fingerprint(), "date": today()}
    told = f"{e.task} {e.method} seed {e.seed}"
    if pruned:
        told += f", pruned from {len(heads_by_line(whole))} to {row['lines']} lines"
        text += "".join(f"\n  {layer}: {lines}" for layer, lines in lines_of_layers(model).items())
    return row, f"{told}: {text} ({seconds:.0f} s)"


def _attempt(
    model: Transformer, data: TrainingData, seed: int | None, also: list[Batch]
) -> tuple[Transformer, dict, str]:
    """What was certified, the columns that tell what came of it, and a text; a seed prunes first.

    An input on which it was wrong is put into `also`.
    """
    try:
        model = model if seed is None else prune(model, data, seed, also)
        found = certify(model, data)
    except ValueError as error:
        text = f"refused: {error}"
        return model, {"windows": 0, "margin": 0.0, "rounding": 0.0, "outcome": text}, text
    if found.counterexample:
        also.append(found.counterexample)
    values = {"windows": found.windows, "margin": round(found.margin, 4), "rounding": found.rounding}
    return model, values | {"outcome": CORRECT if found.holds else str(found)}, str(found)


def lines_of_layers(model: Transformer) -> dict[str, str]:
    """The lines along which the heads of each layer look, without those that are cut, from `layer 1` on."""
    found: dict[str, list[str]] = {}
    for heads in sorted(heads_by_line(model), key=lambda heads: heads.layer):
        found.setdefault(f"layer {heads.layer + 1}", []).append(str(heads))
    return {layer: ", ".join(lines) for layer, lines in found.items()}


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of certificates.csv for a reader, one for each method, task and architecture, whole and pruned."""
    shown, names = [], ["task", "preset", "method", "settings", "pruned"]
    for (task, preset, method, settings, pruned), group in views.in_order(rows).groupby(names, sort=False):
        holds = group["outcome"] == CORRECT
        right = group[holds]
        others = group[~holds].groupby(group["outcome"].str.extract(r"^(not decided|\w+)")[0])["seed"]
        shown.append(
            {"task": task, "architecture": architecture_of(task, preset)}
            | {"method": " ".join(filter(None, [method, settings, "pruned" * pruned]))}
            | {"right at every length": f"{len(right)} of {len(group)}", "lines": _range(right["lines"])}
            | {"windows": _range(right["windows"]), "seconds": _range(right["seconds"].round().astype(int))}
            | {"least margin": f"{right['margin'].min():.2f}" if len(right) else "–"}
            | {"others": "; ".join(f"{kind}: {ranges(set(of))}" for kind, of in others) or "–"}
        )
    return pd.DataFrame(shown)


def _range(values: pd.Series) -> str:
    ends = list(dict.fromkeys(f"{value:,}" for value in (values.min(), values.max()))) if len(values) else ["–"]
    return " to ".join(ends)
