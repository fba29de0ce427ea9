import math

import pytest
import torch

from abcnb.lines.coordinates import Columns, in_one
from abcnb.model.configs import SCHEMES
from abcnb.model.positions import CyclicColumns, Sinusoidal, sinusoid
from abcnb.rivals import Abacus
from abcnb.rivals.rotary import rotate
from abcnb.tasks.task import get_task

D = 8


def unary(width):
    return get_task("successor").stream(width)


def natural(width):
    return get_task("addition").stream(width)


def aligned(width):
    return get_task("addition").stream(width, "aligned")


def source(scheme, stream, draw=0):
    return scheme.vectors(stream.columns(crossing=True), draw)


def target(scheme, rows, stream, draw=0):
    return scheme.vectors(Columns(stream, rows), draw)


def phases(vectors, period):
    """Which of sinusoid(0 … period − 1) each row is; None for a row of zeros."""
    table = sinusoid(torch.arange(period), D)
    found = []
    for row in vectors:
        match = [i for i in range(period) if torch.allclose(row, table[i], atol=1e-6)]
        assert len(match) == 1 or not row.any()
        found.append(match[0] if match else None)
    return found


def test_sinusoid_by_hand():
    """d = 4: rates 1 and 10000^(−1/2) = 1/100."""
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    assert sinusoid(torch.tensor([3]), 4)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert sinusoid(torch.tensor([0]), 4)[0].tolist() == [0, 1, 0, 1]


def test_sinusoidal_counts_columns_and_steps():
    stream = natural(2)
    assert torch.equal(source(Sinusoidal(D), stream), sinusoid(torch.arange(7), D))
    assert torch.equal(target(Sinusoidal(D), torch.tensor([0, 5]), stream), sinusoid(torch.tensor([0, 5]), D))


@pytest.mark.parametrize(
    "stream, expected",
    [
        (natural(2), [2, 1, 0, 2, 1, 0, 2]),  # $ a2 a1 + b2 b1 &: 5 4 3 2 1 0 −1
        (natural(3), [1, 0, 2, 1, 0, 2, 1, 0, 2]),  # $ a3 a2 a1 + b3 b2 b1 &: 7 6 5 4 3 2 1 0 −1
        (unary(3), [0, 2, 1, 0, 2]),  # $ a3 a2 a1 &: 3 2 1 0 −1
        (aligned(2), [2, 1, 0, 2, 1, 0, 2]),  # $ + a2 b2 a1 b1 &: 5 4 3 2 1 0 −1
    ],
)
def test_cyclic_columns_by_hand(stream, expected):
    """T = 3, counted leftwards from the last operand's units digit."""
    assert phases(source(CyclicColumns(D), stream), 3) == expected


def test_cyclic_targets_repeat():
    assert phases(target(CyclicColumns(D), torch.arange(7), natural(2)), 3) == [0, 1, 2, 0, 1, 2, 0]


def test_rotate_by_hand():
    """d = 4: the pairs (x0, x2) and (x1, x3), at rates 1 and 1/100."""
    x = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    expected = [math.cos(2), math.cos(0.02), math.sin(2), math.sin(0.02)]
    assert rotate(x, torch.tensor([2]))[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(rotate(x, torch.tensor([0])), x)


# Indices out of a table


def index_of(scheme, stream, draw=0, most=40):
    positions = SCHEMES[scheme](D, most)
    source(positions, stream)  # refuses what takes more indices than there are
    rows = Columns(stream, torch.arange(stream.rows))
    found = (positions.index(part, draw) for part in (stream.columns(crossing=True), rows))
    return tuple(index.tolist() for index in found)


def test_learned_positions_count_columns_and_steps():
    assert index_of("learned", natural(2)) == ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2])


def test_abacus_counts_each_number_from_its_units():
    # $ a1 a0 + b1 b0 & and the decoder's $ y0 y1
    assert index_of("abacus", natural(2)) == ([-1, 1, 0, -1, 1, 0, -1], [-1, 0, 1])
    assert index_of("abacus", natural(2), 5) == ([-1, 6, 5, -1, 6, 5, -1], [-1, 5, 6])


def test_coupled_positions_give_the_operator_the_place_before_the_units():
    assert index_of("coupled", natural(2), torch.tensor(0)) == ([-1, 2, 1, 0, 2, 1, 0], [0, 1, 2])
    assert index_of("coupled", natural(2), torch.tensor(5)) == ([-1, 7, 6, 5, 7, 6, 5], [5, 6, 7])
    stream = in_one(natural(2))  # $ a1 a0 + b1 b0 = y0 y1
    assert SCHEMES["coupled"](D, 40).index(stream.columns(), torch.tensor(0)).tolist() == [
        -1,
        2,
        1,
        0,
        2,
        1,
        0,
        1,
        2,
    ]


def test_random_positions_are_sorted_distinct_and_of_one_sequence():
    before, after = index_of("randomized", natural(4), draw=3)
    together = before + after
    assert together == sorted(set(together)) and together[-1] < 40
    assert index_of("randomized", natural(4), draw=3) == (before, after)
    assert index_of("randomized", natural(4), draw=4) != (before, after)


@pytest.mark.parametrize("scheme", ["abacus", "coupled"])
def test_every_index_is_met_in_training_and_none_beyond(scheme):
    stream, positions = natural(6), SCHEMES[scheme](D, 20)
    draw = positions.draw(stream, 500)
    parts = (stream.columns(crossing=True), stream.columns())
    met = set().union(*(positions.index(part, draw).flatten().tolist() for part in parts))
    assert met - {-1} == set(range(20))


# of 20 indices coupling takes 3 for a sum of two digits, the place −1 among them; Abacus begins with the first
@pytest.mark.parametrize(("scheme", "width", "begins"), [("coupled", 2, 8), ("coupled", 19, 0), ("abacus", 2, 0)])
def test_evaluation_begins_where_the_scheme_says(scheme, width, begins):
    stream, positions = natural(width), SCHEMES[scheme](D, 20)
    drawn = torch.tensor([[begins]])
    for part in (stream.columns(crossing=True), stream.columns(), in_one(stream).columns()):
        assert torch.equal(positions.vectors(part), positions.vectors(part, drawn)[0])
    # y0 is of place 0, and coupling counts from −1
    written = positions.vectors(stream.columns())
    assert torch.equal(written[1], positions.table.weight[begins + (scheme == "coupled")])


def test_rows_and_places_of_a_product_are_counted_from_the_middle_each():
    product = get_task("multiplication")
    stream = product.batch(product.parse("123 * 45")).stream
    positions = SCHEMES["coupled-rows"](D, 20)
    rows, places = (int(stream.levels(level).max()) + 1 for level in ("row", "place"))
    middle = torch.tensor([[[(20 - rows) // 2]], [[(20 - places) // 2]]])
    assert rows != places
    assert torch.equal(positions.vectors(stream.columns()), positions.vectors(stream.columns(), middle)[0])
    assert not torch.equal(
        positions.vectors(stream.columns()), positions.vectors(stream.columns(), torch.zeros(2, 1, 1).long())[0]
    )


@pytest.mark.parametrize(
    ("scheme", "takes"), [("learned", 21), ("abacus", 9), ("coupled", 10), ("randomized", 31)]
)
def test_longer_input_than_the_table_is_refused(scheme, takes):
    with pytest.raises(ValueError, match=rf"at most 8 positions, got {takes}: .*model.max_position"):
        source(SCHEMES[scheme](D, 8), natural(9))


def test_tokens_without_an_index_get_no_vector():
    positions = Abacus(D, 8)
    vectors = source(positions, natural(2))
    assert not vectors[[0, 3, 6]].any()
    assert torch.equal(vectors[1], positions.table.weight[1]) and torch.equal(vectors[4], vectors[1])
