"""The paper's Algorithm 1 against plain loops over cells."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.lines.algorithm1 import Algorithm1Config, MatrixLines, calibrate_matrix
from abcnb.lines.coordinates import of_number
from tests.plain_loops import algorithm_1

DIRECTIONS = st.lists(st.integers(-2, 2), min_size=1, max_size=3, unique=True).map(tuple)


@settings(max_examples=60)
@given(
    st.integers(1, 6), st.integers(1, 7), st.integers(0, 4), st.integers(0, 4), DIRECTIONS,
    st.sampled_from((0.3, 0.87, 2.1)), st.sampled_from(("sum", "mean")), st.sampled_from(("direction", "head")),
    st.sampled_from(("line", "centred")), st.integers(0, 999),
)  # fmt: skip
def test_every_size_equals_the_plain_loops(
    m, n, rows, columns, directions, kappa, statistic, pool, threshold, seed
):
    attention = torch.rand(2, m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    config = Algorithm1Config(
        kappa_cross=kappa,
        directions_cross=directions,
        rows=0,
        statistic=statistic,
        pool=pool,
        threshold_on=threshold,
    )
    M, N = m + rows, n + columns
    expected = torch.tensor(
        algorithm_1(attention.tolist(), M, N, directions, kappa, statistic, pool, threshold), dtype=torch.float32
    )
    expected = expected.masked_fill(
        torch.isinf(expected).all(-1, keepdim=True), 0.0
    )  # a row without lines is open
    bias = calibrate_matrix(attention, "cross", config)
    torch.testing.assert_close(
        bias(torch.arange(M), of_number((1,), (), {}, N, M).columns(crossing=True)), expected
    )


def test_saved_lines_are_read_again(tmp_path):
    bias = calibrate_matrix(torch.eye(5)[None], "self", Algorithm1Config())
    bias.save(tmp_path / "lines.json")
    assert MatrixLines.load(tmp_path / "lines.json") == bias
    assert bias.lines


@pytest.mark.parametrize(
    "wrong", [{"directions_self": (3,)}, {"directions_cross": ()}, {"rows": -1}, {"pool": "row"}]
)
def test_a_choice_that_there_is_not_is_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        Algorithm1Config(**wrong)


def test_attention_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        calibrate_matrix(torch.full((1, 3, 3), float("nan")), "self", Algorithm1Config())
