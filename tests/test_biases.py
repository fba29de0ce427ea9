import pytest
import torch

from abcnb.biases import ALiBi, causal
from abcnb.layout import Steps

INF = float("inf")


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


def test_causal_by_hand():
    assert causal(torch.arange(3), Steps.all(3)).tolist() == [[[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]]


def test_causal_of_one_row_and_some_columns():
    assert causal(torch.tensor([2]), Steps(torch.tensor([0, 2, 3]), 5)).tolist() == [[[0, 0, -INF]]]
