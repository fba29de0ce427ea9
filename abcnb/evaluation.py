"""Exact match by length, teacher-forced.

Greedy decoding writes the label exactly if and only if the model, fed the label's own prefix, has its argmax
on the label at every step. So exact match needs one pass over the whole output instead of a decoding loop.

Source: paper, appendix B (accurate if and only if the output exactly matches the label).
"""

import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from abcnb.chunked import why_not_in_chunks, wrong_tokens_in_chunks
from abcnb.limits import bar, check_dense, check_test, telling
from abcnb.model import Transformer
from abcnb.rows import RowTask
from abcnb.scores import Score
from abcnb.tasks import Batch, Operands, Task
from abcnb.testsets import check_test_request, test_cases

# Decoder tokens in one forward pass: on a CPU few enough for its cache (twice as fast as 32,768), on a GPU many.
TOKENS_PER_PASS = {"cpu": 2048, "cuda": 131_072}
LONG = 256  # output steps beyond which attention over open cells alone is faster than over the whole matrix
SAMPLES_BY_STEP = 250  # samples in one pass where errors are counted step by step


@torch.no_grad()
def wrong_tokens(model: Transformer, batch: Batch) -> torch.Tensor:
    """Teacher-forced errors of each sample, [batch]; 0 means an exact match."""
    return (model.predictions(batch) != batch.target).sum(1)


def count_errors(model: Transformer, task: Task, operands: Operands, form: str) -> torch.Tensor:
    """Teacher-forced errors of each sample, [samples], in passes of bounded memory.

    Long outputs are processed in chunks, along open cells only, where that is exact (`chunked`).
    """
    model.eval()
    layout = task.layout_of(operands, form).to(model.device)
    tokens = TOKENS_PER_PASS.get(model.device.type, TOKENS_PER_PASS["cpu"])
    chunk = max(LONG, tokens // len(operands[0]))
    steps = output_steps(task, operands)
    in_chunks = steps > LONG and not why_not_in_chunks(model, layout, steps)
    if not in_chunks and not model.opens_few:
        check_dense(layout.rows, model.device)
    size = max(1, tokens // (min(chunk, layout.rows) if in_chunks else layout.rows))
    count = partial(wrong_tokens_in_chunks, chunk=chunk) if in_chunks else wrong_tokens
    errors = []
    for start in bar(range(0, len(operands[0]), size), desc=f"{layout.rows:,} steps"):
        part = tuple(operand[start : start + size].to(model.device) for operand in operands)
        batch = task.batch(part, form)
        errors.append(count(model, Batch(batch.source, batch.target, layout)).cpu())
    return torch.cat(errors)


def evaluate(
    model: Transformer,
    task: Task,
    form: str,
    length: int,
    samples: int = 10_000,
    test_set: str = "random",
    least_width: int = 1,
) -> Score:
    """Exact match on a seeded test set of one length, over all its kinds; arguments as of `evaluate_kinds`."""
    scores = evaluate_kinds(model, task, form, length, samples, test_set, least_width)
    total = Score(
        length,
        sum(s.samples for s in scores.values()),
        sum(s.correct for s in scores.values()),
        sum(s.wrong_digits for s in scores.values()),
        sum(s.digits for s in scores.values()),
    )
    if len(scores) == 1:
        return total
    worst = min(scores, key=lambda kind: scores[kind].exact_match)
    return replace(total, worst_kind=worst, worst_percent=round(scores[worst].exact_match, 4))


def evaluate_kinds(
    model: Transformer,
    task: Task,
    form: str,
    length: int,
    samples: int = 10_000,
    test_set: str = "random",
    least_width: int = 1,
) -> dict[str, Score]:
    """Exact match on each kind of a seeded test set of one length on its own.

    Operands are padded to one digit more than they have, and to `least_width` at least: the training width, so
    that numbers no longer than those of training look like those of training. What `padded` adds comes on top.

    Raises:
        ValueError: a test set that the task does not have, or a length or sample count below 1.
    """
    check_request(task, length, samples, test_set)
    kinds = test_inputs(task, length, samples, test_set, least_width)
    return {
        kind: score(length, count_errors(model, task, operands, form), task, operands)
        for kind, operands in kinds.items()
    }


def check_request(task: Task, length: int, samples: int, test_set: str = "random") -> None:
    """Refuse a test without digits or samples, one that does not fit into memory, or one that is too long for the task.

    Raises:
        ValueError: says what was expected and what came.
    """
    check_test_request(length, samples, test_set, task)
    if task.longest and length > task.longest:
        raise ValueError(f"expected lengths of at most {task.longest} for {task.name}, got {length}")
    digits, operands = length * math.log(task.length_base) / math.log(task.base), task.operands
    if isinstance(task, RowTask):
        if task.has_terms and length < 2:
            raise ValueError(
                f"expected lengths of at least 2 for {task.name}, which has two terms or more, got {length}"
            )
        check_test(1, task.outputs_at(length), 1)
        operands = length if task.has_terms else 2
    most = task.base ** min(digits * operands, 30)  # there are no more samples than that
    check_test(min(samples, int(most)), digits, operands)


def test_inputs(task: Task, length: int, samples: int, test_set: str, least_width: int) -> dict[str, Operands]:
    """Operands of each kind of a test set, padded as `evaluate_kinds` pads them."""
    usual = task.digits_at(length) + 1
    with telling(f"drawing {samples:,} samples of {length:,} digits"):
        cases = test_cases(task, length, samples, test_set)
    return {
        kind: task.widened(operands, max(usual, least_width) + operands[0].shape[1] - usual)
        for kind, operands in cases.items()
    }


@torch.no_grad()
def wrong_by_step(
    model: Transformer,
    task: Task,
    form: str,
    length: int,
    samples: int = 1000,
    test_set: str = "random",
    least_width: int = 1,
) -> torch.Tensor:
    """How many samples each output step is wrong in, [steps], teacher-forced; arguments as of `evaluate_kinds`.

    Step i writes the digit of place i, the last one the end token.
    """
    check_request(task, length, samples, test_set)
    model.eval()
    wrong = torch.zeros(0, dtype=torch.long)
    for operands in test_inputs(task, length, samples, test_set, least_width).values():
        if not model.opens_few:
            check_dense(task.layout_of(operands, form).rows, model.device)
        for part in zip(*(operand.split(SAMPLES_BY_STEP) for operand in operands), strict=True):
            batch = task.batch(tuple(operand.to(model.device) for operand in part), form)
            found = (model.predictions(batch) != batch.target).sum(0).cpu()
            wrong = F.pad(wrong, (0, max(0, len(found) - len(wrong))))
            wrong[: len(found)] += found
    return wrong


def score(length: int, errors: torch.Tensor, task: Task, operands: Operands) -> Score:
    """Summarise per-sample errors."""
    total = len(errors) * output_steps(task, operands)
    return Score(length, len(errors), int((errors == 0).sum()), int(errors.sum()), total)


def output_steps(task: Task, operands: Operands) -> int:
    """How many tokens the output of each sample has, the end token included."""
    return task.batch(tuple(operand[:1] for operand in operands)).target.shape[1]
