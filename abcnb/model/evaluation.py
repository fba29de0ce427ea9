"""Exact match by length, teacher-forced, and the intervals of such proportions.

Greedy decoding writes the label exactly if and only if, at every step, the argmax of the model fed the label's
prefix is the label's next token. So exact match needs one pass over the whole output instead of a decoding loop.

Source: paper, appendix B (accurate if and only if the output exactly matches the label).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from abcnb.machine.devices import CPU, bar, check_memory
from abcnb.model.decoding import predictions_in_chunks, why_not_along_lines
from abcnb.model.transformer import Transformer
from abcnb.tasks.digits import Operands
from abcnb.tasks.task import Batch, Task
from abcnb.tasks.testsets import check_test_request, test_cases


@dataclass(frozen=True)
class Score:
    """How many samples of a test were answered exactly.

    Attributes:
        length: digits of the operands (decimal digits for Parity).
        samples, correct: how many were tried, and how many matched exactly.
        wrong_digits, digits: output tokens of all samples, end tokens included: wrong if teacher-forced, and all.
        code, date: of a stored score, the fingerprint of the code that produced it and the day it was measured.
        worst_kind, worst_percent: of a test set with several kinds, the (first) one with the lowest exact match.
    """

    length: int
    samples: int
    correct: int
    wrong_digits: int
    digits: int
    code: str = ""
    date: str = ""
    worst_kind: str = ""
    worst_percent: float | None = None

    @property
    def exact_match(self) -> float:
        """Percentage of samples that are correct."""
        return 100.0 * self.correct / self.samples

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.length} digits: {percent(self.exact_match)}% of {self.samples:,} exact "
            f"(95% interval {low:.2f} to {high:.2f}), {self.wrong_digits:,} of {self.digits:,} digits wrong"
        )

    @property
    def interval(self) -> tuple[float, float]:
        """95% Wilson interval of `exact_match`, in percent."""
        return tuple(100 * bound for bound in wilson_interval(self.correct, self.samples))


def percent(value: float) -> str:
    """A percentage as text that shows 100 only if nothing was missed."""
    return "100" if value == 100 else f"{min(value, 99.99):.2f}"


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% score interval of a proportion (Wilson 1927).

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"expected 0 ≤ successes ≤ trials and a trial, got {successes} of {trials}")
    p, n, z = successes / trials, trials, 1.959964
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))


def check_test(samples: int, digits: float, operands: int) -> None:
    """Raise ValueError if a test set cannot fit into memory: it takes at least all digits three times, to find
    distinct samples, and the source, target, decoder input and layout of one evaluated sample."""
    needed = 8 * digits * operands * (3 * samples + 4)  # a token takes 8 bytes
    check_memory(needed, f"a test of {samples:,} samples of {digits:,.0f} digits", "ask for fewer or shorter ones")


def check_dense(rows: float, device: torch.device = CPU) -> None:
    """Raise ValueError if attention over all pairs of tokens and its mask, needed without lines, cannot fit."""
    needed, advice = 4 * rows**2, "ask for shorter inputs, or a model with lines"  # a number takes 4 bytes
    check_memory(needed, f"attention over {rows:,.0f} tokens", advice, device)


# Decoder tokens per forward pass: few enough for a CPU's cache (twice as fast as 32,768), many on a GPU.
TOKENS_PER_PASS = {"cpu": 2048, "cuda": 131_072}
LONG = 256  # output steps beyond which attention over open cells only is faster than over the whole matrix


@torch.no_grad()
def wrong_tokens(model: Transformer, batch: Batch) -> torch.Tensor:
    """Teacher-forced errors of each sample, [batch]; 0 means an exact match."""
    return (model.predictions(batch) != batch.target).sum(1)


def is_wrong(model: Transformer, task: Task, operands: Operands, form: str) -> Iterator[torch.Tensor]:
    """Which output tokens teacher forcing gets wrong, [some samples, steps], in passes of bounded memory."""
    model.eval()
    stream = task.stream_of(operands, form).to(model.device)
    samples, steps = len(operands[0]), stream.rows
    tokens = TOKENS_PER_PASS.get(model.device.type, TOKENS_PER_PASS["cpu"])
    along_lines = steps > LONG and not why_not_along_lines(model)
    if not along_lines:
        check_dense(steps, model.device)
    chunk = max(LONG, tokens // samples) if along_lines else steps
    size = max(1, tokens // min(chunk, steps))
    for start in bar(range(0, samples, size), desc=f"{steps:,} steps"):
        part = tuple(operand[start : start + size].to(model.device) for operand in operands)
        batch = replace(task.batch(part, form), stream=stream)
        found = predictions_in_chunks(model, batch, chunk) if along_lines else model.predictions(batch)
        yield found != batch.target


def count_errors(model: Transformer, task: Task, operands: Operands, form: str) -> torch.Tensor:
    """Teacher-forced errors of each sample, [samples], in passes of bounded memory."""
    return torch.cat([wrong.sum(1).cpu() for wrong in is_wrong(model, task, operands, form)])


def evaluate(model: Transformer, task: Task, form: str, *test: int | str, **named: int | str) -> Score:
    """Exact match on a seeded test set of one length, over all its kinds; arguments as in `evaluate_kinds`."""
    scores = evaluate_kinds(model, task, form, *test, **named)
    counts = zip(*((s.samples, s.correct, s.wrong_digits, s.digits) for s in scores.values()), strict=True)
    worst, lowest = min(scores.items(), key=lambda kind: kind[1].exact_match)
    several = {"worst_kind": worst, "worst_percent": round(lowest.exact_match, 4)} if len(scores) > 1 else {}
    return Score(lowest.length, *map(sum, counts), **several)


def evaluate_kinds(
    model: Transformer,
    task: Task,
    form: str,
    length: int,
    samples: int = 10_000,
    test_set: str = "random",
    least_width: int = 1,
) -> dict[str, Score]:
    """Exact match on each kind of a seeded test set of one length; raises ValueError as `check_request` does.

    Operands are padded to one digit more than they have, and at least to `least_width`, the training width, so
    that numbers no longer than the training numbers look like them. What `padded` adds comes on top.
    """
    found = {}
    for kind, operands in test_inputs(task, length, samples, test_set, least_width).items():
        errors = count_errors(model, task, operands, form)
        total = len(errors) * task.stream_of(operands, form).rows
        found[kind] = Score(length, len(errors), int((errors == 0).sum()), int(errors.sum()), total)
    return found


def check_request(task: Task, length: int, samples: int, test_set: str = "random") -> None:
    """Raise ValueError for a test without digits or samples, beyond memory, or of a length the task lacks."""
    check_test_request(length, samples, test_set, task)
    if task.longest and length > task.longest:
        raise ValueError(f"expected lengths of at most {task.longest} for {task.name}, got {length}")
    if length < task.shortest:
        raise ValueError(f"expected lengths of at least {task.shortest} for {task.name}, got {length}")
    if task.in_rows:
        check_test(1, task.outputs_at(length), 1)
    digits = length * math.log(task.length_base) / math.log(task.base)
    operands = length if task.has_terms else task.operands
    most = task.base ** min(digits * operands, 30)  # there are no more samples than that
    check_test(min(samples, int(most)), digits, operands)


def test_inputs(task: Task, length: int, samples: int, test_set: str, least_width: int) -> dict[str, Operands]:
    """Operands of each kind of a test set, padded as `evaluate_kinds` pads them."""
    check_request(task, length, samples, test_set)
    cases = test_cases(task, length, samples, test_set)
    more = max(0, least_width - task.width_at(length))
    return {kind: task.widened(operands, operands[0].shape[1] + more) for kind, operands in cases.items()}


def wrong_by_step(model: Transformer, task: Task, form: str, *test: int | str) -> torch.Tensor:
    """In how many samples each output step is wrong, [steps], teacher-forced; `test` as in `test_inputs`."""
    total = torch.zeros(0, dtype=torch.long)
    for operands in test_inputs(task, *test).values():
        for wrong in is_wrong(model, task, operands, form):  # kinds may differ in their number of steps
            total = pad_sequence([total, wrong.sum(0).cpu()]).sum(1)
    return total
