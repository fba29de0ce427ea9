from dataclasses import replace

import pytest
import torch

from abcnb.lines.line import Line, LineBias, windows
from abcnb.model.configs import ModelConfig
from abcnb.model.decoding import greedy_decode, predictions_in_chunks
from abcnb.model.transformer import Transformer
from abcnb.pipeline import lines_by_hand, model_with_lines, new_model
from abcnb.rivals.distances import ALiBi
from abcnb.tasks.task import Batch, get_task
from abcnb.tasks.training_data import TrainingData
from tests.little import ENCODER_DECODER

WIDTH, HEADS = 9, 2


STREAM = get_task("addition").stream(WIDTH)
WINDOW, WIDE = windows(STREAM, HEADS), windows(STREAM, HEADS, 2, "both")
FAR = LineBias(
    "cross",
    HEADS,
    (
        Line(0, "digits", "a", ("first-place",), (1,)),
        Line(0, "digits", "b", ("2place",), (-1,)),
        Line(1, "digits", "+"),
        Line(1, "digits", "b", ("first",), (0,)),
    ),
)
# name -> (self biases, cross biases) of two layers
BIASES = {
    "none": ((), ()),
    "alibi": ((ALiBi(HEADS),), ()),
    "alibi from the right": ((ALiBi(HEADS),), (ALiBi(HEADS, "right"),)),
    "alibi by place": ((ALiBi(HEADS),), (ALiBi(HEADS, "places"),)),
    "windows": WINDOW,
    "wide windows": WIDE,
    "lines from either end": (WINDOW.self_biases, (FAR,)),
    "another bias in each layer": (WINDOW.self_biases + WIDE.self_biases, (FAR, *WIDE.cross_biases)),
    "a head without lines": (
        (LineBias("self", HEADS, (Line(1, "digits", "digits", ("place",), (-2,)),)),),
        (LineBias("cross", HEADS, (Line(0, "digits", "b", ("place",), (0,)),)),),
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
# (scheme, biases, its choices)
CHOICES = [
    (position, "none", {"cross_distance": cross_distance, **more})
    for position, more in (
        ("relative", {"relative_clip": 24}), ("t5", {}), ("t5", OWN), ("kerple", OWN), ("fire", OWN)
    )
    for cross_distance in ("left", "right", "places")
] + [
    ("kerple", "windows", {"cross_distance": "places", **OWN}),
    ("fire", "another bias in each layer", {"cross_distance": "right"}),
]  # fmt: skip


SOME = {"none": "natural", "another bias in each layer": "aligned"}  # with every scheme
# (scheme, biases, form, choices); every bias is with some schemes
DECODED = [(position, bias, form, {}) for position in ENCODER_DECODER for bias, form in SOME.items()]
DECODED += [
    (position, bias, form, {})
    for position, form in (("none", "natural"), ("rotary", "aligned"))
    for bias in BIASES
    if bias not in SOME
]
DECODED += [
    (position, bias, "natural" if choices["cross_distance"] == "left" else "aligned", choices)
    for position, bias, choices in CHOICES
]


@pytest.mark.parametrize("position, bias, form, choices", DECODED)
def test_cached_decoding_writes_what_uncached_decoding_writes(position, bias, form, choices):
    model, batch = make(position, bias, form, **choices)
    cached = greedy_decode(model, batch.source, batch.stream, WIDTH + 1, cache=True)
    assert torch.equal(cached, greedy_decode(model, batch.source, batch.stream, WIDTH + 1, cache=False))
    assert cached.shape == (12, WIDTH + 1)
    # A third opinion: fed its own output, the whole model has its argmax on that output at every step.
    with torch.no_grad():
        again = model(Batch(batch.source, cached, batch.stream)).argmax(-1)
    assert torch.equal(again, cached)
    assert len(cached.unique(dim=0)) > 1, "the outputs do not depend on the inputs; the test sees nothing"


@pytest.mark.parametrize("position", ["sinusoidal", "randomized"])
def test_cached_decoding_with_an_encoder_layer(position):
    model, batch = make(position, "none", encoder_layers=1)
    cached = greedy_decode(model, batch.source, batch.stream, WIDTH + 1, cache=True)
    assert torch.equal(cached, greedy_decode(model, batch.source, batch.stream, WIDTH + 1, cache=False))
    assert len(cached.unique(dim=0)) > 1


def test_the_cache_runs_one_step_at_a_time_and_without_it_the_whole_prefix():
    model, batch = make("none", "windows")
    seen, embed = [], model.embed

    def watched(tokens, columns, *rest):
        if not columns.crossing:
            seen.append(columns.index.tolist())
        return embed(tokens, columns, *rest)

    model.embed = watched
    greedy_decode(model, batch.source, batch.stream, 4, cache=True)
    assert seen == [[0], [1], [2], [3]]
    seen.clear()
    greedy_decode(model, batch.source, batch.stream, 4, cache=False)
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_the_cache_runs_one_step_at_a_time_even_where_no_step_reads_an_earlier_one():
    lines = [LineBias(name, HEADS, (Line(0, "digits", to, ("place",), (-1,)),)) for name, to in
             (("self", "digits"), ("cross", "a"))]  # fmt: skip
    task = get_task("successor")
    model = Transformer(
        ModelConfig(d_model=32, d_ff=32, heads=HEADS, position="none"), 15, *((one,) for one in lines)
    )
    sizes, embed = [], model.embed
    model.embed = lambda tokens, columns, *rest: (sizes.append(tokens.shape[1]), embed(tokens, columns, *rest))[1]
    batch = task.batch(task.smallest(9))
    greedy_decode(model, batch.source, batch.stream, 10)
    assert sizes == [11, *[1] * 10]  # the source, then the steps


def test_decoding_drops_nothing_out_and_keeps_no_gradient():
    model, batch = make("sinusoidal", "none")
    noisy = Transformer(replace(model.config, dropout=0.5), 15, (), ()).train()
    noisy.load_state_dict(model.state_dict())
    expected = greedy_decode(model, batch.source, batch.stream, WIDTH + 1)
    assert torch.equal(greedy_decode(noisy, batch.source, batch.stream, WIDTH + 1), expected)
    assert not noisy.training and not expected.requires_grad


# --- along lines, in chunks

LINED = [(name, False) for name in ("successor", "addition", "parity", "n-by-1")]
LINED += [(name, True) for name in ("addition", "n-by-1", "multiplication", "many-addition", "nested")]


def lined(task, one_stream, heads_have="one"):
    data = TrainingData(task, one_stream=one_stream)
    biases = lines_by_hand(data) if heads_have == "one" else windows(data.stream, 16)
    model = new_model(data.task, model_with_lines(data), 0, biases)
    return model.eval(), data.train(6, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("chunk", [1, 7, 2048])
@pytest.mark.parametrize("task, one_stream", LINED)
def test_predictions_in_chunks_are_those_of_the_whole(task, one_stream, chunk):
    model, batch = lined(task, one_stream)
    assert model.gathers and torch.equal(predictions_in_chunks(model, batch, chunk), model.predictions(batch))


@pytest.mark.parametrize("chunk", [1, 4, 2048])
def test_predictions_in_chunks_with_several_lines_a_head(chunk):
    model, batch = lined("addition", False, "several")
    assert not model.gathers
    assert torch.equal(predictions_in_chunks(model, batch, chunk), model.predictions(batch))


@pytest.mark.parametrize("task, one_stream", LINED)
def test_decoding_along_lines_forgets_nothing_that_is_read(task, one_stream):
    model, batch = lined(task, one_stream)
    steps = batch.target.shape[1]
    cached = greedy_decode(model, batch.source, batch.stream, steps)
    assert torch.equal(cached, greedy_decode(model, batch.source, batch.stream, steps, cache=False))
    again = model(Batch(batch.source, cached, batch.stream)).argmax(-1)
    assert torch.equal(again, cached)


def test_without_lines_there_are_no_chunks():
    model, batch = make("sinusoidal", "alibi")
    with pytest.raises(ValueError, match="a long input needs lines"):
        predictions_in_chunks(model, batch)
    model, batch = make("rotary", "windows")
    with pytest.raises(ValueError, match="a long input needs absolute or no positions"):
        predictions_in_chunks(model, batch)
