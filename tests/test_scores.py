import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abcnb.evaluation import Score, exact_interval, wilson_interval


@pytest.mark.parametrize(
    "successes, trials, low, high",
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I: 81 of 263, score method
        (15, 148, 0.0624, 0.1605),  # … 15 of 148
        (1, 29, 0.0061, 0.1718),  # … 1 of 29
    ],
)
def test_wilson_interval_has_published_values(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


def test_wilson_interval_for_another_quantile():
    # z = 1, 5 of 10: (0.5 + 1/20 ± sqrt(0.25/10 + 1/400)) / 1.1
    half = math.sqrt(0.025 + 0.0025) / 1.1
    assert wilson_interval(5, 10, z=1.0) == pytest.approx((0.5 - half, 0.5 + half))


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_holds_the_share_and_mirrors(pair):
    k, n = pair
    low, high = wilson_interval(k, n)
    assert 0 <= low <= k / n + 1e-12 and k / n - 1e-12 <= high <= 1
    mirrored = wilson_interval(n - k, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("successes, trials", [(-1, 10), (11, 10), (0, 0), (1, 0), (0, -3)])
@pytest.mark.parametrize("interval", [wilson_interval, exact_interval])
def test_intervals_refuse_impossible_counts(interval, successes, trials):
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        interval(successes, trials)


@pytest.mark.parametrize(
    "successes, trials, low, high",
    [
        (5, 5, 0.4782, 1.0),
        (10, 10, 0.6915, 1.0),
        (0, 3, 0.0, 0.7076),
        (4, 5, 0.2836, 0.9949),
        (8, 10, 0.4439, 0.9748),
    ],
)
def test_exact_interval_has_known_values(successes, trials, low, high):
    assert exact_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_exact_interval_holds_the_share_and_mirrors(pair):
    k, n = pair
    low, high = exact_interval(k, n)
    assert 0 <= low <= k / n <= high <= 1
    mirrored = exact_interval(n - k, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)


def test_score_gives_percentages():
    score = Score(length=6, samples=100, correct=50, wrong_digits=70, digits=800)
    assert score.exact_match == 50.0
    assert score.interval == pytest.approx((40.38, 59.62), abs=6e-3)
