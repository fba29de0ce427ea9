import pytest

from abcnb.study import results
from abcnb.study.methods import METHODS
from abcnb.study.published import BESIDE, CHOICES, LENGTHS, PUBLISHED, published
from abcnb.tasks.task import TASKS


@pytest.mark.parametrize(
    "task, method, length, percent",
    [
        ("addition", "abc-paper", 60, 99.8),
        ("addition", "abc-paper", 15, 99.9),
        ("addition", "abs-nope", 60, 99.35),
        ("addition", "abs-sinusoidal", 10, 0.0),
        ("n-by-1", "abs-nope", 60, 98.31),
        ("n-by-1", "abs-sinusoidal", 15, 0.19),
        ("parity", "vanilla", 6, 29.23),
        ("parity", "vanilla", 10, 0.29),
        ("successor", "alibi", 6, 1.3),
        ("successor", "vanilla", 60, 0.0),
        ("successor", "abs-cpi", 60, 100.0),
        # Ours stand beside the paper's.
        ("addition", "abc", 60, 99.8),
        ("n-by-1", "abs", 60, 100.0),
    ],
)
def test_published_cells(task, method, length, percent):
    assert published(task, method, length) == percent


@pytest.mark.parametrize(
    "task, method, length",
    [
        ("successor", "abc-paper", 15),  # the earlier version has Addition's alone
        ("n-by-1", "abc", 15),
        ("parity", "abc-paper", 6),  # Parity cannot be calibrated: nothing interpolates
        ("parity", "abc", 6),
        ("parity", "rope", 6),
        ("addition", "rpe", 6),
        ("listops-sm", "vanilla", 6),
        ("addition", "vanilla", 7),
        ("addition", "unheard-of", 6),
    ],
)
def test_what_was_not_published_is_none(task, method, length):
    assert published(task, method, length) is None


def test_every_row_is_a_percentage_at_every_length_of_a_known_method():
    assert LENGTHS == (6, 10, 15, 20, 60)
    assert set(PUBLISHED) <= set(TASKS)
    for rows in PUBLISHED.values():
        assert set(rows) <= set(METHODS)
        for row in rows.values():
            assert len(row) == len(LENGTHS)
            assert all(cell is None or 0 <= cell <= 100 for cell in row)
    assert set(BESIDE) | set(BESIDE.values()) <= set(METHODS)


@pytest.mark.parametrize("settings", [settings for choice in CHOICES for settings in choice.tried])
def test_every_setting_that_a_choice_tries_was_measured(settings, repository):
    assert settings in set(results.read(repository / "reports/results/accuracy.csv")["settings"])


def test_choices_are_told_apart():
    points = [choice.point for choice in CHOICES]
    tried = [settings for choice in CHOICES for settings in choice.tried]
    assert len(set(points)) == len(points) and len(set(tried)) == len(tried)
    for choice in CHOICES:
        assert len({choice.text, choice.code, choice.here}) > 1, choice.point
