from dataclasses import replace

import pytest
import torch

from abcnb.biases import ALiBi
from abcnb.configs import ModelConfig
from abcnb.decoding import greedy_decode
from abcnb.lines import Line, LineBias, cross_window, self_window
from abcnb.model import Transformer
from abcnb.tasks import Batch, get_task
from tests.little import ENCODER_DECODER

WIDTH, HEADS = 9, 2


def lines(attention, closed_rows, *pairs):
    found = tuple(
        Line(head, frame, direction, 0, offset, 0.5 * head)
        for head in range(HEADS)
        for frame, direction, offset in pairs
    )
    return LineBias(attention, HEADS, found, closed_rows)


# name -> (self biases, cross biases) of two layers
BIASES = {
    "none": ((), ()),
    "alibi": ((ALiBi(HEADS),), ()),
    "alibi from the right": ((ALiBi(HEADS),), (ALiBi(HEADS, "right"),)),
    "alibi by place": ((ALiBi(HEADS),), (ALiBi(HEADS, "places"),)),
    "windows": ((self_window(HEADS),), (cross_window(HEADS, 2),)),
    "wide windows": ((self_window(HEADS, 3),), (cross_window(HEADS, 2, 2, "both"),)),
    "lines over columns": (
        (lines("self", "transparent", ("columns", -1, 0), ("columns", 1, -2)),),
        (lines("cross", "transparent", ("columns", -1, 1), ("columns", 0, 3)),),
    ),
    "lines over places": (
        (lines("self", "nearest", ("places", 0, 0), ("places", 1, -4)),),
        (lines("cross", "nearest", ("places", 1, -3), ("places", -2, 0)),),
    ),
    "another bias in each layer": (
        (self_window(HEADS), lines("self", "nearest", ("columns", 0, 4))),
        (lines("cross", "nearest", ("places", 0, 1)), cross_window(HEADS, 2)),
    ),
    "a transparent head": (
        (LineBias("self", HEADS, (Line(1, "places", 1, 0, -1),)),),
        (LineBias("cross", HEADS, (Line(0, "places", -1, 1, 0),)),),
    ),
}


def make(position, bias, form="natural", **choices):
    task = get_task("addition")
    config = ModelConfig(d_model=32, d_ff=64, heads=HEADS, decoder_layers=2, position=position, **choices)
    torch.manual_seed(3)
    model = Transformer(config, task.vocabulary_size, *BIASES[bias])
    with torch.no_grad():  # sharper attention, so that the answers depend on the sample
        for name, parameter in model.named_parameters():
            if "attention" in name and name.endswith("weight"):
                parameter *= 2
            if name.endswith((".values", ".structural")):  # zero at first
                parameter.normal_()
    operands = tuple(torch.randint(10, (12, WIDTH - 1)) for _ in range(2))
    return model, task.batch(task.widened(operands, WIDTH), form)


OWN = {"own_bias_per_layer": True}
# name -> (scheme, biases, its choices)
CHOICES = {
    f"{position} {cross_distance} {list(more)}": (position, "none", {"cross_distance": cross_distance, **more})
    for position, more in (
        ("relative", {"relative_clip": 24}), ("t5", {}), ("t5", OWN), ("kerple", OWN), ("fire", OWN)
    )
    for cross_distance in ("left", "right", "places")
} | {
    "kerple with windows": ("kerple", "windows", {"cross_distance": "places", **OWN}),
    "fire with a bias in each layer": ("fire", "another bias in each layer", {"cross_distance": "right"}),
}  # fmt: skip


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("position", ENCODER_DECODER)
def test_cached_decoding_writes_what_uncached_decoding_writes(position, bias):
    check_decoding(position, bias)


@pytest.mark.parametrize("name", CHOICES)
def test_cached_decoding_of_schemes_that_go_by_distance(name):
    position, bias, choices = CHOICES[name]
    check_decoding(position, bias, **choices)


def check_decoding(position, bias, **choices):
    for form in ("natural", "aligned"):
        model, batch = make(position, bias, form, **choices)
        cached = greedy_decode(model, batch.source, batch.layout, WIDTH + 1, cache=True)
        assert torch.equal(cached, greedy_decode(model, batch.source, batch.layout, WIDTH + 1, cache=False))
        assert cached.shape == (12, WIDTH + 1)
        # A third opinion: fed its own output, the whole model has its argmax on that output at every step.
        with torch.no_grad():
            again = model(Batch(batch.source, cached, batch.layout)).argmax(-1)
        assert torch.equal(again, cached)
        assert len(cached.unique(dim=0)) > 1, "the outputs do not depend on the inputs; the test sees nothing"


@pytest.mark.parametrize("position", ["sinusoidal", "randomized"])
def test_cached_decoding_with_an_encoder_layer(position):
    model, batch = make(position, "none", encoder_layers=1)
    cached = greedy_decode(model, batch.source, batch.layout, WIDTH + 1, cache=True)
    assert torch.equal(cached, greedy_decode(model, batch.source, batch.layout, WIDTH + 1, cache=False))
    assert len(cached.unique(dim=0)) > 1


def test_the_cache_runs_one_step_at_a_time_and_without_it_the_whole_prefix():
    model, batch = make("none", "windows")
    seen, embed = [], model.embed_target
    model.embed_target = lambda tokens, rows, layout: seen.append(rows.tolist()) or embed(tokens, rows, layout)
    greedy_decode(model, batch.source, batch.layout, 4, cache=True)
    assert seen == [[0], [1], [2], [3]]
    seen.clear()
    greedy_decode(model, batch.source, batch.layout, 4, cache=False)
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_decoding_drops_nothing_out_and_keeps_no_gradient():
    model, batch = make("sinusoidal", "none")
    noisy = Transformer(replace(model.config, dropout=0.5), 15, (), ()).train()
    noisy.load_state_dict(model.state_dict())
    expected = greedy_decode(model, batch.source, batch.layout, WIDTH + 1)
    assert torch.equal(greedy_decode(noisy, batch.source, batch.layout, WIDTH + 1), expected)
    assert not noisy.training and not expected.requires_grad


def test_a_trained_model_writes_the_answer(successors):
    task, models = successors
    batch = task.batch(task.parse("12345"))
    output = greedy_decode(models["well-trained"], batch.source, batch.layout, batch.target.shape[1])
    assert torch.equal(output, batch.target)
