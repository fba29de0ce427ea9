"""Tries a task from scratch: interpolate, calibrate, retrain, evaluate, and one sentence on the outcome."""

from itertools import takewhile
from pathlib import Path

import torch

from abcnb.lines.calibration import calibrate_attention
from abcnb.model.evaluation import Score, percent, wrong_by_step
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import Run
from abcnb.study.settings import with_settings

FACTORS = (1, 2, 4, 10)  # test lengths, in multiples of the training length
LONGER = (1, 2, 4)  # multiples of a plain model's usual steps, tried in turn
ENOUGH = 99.0  # percent exact match
SAMPLES = 1000
SHOWN = 5  # lines that τ leaves out
GUIDE = "reports/extending.md"


def attempt(task: str, preset: str, seed: int, runs: Path, device: str) -> str:
    """Try a task, or one in a file (`tasks.own`), with the settings common to all tasks; returns the sentence.

    Each part is printed as it is done; a second call redoes nothing. If the new model fails, the plain model is
    trained twice as long, since lines grow stronger, and four times as long if it still does not interpolate. Of
    several failures the sentence is on the best.
    """
    frozen = experiment(task, "abc", preset, seed)
    asked = frozen.get_task()
    lengths = [times * asked.longest_trained for times in FACTORS]
    lengths = [length for length in lengths if not asked.longest or length <= asked.longest]
    failures = []
    for factor in LONGER:
        steps = factor * frozen.interpolation.training.steps
        abc = with_settings(frozen, [f"interpolation.training.steps={steps}"])
        plain = fit(abc.interpolation, runs, device)
        reached = plain.metrics["history"][-1]["exact_match"]
        print(f"plain model after {steps:,} steps, held-out inputs of the training length: {percent(reached)}%")
        run = fit(abc, runs, device)
        print(run.calibration())
        scores = [run.evaluate(length, SAMPLES, device=device) for length in lengths]
        print(*scores, sep="\n")
        print(f"python -m abcnb predict {run.folder} INPUT")
        right = [score.length for score in takewhile(lambda score: score.exact_match >= ENOUGH, scores)]
        if len(right) == len(scores):
            return verdict(right)
        print(left_out(run))
        missed = scores[len(right)]
        if reached >= ENOUGH:
            test = (missed.length, SAMPLES, "random", abc.train_width)
            sentence = verdict(right, missed, wrong_by_step(run.model(), asked, abc.form, *test))
            sentence += f" (plain model of {steps:,} steps); what a task must be like: {GUIDE}"
        else:
            sentence = (
                f"does not interpolate: after {steps:,} steps the plain model has {percent(reached)}% at the training "
                "length, so its attention may lack lines, and the new model has "
                f"{percent(missed.exact_match)}% at length {missed.length}; another way to write the task may do"
            )
        failures.append((len(right), missed.exact_match, sentence))
        if factor == LONGER[-1] or (factor > 1 and reached >= ENOUGH):
            return max(failures, key=lambda failure: failure[:2])[-1]
        print(f"{sentence}\nonce more, from a plain model that is trained longer, since lines grow stronger")


def left_out(run: Run) -> str:
    """The strongest lines that τ leaves out, down to half of it: one of them may be what a step lacks."""
    tau = run.experiment.tau
    below = [found for found in calibrate_attention(run.attention(), tau / 2).found if found.share <= tau]
    below.sort(key=lambda found: -found.share)
    told = ", ".join(f"{found.line} {found.share:.3f} ({found.line.step})" for found in below[:SHOWN])
    return f"strongest lines below tau {tau:g}: {told or 'none'}"


def verdict(right: list[int], missed: Score | None = None, wrong: torch.Tensor | None = None) -> str:
    """The sentence on which lengths are right and the first that is not, with its wrong samples by step."""
    if missed is None:
        return f"solved: at least {ENOUGH:g}% at lengths {', '.join(map(str, right))}"
    most = wrong.argsort(descending=True, stable=True)[:3]
    steps = ", ".join(f"{step} ({wrong[step]} samples)" for step in sorted(most.tolist()) if wrong[step])
    told = f"{percent(missed.exact_match)}% at length {missed.length}, most often wrong at output steps {steps}, from 0"
    if right:
        return f"solved up to length {right[-1]}: {told}"
    return f"lines are missing: along those that were found a new model has {told}"
