import pytest
import torch
from abcnb.layout import NO_PLACE, Steps, aligned_layout, locate, natural_layout, unary_layout

X = NO_PLACE

# name: (layout, source written out, places by segment, structural columns, digit places, units column)
WRITTEN = {
    "addition": (
        natural_layout(2),
        "$ a2 a1 + b2 b1 &",
        [[2, 1, 0, -1, X, X, X], [X, X, X, 2, 1, 0, -1]],
        [0, 3, 6],
        [X, 1, 0, X, 1, 0, X],
        5,
    ),
    "n-by-1": (
        natural_layout(3, second_is_digit=True),
        "$ a3 a2 a1 * b &",
        [[3, 2, 1, 0, -1, X, X]],
        [0, 4, 5, 6],
        [X, 2, 1, 0, X, X, X],
        3,
    ),
    "aligned": (
        aligned_layout(2),
        "$ + a2 b2 a1 b1 &",
        [[X, 2, 1, X, 0, X, -1], [X, 2, X, 1, X, 0, -1]],
        [0, 1, 6],
        [X, X, 1, 1, 0, 0, X],
        5,
    ),
    "unary": (unary_layout(3), "$ a3 a2 a1 &", [[3, 2, 1, 0, -1]], [0, 4], [X, 2, 1, 0, X], 3),
    "listops": (
        unary_layout(2, operator=True),
        "$ % a2 a1 &",
        [[X, 2, 1, 0, -1]],
        [0, 1, 4],
        [X, X, 1, 0, X],
        3,
    ),
}
each = pytest.mark.parametrize("name", WRITTEN)


@each
def test_places(name):
    layout, source, places, *_ = WRITTEN[name]
    assert layout.places().tolist() == places
    assert len(layout) == layout.total_columns == len(source.split())
    assert layout.segments == len(places)


@each
def test_structural_columns_digit_places_and_units(name):
    layout, _, _, structural, digit_places, units = WRITTEN[name]
    assert layout.structural_columns.tolist() == structural
    assert layout.digit_places.tolist() == digit_places
    assert layout.units_column == units


@each
def test_token_right_of_an_operand_has_place_minus_one_and_left_of_it_place_w(name):
    layout, _, places, *_ = WRITTEN[name]
    for segment, row in enumerate(places):
        right, left = layout.column_of_place[segment, 0], layout.column_of_place[segment, -1]
        assert row[right] == -1
        assert row[left] == layout.width


def test_column_of_place_by_hand():
    # addition at width 2: places −1, 0, 1, 2 of a are +, a1, a2, $; of b they are &, b1, b2, +
    assert natural_layout(2).column_of_place.tolist() == [[3, 2, 1, 0], [6, 5, 4, 3]]
    assert aligned_layout(2).column_of_place.tolist() == [[6, 4, 2, 1], [6, 5, 3, 1]]


def test_rows_count_the_end_token():
    assert unary_layout(3).rows == 4
    assert natural_layout(7).rows == 8


def test_width_one():
    assert natural_layout(1).places().tolist() == [[1, 0, -1, X, X], [X, X, 1, 0, -1]]


@pytest.mark.parametrize("make", [unary_layout, natural_layout, aligned_layout])
def test_width_zero_is_refused(make):
    with pytest.raises(ValueError, match="expected a width of at least 1"):
        make(0)


def test_select_keeps_coordinates_of_the_whole_source():
    """$ a2 a1 + b2 b1 &, of which a1, +, b1 stay."""
    part = natural_layout(2).select(torch.tensor([2, 3, 5]))
    assert len(part) == 3
    assert part.columns.tolist() == [2, 3, 5]
    assert part.total_columns == 7
    assert part.width == 2
    assert part.places().tolist() == [[0, -1, X], [X, 2, 0]]
    assert part.digit_places.tolist() == [0, X, 0]
    assert part.structural_columns.tolist() == [0, 3, 6]
    assert part.units_column == 5


def test_select_of_a_selection():
    part = natural_layout(2).select(torch.tensor([1, 2, 5])).select(torch.tensor([1, 5]))
    assert part.places().tolist() == [[1, X], [X, 0]]
    assert part.digit_places.tolist() == [1, 0]


def test_locate():
    columns = torch.tensor([1, 4, 6])
    wanted = torch.tensor([[4, 0, 1], [7, 6, 5]])
    assert locate(columns, wanted).tolist() == [[1, -1, 0], [-1, 2, -1]]
    assert locate(columns, torch.tensor([-1])).tolist() == [-1]


def test_to_the_same_device_changes_nothing():
    layout = natural_layout(2)
    assert layout.to("cpu") is layout


def test_all_steps():
    steps = Steps.all(4)
    assert steps.columns.tolist() == [0, 1, 2, 3]
    assert len(steps) == steps.total_columns == 4
