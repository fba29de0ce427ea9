import torch

from abcnb.attention import record
from abcnb.biases import causal, limited
from abcnb.configs import ModelConfig
from abcnb.coordinates import Columns
from abcnb.lines import windows
from abcnb.model import Transformer
from abcnb.tasks import get_task
from abcnb.testsets import hard_cases

INF = float("inf")


def test_causal_by_hand():
    assert causal(torch.arange(3), Columns(None, torch.arange(3))).tolist() == [
        [[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]
    ]


def test_causal_of_one_row_and_some_columns():
    assert causal(torch.tensor([2]), Columns(None, torch.tensor([0, 2, 3]))).tolist() == [[[0, 0, -INF]]]


def test_biases_limited_to_one_attention_some_layers_and_a_finite_value():
    stream = get_task("successor").stream(2)
    whole, steps, rows = windows(stream, heads=2), stream.columns(), torch.arange(3)
    assert limited(whole, layers=2) == whole
    alone = limited(whole, layers=2, attention="cross")
    assert alone.self_biases == () and alone.cross_biases == whole.cross_biases
    one_layer = limited(whole, layers=2, only=[1])
    assert torch.equal(one_layer.self_biases[1](rows, steps), whole.self_biases[0](rows, steps))
    assert one_layer.self_biases[0](rows, steps).tolist() == [[[0.0] * 3] * 3]
    soft = limited(whole, layers=2, only=[0], closed=-4.0).self_biases
    assert soft[0](rows, steps)[0].tolist() == [[0, -4, -4], [0, 0, -4], [-4, 0, 0]]
    assert soft[1](rows, steps).unique().tolist() == [0]


def test_a_finite_value_leaves_the_future_closed():
    task = get_task("successor")
    biases = limited(windows(task.stream(4), heads=2), layers=1, closed=-4.0)
    model = Transformer(ModelConfig(decoder_layers=1, heads=2, d_model=8, d_ff=8), task.vocabulary_size, *biases)
    batch = task.batch(hard_cases(task, 3, 20)["run"], "natural")
    (weights,) = record(model, batch).self_attention
    assert weights.triu(1).abs().max() == 0 and weights[:, :, 2, 0].min() > 0
