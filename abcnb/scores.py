"""How many samples of a test were answered exactly, and the intervals of such proportions."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """How many samples of a test were answered exactly.

    Attributes:
        length: digits of the operands (decimal digits for Parity).
        samples, correct: how many were tried and matched whole.
        wrong_digits: output tokens, over all samples, that teacher forcing got wrong.
        digits: output tokens over all samples, end tokens included.
        code, date: of a stored score, the fingerprint of the code that produced it, and the day it was measured.
        worst_kind, worst_percent: of a test set with several kinds, the one with the lowest exact match (the first
            of several), and that exact match in percent, to four decimals.
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
        """Percent of samples correct."""
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
        low, high = wilson_interval(self.correct, self.samples)
        return 100 * low, 100 * high


def percent(value: float) -> str:
    """A percentage that shows 100 only where nothing was missed."""
    return "100" if value == 100 else f"{min(value, 99.99):.2f}"


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a proportion.

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

    Source: Wilson 1927; z is the normal quantile of 97.5%.
    """
    _check_proportion(successes, trials)
    p, n = successes / trials, trials
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))


def exact_interval(successes: int, trials: int) -> tuple[float, float]:
    """The exact 95% interval of a proportion, for few trials, such as seeds (the sums overflow beyond a thousand).

    Its ends are the proportions with which so many successes or more, and so many or fewer, have a chance of 2.5%.

    Source: Clopper and Pearson 1934.
    """
    _check_proportion(successes, trials)

    def chance(counts: range, p: float) -> float:
        return math.fsum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in counts)

    def solve(is_below: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if is_below(middle) else (low, middle)
        return low

    or_more, or_fewer = range(successes, trials + 1), range(successes + 1)
    low = solve(lambda p: chance(or_more, p) < 0.025) if successes else 0.0
    high = solve(lambda p: chance(or_fewer, p) > 0.025) if successes < trials else 1.0
    return low, high


def _check_proportion(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"expected 0 ≤ successes ≤ trials and a trial, got {successes} of {trials}")
