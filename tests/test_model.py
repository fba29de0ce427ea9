import gc
import math
import re
import weakref

import pytest
import torch
from torch import nn

from abcnb.lines.biases import causal, unbiased
from abcnb.lines.coordinates import Columns
from abcnb.lines.line import Line, LineBias, windows
from abcnb.model.configs import SCHEMES, ModelConfig
from abcnb.model.layers import Attention, DecoderLayer, Recording
from abcnb.model.transformer import Transformer
from abcnb.rivals.distances import ALiBi, Biased
from abcnb.tasks.task import Batch, get_task
from tests.little import ENCODER_DECODER

SMALL = {"heads": 2, "d_model": 16, "d_ff": 32, "decoder_layers": 2}

# lines with values, a head without lines, a line that enters late, one that leaves early
STREAM = get_task("addition").stream(4)


def self_window(heads, w=1):
    return windows(STREAM, heads, w).self_biases[0]


def cross_window(heads, w=1):
    return windows(STREAM, heads, w).cross_biases[0]


def steps(count):
    return Columns(STREAM, torch.arange(count))


def source(width):
    return get_task("addition").stream(width).columns(crossing=True)


SELF_LINES = LineBias("self", 2, tuple(Line(0, "digits", "digits", ("place",), (n,)) for n in (-1, -2)))
CROSS_LINES = LineBias(
    "cross", 2, (Line(1, "digits", "a", ("place",), (-2,)), Line(1, "digits", "b", ("first",), (0,)))
)

OWN = {"own_bias_per_layer": True}
SETUPS = {
    "no bias": ({"position": "sinusoidal"}, (), ()),
    "nothing at all": ({"position": "none"}, (), ()),
    "line biases": ({"position": "none"}, (SELF_LINES,), (CROSS_LINES,)),
    "windows": ({"position": "cyclic-columns"}, (self_window(2),), (cross_window(2),)),
    "alibi": ({"position": "none"}, (ALiBi(2),), ()),
    "rotary": ({"position": "rotary"}, (), ()),
    "relative": ({"position": "relative", "relative_clip": 2}, (), ()),
    "relative with lines": ({"position": "relative"}, (SELF_LINES,), (CROSS_LINES,)),
    "interpolated": ({"position": "rotary", "rotary_width": 2}, (), ()),
    "learned": ({"position": "learned"}, (), ()),
    "randomized": ({"position": "randomized"}, (), ()),
    "abacus": ({"position": "abacus"}, (), ()),
    "coupled": ({"position": "coupled"}, (), ()),
    "t5": ({"position": "t5"}, (), ()),
    "kerple": ({"position": "kerple"}, (), ()),
    "fire": ({"position": "fire"}, (), ()),
    "relative from the right": ({"position": "relative", "cross_distance": "right", "relative_clip": 24}, (), ()),
    "relative by place": ({"position": "relative", "cross_distance": "places", "relative_clip": 24}, (), ()),
    "alibi from the right": ({"position": "none"}, (ALiBi(2),), (ALiBi(2, "right"),)),
    "alibi by place": ({"position": "none"}, (ALiBi(2),), (ALiBi(2, "places"),)),
    "t5 by place": ({"position": "t5", "cross_distance": "places"}, (), ()),
    "own kerple by place": ({"position": "kerple", "cross_distance": "places", **OWN}, (), ()),
    "own fire from the right": ({"position": "fire", "cross_distance": "right", **OWN}, (), ()),
    "own t5 with lines": ({"position": "t5", **OWN}, (SELF_LINES,), (CROSS_LINES,)),
    "randomized encoder": ({"position": "randomized", "encoder_layers": 1}, (), ()),
    "encoder": ({"position": "sinusoidal", "encoder_layers": 1}, (), ()),
    "rotary encoder": ({"position": "rotary", "encoder_layers": 1}, (), ()),
}
BIASED = [name for name, scheme in SCHEMES.items() if issubclass(scheme, Biased)]
each_setup = pytest.mark.parametrize("setup", SETUPS)


def model_of(setup, seed=0):
    torch.manual_seed(seed)
    config, self_biases, cross_biases = SETUPS[setup]
    model = Transformer(ModelConfig(**SMALL | config), 15, self_biases, cross_biases)
    # initial logits are nearly those of a model without attention; larger weights make differences visible
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
    return model.eval()


def addition_batch(size=5, width=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    numbers = tuple(torch.randint(10, (size, width - 1), generator=generator) for _ in range(2))
    task = get_task("addition")
    return task.batch(task.widened(numbers, width))


# Two ways through the attention


@each_setup
@torch.no_grad()
def test_fused_attention_equals_the_explicit_one(setup):
    """In double precision, so that rounding does not hide a difference."""
    model, batch = model_of(setup).double(), addition_batch()
    fused, explicit = model(batch), model(batch, Recording())
    assert fused.shape == (5, 5, 15)
    assert (fused - explicit).abs().max() < 1e-8


@pytest.mark.parametrize("biased", [False, True])
def test_attention_equals_torch_multi_head_attention(biased):
    torch.manual_seed(0)
    config = ModelConfig(heads=4, d_model=32, position="none")
    ours = Attention(config, config.positions())
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        for projection in (ours.query, ours.key, ours.value, ours.output):
            projection.bias.normal_()
        copy_attention(theirs, ours)
        x, memory = torch.randn(3, 5, 32), torch.randn(3, 7, 32)
        bias = None
        if biased:
            bias = torch.randn(4, 5, 7)
            bias[:, 2, 3:] = -math.inf
        rows, columns = torch.arange(5), torch.arange(7)
        weights = []
        mixed = ours(x, rows, ours.keys_values(memory, columns), columns, bias)
        recorded = ours(x, rows, ours.keys_values(memory, columns), columns, bias, ("weights", weights))
        mask = bias.repeat(3, 1, 1) if biased else None
        expected, expected_weights = theirs(x, memory, memory, attn_mask=mask, average_attn_weights=False)
    assert torch.allclose(mixed, expected, atol=1e-5)
    assert torch.allclose(recorded, expected, atol=1e-5)
    assert torch.allclose(weights[0], expected_weights, atol=1e-5)


def copy_attention(theirs, ours):
    """Give torch's attention the weights of ours."""
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@torch.no_grad()
def test_decoder_layer_equals_torch_pre_norm_layer():
    torch.manual_seed(0)
    config = ModelConfig(heads=4, d_model=32, d_ff=48, position="none")
    ours = DecoderLayer(config, config.positions())
    theirs = nn.TransformerDecoderLayer(32, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
    for parameter in ours.parameters():
        if parameter.dim() == 1:
            parameter.normal_()
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward[2].state_dict())
    norms = (ours.norm_self, ours.norm_cross, ours.norm_feed_forward)
    for norm, of_theirs in zip(norms, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True):
        of_theirs.load_state_dict(norm.state_dict())
    x, memory = torch.randn(3, 5, 32), torch.randn(3, 7, 32)
    rows, columns = torch.arange(5), torch.arange(7)
    mask = causal(rows, steps(5))
    keys_values = ours.cross_attention.keys_values(memory, columns)
    found, kept = ours(x, rows, None, rows, keys_values, columns, (mask, None))
    assert torch.allclose(found, theirs(x, memory, tgt_mask=mask[0]), atol=1e-5)
    # step by step over kept keys and values: the same
    first, past = ours(x[:, :4], rows[:4], None, rows[:4], keys_values, columns, (mask[:, :4, :4], None))
    last, _ = ours(x[:, 4:], rows[4:], past, rows, keys_values, columns, (mask[:, 4:], None))
    assert torch.allclose(torch.cat([first, last], dim=1), found, atol=1e-5)
    assert kept[0].shape == (3, 4, 5, 8)


@torch.no_grad()
def test_rotary_scores_by_hand():
    """One head of size 2 and unit projections: queries and keys (1, 0), so that scores are cos(i − j) / √2."""
    config = ModelConfig(heads=1, d_model=2, position="rotary")
    attention = Attention(config, config.positions())
    for projection in (attention.query, attention.key):
        projection.weight.copy_(torch.eye(2))
    x = torch.tensor([1.0, 0.0]).expand(1, 4, 2)
    rows, columns = torch.tensor([0, 1, 5, 9]), torch.tensor([0, 2, 3, 9])
    scores = []
    attention(x, rows, attention.keys_values(x, columns), columns, None, ("scores", scores))
    expected = [[math.cos(i - j) / math.sqrt(2) for j in (0, 2, 3, 9)] for i in (0, 1, 5, 9)]
    assert torch.allclose(scores[0][0, 0], torch.tensor(expected), atol=1e-5)


@torch.no_grad()
def test_recording_of_weights():
    """Weights sum to 1, are 0 in the future and on closed cells, and exist for every layer."""
    recording = Recording("weights")
    model_of("line biases")(addition_batch(), recording)
    assert len(recording.self_attention) == len(recording.cross_attention) == 2
    for weights, n in ((recording.self_attention[1], 5), (recording.cross_attention[1], 11)):
        assert weights.shape == (5, 2, 5, n)
        assert torch.allclose(weights.sum(-1), torch.ones(5, 2, 5), atol=1e-5)
    assert not recording.self_attention[0].triu(1).any()
    # head 0 sees the steps i and i − 1 only
    assert not recording.self_attention[0][:, 0].tril(-2).any()
    # head 1 without self-attention lines sees the start token
    assert (recording.self_attention[0][:, 1] == torch.eye(5)[0]).all()
    closed = torch.isinf(CROSS_LINES(torch.arange(5), source(4)))
    assert not recording.cross_attention[0][:, closed].any()


@torch.no_grad()
def test_one_bias_for_each_layer():
    """Layer 0 sees the window, layer 1 everything."""
    torch.manual_seed(0)
    everything = unbiased
    model = Transformer(ModelConfig(**SMALL), 15, (), (cross_window(2, 0), everything)).eval()
    recording = Recording()
    model(addition_batch(), recording)
    # a place of each operand in a row of eleven columns
    assert ((recording.cross_attention[0] > 0).sum(-1) == 2).all()
    assert ((recording.cross_attention[1] > 0).sum(-1) == 11).all()


# Causality, order of the batch, finite numbers


@each_setup
@torch.no_grad()
def test_later_targets_do_not_change_earlier_logits(setup):
    model, batch = model_of(setup), addition_batch()
    target = batch.target.clone()
    target[:, 2] = (target[:, 2] + 1) % 10
    changed = model(Batch(batch.source, target, batch.stream))
    before = model(batch)
    # target 2 is fed to row 3
    assert torch.allclose(changed[:, :3], before[:, :3], atol=1e-6)
    assert (changed[:, 3] - before[:, 3]).abs().amax() > 1e-3


@each_setup
@torch.no_grad()
def test_source_changes_the_logits(setup):
    """The digits of a and b reach every row where no bias closes them off."""
    model, batch = model_of(setup), addition_batch()
    source = batch.source.clone()
    source[:, 3:5] = (source[:, 3:5] + 1) % 10
    changed = model(Batch(source, batch.target, batch.stream))
    assert (changed - model(batch)).abs().amax() > 1e-3


@each_setup
@torch.no_grad()
def test_samples_do_not_depend_on_their_batch(setup):
    model, batch = model_of(setup), addition_batch()
    order = torch.tensor([3, 0, 4, 1, 2])
    logits = model(batch)
    shuffled = model(Batch(batch.source[order], batch.target[order], batch.stream))
    alone = model(Batch(batch.source[:1], batch.target[:1], batch.stream))
    assert torch.allclose(shuffled, logits[order], atol=1e-5)
    assert torch.allclose(alone, logits[:1], atol=1e-5)


@each_setup
def test_logits_and_gradients_are_finite(setup):
    model, batch = model_of(setup).train(), addition_batch()
    logits = model(batch)
    nn.functional.cross_entropy(logits.flatten(0, 1), batch.target.flatten()).backward()
    assert torch.isfinite(logits).all()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("position", [p for p in ENCODER_DECODER if p not in BIASED])
@torch.no_grad()
def test_every_position_scheme_runs_with_an_encoder(position):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**SMALL, encoder_layers=1, position=position), 15).eval()
    assert len(model.encoder) == 1
    logits = model(addition_batch(width=6))
    assert logits.shape == (5, 7, 15)
    assert torch.isfinite(logits).all()


@torch.no_grad()
def test_widths_in_turn_do_not_disturb_one_another():
    """Expanded biases are remembered by width: a wider batch in between changes nothing."""
    model = model_of("line biases")
    narrow, wide = addition_batch(width=4), addition_batch(width=9)
    first, between, again = model(narrow), model(wide), model(narrow)
    assert between.shape == (5, 10, 15)
    assert torch.equal(first, again)


@torch.no_grad()
def test_without_positions_or_biases_nothing_tells_source_columns_apart():
    """123 + 648 and 648 + 321 have the same characters in another order."""
    model = model_of("nothing at all")
    a, b = torch.tensor([[3, 2, 1]]), torch.tensor([[8, 4, 6]])
    task = get_task("addition")
    straight, reordered = task.batch((a, b)), task.batch((b, a.flip(1)))
    same_target = Batch(reordered.source, straight.target, straight.stream)
    assert torch.allclose(model(straight), model(same_target), atol=1e-5)
    assert not torch.allclose(model_of("no bias")(straight), model_of("no bias")(same_target), atol=1e-3)


# Biases with parameters


def biased(position, **choices):
    """A model whose biases have parameters drawn at random."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**SMALL, position=position, **choices), 15).eval()
    with torch.no_grad():
        for parameter in model.positions.parameters():
            parameter.add_(torch.rand_like(parameter))
    return model


@pytest.mark.parametrize("position", BIASED)
@torch.no_grad()
def test_own_biases_that_are_equal_are_a_shared_one(position):
    shared, own, batch = biased(position), biased(position, **OWN), addition_batch()
    weights = shared.state_dict()
    # positions.self_bias.1.values of the second layer is positions.self_bias.values of all layers
    own.load_state_dict({name: weights[re.sub(r"_bias\.\d\.", "_bias.", name)] for name in own.state_dict()})
    assert torch.equal(own(batch), shared(batch))


@pytest.mark.parametrize("position", BIASED)
@torch.no_grad()
def test_own_biases_are_added_to_those_of_each_layer(position):
    windows = (cross_window(2), cross_window(2, 0))
    model, layout, rows = biased(position, **OWN), source(4), torch.arange(5)
    for given in (windows, windows[:1]):
        model.cross_biases = given
        found = [cross for _, cross in model.biases_of(rows, layout.stream.columns())]
        for layer in range(2):
            expected = given[layer % len(given)](rows, layout) + model.positions.cross_bias[layer](rows, layout)
            assert torch.equal(found[layer], expected)
        assert not torch.equal(*found)


def test_a_shared_bias_is_saved_under_the_names_of_before():
    fire = ["c", "multiplier", *(f"network.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias"))]
    known = {"t5": ["values"], "kerple": ["log_r1", "log_r2"], "fire": fire}
    for position, names in known.items():
        found = {name for name in biased(position).state_dict() if name.startswith("positions.")}
        assert found == {f"positions.{kind}_bias.{name}" for kind in ("self", "cross") for name in names}


@torch.no_grad()
def test_by_place_attention_does_not_change_with_the_width():
    """Padded with two zeros more, the first steps see each digit with the same bias."""
    for position in (*BIASED, "relative"):
        model, found = biased(position, cross_distance="places"), []
        for width in (4, 9):
            task = get_task("addition")
            batch = task.batch(task.widened(tuple(torch.full((1, 3), digit) for digit in (7, 2)), width))
            recording = Recording("bias")
            model(batch, recording)
            units = torch.stack([a.tokens([torch.arange(3)]) for a in batch.stream.operands])
            found.append(recording.cross_attention[0][:, :, :3][..., units])
        assert torch.allclose(*found, atol=1e-5)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**SMALL, dropout=0.5), 15)
    batch = addition_batch()
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


# Errors


@pytest.mark.parametrize(
    "choice, message",
    [
        ({"position": "chocolate"}, "expected a position among none, sinusoidal.*got 'chocolate'"),
        ({"d_model": 100}, "expected d_model to be a multiple of 2 × 8 heads, got 100"),
        ({"d_model": "128"}, "expected d_model as int, got '128'"),
        ({"d_model": 0}, "expected d_model of at least 1, got 0"),
        ({"heads": 3}, "expected d_model to be a multiple of 2 × 3 heads, got 128"),
        ({"heads": 0}, "expected heads of at least 1, got 0"),
        ({"decoder_layers": 0}, "expected decoder_layers of at least 1, got 0"),
        ({"encoder_layers": -1}, "expected encoder_layers of at least 0, got -1"),
        ({"d_ff": 0}, "expected d_ff of at least 1, got 0"),
        ({"dropout": 1.0}, r"expected a dropout in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"expected a dropout in \[0, 1\)"),
        ({"position": "t5", "encoder_layers": 1}, "expected no encoder layers with 't5'"),
        ({"period": 0}, "expected period of at least 1, got 0"),
        ({"relative_clip": 0}, "expected relative_clip of at least 1, got 0"),
        ({"max_position": 0}, "expected max_position of at least 1, got 0"),
        ({"period": 4}, "expected period=3 with 'sinusoidal' positions, which do not read it, got 4"),
        ({"position": "t5", "relative_clip": 8}, "expected relative_clip=16 with 't5' positions"),
        ({"position": "cyclic-columns", "rotary_width": 7}, "expected rotary_width=0 with 'cyclic-columns'"),
        (
            {"position": "t5", "cross_distance": "top"},
            "expected a cross_distance among left, right, places, got 'top'",
        ),
        (
            {"position": "relative-self", "cross_distance": "places"},
            "expected cross_distance=left with 'relative-self' positions",
        ),
        ({"position": "relative", **OWN}, "expected own_bias_per_layer=False with 'relative' positions"),
        ({"position": "none", "max_position": 99}, "expected max_position=512 with 'none' positions"),
    ],
)
def test_impossible_configurations(choice, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**choice)


def test_default_configuration_is_that_of_the_paper():
    config = ModelConfig()
    assert (config.decoder_layers, config.heads, config.d_model, config.d_ff) == (3, 8, 128, 512)


def test_as_many_biases_as_layers():
    config = ModelConfig(**SMALL | {"decoder_layers": 3})
    with pytest.raises(ValueError, match="expected 1 or 3 cross-attention biases, got 2"):
        Transformer(config, 15, (), (cross_window(2),) * 2)
    with pytest.raises(ValueError, match="expected 1 or 3 self-attention biases, got 4"):
        Transformer(config, 15, (self_window(2),) * 4)


@pytest.mark.parametrize("bias", [self_window(4), ALiBi(4)])
def test_bias_for_other_heads(bias):
    with pytest.raises(ValueError, match="expected a self-attention bias of 2 heads, got 4"):
        Transformer(ModelConfig(**SMALL), 15, (bias,))


def test_bias_of_the_other_attention():
    """A bias of self-attention lines makes no sense over source columns."""
    with pytest.raises(ValueError, match="expected a cross-attention bias"):
        Transformer(ModelConfig(**SMALL), 15, (), (self_window(2),))


def test_a_model_that_nothing_refers_to_is_freed_at_once():
    """One is made for each test length, and its biases may take gigabytes of a card."""
    model = Transformer(ModelConfig(), 15)
    task = get_task("successor")
    model(task.batch(task.smallest(4)))
    known = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert known() is None
    finally:
        gc.enable()


# --- heads with one line each


def test_a_head_with_one_line_gathers_what_a_masked_softmax_gives():
    lines = [LineBias("cross", 2, tuple(Line(h, "digits", "ab"[h], ("place",), (-h,)) for h in (0, 1)))]
    own = [LineBias("self", 2, tuple(Line(h, "digits", "digits", ("place",), (-1 - h,)) for h in (0, 1)))]
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**SMALL, position="none"), 15, tuple(own), tuple(lines)).eval()
    assert model.gathers and not model.decoder[0].self_attention.query.weight.requires_grad
    compared = Recording("weights")  # what is recorded goes the long way
    torch.testing.assert_close(model(addition_batch()), model(addition_batch(), compared))
    assert set(compared.cross_attention[0].unique().tolist()) == {0.0, 1.0}
    model(addition_batch()).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def test_biases_that_are_replaced_are_not_those_of_the_next_pass():
    """Those of a shape are kept."""
    batch, model = addition_batch(), model_of("line biases")
    before = model(batch)
    model.cross_biases = (LineBias("cross", 2, CROSS_LINES.lines[:1]),)
    other = model(batch)
    assert not torch.allclose(before, other, atol=1e-3)
    model.cross_biases = (CROSS_LINES,)
    assert torch.equal(model(batch), before)
