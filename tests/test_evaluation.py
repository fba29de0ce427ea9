import pytest
import torch

from abcnb import evaluation
from abcnb.decoding import greedy_decode
from abcnb.evaluation import Score, count_errors, evaluate
from abcnb.tasks import get_task
from abcnb.testsets import hard_cases, padded_cases, random_operands

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


def test_evaluate_names_the_test_sets_it_knows(successors):
    task, models = successors
    with pytest.raises(
        ValueError, match="expected a test set among random, hard, unequal, padded for successor, got 'carry'"
    ):
        evaluate(models["untrained"], task, "natural", 3, 5, "carry")


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


@pytest.mark.parametrize("test_set", ["random", "unequal"])
def test_a_test_set_of_one_kind_has_no_worst_one(successors, test_set):
    task, models = successors
    score = evaluate(models["half-trained"], task, "natural", 3, 100, test_set)
    assert (score.worst_kind, score.worst_percent) == ("", None)


def test_short_numbers_are_padded_to_the_least_width(monkeypatch):
    seen = []
    monkeypatch.setattr(
        evaluation, "count_errors", lambda m, t, operands, form: seen.append(operands) or torch.zeros(5)
    )
    for least, wide in [(1, 4), (7, 7)]:
        evaluation.evaluate(None, get_task("n-by-1"), "natural", 3, 5, least_width=least)
        a, b = seen[-1]
        assert a.shape == (5, wide) and b.shape == (5, 1)
        assert (a[:, 2] > 0).all() and (a[:, 3:] == 0).all()
