"""What a model attends to, against hand-made attention."""

import pytest
import torch

from abcnb.lines.biases import NO_BIASES, Biases
from abcnb.lines.line import windows
from abcnb.model.attention import by_distance, reading, record, share_on_place
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.tasks.task import get_task
from abcnb.tasks.testsets import random_operands


def test_the_share_adds_up_the_operands():
    # `$a2a1+b2b1&`: units of a in column 2 and of b in column 5, tens in columns 1 and 4.
    stream = get_task("addition").stream(2)
    weights = torch.zeros(1, 3, 7)
    weights[0, 0, 2], weights[0, 0, 5], weights[0, 1, 1] = 0.25, 0.5, 1.0
    assert share_on_place(weights, stream).tolist() == [[0.75, 1.0]]


def test_the_share_of_aligned_operands():
    stream = get_task("addition").stream(2, "aligned")  # `$+a2b2a1b1&`
    weights = torch.full((2, 3, 7), 1 / 7)
    torch.testing.assert_close(share_on_place(weights, stream), torch.full((2, 2), 2 / 7))


def test_a_window_without_past_puts_all_attention_on_the_place():
    wanted = experiment("successor", "abs-nope", "smoke")
    selves, _ = written_biases(wanted)
    task = get_task("successor")
    _, crosses = windows(task.stream(5), wanted.model.heads, w=0)
    model = new_model(wanted, Biases(selves, crosses))
    read = reading(model, task.batch(random_operands(task, 9, 20)))
    torch.testing.assert_close(read.share, torch.ones(wanted.model.heads, 10))
    assert read.correct.shape == (10,) and read.correct.min() >= 0 and read.correct.max() <= 100


class HandMade(torch.nn.Module):
    """Writes the digits it is given, and looks where it is told to."""

    def __init__(self, written, weights):
        super().__init__()
        self.written, self.weights = written, weights

    def forward(self, batch, recording):
        recording.cross_attention += [torch.zeros_like(self.weights), self.weights]  # of two layers
        return torch.nn.functional.one_hot(self.written, 15).float()


def test_a_reading_by_hand():
    """199 + 1 = 200 and 123 + 1 = 124, units first; the second answer has its tens wrong."""
    task = get_task("successor")
    batch = task.batch(tuple(torch.cat(pair) for pair in zip(task.parse("199"), task.parse("123"), strict=True)))
    width = batch.stream.width
    written = batch.target.clone()
    written[1, 1] = 9
    weights = torch.zeros(2, 1, width + 1, batch.stream.source)
    units, tens = batch.stream.operands[0].tokens([torch.arange(2)])
    weights[0, 0, 0, units], weights[1, 0, 0, units], weights[0, 0, 1, tens] = 1.0, 0.5, 0.5
    read = reading(HandMade(written, weights), batch)
    assert read.correct.tolist() == [100, 50] + [100] * (width - 2)
    assert read.share.tolist() == [[0.75, 0.25] + [0] * (width - 2)]
    assert reading(HandMade((batch.target + 1) % 15, weights), batch).correct.tolist() == [0] * width


def test_the_recorded_bias_is_what_lies_between_scores_and_weights():
    for method in ("rpe", "abs", "alibi", "vanilla"):
        wanted = experiment("addition", method, "smoke")
        model = new_model(wanted, written_biases(wanted))
        task = wanted.get_task()
        batch = task.batch(random_operands(task, 4, 3), wanted.form)
        weights, scores, bias = (record(model, batch, what) for what in ("weights", "scores", "bias"))
        for kind in ("self_attention", "cross_attention"):
            for w, s, b in zip(*(getattr(r, kind) for r in (weights, scores, bias)), strict=True):
                assert b.shape == s.shape
                torch.testing.assert_close((s + b).softmax(-1), w)


def test_by_distance_averages_diagonals():
    bias = torch.tensor([[[1.0, 9, 9], [2, 3, 9], [4, 6, 5]]])
    assert by_distance(bias).tolist() == [[3.0, 4.0, 4.0]]


def test_recording_something_else_is_an_error():
    wanted = experiment("successor", "nope", "smoke")
    model = new_model(wanted, NO_BIASES)
    task = wanted.get_task()
    with pytest.raises(ValueError, match="weights, scores or bias"):
        record(model, task.batch(random_operands(task, 4, 3)), "queries")
