"""Biases that depend on a distance alone, by hand."""

import math

import pytest
import torch

from abcnb.distance_biases import ALiBi, FireBias, KerpleBias, T5Bias
from abcnb.layout import Steps, natural_layout


def test_alibi_slopes_of_eight_heads():
    slopes = ALiBi(8).slopes.tolist()
    assert slopes == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_alibi_slopes_of_four_heads():
    # 2^(−8h/4) = 2^(−2h)
    assert ALiBi(4).slopes.tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]


def test_alibi_by_hand():
    """Two heads: slopes 2^−4 and 2^−8."""
    bias = ALiBi(2)(torch.arange(3), Steps.all(3))
    distances = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    assert torch.equal(bias, torch.stack([-distances / 16, -distances / 256]))


def test_alibi_of_one_late_row():
    """As in decoding: row 4 alone, over the steps so far."""
    bias = ALiBi(8)(torch.tensor([4]), Steps.all(5))
    assert bias.shape == (8, 1, 5)
    assert bias[0, 0].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0]


def test_alibi_of_selected_columns_is_the_slice_of_the_whole():
    whole = ALiBi(4)(torch.arange(6), Steps.all(6))
    rows, columns = torch.tensor([1, 5]), torch.tensor([0, 2, 3])
    assert torch.equal(ALiBi(4)(rows, Steps(columns, 6)), whole[:, rows][:, :, columns])


@pytest.mark.parametrize("heads", [0, -1, 3, 6, 12])
def test_alibi_heads_are_a_power_of_two(heads):
    with pytest.raises(ValueError, match="expected a power of two"):
        ALiBi(heads)


def test_kerple_by_hand():
    bias = KerpleBias(2)
    bias.log_r1.data, bias.log_r2.data = torch.tensor([0.0, math.log(2.0)]), torch.tensor([0.0, math.log(3.0)])
    found = bias(torch.arange(3), Steps.all(3))
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
    found = bias(torch.tensor([2, 9]), Steps.all(10)).detach()
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


@pytest.mark.parametrize("kind", [T5Bias, KerpleBias, FireBias])
def test_one_late_row_is_the_row_of_the_whole(kind):
    torch.manual_seed(0)
    layout = natural_layout(6)
    bias = kind(4, causal=False)
    for parameter in bias.parameters():
        parameter.data.normal_() if parameter.dim() > 1 else None
    whole = bias(torch.arange(7), layout)
    assert whole.shape == (4, 7, len(layout))
    torch.testing.assert_close(bias(torch.tensor([5]), layout), whole[:, 5:6])
