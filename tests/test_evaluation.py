import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abcnb import TrainingData, pipeline
from abcnb.model import evaluation
from abcnb.model.decoding import CHUNK, greedy_decode
from abcnb.model.evaluation import Score, count_errors, evaluate, wilson_interval
from abcnb.tasks.testsets import hard_cases, padded_cases, random_operands

# --- teacher forcing and greedy decoding are the same measure


@pytest.mark.parametrize("name", ["untrained", "half-trained", "well-trained"])
@pytest.mark.parametrize("length", [3, 6, 9])
def test_teacher_forced_exact_match_is_greedy_exact_match_in_every_sample(successors, name, length):
    task, models = successors
    operands = random_operands(task, length, 150)
    batch = task.batch(operands)
    forced = count_errors(models[name], task, operands, "natural") == 0
    for cache in (True, False):
        written = greedy_decode(models[name], batch.source, batch.stream, batch.target.shape[1], cache)
        assert torch.equal((written == batch.target).all(1), forced)
    if name == "untrained":
        assert not forced.any()
    elif name == "half-trained":
        assert forced.any() and not forced.all()
    else:
        assert forced.float().mean() > 0.9


def test_errors_are_the_tokens_that_differ(successors):
    task, models = successors
    operands = random_operands(task, 6, 50)
    batch = task.batch(operands)
    model = models["half-trained"].eval()
    with torch.no_grad():
        by_hand = [
            sum(int(p != t) for p, t in zip(row.argmax(-1).tolist(), target.tolist(), strict=True))
            for row, target in zip(model(batch), batch.target, strict=True)
        ]
    assert count_errors(model, task, operands, "natural").tolist() == by_hand
    assert sum(by_hand) > 0


def test_passes_of_bounded_size_give_the_same_errors(successors, monkeypatch):
    task, models = successors
    model = models["half-trained"]
    operands = random_operands(task, 6, 101)
    whole = count_errors(model, task, operands, "natural")
    sizes = []
    forward = model.forward
    monkeypatch.setattr(evaluation, "TOKENS_PER_PASS", {"cpu": 80})  # 8 rows a sample: 10 samples a pass
    monkeypatch.setattr(model, "forward", lambda batch: sizes.append(len(batch.source)) or forward(batch))
    assert torch.equal(count_errors(model, task, operands, "natural"), whole)
    assert sizes == [10] * 10 + [1]


def test_evaluate_counts_a_test_set(successors):
    task, models = successors
    model = models["half-trained"]
    errors = count_errors(model, task, random_operands(task, 5, 70), "natural")
    score = evaluate(model, task, "natural", 5, 70)
    assert score == Score(5, 70, int((errors == 0).sum()), int(errors.sum()), 70 * 7)


def test_evaluate_has_fewer_samples_where_fewer_exist(successors):
    task, models = successors
    score = evaluate(models["untrained"], task, "natural", 1, 10_000)
    assert 1 <= score.samples <= 9
    assert score.digits == score.samples * 3


@pytest.mark.parametrize("test_set, cases", [("hard", hard_cases), ("padded", padded_cases)])
def test_kinds_are_padded_as_in_training_and_add_up(successors, test_set, cases):
    task, models = successors
    model = models["half-trained"]
    kinds = evaluation.evaluate_kinds(model, task, "natural", 3, 100, test_set, least_width=7)
    for kind, (operand,) in cases(task, 3, 100).items():
        zeros = operand.shape[1] - 4  # what a kind adds to a number's own width comes on top of that of training
        whole = task.widened((operand,), 7 + zeros)
        assert kinds[kind].digits == len(operand) * (7 + zeros + 1)
        assert kinds[kind].correct == int((count_errors(model, task, whole, "natural") == 0).sum())
    total = evaluate(model, task, "natural", 3, 100, test_set, least_width=7)
    for name in ("samples", "correct", "wrong_digits", "digits"):
        assert getattr(total, name) == sum(getattr(score, name) for score in kinds.values())
    least = min(score.exact_match for score in kinds.values())
    assert total.worst_kind == next(kind for kind, score in kinds.items() if score.exact_match == least)
    assert total.worst_percent == pytest.approx(least, abs=1e-4)


@pytest.mark.parametrize("one_stream", [False, True])
def test_long_inputs_are_evaluated_along_lines_in_passes_of_bounded_size(one_stream, monkeypatch):
    data = TrainingData("addition", one_stream=one_stream)
    model = pipeline.new_model(data.task, pipeline.model_with_lines(data), 0, pipeline.lines_by_hand(data))
    embedded, embed = [], model.embed

    def watched(tokens, columns, *draw):
        embedded.append(len(columns))
        return embed(tokens, columns, *draw)

    monkeypatch.setattr(model, "embed", watched)
    (score,) = pipeline.evaluate(model, data, 20_000, samples=1)
    assert score.digits == 20_002 and score.correct == 0
    assert max(embedded) < 3 * CHUNK + 100 and sum(embedded) < 3 * 20_002 + 100 * len(embedded)


# --- intervals


PUBLISHED = [
    (0, 10, 0.0, 0.2775),
    (10, 10, 0.7225, 1.0),
    (50, 100, 0.4038, 0.5962),
    (1, 1, 0.2065, 1.0),
    (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I: 81 of 263, score method
    (15, 148, 0.0624, 0.1605),  # … 15 of 148
    (1, 29, 0.0061, 0.1718),  # … 1 of 29
]


@pytest.mark.parametrize("successes, trials, low, high", PUBLISHED)
def test_intervals_have_published_values(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_intervals_hold_the_share_and_mirror(pair):
    k, n = pair
    low, high = wilson_interval(k, n)
    assert 0 <= low <= k / n + 1e-12 and k / n - 1e-12 <= high <= 1
    mirrored = wilson_interval(n - k, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("successes, trials", [(-1, 10), (11, 10), (0, 0), (1, 0), (0, -3)])
def test_intervals_refuse_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson_interval(successes, trials)
