"""Whole inputs in which a step has given windows: they show where a model is wrong, and it is pruned on them."""

from functools import partial

import torch

from abcnb.model.transformer import Transformer
from abcnb.proof import windows as seen
from abcnb.proof.places import DIGIT, ends_of, may_be_last, number_of, ways_of
from abcnb.proof.windows import Met, Windows, count_of
from abcnb.tasks.digits import Operands
from abcnb.tasks.task import Batch, Task
from abcnb.tasks.training_data import TrainingData


def cases(model: Transformer, data: TrainingData) -> list[seen.Case]:
    """All that steps of a number can see, each case shown in the narrowest and the widest input that has it."""

    def shown(windows: Windows, met: tuple[Met, Met]) -> list[tuple[Batch, int, Windows]]:
        return [(batch_with(windows, data, one), one.step, windows) for one in met]

    return [
        (one.node, one.right, partial(seen.windows_of, one), partial(shown, met=met))
        for one, met in seen.arrangements(model, data).items()
    ]


def inputs_with(
    tokens: Windows, task: Task, width: int, count: int, generator: torch.Generator | None = None
) -> Operands:
    """Inputs of a width with these digits; the others are random, every possible next state equally likely."""
    number = number_of(task)
    ways, states = ways_of(number), torch.arange(task.machine.states)
    pairs = ways[:, 0] * len(states) + ways[:, -1]
    rare = 1 / pairs.bincount()[pairs].float()
    good, fits = ends_of(number, 0).expand(count, -1), []
    for place in reversed(range(width)):  # which ways through this place lead to an end
        fit = good[:, ways[:, -1]] & (may_be_last(number) | (place < width - 1))
        for name, digits in zip(number.names, ways.T[1:-1], strict=True):
            if (name, place) in tokens:
                fit = fit & (tokens[name, place][:, None] == digits)
        fits.append(fit)
        good = torch.zeros(good.shape, dtype=torch.bool).scatter_reduce(1, ways[:, 0].expand_as(fit), fit, "amax")
    if (DIGIT, -1) in tokens:
        good = good & (task.machine.shown(states) == tokens[DIGIT, -1][:, None])
    good = good & torch.isin(states, torch.tensor(task.machine.starts))
    state, digits = good.float().multinomial(1, generator=generator), []
    for fit in reversed(fits):
        likely = (fit & (ways[:, 0] == state)) * rare
        way = likely.multinomial(1, generator=generator)[:, 0]
        digits.append(ways[way, 1:-2])
        state = ways[way, -1:]
    operands = tuple(torch.stack(digits, 2).unbind(1))
    return (*operands, task.machine.shown(state)) if task.second_is_digit else operands


def batch_with(windows: Windows, data: TrainingData, met: Met) -> Batch:
    """Whole inputs in which a step has these windows, one for each; digits outside the window are random."""
    tokens = {(name, met.read[rank]): digits for (name, rank), digits in windows.items()}
    return data.task.batch(inputs_with(tokens, data.task, met.width, count_of(windows)), data.form)
