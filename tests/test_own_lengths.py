"""Tasks whose inputs have their own lengths, as strings have: no padding, one length a batch."""

from dataclasses import replace

import pytest
import torch

from abcnb import TrainingData, calibrate, evaluate, interpolate, pipeline, retrain
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.tasks.task import TASKS, Task, register
from abcnb.tasks.tokens import decode


class Reversal(Task):
    name = "reversal"
    spare = 0

    def label(self, a):
        return a

    def read(self, output):
        return output.partition("&")[0]


class Copy(Reversal):
    name = "copy"

    def label(self, a):
        return a.flip(1)


@pytest.fixture(autouse=True)
def known():
    for task in (Reversal, Copy):
        register(task)
    yield
    for task in (Reversal, Copy):
        del TASKS[task.name]


def test_a_batch_has_one_length_and_no_zeros_in_front():
    data, generator, seen = TrainingData("copy"), torch.Generator().manual_seed(0), set()
    for _ in range(40):
        batch = data.train(8, generator)
        seen.add(batch.source.shape[1] - 2)
        for source, target in zip(batch.source, batch.target, strict=True):
            assert decode(target) == decode(source)[1:]
            assert decode(source)[1] != "0" or len(source) == 3
    assert seen == {1, 2, 3, 4, 5, 6} and data.width == 6
    (held_out,) = data.validation(8, generator)
    assert held_out.source.shape[1] == 8


@pytest.mark.parametrize("name, output", [("copy", "2048&"), ("reversal", "8402&")])
def test_what_a_person_types_is_not_padded(name, output):
    task = TASKS[name]()
    batch = task.batch(task.parse("2048"))
    assert (decode(batch.source[0]), decode(batch.target[0])) == ("$2048&", output)
    assert task.read(output) == output[:-1]


def test_tests_have_their_own_lengths():
    task = TASKS["copy"]()
    for test_set in task.test_sets:
        for (digits,) in task.cases(test_set, 9, 50).values():
            assert digits.shape[1] == 9
    assert task.test_sets == ("random", "hard")


@pytest.mark.parametrize("numbers, width", [("uniform", 0), ("even", 7), ("even", 5)])
def test_other_numbers_and_widths_are_refused(numbers, width):
    with pytest.raises(ValueError, match=r"expected .* for copy"):
        TrainingData("copy", numbers, width)


def test_a_run_is_trained_and_tested(tmp_path):
    run = fit(experiment("copy", "abc", "smoke"), tmp_path, "cpu", progress=False)
    assert {shape.stream.width for shape in run.attention()} == {1, 2, 3, 4, 5, 6}
    assert run.evaluate(4, 30).samples == 30


@pytest.mark.slow
@pytest.mark.parametrize("name, line", [("copy", "a[first-place]"), ("reversal", "a[place]")])
def test_the_line_is_found_and_strings_of_any_length_are_written(name, line):
    training = replace(pipeline.TRAINING, steps=800)
    data = TrainingData(name)
    plain = interpolate(data, training=training, progress=False)
    lines = calibrate(plain, data)
    assert line in [str(found.line) for found in lines.found]
    model = retrain(data, lines, progress=False)
    assert all(score.correct == score.samples for score in evaluate(model, data, [3, 6, 7, 12], 500))
