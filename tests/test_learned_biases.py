"""Biases with parameters, by hand."""

import math

import pytest
import torch
from abcnb.learned_biases import Fire, Kerple, T5Bias, learned_bias

from abcnb.layout import Steps, natural_layout


def test_kerple_by_hand():
    bias = Kerple(2)
    bias.log_r1.data, bias.log_r2.data = torch.tensor([0.0, math.log(2.0)]), torch.tensor([0.0, math.log(3.0)])
    found = bias(torch.arange(3), Steps.all(3))
    expected = [
        [[-r1 * math.log(1 + r2 * abs(i - j)) for j in range(3)] for i in range(3)] for r1, r2 in ((1, 1), (2, 3))
    ]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_fire_by_hand():
    """With f(x) = x for the first head and 2x for the second."""
    bias = Fire(2, hidden=1)
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


@pytest.mark.parametrize("scheme", ["t5", "kerple", "fire"])
def test_one_late_row_is_the_row_of_the_whole(scheme):
    torch.manual_seed(0)
    layout = natural_layout(6)
    bias = learned_bias(scheme, 4, causal=False)
    for parameter in bias.parameters():
        parameter.data.normal_() if parameter.dim() > 1 else None
    whole = bias(torch.arange(7), layout)
    assert whole.shape == (4, 7, len(layout))
    torch.testing.assert_close(bias(torch.tensor([5]), layout), whole[:, 5:6])


def test_other_schemes_have_none():
    assert learned_bias("rotary", 4, True) is None
