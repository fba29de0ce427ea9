import json

import pytest
import torch
from abcnb.layout import Steps, aligned_layout, natural_layout, unary_layout
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.lines import CLOSED_ROW_RULES, Line, LineBias, cross_window, self_window

INF = float("inf")
quick = settings(max_examples=60, deadline=None)


def opened(bias, rows, columns):
    """Which cells are open, as one list of 0 and 1 a row, for head 0."""
    return (bias(torch.arange(rows), columns)[0] > -INF).int().tolist()


# ABS windows at width 3, written by hand


def test_unary_window_past():
    """Columns $ a3 a2 a1 &; row i opens the places i and i − 1."""
    assert opened(cross_window(1, 1, 1, "past"), 4, unary_layout(3)) == [
        [0, 0, 0, 1, 1],
        [0, 0, 1, 1, 0],
        [0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0],
    ]


def test_unary_window_both():
    """Row i opens the places i − 1, i and i + 1."""
    assert opened(cross_window(1, 1, 1, "both"), 4, unary_layout(3)) == [
        [0, 0, 1, 1, 1],
        [0, 1, 1, 1, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0],
    ]


def test_aligned_window_past():
    """Columns $ + a3 b3 a2 b2 a1 b1 &."""
    assert opened(cross_window(1, 2, 1, "past"), 4, aligned_layout(3)) == [
        [0, 0, 0, 0, 0, 0, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0, 0, 0],
    ]


def test_aligned_window_both():
    assert opened(cross_window(1, 2, 1, "both"), 4, aligned_layout(3)) == [
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0, 0, 0],
    ]


def test_natural_window_follows_both_operands():
    """Columns $ a2 a1 + b2 b1 &, w = 0: the current place of a and of b, and the token left of each at the end."""
    assert opened(cross_window(1, 2, 0), 3, natural_layout(2)) == [
        [0, 0, 1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0, 0, 0],
    ]


def test_window_without_width_is_the_anti_diagonal():
    assert opened(cross_window(1, 1, 0), 4, unary_layout(3)) == [
        [0, 0, 0, 1, 0],
        [0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
    ]


def test_self_window():
    """The current step and the one before."""
    assert opened(self_window(1, 1), 4, Steps.all(4)) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_self_window_of_two():
    assert opened(self_window(1, 2), 4, Steps.all(4)) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 1, 1, 1],
    ]


def test_windows_are_the_same_for_every_head_and_leave_scores_alone():
    for bias, columns in ((cross_window(3, 1), unary_layout(3)), (self_window(3), Steps.all(4))):
        expanded = bias(torch.arange(4), columns)
        assert expanded.shape[0] == 3
        assert torch.equal(expanded[0], expanded[1])
        assert torch.equal(expanded[0], expanded[2])
        assert set(expanded.unique().tolist()) == {-INF, 0.0}


def test_window_errors():
    with pytest.raises(ValueError, match="expected w ≥ 0 and sides 'past' or 'both', got 1 and 'future'"):
        cross_window(1, 1, 1, "future")
    with pytest.raises(ValueError, match="expected w ≥ 0"):
        cross_window(1, 1, -1)
    with pytest.raises(ValueError, match="expected w ≥ 0, got -1"):
        self_window(1, -1)


# Expansion against a double loop over cells, by the table of the module's docstring


SOURCES = {
    "unary": (unary_layout, lambda w: ["$", *numbered("a", w), "&"]),
    "listops": (lambda w: unary_layout(w, operator=True), lambda w: ["$", "%", *numbered("a", w), "&"]),
    "natural": (natural_layout, lambda w: ["$", *numbered("a", w), "+", *numbered("b", w), "&"]),
    "n-by-1": (
        lambda w: natural_layout(w, second_is_digit=True),
        lambda w: ["$", *numbered("a", w), "*", "B", "&"],
    ),
    "aligned": (
        aligned_layout,
        lambda w: ["$", "+", *(t for p in range(w, 0, -1) for t in (f"a{p}", f"b{p}")), "&"],
    ),
}


def numbered(letter, width):
    return [f"{letter}{p}" for p in range(width, 0, -1)]


def place_in(tokens, j, segment):
    """The place of column j in an operand, None outside it: −1 right of its digits, w left of them."""
    letter = "ab"[segment]
    digits = [k for k, token in enumerate(tokens) if token[0] == letter]
    foreign = [k for k, token in enumerate(tokens) if len(token) == 1]
    if tokens[j][0] == letter:
        return int(tokens[j][1:]) - 1
    if j == min(k for k in foreign if k > digits[-1]):
        return -1
    if j == max(k for k in foreign if k < digits[0]):
        return len(digits)
    return None


def coordinate(line, tokens, j):
    """The x of a cross-attention cell in column j, None where the line's family has none."""
    if line.frame == "columns":
        return j if line.direction >= 0 else len(tokens) - 1 - j
    if line.direction == 0:
        structural = [k for k, token in enumerate(tokens) if len(token) == 1]
        return structural.index(j) if j in structural else None
    place = place_in(tokens, j, line.segment)
    if place is None or line.direction < 0:
        return place
    return sum(token[0] == "ab"[line.segment] for token in tokens) - place


def self_coordinate(line, steps, j):
    if line.frame == "places" and line.direction == 0:
        return 0 if j == 0 else None
    return j if line.direction >= 0 else steps - 1 - j


def columns_in(line, i, x_of):
    """Columns of the line's cells in row i."""
    return [j for j, x in enumerate(x_of) if x is not None and x - abs(line.direction) * i == line.offset]


def expand(bias, rows, n, x_of_line, is_self=False):
    """The bias by loops; closed rows follow the rule."""
    result = [[[-INF] * n for _ in range(rows)] for _ in range(bias.heads)]
    for head in range(bias.heads):
        lines = [(line, x_of_line(line)) for line in bias.lines if line.head == head]
        for i in range(rows):
            cells = [(j, line.value) for line, x_of in lines for j in columns_in(line, i, x_of)]
            if is_self:
                cells = [(j, value) for j, value in cells if j <= i]
            if not cells and bias.closed_rows == "nearest":
                cells = nearest_ends(lines, i)
            for j, value in cells:
                result[head][i][j] = max(result[head][i][j], value)
            if not cells:
                result[head][i] = [0.0 if not is_self or j <= i else -INF for j in range(n)]
    return torch.tensor(result)


def nearest_ends(lines, i):
    """Where the lines of a head that come closest to row i end, as (column, value)."""
    ends = []
    for line, x_of in lines:
        crossed = [r for r in range(60) if columns_in(line, r, x_of)]
        if crossed:
            row = min(crossed, key=lambda r: abs(r - i))
            ends += [(abs(row - i), j, line.value) for j in columns_in(line, row, x_of)]
    closest = min((distance for distance, _, _ in ends), default=None)
    return [(j, value) for distance, j, value in ends if distance == closest]


@st.composite
def line_biases(draw, attention, segments, heads=2):
    lines = draw(
        st.lists(
            st.builds(
                Line,
                head=st.integers(0, heads - 1),
                frame=st.sampled_from(["columns", "places"]),
                direction=st.integers(-2, 2),
                segment=st.integers(0, segments - 1),
                offset=st.integers(-9, 9),
                value=st.sampled_from([0.0, -0.5, -2.0, 1.5]),
            ),
            max_size=6,
        )
    )
    return LineBias(attention, heads, tuple(lines), draw(st.sampled_from(CLOSED_ROW_RULES)))


@quick
@given(st.data(), st.sampled_from(sorted(SOURCES)), st.integers(1, 4), st.integers(1, 7))
def test_cross_expansion_equals_loops(data, source, width, rows):
    make, write = SOURCES[source]
    layout, tokens = make(width), write(width)
    bias = data.draw(line_biases("cross", layout.segments))
    expected = expand(
        bias, rows, len(tokens), lambda line: [coordinate(line, tokens, j) for j in range(len(tokens))]
    )
    assert torch.equal(bias(torch.arange(rows), layout), expected)


@quick
@given(st.data(), st.integers(1, 7))
def test_self_expansion_equals_loops(data, steps):
    drawn = data.draw(line_biases("self", 1))
    bias = LineBias("self", drawn.heads, drawn.lines, "transparent")
    expected = expand(
        bias, steps, steps, lambda line: [self_coordinate(line, steps, j) for j in range(steps)], is_self=True
    )
    assert torch.equal(bias(torch.arange(steps), Steps.all(steps)), expected)


@pytest.mark.parametrize("direction", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("frame", ["columns", "places"])
@pytest.mark.parametrize("source", sorted(SOURCES))
def test_every_offset_of_every_direction_equals_loops(source, frame, direction):
    make, write = SOURCES[source]
    layout, tokens = make(3), write(3)
    for segment in range(layout.segments):
        heads = range(-12, 13)
        lines = tuple(Line(head, frame, direction, segment, c) for head, c in enumerate(heads))
        bias = LineBias("cross", len(heads), lines, "transparent")
        expected = expand(
            bias, 5, len(tokens), lambda line: [coordinate(line, tokens, j) for j in range(len(tokens))]
        )
        assert torch.equal(bias(torch.arange(5), layout), expected)


def test_larger_value_counts_where_lines_cross():
    """The diagonal through the top-left corner and column 1 cross in (1, 1)."""
    lines = (Line(0, "columns", 1, 0, 0, -3.0), Line(0, "columns", 0, 0, 1, -1.0))
    for order in (lines, lines[::-1]):
        bias = LineBias("cross", 1, order)(torch.arange(3), unary_layout(1))
        assert bias[0].tolist() == [[-3, -1, -INF], [-INF, -1, -INF], [-INF, -1, -3]]


def test_head_without_lines_is_transparent():
    bias = LineBias("cross", 3, (Line(1, "columns", 0, 0, 0),))
    expanded = bias(torch.arange(4), unary_layout(3))
    assert bias.transparent_heads == (0, 2)
    assert not expanded[[0, 2]].any()
    assert torch.isinf(expanded[1, :, 1:]).all()


def test_a_bias_without_lines_is_on_the_device_of_its_rows():
    rows = torch.arange(3, device="meta")
    found = LineBias("self", 2, (), "transparent").cells(rows, Steps.all(3, torch.device("meta")))
    assert {part.device.type for part in found} == {"meta"}


def test_transparent_head_of_self_attention_stays_causal():
    bias = LineBias("self", 1, ())(torch.arange(3), Steps.all(3))
    assert bias[0].tolist() == [[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]


# Rows that no line reaches


@quick
@given(st.data(), st.sampled_from(sorted(SOURCES)), st.integers(1, 4), st.integers(1, 12))
def test_every_cross_row_has_an_open_cell(data, source, width, rows):
    layout = SOURCES[source][0](width)
    expanded = data.draw(line_biases("cross", layout.segments))(torch.arange(rows), layout)
    assert (expanded > -INF).any(-1).all()
    assert not expanded.isnan().any()


@quick
@given(st.data(), st.integers(1, 8))
def test_every_self_row_has_an_open_cell_and_none_in_the_future(data, steps):
    expanded = data.draw(line_biases("self", 1))(torch.arange(steps), Steps.all(steps))
    assert (expanded > -INF).any(-1).all()
    assert torch.isinf(expanded.triu(1)[torch.ones_like(expanded).triu(1) > 0]).all()


@quick
@given(st.data(), st.integers(1, 8))
def test_nearest_changes_only_self_rows_that_no_line_reaches(data, steps):
    drawn = data.draw(line_biases("self", 1))
    rows, columns = torch.arange(steps), Steps.all(steps)
    heads, where, _ = drawn.cells(rows, columns)
    transparent, nearest = (
        LineBias("self", drawn.heads, drawn.lines, rule)(rows, columns) for rule in CLOSED_ROW_RULES
    )
    for head in range(drawn.heads):
        for i in range(steps):
            if not len(heads) or (where[heads == head][:, i] >= 0).any():
                assert torch.equal(transparent[head, i], nearest[head, i])


# a line over $ a2 a1 & that enters two rows late: x = place = i − 2, from the unit's right neighbour on
LATE = Line(0, "places", -1, 0, -3, -1.0)


def test_transparent_rows():
    """The late line reaches place −1 in row 2, 0 in row 3, 1 in row 4, 2 in row 5 and nothing after."""
    bias = LineBias("cross", 1, (LATE,), "transparent")(torch.arange(7), unary_layout(2))
    assert bias[0].tolist() == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [-INF, -INF, -INF, -1],
        [-INF, -INF, -1, -INF],
        [-INF, -1, -INF, -INF],
        [-1, -INF, -INF, -INF],
        [0, 0, 0, 0],
    ]


def test_nearest_rows():
    """Rows 0 and 1 open the cell in which the line enters, row 6 the one in which it leaves."""
    bias = LineBias("cross", 1, (LATE,), "nearest")(torch.arange(7), unary_layout(2))
    assert bias[0].tolist() == [
        [-INF, -INF, -INF, -1],
        [-INF, -INF, -INF, -1],
        [-INF, -INF, -INF, -1],
        [-INF, -INF, -1, -INF],
        [-INF, -1, -INF, -INF],
        [-1, -INF, -INF, -INF],
        [-1, -INF, -INF, -INF],
    ]


def test_nearest_takes_the_closest_of_several_lines():
    """Over $ a2 a1 &: the diagonal j = i ends in (3, 3), the one j = i + 2 in (1, 3), j = 2 − i in (2, 0)."""
    lines = (
        Line(0, "columns", 1, 0, 2, -5.0),
        Line(0, "columns", -1, 0, 1, -7.0),
        Line(0, "columns", 1, 0, 0, -1.0),
    )
    bias = LineBias("cross", 1, lines[:2], "nearest")(torch.arange(5), unary_layout(2))
    # rows 3 and 4 are closest to (2, 0)
    assert bias[0, 3].tolist() == bias[0, 4].tolist() == [-7, -INF, -INF, -INF]
    bias = LineBias("cross", 1, lines, "nearest")(torch.arange(5), unary_layout(2))
    # row 4 is closest to (3, 3)
    assert bias[0, 4].tolist() == [-INF, -INF, -INF, -1]


def test_nearest_opens_all_lines_that_are_equally_close():
    """Over $ a2 a1 &: the diagonal ends in (3, 3), the anti-diagonal in (3, 0); row 5 is two rows from both."""
    lines = (Line(0, "columns", 1, 0, 0, -1.0), Line(0, "columns", -1, 0, 0, -2.0))
    bias = LineBias("cross", 1, lines, "nearest")(torch.arange(6), unary_layout(2))
    assert bias[0, 5].tolist() == [-2, -INF, -INF, -1]


def test_nearest_of_one_head_ignores_the_lines_of_another():
    lines = (LATE, Line(1, "columns", 0, 0, 1))
    bias = LineBias("cross", 2, lines, "nearest")(torch.arange(1), unary_layout(2))
    assert bias[:, 0].tolist() == [[-INF, -INF, -INF, -1], [-INF, 0, -INF, -INF]]


def test_nearest_of_a_line_that_meets_no_row_is_transparent():
    """j = i − 0 + 9 lies right of a source of four columns in every row."""
    bias = LineBias("cross", 1, (Line(0, "columns", 1, 0, 9),), "nearest")
    assert not bias(torch.arange(3), unary_layout(2)).any()


def test_nearest_of_a_lagging_self_line_is_the_start_token():
    """j = i − 2 enters in (2, 0)."""
    bias = LineBias("self", 1, (Line(0, "places", 1, 0, -2),), "nearest")
    assert opened(bias, 4, Steps.all(4)) == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]


def test_nearest_does_not_depend_on_how_many_rows_are_asked_for():
    layout = natural_layout(3)
    lines = (Line(0, "places", -1, 1, -3), Line(0, "places", 2, 0, 3), Line(1, "columns", 1, 0, 4))
    bias = LineBias("cross", 2, lines, "nearest")
    whole = bias(torch.arange(9), layout)
    for i in range(9):
        assert torch.equal(bias(torch.tensor([i]), layout)[:, 0], whole[:, i])


# Open columns, selections


def test_open_tokens_name_each_column_once_with_its_largest_value():
    """Columns $ a2 a1 &: the anti-diagonal of row 0 and the line through $ meet nowhere, two of a kind everywhere."""
    lines = (Line(0, "places", -1, 0, 0, -1.0), Line(0, "places", -1, 0, 0, 2.0), Line(1, "columns", 0, 0, 0, 3.0))
    tokens, values = LineBias("cross", 2, lines).open_tokens(torch.arange(2), unary_layout(2))
    assert tokens.tolist() == [[[2, -1], [1, -1]], [[0, -1], [0, -1]]]
    assert values[..., 0].tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_open_columns():
    """$ a3 a2 a1 &: the window at step 1 is a2 and a1; a head without lines sees everything."""
    bias = LineBias("cross", 2, cross_window(1, 1).lines)
    assert bias.open_columns(1, unary_layout(3)) == [[2, 3], [0, 1, 2, 3, 4]]
    steps = LineBias("self", 2, self_window(1).lines)
    assert steps.open_columns(2, Steps.all(5)) == [[1, 2], [0, 1, 2]]


def test_open_columns_are_columns_of_the_whole_source():
    bias = cross_window(1, 2)
    part = aligned_layout(3).select(torch.tensor([1, 4, 5, 7, 8]))
    # step 1 opens the places 1 and 0 (columns 4 to 7), of which 6 is left out
    assert bias.open_columns(1, part) == [[4, 5, 7]]


def test_open_columns_stay_few_at_any_width():
    """w = 1: two places of two operands, whatever the width."""
    for width in (5, 50, 500):
        columns = cross_window(1, 2).open_columns(3, natural_layout(width))[0]
        # places 3 and 2 of a in columns 1 … w, of b behind the +
        a, b = [width - 3, width - 2], [2 * width - 2, 2 * width - 1]
        assert columns == a + b


@quick
@given(st.data(), st.sampled_from(sorted(SOURCES)), st.integers(1, 4), st.integers(0, 6))
def test_bias_of_the_open_columns_is_the_slice_of_the_whole(data, source, width, step):
    layout = SOURCES[source][0](width)
    bias = data.draw(line_biases("cross", layout.segments))
    whole = bias(torch.arange(7), layout)
    chosen = torch.tensor(sorted({j for columns in bias.open_columns(step, layout) for j in columns}))
    part = bias(torch.tensor([step]), layout.select(chosen))
    assert torch.equal(part, whole[:, step : step + 1, chosen])


@quick
@given(st.data(), st.integers(2, 7))
def test_self_bias_of_the_open_columns_is_the_slice_of_the_whole(data, steps):
    bias = data.draw(line_biases("self", 1))
    whole = bias(torch.arange(steps), Steps.all(steps))
    step = data.draw(st.integers(0, steps - 1))
    chosen = torch.tensor(sorted({j for columns in bias.open_columns(step, Steps.all(steps)) for j in columns}))
    part = bias(torch.tensor([step]), Steps(chosen, steps))
    assert torch.equal(part, whole[:, step : step + 1, chosen])


@quick
@given(st.data(), st.sampled_from(sorted(SOURCES)), st.integers(1, 4))
def test_bias_of_selected_rows_and_columns_is_the_slice_of_the_whole(data, source, width):
    """Where the selection leaves a row nothing open, it is transparent instead."""
    layout = SOURCES[source][0](width)
    bias = data.draw(line_biases("cross", layout.segments))
    n = layout.total_columns
    rows = torch.tensor(sorted(data.draw(st.sets(st.integers(0, 6), min_size=1))))
    columns = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    whole = bias(torch.arange(7), layout)[:, rows][:, :, columns]
    expected = whole.masked_fill((whole == -INF).all(-1, keepdim=True), 0.0)
    assert torch.equal(bias(rows, layout.select(columns)), expected)


# Extension to larger sizes


def test_places_keep_their_distance_from_the_operands_end():
    """Δ < 0, of b: what is open at places −1 to 3 of width 3 is open at the same places of width 8."""
    bias = LineBias("cross", 1, (Line(0, "places", -1, 1, -1, -1.0), Line(0, "places", -2, 1, 0, -2.0)))
    small, large = natural_layout(3), natural_layout(8)
    rows = torch.arange(4)
    at_small = bias(rows, small)[0, :, small.column_of_place[1]]
    at_large = bias(rows, large)[0, :, large.column_of_place[1, :5]]
    assert torch.equal(at_small, at_large)
    # rows 0 to 3 by place −1 … 3: places i − 1, and 2i
    assert at_small.tolist() == [
        [-1, -2, -INF, -INF, -INF],
        [-INF, -1, -INF, -2, -INF],
        [-INF, -INF, -1, -INF, -INF],
        [-INF, -INF, -INF, -1, -INF],
    ]


def test_diagonals_of_places_keep_their_distance_from_the_operands_start():
    bias = LineBias("cross", 1, (Line(0, "places", 1, 1, 1),))
    # natural, width 3: $ a a a + b b b &; the line is at x = 1 + i from the + in column 4
    assert [bias.open_columns(i, natural_layout(3)) for i in range(4)] == [[[5]], [[6]], [[7]], [[8]]]
    # width 5: the + is column 6
    assert [bias.open_columns(i, natural_layout(5)) for i in range(4)] == [[[7]], [[8]], [[9]], [[10]]]


def test_vertical_lines_of_places_stay_on_their_structural_token():
    """$, + and & of a natural source."""
    bias = LineBias("cross", 3, tuple(Line(k, "places", 0, 0, k) for k in range(3)))
    assert bias.open_columns(2, natural_layout(3)) == [[0], [4], [8]]
    assert bias.open_columns(2, natural_layout(20)) == [[0], [21], [42]]


@pytest.mark.parametrize("direction", [0, 1, 2])
def test_columns_frame_keeps_the_top_left_corner(direction):
    """A line through every row of the small matrix: its cells are those of the large one's top-left block."""
    bias = LineBias("cross", 1, (Line(0, "columns", direction, 0, 0, -1.0),))
    small, large = (bias(torch.arange(4), unary_layout(w)) for w in (6, 11))
    assert torch.equal(large[:, :, :8], small)
    assert torch.isinf(large[:, :, 8:]).all()


@pytest.mark.parametrize("direction", [-1, -2])
def test_columns_frame_keeps_the_top_right_corner(direction):
    bias = LineBias("cross", 1, (Line(0, "columns", direction, 0, 0, -1.0),))
    small, large = (bias(torch.arange(4), unary_layout(w)) for w in (6, 11))
    assert torch.equal(large[:, :, 5:], small)
    assert torch.isinf(large[:, :, :5]).all()


def test_window_at_sixty_digits():
    """Row 59 of a 61-digit addition is at the places 59 and 58 of both operands."""
    layout = natural_layout(61)
    # a's place p is column 61 − p, b's 123 − p
    assert cross_window(1, 2).open_columns(59, layout) == [[2, 3, 64, 65]]


# Files and errors


def test_save_and_load_round_trip(tmp_path):
    lines = (Line(0, "places", -1, 1, -3, -0.25), Line(2, "columns", 2, 0, 5), Line(1, "places", 0, 0, 1, -1 / 3))
    for attention in ("self", "cross"):
        bias = LineBias(attention, 3, lines, "transparent")
        bias.save(tmp_path / "bias.json")
        assert LineBias.load(tmp_path / "bias.json") == bias


def test_round_trip_without_lines(tmp_path):
    bias = LineBias("cross", 8, ())
    bias.save(tmp_path / "bias.json")
    assert LineBias.load(tmp_path / "bias.json") == bias


GOOD = {
    "attention": "cross",
    "heads": 1,
    "lines": [{"head": 0, "frame": "places", "direction": -1, "segment": 0, "offset": 1, "value": 0.0}],
    "closed_rows": "nearest",
}


def damaged(**changes):
    return json.dumps(GOOD | {"lines": [GOOD["lines"][0] | changes]})


DAMAGED = {
    "empty": "",
    "no JSON": "not json",
    "cut off": json.dumps(GOOD)[:80],
    "a list": "[]",
    "nothing in it": "{}",
    "lines are a number": '{"lines": 3}',
    "a line is a number": '{"lines": [3]}',
    "without attention": json.dumps({k: v for k, v in GOOD.items() if k != "attention"}),
    "unknown key": json.dumps(GOOD | {"colour": "red"}),
    "unknown attention": json.dumps(GOOD | {"attention": "sideways"}),
    "unknown rule": json.dumps(GOOD | {"closed_rows": "open"}),
    "head too large": damaged(head=1),
    "head as text": damaged(head="0"),
    "unknown frame": damaged(frame="rows"),
    "negative segment": damaged(segment=-1),
    "value NaN": damaged(value=float("nan")),
    "value −inf": damaged(value=float("-inf")),
    "value inf": damaged(value=float("inf")),
    "value as text": damaged(value="high"),
    "offset as text": damaged(offset="1"),
    "no offset": damaged(offset=None),
    "offset between columns": damaged(offset=0.5),
    "direction as text": damaged(direction="-1"),
    "unknown direction": damaged(direction=3),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file(tmp_path, content):
    file = tmp_path / "bias.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="expected"):
        LineBias.load(file)


def test_undamaged_file_of_the_same_shape_loads(tmp_path):
    file = tmp_path / "bias.json"
    file.write_text(damaged())
    assert LineBias.load(file) == LineBias("cross", 1, (Line(0, "places", -1, 0, 1),))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("sideways", 1, ()), "expected an attention among"),
        (("cross", 1, (), "open"), "expected closed_rows among"),
        (("cross", 2, (Line(2, "places", -1, 0, 0),)), "expected a head from 0 to 1"),
        (("cross", 2, (Line(-1, "places", -1, 0, 0),)), "expected a head from 0 to 1"),
        (("cross", 1, (Line(0, "rows", -1, 0, 0),)), "expected a frame among"),
        (("cross", 1, (Line(0, "places", -1, -1, 0),)), "and a segment of at least 0"),
        (("cross", 1, (Line(0, "places", 3, 0, 0),)), "expected a direction among"),
        (("cross", 1, (Line(0, "places", -1, 0, 0.5),)), "expected a whole offset"),
        (("cross", 1, (Line(0, "places", -1, 0, 0, float("nan")),)), "a finite value"),
        (("cross", 1, (Line(0, "places", -1, 0, 0, -INF),)), "a finite value"),
        (("cross", 1, (Line(0, "places", -1, 0, 0, INF),)), "a finite value"),
    ],
)
def test_impossible_biases(arguments, message):
    with pytest.raises(ValueError, match=message):
        LineBias(*arguments)


def test_second_operand_of_a_source_with_one():
    bias = LineBias("cross", 1, (Line(0, "places", -1, 1, 0),))
    with pytest.raises(ValueError, match="a line follows operand 2, but this source has 1"):
        bias(torch.arange(3), unary_layout(3))
