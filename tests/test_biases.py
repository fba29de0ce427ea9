import torch

from abcnb.biases import causal
from abcnb.layout import Steps

INF = float("inf")


def test_causal_by_hand():
    assert causal(torch.arange(3), Steps.all(3)).tolist() == [[[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]]


def test_causal_of_one_row_and_some_columns():
    assert causal(torch.tensor([2]), Steps(torch.tensor([0, 2, 3]), 5)).tolist() == [[[0, 0, -INF]]]
