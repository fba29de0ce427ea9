"""What is recorded of attention."""

import pytest
import torch

from abcnb.lines.biases import NO_BIASES
from abcnb.model.attention import average_attention, record
from abcnb.study.methods import experiment
from abcnb.study.runs import new_model, written_biases
from abcnb.tasks.testsets import random_operands


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


def test_recording_something_else_is_an_error():
    wanted = experiment("successor", "nope", "smoke")
    model = new_model(wanted, NO_BIASES)
    task = wanted.get_task()
    with pytest.raises(ValueError, match="weights, scores or bias"):
        record(model, task.batch(random_operands(task, 4, 3)), "queries")


def test_attention_to_tokens_that_never_vary_may_count_as_none():
    """Of one-digit numbers padded to three places, only the units and the places they carry into vary."""
    wanted = experiment("addition", "vanilla", "smoke")
    model, task = new_model(wanted, NO_BIASES), wanted.get_task()
    a, b = torch.tensor([[3, 0, 0], [9, 0, 0]]), torch.tensor([[8, 0, 0], [7, 0, 0]])  # sums 11 and 16
    batches = [task.batch((a[n : n + 1], b[n : n + 1])) for n in range(2)]
    (whole,), (varying,) = (average_attention(model, batches, what) for what in ("weights", "varying"))
    assert whole.cross_attention.min() > 0  # $003+008& against $009+007&: columns 3 and 7 differ
    kept = torch.tensor([column in (3, 7) for column in range(9)])
    assert torch.equal(varying.cross_attention, whole.cross_attention * kept)
    kept = torch.tensor([False, True, False, False])  # $110 against $610
    assert torch.equal(varying.self_attention, whole.self_attention * kept)
