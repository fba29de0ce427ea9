"""Pruning: heads that a model does not need are replaced by their average value.

The rule keeps every line that a plain model's attention follows, and a retrained model ignores most of them. But an
ignored head still shows a step its token, and each extra token multiplies the windows of a certificate by ten.

Source: mean ablation of heads, in order of cost: Michel et al. 2019 (pruning), Wang et al. 2022 (means).
"""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from abcnb.lines.biases import Biases
from abcnb.lines.line import Line, dealt
from abcnb.model.layers import Attention
from abcnb.model.transformer import Transformer
from abcnb.pipeline import check_data
from abcnb.proof.certificate import check_certifiable, lead
from abcnb.proof.places import inputs_with, least_width
from abcnb.proof.windows import Heads, heads_by_line
from abcnb.tasks.task import Batch
from abcnb.tasks.training_data import TrainingData, generator_for

ROWS = 2048  # inputs on which leads are compared, over all training widths
SHAPES = 64  # batches of outputs in rows, each of a random shape
SHARE = 0.5


@torch.no_grad()
def prune(
    model: Transformer, data: TrainingData, seed: int = 0, also: Sequence[Batch] = (), share: float = SHARE
) -> Transformer:
    """A copy of a model without the heads that it does not need on short inputs.

    A head that is cut keeps its average value, whatever it reads. Lines are tried cheapest first, by how much
    cutting each alone lowers the right token's average lead, and are cut if the least lead stays above a share of
    the whole model's.

    Args:
        model: one without positions whose heads have one line each.
        data: what it was trained on; nothing longer is drawn.
        seed: of the inputs.
        also: further inputs, such as one that another pruned model got wrong.
        share: the share of the whole model's least lead that must remain.

    Raises:
        ValueError: if the data are of another task, or the model has positions or several lines per head.
    """
    check_data(data, model)
    check_certifiable(model)
    model = copy.deepcopy(model).eval()
    batches = [*short_inputs(data, generator_for("pruning", seed)), *also]
    leads, averages = _observed(model, batches)
    least = min(share * leads.min(), leads.min())
    costs = {h: -float(_observed(without(model, h, averages), batches)[0].mean()) for h in heads_by_line(model)}
    for heads in sorted(costs, key=costs.get):
        tried = without(model, heads, averages)
        leads, changed = _observed(tried, batches)
        if leads.min() > least:
            model, averages = tried, changed
    return model


def lines_left(model: Transformer) -> Biases:
    """The lines of heads that are uncut in some layer, dealt anew to all heads, so that each line has more."""
    kept: dict[str, list[Line]] = {"self": [], "cross": []}
    for heads in heads_by_line(model):
        kept[heads.attention.removesuffix("_attention")] += heads.lines
    own, cross = (dealt(name, model.config.heads, lines) for name, lines in kept.items())
    return Biases((own,), (cross,) if model.crossing else ())


def short_inputs(data: TrainingData, generator: torch.Generator) -> list[Batch]:
    """Inputs of the training widths with balanced carries: all next states of the task's machine are equally
    likely, so that long runs of nines occur. For outputs in rows, training samples."""
    task = data.task
    if task.in_rows:
        return [data.train(ROWS // SHAPES, generator) for _ in range(SHAPES)]
    most = task.training_width(data.numbers)
    widths = range(least_width(task), min(data.width, most) + 1)
    inputs = [inputs_with({}, task, width, ROWS // len(widths), generator)[0] for width in widths]
    if data.width > most and data.numbers != "bucketed":  # numbers no longer, but padded further, as in the paper
        whole = task.widths(data.width)
        inputs = [[F.pad(a, (0, n - a.shape[1])) for a, n in zip(part, whole, strict=True)] for part in inputs]
    return [task.batch(tuple(operands), data.form) for operands in inputs]


def _observed(model: Transformer, batches: list[Batch]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The right logit's lead at every step of the batches, and the average value of each attention, [d_model]."""
    read: dict[str, list[torch.Tensor]] = {}
    hooks = [
        module.output.register_forward_pre_hook(
            lambda _, given, name=name: read.setdefault(name, []).append(given[0].mean((0, 1)))
        )
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    ]
    leads = torch.cat([lead(model(batch).flatten(0, 1), batch.target.flatten()) for batch in batches])
    for hook in hooks:
        hook.remove()
    return leads, {name: torch.stack(values).mean(0) for name, values in read.items()}


def without(model: Transformer, heads: Heads, averages: dict[str, torch.Tensor]) -> Transformer:
    """A copy of the model with these heads cut."""
    model, name = copy.deepcopy(model), f"decoder.{heads.layer}.{heads.attention}"
    value = model.get_submodule(name).value
    parts = (value.weight, value.bias, averages[name])
    weight, bias, average = (part.view(model.config.heads, -1) for part in parts)
    for head in heads.numbers:
        weight[head], bias[head] = 0, average[head]
    return model
