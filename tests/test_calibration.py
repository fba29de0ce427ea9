import math
from dataclasses import replace

import pytest
import torch
from abcnb.layout import Steps, natural_layout, unary_layout
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.bench.algorithm1 import algorithm_1, cells_of_line, line_values
from abcnb.calibration import (
    AveragedAttention,
    CalibrationConfig,
    average_attention,
    calibrate_attention,
    line_families,
    line_table,
    to_bias,
)
from abcnb.configs import ModelConfig
from abcnb.layers import Recording
from abcnb.lines import Line
from abcnb.model import Transformer
from abcnb.tasks import get_task

INF = float("inf")

# the smallest example: two rows over the three columns $ a1 &
SMALL = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])


def paper(**changes):
    """The columns frame without anything that Algorithm 1 does not have."""
    choices = {
        "frame": "columns",
        "statistic": "mean",
        "min_support": 0.0,
        "empty_head": "transparent",
        "closed_rows": "transparent",
    }
    return CalibrationConfig(**choices | changes)


def table_of(attention, directions, config, layout=None, attention_kind="cross"):
    if layout is None:
        layout = unary_layout(attention.shape[2] - 2)
    families = line_families(attention_kind, directions, config.frame, getattr(layout, "segments", 1))
    return line_table(attention, layout, families, config)


def calibrated(attention, directions, config, layout=None):
    return to_bias(table_of(attention, directions, config, layout), config)


def offsets_and_strengths(table, head=0):
    return dict(zip(table.offset.tolist(), table.strength[head].tolist(), strict=True))


# The reference itself


def test_reference_by_hand():
    """[[1, 2, 3], [4, 5, 6]], Δ = 1: lines 4 | 1, 5 | 2, 6 | 3, means 4, 3, 4, 3, so μ = 3.5 and σ = 0.5."""
    A = SMALL[0].tolist()
    assert sorted(line_values(A, 1, "mean")) == [3, 3, 4, 4]
    assert sorted(line_values(A, 1, "sum")) == [3, 4, 6, 8]
    # κ = 0.5: above 3.75, the lines j = i − 1 and j = i + 1
    bias = algorithm_1([A], 3, 4, [1], 0.5, threshold_on="line", value="raw")
    assert bias == [[[-INF, 4, -INF, -INF], [4, -INF, 4, -INF], [-INF, 4, -INF, 4]]]


def test_reference_aligns_top_right_corners_for_negative_directions():
    """Δ = −1: lines 1 | 2, 4 | 3, 5 | 6, sums 1, 6, 8, 6; κ = 1: μ = 5.25, σ = 2.59, only 8 is above 7.84."""
    bias = algorithm_1(SMALL.tolist(), 3, 5, [-1], 1, "sum", threshold_on="line")
    # from the top-right corner down to the left
    assert bias == [[[-INF, -INF, -INF, -INF, 0], [-INF, -INF, -INF, 0, -INF], [-INF, -INF, 0, -INF, -INF]]]


def test_reference_merges_directions_by_the_larger_value():
    # lines of Δ = 0: 5, 7, 9; of Δ = 1: 4, 6, 8, 3; all kept at κ = −9; d_max = 9
    bias = algorithm_1(SMALL.tolist(), 2, 3, [0, 1], -9, "sum", threshold_on="line")
    # (0,0) max(5, 6)  (0,1) max(7, 8)  (0,2) max(9, 3)  (1,0) max(5, 4)  (1,1) max(7, 6)  (1,2) max(9, 8)
    assert bias == [[[-3, -1, 0], [-4, -2, 0]]]


def test_reference_leaves_a_head_without_lines_transparent():
    assert algorithm_1(SMALL.tolist(), 3, 3, [1, 0], 50, threshold_on="line") == [[[0.0] * 3] * 3]


def test_reference_lines_outside_the_small_matrix():
    assert cells_of_line(4, 4, 1, 2, 3) == [(0, 0), (1, 1)]
    assert cells_of_line(0, 3, 1, 2, 3) == []
    assert cells_of_line(3, 0, -1, 2, 3) == [(1, 2)]
    assert cells_of_line(2, 4, 2, 2, 3) == [(0, 0), (1, 2)]


# The columns frame against it


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 6),
    n=st.integers(3, 8),
    more_rows=st.integers(1, 5),
    more_columns=st.integers(1, 5),
    directions=st.lists(st.integers(-2, 2), min_size=1, max_size=5, unique=True),
    kappa=st.sampled_from([-1.3, 0.31, 0.87, 1.7, 4.5]),
    statistic=st.sampled_from(["sum", "mean"]),
    pool=st.sampled_from(["head", "direction"]),
    threshold_on=st.sampled_from(["line", "centred"]),
    value=st.sampled_from(["centred", "raw", "zero"]),
)
def test_columns_frame_equals_algorithm_1(
    seed, m, n, more_rows, more_columns, directions, kappa, statistic, pool, threshold_on, value
):
    """Unary layouts of n − 2 digits have n columns. A row that no line reaches is 0 instead of −∞."""
    generator = torch.Generator().manual_seed(seed)
    attention = torch.randn(2, m, n, generator=generator, dtype=torch.float64)
    M, N = m + more_rows, n + more_columns
    config = paper(kappa_cross=kappa, statistic=statistic, pool=pool, threshold_on=threshold_on, value=value)
    bias = calibrated(attention, tuple(directions), config)(torch.arange(M), unary_layout(N - 2))
    expected = torch.tensor(
        algorithm_1(attention.tolist(), M, N, directions, kappa, statistic, pool, threshold_on, value)
    )
    closed = (expected == -INF).all(-1, keepdim=True)
    assert bias.shape == expected.shape
    assert torch.allclose(bias, expected.masked_fill(closed, 0.0), atol=1e-5)


@pytest.mark.parametrize("directions", [(1,), (-1,), (0,), (2,), (-2,), (-1, 0, 1)])
def test_columns_frame_equals_algorithm_1_on_attention_weights(directions):
    """Rows that sum to 1, as after a softmax, with the paper's κ of self- and cross-attention and 2."""
    generator = torch.Generator().manual_seed(7)
    attention = (3 * torch.randn(4, 7, 9, generator=generator, dtype=torch.float64)).softmax(-1)
    kept = 0
    for kappa in (0.87, 2.0, 4.5):
        bias = calibrated(attention, directions, paper(kappa_cross=kappa))
        kept += len(bias.lines)
        expected = torch.tensor(algorithm_1(attention.tolist(), 12, 15, directions, kappa, threshold_on="line"))
        closed = (expected == -INF).all(-1, keepdim=True)
        found = bias(torch.arange(12), unary_layout(13))
        assert torch.allclose(found, expected.masked_fill(closed, 0.0), atol=1e-6)
    assert kept > 0


# By hand


def test_line_sums_of_every_direction():
    expected = {
        # x = j − i
        1: {-1: 4, 0: 1 + 5, 1: 2 + 6, 2: 3},
        # x = j
        0: {0: 1 + 4, 1: 2 + 5, 2: 3 + 6},
        # x = (2 − j) − i
        -1: {-1: 6, 0: 3 + 5, 1: 2 + 4, 2: 1},
        # x = j − 2i
        2: {-2: 4, -1: 5, 0: 1 + 6, 1: 2, 2: 3},
        # x = (2 − j) − 2i
        -2: {-2: 6, -1: 5, 0: 3 + 4, 1: 2, 2: 1},
    }
    for direction, sums in expected.items():
        table = table_of(SMALL, (direction,), paper(statistic="sum"))
        assert offsets_and_strengths(table) == sums


def test_small_example_by_hand():
    """Δ = 1, means 4, 3, 4, 3: μ = 3.5, σ = 0.5; κ = 0.5 keeps what is above 3.75."""
    table = table_of(SMALL, (1,), paper(kappa_cross=0.5))
    assert offsets_and_strengths(table) == {-1: 4, 0: 3, 1: 4, 2: 3}
    assert table.support.tolist() == [1, 2, 2, 1]
    assert table.z_score[0].tolist() == pytest.approx([1, -1, 1, -1])
    assert table.kept[0].tolist() == [True, False, True, False]


def test_small_bias_by_hand():
    """Sums 4, 6, 8, 3: μ = 5.25, σ = 1.92; κ = 0 keeps 6 and 8, centred −2 and 0; at κ = 0.5 only 8 > 6.21."""
    config = paper(kappa_cross=0.0, statistic="sum")
    bias = calibrated(SMALL, (1,), config)
    assert bias.lines == (Line(0, "columns", 1, 0, 0, -2.0), Line(0, "columns", 1, 0, 1, 0.0))
    assert bias(torch.arange(3), unary_layout(2))[0].tolist() == [
        [-2, 0, -INF, -INF],
        [-INF, -2, 0, -INF],
        [-INF, -INF, -2, 0],
    ]
    bias = calibrated(SMALL, (1,), paper(kappa_cross=0.5, statistic="sum", value="raw"))
    assert bias.lines == (Line(0, "columns", 1, 0, 1, 8.0),)


def test_threshold_is_strict():
    """Column sums 5, 7, 9: μ = 7, and at κ = 0 the line of 7 is not above it."""
    assert table_of(SMALL, (0,), paper(kappa_cross=0.0, statistic="sum")).kept.tolist() == [[False, False, True]]


def test_value_choices():
    """Column sums 5, 7, 9 at κ = −1: σ = 1.63, above 5.37 are 7 and 9."""
    for value, expected in (("centred", [-2, 0]), ("raw", [7, 9]), ("zero", [0, 0])):
        config = paper(kappa_cross=-1.0, statistic="sum", value=value)
        assert [line.value for line in calibrated(SMALL, (0,), config).lines] == expected


def test_threshold_on_centred_values():
    """Column sums 5, 7, 9, centred −4, −2, 0; κ = −5 makes the threshold 7 − 8.16 = −1.16."""
    for threshold_on, kept in (("centred", [2]), ("line", [0, 1, 2])):
        config = paper(kappa_cross=-5.0, statistic="sum", threshold_on=threshold_on)
        assert [line.offset for line in calibrated(SMALL, (0,), config).lines] == kept


def test_no_line_of_attention_weights_survives_a_centred_threshold():
    attention = torch.eye(5)[None]
    config = paper(threshold_on="centred", kappa_cross=0.87)
    assert calibrated(attention, (-1, 0, 1), config).transparent_heads == (0,)


def test_pool_by_direction():
    """Sums of Δ = 0: 5, 7, 9, μ = 7; of Δ = 1: 4, 6, 8, 3, μ = 5.25; of both: μ = 6. κ = 0."""
    for pool, kept in (
        ("direction", [(0, 2, 0.0), (1, 0, -2.0), (1, 1, 0.0)]),
        ("head", [(0, 1, -2.0), (0, 2, 0.0), (1, 1, -1.0)]),
    ):
        bias = calibrated(SMALL, (0, 1), paper(kappa_cross=0.0, statistic="sum", pool=pool))
        assert [(line.direction, line.offset, line.value) for line in bias.lines] == kept


def test_heads_have_their_own_thresholds():
    attention = torch.cat([SMALL, 100 * SMALL])
    table = table_of(attention, (1,), paper(kappa_cross=0.5))
    assert table.kept.tolist() == [[True, False, True, False]] * 2
    assert table.strength[1].tolist() == [400, 300, 400, 300]


def test_self_attention_leaves_out_the_future():
    """Columns of the visible triangle 1 | 2 3 | 4 5 6: sums 7, 8, 6; diagonals j − i = −2, −1, 0: 4, 7, 10."""
    attention = torch.tensor([[[1.0, 99, 99], [2, 3, 99], [4, 5, 6]]])
    config = paper(statistic="sum", kappa_self=0.0)
    table = table_of(attention, (0, 1), config, Steps.all(3), "self")
    assert table.strength[0].tolist() == [7, 8, 6, 4, 7, 10]
    assert table.support.tolist() == [3, 2, 1, 1, 2, 3]
    assert table.offset.tolist() == [0, 1, 2, -2, -1, 0]
    # μ = 7: above it are column 1 and the diagonal
    bias = to_bias(table, config)
    assert [(line.direction, line.offset, line.value) for line in bias.lines] == [(0, 1, -2.0), (1, 0, 0.0)]


def test_kappa_of_self_and_cross_attention_are_separate():
    """Sums 4, 6, 8, 3 of cross-attention and 7, 8, 6, 4, 7, 10 of self-attention, as above."""
    config = paper(statistic="sum", kappa_cross=9.0, kappa_self=0.0)
    attention = torch.tensor([[[1.0, 99, 99], [2, 3, 99], [4, 5, 6]]])
    assert table_of(attention, (0, 1), config, Steps.all(3), "self").kept.any()
    assert not table_of(SMALL, (1,), config).kept.any()


def test_table_as_data_frame():
    attention = torch.cat([SMALL, -SMALL])
    frame = table_of(attention, (1,), paper(kappa_cross=0.5)).to_dataframe()
    assert list(frame.columns) == [
        "head",
        "direction",
        "segment",
        "offset",
        "support",
        "strength",
        "z_score",
        "kept",
    ]
    assert frame["head"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert frame["direction"].tolist() == [1] * 8
    assert frame["offset"].tolist() == [-1, 0, 1, 2] * 2
    assert frame["support"].tolist() == [1, 2, 2, 1] * 2
    assert frame["strength"].tolist() == [4, 3, 4, 3, -4, -3, -4, -3]
    assert frame["kept"].tolist() == [True, False, True, False, False, True, False, True]


def test_table_tells_segments_apart():
    """Δ = −1 within a and b, vertical lines once."""
    layout = natural_layout(2)
    config = CalibrationConfig()
    frame = table_of(torch.rand(1, 3, 7), (-1, 0), config, layout).to_dataframe()
    assert frame.groupby(["direction", "segment"]).size().to_dict() == {(-1, 0): 6, (-1, 1): 6, (0, 0): 3}
    # lines of a, places −1 … 2 over three rows: offsets −3 to 2, with 1 to 3 cells
    of_a = frame[(frame["direction"] == -1) & (frame["segment"] == 0)]
    assert of_a["offset"].tolist() == [-3, -2, -1, 0, 1, 2]
    assert of_a["support"].tolist() == [1, 2, 3, 3, 2, 1]


# The places frame


def anti_diagonals(width):
    """Attention of two heads over a natural source: row i looks at place i of a, or of b."""
    layout = natural_layout(width)
    attention = torch.zeros(2, width + 1, layout.total_columns)
    for i in range(width + 1):
        # $ a_w … a_1 + b_w … b_1 &: a's place i is column w − i, b's 2w + 1 − i
        attention[0, i, width - i] = 1
        attention[1, i, 2 * width + 1 - i] = 1
    return attention, layout


def test_places_frame_finds_exactly_the_lines_of_both_operands():
    attention, layout = anti_diagonals(5)
    config = CalibrationConfig()
    bias = calibrated(attention, config.directions_cross, config, layout)
    assert bias.lines == (Line(0, "places", -1, 0, 0, 0.0), Line(1, "places", -1, 1, 0, 0.0))


def test_places_lines_extend_to_a_larger_width():
    attention, layout = anti_diagonals(5)
    config = CalibrationConfig()
    bias = calibrated(attention, config.directions_cross, config, layout)
    for width in (5, 12, 61):
        expected = (anti_diagonals(width)[0] - 1) * INF  # 0 · ∞ is NaN where the line is open
        expected = expected.nan_to_num(0.0, neginf=-INF)
        assert torch.equal(bias(torch.arange(width + 1), natural_layout(width)), expected)


def test_columns_frame_loses_the_second_operand_at_a_larger_width():
    """Anchored at the top-right corner, a's anti-diagonal lands on b: a's place i, seen 7 + i from the right."""
    attention, layout = anti_diagonals(5)
    bias = calibrated(attention, (-1,), CalibrationConfig(frame="columns"), layout)
    # N = 13: a's units are column 5 = N − 1 − 7, b's column 11 = N − 1 − 1
    assert [(line.head, line.offset) for line in bias.lines] == [(0, 7), (1, 1)]
    # width 12, N = 27: column 19 is place 6 of b, not a's units
    assert bias.open_columns(0, natural_layout(12)) == [[19], [25]]


def test_places_frame_finds_vertical_lines_by_structural_token():
    layout = natural_layout(4)
    attention = torch.zeros(1, 5, layout.total_columns)
    attention[0, :, 5] = 1  # the +
    config = CalibrationConfig()
    bias = calibrated(attention, (-1, 0, 1), config, layout)
    assert bias.lines == (Line(0, "places", 0, 0, 1, 0.0),)
    assert bias.open_columns(3, natural_layout(40)) == [[41]]


def test_places_frame_finds_a_carry_line():
    """Row i looks at place i − 1 of b, from the & on."""
    layout = natural_layout(4)
    attention = torch.zeros(1, 5, layout.total_columns)
    for i in range(5):
        attention[0, i, 10 - i] = 1
    config = CalibrationConfig()
    assert calibrated(attention, (-1, 0, 1), config, layout).lines == (Line(0, "places", -1, 1, -1, 0.0),)


# Empty heads and short lines


def test_empty_head_rules():
    """Head 0 has a diagonal, the column sums of head 1 hardly differ."""
    attention = torch.zeros(2, 4, 4)
    attention[0] = torch.eye(4)
    attention[1] = 0.25
    attention[1, :, 2] += 0.001
    choices = {"statistic": "mean", "kappa_cross": 3.0}
    transparent = calibrated(attention, (0, 1), paper(**choices))
    assert transparent.transparent_heads == (0, 1)
    strongest = calibrated(attention, (0, 1), paper(**choices, empty_head="strongest"))
    assert strongest.lines == (Line(0, "columns", 1, 0, 0, 0.0), Line(1, "columns", 0, 0, 2, 0.0))


def test_strongest_adds_nothing_to_a_head_with_lines():
    bias = calibrated(SMALL, (1,), paper(kappa_cross=0.5, empty_head="strongest"))
    assert [line.offset for line in bias.lines] == [-1, 1]


def test_min_support_drops_a_corner_line():
    """The top-right corner of 4 × 4 is the strongest diagonal by its mean, but crosses one row of four."""
    attention = 0.5 * torch.eye(4)[None]
    attention[0, 0, 3] = 1
    for min_support, kept in ((0.0, [0, 3]), (0.25, [0, 3]), (0.5, [0]), (1.0, [0])):
        bias = calibrated(attention, (1,), paper(kappa_cross=1.0, min_support=min_support))
        # means 0 0 0 0.5 0 0 1: μ = 0.214, σ = 0.364, threshold 0.578 with κ = 1; 0.396 with κ = 0.5
        assert [line.offset for line in bias.lines] == [c for c in kept if c == 3]
        bias = calibrated(attention, (1,), paper(kappa_cross=0.5, min_support=min_support))
        assert [line.offset for line in bias.lines] == kept
        # centred on the corner's 1 even where the corner is dropped
        assert [line.value for line in bias.lines] == [-0.5, 0.0][: len(kept)]


def test_strongest_is_sought_among_lines_that_are_long_enough():
    attention = 0.5 * torch.eye(4)[None]
    attention[0, 0, 3] = 1
    bias = calibrated(attention, (1,), paper(kappa_cross=9.0, min_support=0.5, empty_head="strongest"))
    assert [line.offset for line in bias.lines] == [0]


def test_no_line_is_kept_that_is_too_short():
    """Seven rows over three columns: no diagonal crosses more than three rows, half would be 3.5."""
    attention = torch.rand(2, 7, 3, generator=torch.Generator().manual_seed(0))
    table = table_of(attention, (1,), paper(min_support=0.5, empty_head="strongest"))
    assert table.support.max() == 3
    assert not table.kept.any()


@pytest.mark.parametrize("m, n", [(3, 3), (7, 5), (6, 9), (7, 20), (8, 11)])
@pytest.mark.parametrize("directions", [(1,), (-1, 0, 1)])
def test_uniform_attention_has_no_pattern(m, n, directions):
    """All lines have the same mean, so that none is above μ: rounding is no pattern."""
    attention = torch.full((1, m, n), 1 / n)
    assert calibrated(attention, directions, paper(kappa_cross=0.87)).transparent_heads == (0,)


# calibrate_attention() and average_attention()


def synthetic_average():
    """Two layers of two heads: anti-diagonals, exchanged between the heads in the last layer."""
    cross, layout = anti_diagonals(4)
    steps = 5
    diagonal = torch.eye(steps)
    start = torch.zeros(steps, steps)
    start[:, 0] = 1
    self_attention = torch.stack([diagonal, start])
    return AveragedAttention(
        torch.stack([self_attention, self_attention.flip(0)]), torch.stack([cross, cross.flip(0)]), layout
    )


def test_calibrate_reads_the_last_layer():
    found = calibrate_attention(synthetic_average(), CalibrationConfig())
    assert len(found.self_biases) == len(found.cross_biases) == 1
    assert found.cross_biases[0].lines == (
        Line(0, "places", -1, 1, 0, 0.0),
        Line(1, "places", -1, 0, 0, 0.0),
    )
    assert found.self_biases[0].lines == (Line(0, "places", 0, 0, 0, 0.0), Line(1, "places", 1, 0, 0, 0.0))
    assert (found.self_biases[0].attention, found.cross_biases[0].attention) == ("self", "cross")


def test_calibrate_reads_each_layer():
    found = calibrate_attention(synthetic_average(), CalibrationConfig(layer="each"))
    assert [bias.lines[0].segment for bias in found.cross_biases] == [0, 1]
    assert [bias.lines[0].direction for bias in found.self_biases] == [1, 0]
    assert len(found.self_tables) == len(found.cross_tables) == 2


def test_calibrate_reads_the_first_rows_alone():
    """Beside the anti-diagonal of two rows, a line of the later rows is stronger: the code never sees it."""
    cross, layout = torch.zeros(1, 5, 6), natural_layout(2, second_is_digit=True)
    cross[0, torch.tensor([0, 1]), torch.tensor([2, 1])] = 1.0
    cross[0, 2:, 5] = 1.0
    average = AveragedAttention(torch.eye(5)[None, None], cross[None], layout)
    whole = CalibrationConfig(
        frame="columns", directions_cross=(-1, 0), directions_self=(1,), kappa_cross=2.0, empty_head="transparent",
        min_support=0.0,
    )  # fmt: skip
    found = calibrate_attention(average, whole)
    assert [(line.direction, line.offset) for line in found.cross_biases[0].lines] == [(0, 5)]
    found = calibrate_attention(average, replace(whole, rows=2))
    assert [(line.direction, line.offset) for line in found.cross_biases[0].lines] == [(-1, 3)]
    assert int(found.cross_tables[0].support.max()) == int(found.self_tables[0].support.max()) == 2
    assert (
        calibrate_attention(average, replace(whole, rows=9)).cross_biases
        == calibrate_attention(average, whole).cross_biases
    )


@pytest.mark.parametrize("frame", ["columns", "places"])
def test_an_anti_diagonal_of_the_first_rows_stays_where_it_is(frame):
    selves, layout = torch.zeros(1, 12, 12), natural_layout(11, second_is_digit=False)
    selves[0, torch.tensor([3, 4, 5]), torch.tensor([2, 1, 0])] = 1.0
    average = AveragedAttention(selves[None], torch.ones(1, 1, 12, len(layout)), layout)
    config = CalibrationConfig(
        frame=frame, directions_self=(-1,), rows=6, kappa_self=3.0, closed_rows="transparent"
    )
    (bias,) = calibrate_attention(average, config).self_biases
    _, where, _ = bias.cells(torch.arange(12), Steps.all(12))
    opened = {(row, int(column)) for line in where for row, column in enumerate(line) if column >= 0}
    assert opened == {(3, 2), (4, 1), (5, 0)}


def test_calibrate_passes_its_rules_on():
    found = calibrate_attention(synthetic_average(), CalibrationConfig(frame="columns", closed_rows="transparent"))
    assert found.cross_biases[0].closed_rows == "transparent"
    assert {line.frame for line in found.cross_biases[0].lines} == {"columns"}


def test_calibrated_biases_train_a_model():
    """The biases fit a model of as many heads, at a larger width."""
    found = calibrate_attention(synthetic_average(), CalibrationConfig())
    config = ModelConfig(heads=2, d_model=16, d_ff=16, decoder_layers=2)
    model = Transformer(config, 15, found.self_biases, found.cross_biases)
    digits = torch.randint(5, (3, 9), generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(model(get_task("addition").batch((digits, digits)))).all()


def test_attention_of_several_widths_is_not_averaged():
    model, task = (
        Transformer(ModelConfig(heads=2, d_model=16, d_ff=16, decoder_layers=1), 15),
        get_task("addition"),
    )
    batches = [task.batch((torch.zeros(2, n).long(), torch.ones(2, n).long())) for n in (4, 3)]
    with pytest.raises(ValueError, match=r"such as those of 'even' numbers, got widths \[3, 4\]"):
        average_attention(model, batches)


@pytest.mark.parametrize("what", ["weights", "scores"])
def test_average_attention_is_the_mean_over_samples(what):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(heads=2, d_model=16, d_ff=16, decoder_layers=2, dropout=0.5), 15)
    task = get_task("addition")
    digits = torch.randint(5, (2, 6, 4))
    whole = task.batch((digits[0], digits[1]))
    halves = [task.batch((digits[0, rows], digits[1, rows])) for rows in (slice(0, 3), slice(3, 6))]
    model.eval()
    recording = Recording(what)
    with torch.no_grad():
        model(whole, recording)
    model.train()
    average = average_attention(model, halves, what)
    assert average.self_attention.shape == (2, 2, 5, 5)
    assert average.cross_attention.shape == (2, 2, 5, 11)
    for layer in range(2):
        for found, recorded in (
            (average.self_attention, recording.self_attention),
            (average.cross_attention, recording.cross_attention),
        ):
            assert torch.allclose(found[layer], recorded[layer].sum(0) / 6, atol=1e-6)
    if what == "weights":
        assert torch.allclose(average.cross_attention.sum(-1), torch.ones(2, 2, 5), atol=1e-5)


def test_model_to_bias_end_to_end():
    """From a model that has not learned anything to biases for a wider source."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(heads=2, d_model=16, d_ff=16, decoder_layers=2), 15)
    digits = torch.randint(5, (2, 8, 4))
    average = average_attention(model, [get_task("addition").batch((digits[0], digits[1]))])
    found = calibrate_attention(average, CalibrationConfig())
    assert set(range(2)) == {line.head for line in found.cross_biases[0].lines}
    assert found.cross_biases[0](torch.arange(21), natural_layout(20)).shape == (2, 21, 43)


# Errors


def test_attention_of_another_width():
    with pytest.raises(ValueError, match="expected attention of 5 columns"):
        table_of(SMALL, (1,), paper(), unary_layout(3))


@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
def test_attention_that_is_not_finite(bad):
    attention = SMALL.clone()
    attention[0, 1, 1] = bad
    with pytest.raises(ValueError, match="expected finite attention"):
        table_of(attention, (1,), paper())


@pytest.mark.parametrize(
    "choice, message",
    [
        ({"frame": "rows"}, "expected frame among columns, places, got 'rows'"),
        ({"average": "logits"}, "expected average among weights, scores"),
        ({"statistic": "median"}, "expected statistic among sum, mean"),
        ({"pool": "layer"}, "expected pool among head, direction"),
        ({"threshold_on": "cell"}, "expected threshold_on among line, centred"),
        ({"value": "one"}, "expected value among centred, raw, zero"),
        ({"layer": "first"}, "expected layer among last, each"),
        ({"empty_head": "zero"}, "expected empty_head among transparent, strongest"),
        ({"closed_rows": "open"}, "expected closed_rows among"),
        ({"directions_cross": ()}, "expected directions_cross as a tuple from"),
        ({"directions_self": (3,)}, "expected directions_self as a tuple from"),
        ({"rows": -1}, "expected rows of at least 0, got -1"),
        ({"min_support": -0.1}, "expected min_support from 0 to 1, got -0.1"),
        ({"min_support": 1.1}, "expected min_support from 0 to 1"),
        ({"min_support": math.nan}, "expected min_support as a finite number, got nan"),
        ({"kappa_cross": "1"}, "expected kappa_cross as float, got '1'"),
        ({"rows": 2.5}, "expected rows as int, got 2.5"),
    ],
)
def test_impossible_choices(choice, message):
    with pytest.raises(ValueError, match=message):
        CalibrationConfig(**choice)
