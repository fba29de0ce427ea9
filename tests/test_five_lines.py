"""The five lines of the README, for every task and both architectures."""

from dataclasses import replace

import pytest

from abcnb import TrainingData, calibrate, evaluate, interpolate, pipeline, retrain

# Steps of the plain model and of the one with lines, and the lengths at which that one makes no error.
STEPS = {
    ("successor", False): (500, 1500, [6, 12]),
    ("addition", False): (900, 1500, [6, 12]),
    ("parity", False): (1200, 1500, [6, 12]),
    ("n-by-1", False): (1000, 1500, [6, 12]),
    ("addition", True): (800, 1500, [6, 12]),
    ("multiplication", False): (2000, 2500, [3, 6]),
    ("many-addition", False): (1000, 2500, [3, 6]),
    ("nested", False): (8000, 2500, [1, 3]),
}


def five_lines(task, one_stream, plain_steps, steps, lengths, samples):
    data = TrainingData(task, one_stream=one_stream)
    plain = interpolate(data, training=replace(pipeline.TRAINING, steps=plain_steps), progress=False)
    lines = calibrate(plain, data)
    model = retrain(data, lines, training=replace(pipeline.RETRAINING, steps=steps), progress=False)
    return lines, model, evaluate(model, data, lengths, samples)


# The program of the README is that of Addition in an encoder-decoder (`test_claim`).
@pytest.mark.parametrize("task, one_stream", [case for case in STEPS if case != ("addition", False)])
def test_five_lines_run(task, one_stream, small_pipeline):
    *_, lengths = STEPS[task, one_stream]
    lines, model, scores = five_lines(task, one_stream, 2, 2, lengths, 20)
    assert model.gathers and model.crossing == bool(lines.stream.source)
    assert all(str(found.line) in str(lines) for found in lines.found)
    assert [score.length for score in scores] == lengths and all(score.exact_match < 100 for score in scores)


@pytest.mark.slow
@pytest.mark.parametrize("task, one_stream", STEPS)
def test_five_lines_generalize(task, one_stream):
    lines, _, scores = five_lines(task, one_stream, *STEPS[task, one_stream], 1000)
    assert all(score.correct == score.samples for score in scores), f"{lines}\n" + "\n".join(map(str, scores))
