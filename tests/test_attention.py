"""What is recorded of attention."""

import pytest
import torch

from abcnb.lines.biases import NO_BIASES
from abcnb.model.attention import record
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
