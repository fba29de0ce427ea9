"""Attention biases by hand: causality, biases in a part of the model, and those that go by distance alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.lines.biases import causal, own_token_first
from abcnb.lines.coordinates import NO_PLACE, Columns
from abcnb.model.configs import CROSS_DISTANCES
from abcnb.rivals.distances import ALiBi, FireBias, KerpleBias, RelativeKeys, T5Bias, coordinates
from abcnb.tasks.task import get_task


def source_of(task, width, form="natural"):
    return get_task(task).stream(width, form).columns(crossing=True)


def natural(width):
    return source_of("addition", width)


def aligned(width):
    return source_of("addition", width, "aligned")


def unary(width):
    return source_of("successor", width)


def steps(count):
    return Columns(None, torch.arange(count))


def columns_of_place(columns):
    """[operands, width + 2], the column of place p at index p + 1."""
    places = torch.arange(-1, columns.stream.width + 1)
    return torch.stack([operand.tokens([places]) for operand in columns.stream.operands])


X, INF = NO_PLACE, float("inf")
HEADS = 4

# layout, its source written out, and what distances are taken from, from the right and by place
WRITTEN = {
    "addition": (natural(2), "$ a2 a1 + b2 b1 &", [6, 5, 4, 3, 2, 1, 0], [2, 1, 0, 2, 1, 0, X]),
    "n-by-1": (source_of("n-by-1", 2), "$ a2 a1 * b &", [5, 4, 3, 2, 1, 0], [2, 1, 0, X, X, X]),
    "aligned": (aligned(2), "$ + a2 b2 a1 b1 &", [6, 5, 4, 3, 2, 1, 0], [X, 2, 1, 1, 0, 0, X]),
    "unary": (unary(3), "$ a3 a2 a1 &", [4, 3, 2, 1, 0], [3, 2, 1, 0, X]),
    "listops": (source_of("listops-sm", 2), "$ % a2 a1 &", [4, 3, 2, 1, 0], [X, 2, 1, 0, X]),
}


def test_causal_by_hand():
    assert causal(torch.arange(3), steps(3)).tolist() == [[[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]]


def test_causal_of_one_row_and_some_columns():
    assert causal(torch.tensor([2]), Columns(None, torch.tensor([0, 2, 3]))).tolist() == [[[0, 0, -INF]]]


def test_own_token_first_by_hand():
    """The first layer closes all but a token itself, the others nothing but the future."""
    first, second = own_token_first(2).self_biases
    assert first(torch.arange(2), steps(2)).tolist() == [[[0, -INF], [-INF, 0]]]
    assert second(torch.arange(2), steps(2)).tolist() == [[[0, 0], [0, 0]]]


# --- by distance


@pytest.mark.parametrize("name", WRITTEN)
def test_coordinates_by_hand(name):
    layout, source, right, places = WRITTEN[name]
    assert coordinates(layout).tolist() == list(range(len(source.split())))
    assert coordinates(layout, "right").tolist() == right
    assert coordinates(layout, "places").tolist() == places


@pytest.mark.parametrize("cross_distance", CROSS_DISTANCES)
def test_steps_are_counted_from_the_first(cross_distance):
    assert coordinates(Columns(None, torch.tensor([0, 2, 5])), cross_distance).tolist() == [0, 2, 5]


def test_alibi_slopes_of_eight_and_of_four_heads():
    assert ALiBi(8).slopes.tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert ALiBi(4).slopes.tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]  # 2^(−8h/4) = 2^(−2h)


def test_alibi_by_hand():
    """Two heads: slopes 2^−4 and 2^−8."""
    bias = ALiBi(2)(torch.arange(3), steps(3))
    distances = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    assert torch.equal(bias, torch.stack([-distances / 16, -distances / 256]))


@pytest.mark.parametrize("heads", [0, 6])
def test_alibi_heads_are_a_power_of_two(heads):
    with pytest.raises(ValueError, match="expected a power of two"):
        ALiBi(heads)


def test_kerple_by_hand():
    bias = KerpleBias(2)
    bias.log_r1.data, bias.log_r2.data = torch.tensor([0.0, math.log(2.0)]), torch.tensor([0.0, math.log(3.0)])
    found = bias(torch.arange(3), steps(3))
    expected = [
        [[-r1 * math.log(1 + r2 * abs(i - j)) for j in range(3)] for i in range(3)] for r1, r2 in ((1, 1), (2, 3))
    ]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_fire_by_hand():
    """With f(x) = x for the first head and 2x for the second."""
    bias = FireBias(2, hidden=1)
    first, _, last = bias.network
    first.weight.data, first.bias.data = torch.ones(1, 1), torch.zeros(1)
    last.weight.data, last.bias.data = torch.tensor([[1.0], [2.0]]), torch.zeros(2)
    bias.c.data, bias.multiplier.data = torch.tensor(1.0), torch.tensor(4.0 / 512)
    found = bias(torch.tensor([2, 9]), steps(10)).detach()
    # below the threshold L = 4 is the norm, above it the step's own number
    assert found[0, 0, 1] == pytest.approx(math.log(2) / math.log(5))
    assert found[0, 1, 4] == pytest.approx(math.log(6) / math.log(10))
    assert found[1, 1, 4] == pytest.approx(2 * math.log(6) / math.log(10))
    assert found[0, 1, 9] == 0


def test_t5_has_a_bucket_for_each_small_distance():
    bias = T5Bias(1, causal=True)
    assert bias.bucket(torch.arange(0, -16, -1)).tolist() == list(range(16))
    assert bias.bucket(torch.tensor([5, -10_000])).tolist() == [0, 31]
    both = T5Bias(1, causal=False)
    assert both.bucket(torch.tensor([-7, 0, 7, 500])).tolist() == [7, 0, 23, 31]


def test_relative_keys_by_hand():
    """Clip 1: w(−1) = (1, 0), w(0) = (0, 1), w(1) = (1, 1); scores are divided by √2."""
    relative = RelativeKeys(2, 1)
    relative.vectors.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    query = torch.tensor([[2.0, 3.0], [5.0, 7.0], [11.0, 13.0]]).view(1, 1, 3, 2)
    bias = relative(query, torch.arange(3), torch.arange(4))[0, 0] * math.sqrt(2)
    # row 0: j − i = 0 1 2 3, clipped 0 1 1 1: 3, 5, 5, 5
    # row 1: −1 0 1 2, clipped −1 0 1 1: 5, 7, 12, 12
    # row 2: −2 −1 0 1, clipped −1 −1 0 1: 11, 11, 13, 24
    expected = torch.tensor([[3.0, 5, 5, 5], [5, 7, 12, 12], [11, 11, 13, 24]])
    assert torch.allclose(bias, expected, atol=1e-5)


def test_t5_gives_columns_without_a_distance_a_bucket_more():
    bias = T5Bias(1, causal=False, cross_distance="places")
    bias.values.data = torch.arange(33.0)[:, None]
    # $ a2 a1 * b & has the places 2 1 0 and none; positive distances have the buckets from 16 on
    found = bias(torch.arange(3), source_of("n-by-1", 2))[0]
    expected = [[18, 17, 0, 32, 32, 32], [17, 0, 1, 32, 32, 32], [0, 1, 2, 32, 32, 32]]
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", [KerpleBias, FireBias])
def test_formulas_give_columns_without_a_distance_a_learned_number(kind):
    """At first 0, and the formula elsewhere."""
    torch.manual_seed(0)
    layout, rows = natural(2), torch.arange(3)
    bias = kind(2, causal=False, cross_distance="places")
    assert not bias(rows, layout)[:, :, -1].any()
    bias.structural.data = torch.tensor([5.0, -7.0])
    found = bias(rows, layout)
    assert found[:, :, -1].tolist() == [[5.0] * 3, [-7.0] * 3]
    # a2 a1 and b2 b1 are as the steps 1 and 0 would be
    steps = bias.of_distance(rows, torch.tensor([1, 0]))
    torch.testing.assert_close(found[:, :, [1, 2]], steps)
    torch.testing.assert_close(found[:, :, [4, 5]], steps)
    found.sum().backward()
    assert bias.structural.grad.tolist() == [3.0, 3.0]


def test_relative_keys_give_columns_without_a_distance_a_vector_more():
    """Clip 1: w(−1) = 1, w(0) = 2, w(1) = 4 and 8 without a distance."""
    relative = RelativeKeys(1, 1, structural=True)
    relative.vectors.data = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    found = relative(torch.ones(1, 1, 3, 1), torch.arange(3), coordinates(natural(2), "places"))
    # the places 2 1 0 2 1 0 and none
    expected = [[4, 4, 2, 4, 4, 2, 8], [4, 2, 1, 4, 2, 1, 8], [2, 1, 1, 2, 1, 1, 8]]
    assert found[0, 0].tolist() == expected


def test_alibi_over_the_source_by_hand():
    """One head: the slope is 2^−8."""
    rows, layout = torch.arange(2), natural(2)
    left, right, places = (ALiBi(1, name)(rows, layout)[0] * -256 for name in CROSS_DISTANCES)
    assert left.tolist() == [[0, 1, 2, 3, 4, 5, 6], [1, 0, 1, 2, 3, 4, 5]]
    assert right.tolist() == [[6, 5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0, 1]]
    assert places.tolist() == [[2, 1, 0, 2, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0]]


def shaw(cross_distance):
    """Shaw's vectors as a bias, met by queries that are all the same."""
    relative = RelativeKeys(8, 24, structural=cross_distance == "places")
    query = torch.randn(1, HEADS, 1, 8)
    return lambda rows, layout: relative(
        query.expand(-1, -1, len(rows), -1), rows, coordinates(layout, cross_distance)
    )[0]


def randomised(kind):
    """A bias of a kind, its parameters drawn at random."""

    def make(cross_distance):
        bias = kind(HEADS, causal=False, cross_distance=cross_distance)
        for parameter in bias.parameters():
            parameter.data += torch.rand_like(parameter)
        return bias

    return make


KINDS = {
    "alibi": lambda cross_distance: ALiBi(HEADS, cross_distance),
    "shaw": shaw,
    "t5": randomised(T5Bias),
    "kerple": randomised(KerpleBias),
    "fire": randomised(FireBias),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(
    make=st.sampled_from([natural, aligned, unary]),
    narrow=st.integers(1, 12),
    wide=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_by_place_a_digit_has_the_same_bias_at_every_width(kind, make, narrow, wide, seed):
    """In every operand, and the same at every step that is as far from it."""
    torch.manual_seed(seed)
    bias, rows = KINDS[kind]("places"), torch.arange(13)
    found = []
    for layout in (make(narrow), make(wide)):
        by_operand = bias(rows, layout)[:, :, columns_of_place(layout)[:, 1:]]  # the token left of it included
        assert torch.equal(by_operand, by_operand[:, :, :1].expand_as(by_operand))
        found.append(by_operand[:, :, 0])
    both = min(narrow, wide) + 1
    assert torch.equal(found[0][..., :both], found[1][..., :both])
    assert torch.equal(found[0][:, 1:, 1:], found[0][:, :-1, :-1])


def test_fire_is_normalized_by_the_coordinate_that_the_distance_is_taken_from():
    """With f(x) = x, c = 1 and L = 4; `$a6…a1&` has the columns 0 to 7."""
    rows, layout = torch.tensor([2]), unary(6)
    for cross_distance, coordinate in (("left", 1), ("right", 6), ("places", 5)):
        bias = FireBias(1, causal=False, cross_distance=cross_distance, hidden=1)
        first, _, last = bias.network
        for layer in (first, last):
            layer.weight.data, layer.bias.data = torch.ones(1, 1), torch.zeros(1)
        bias.c.data, bias.multiplier.data = torch.tensor(1.0), torch.tensor(4.0 / 512)
        expected = math.log(abs(coordinate - 2) + 1) / math.log(max(4, coordinate) + 1)
        assert bias(rows, layout)[0, 0, 1].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("cross_distance", CROSS_DISTANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_late_row_and_some_columns_are_those_of_the_whole(kind, cross_distance):
    torch.manual_seed(0)
    layout, columns = natural(6), torch.tensor([0, 2, 7, 9, 13])
    bias = KINDS[kind](cross_distance)
    whole = bias(torch.arange(7), layout)
    assert whole.shape == (HEADS, 7, len(layout))
    torch.testing.assert_close(bias(torch.tensor([5]), layout), whole[:, 5:6])
    torch.testing.assert_close(
        bias(torch.arange(7), Columns(layout.stream, columns, crossing=True)), whole[:, :, columns]
    )
