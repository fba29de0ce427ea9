import pytest
import torch
import torch.nn.functional as F
from abcnb.counter_calibration import CounterConfig, StreamAttention, calibrate_stream
from abcnb.counters import CounterLine, StreamBias, by_hand, dealt
from abcnb.decoder_only import DecoderOnly
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.biases import CLOSED, ALiBi
from abcnb.configs import SCHEMES, ModelConfig
from abcnb.decoding import greedy_decode
from abcnb.layers import OpenTokens, attend_to_open
from abcnb.lines import self_window
from abcnb.pipeline import new_model
from abcnb.tasks import get_task
from abcnb.tokens import decode

PRODUCT, SUM = get_task("multiplication"), get_task("many-addition")
TEXT = "$123*45=5160+5160*2940+3550*&"


def opened(line, stream, step):
    """The characters that a line opens at each step of a kind, own tokens left out."""
    rows = torch.arange(len(stream))
    kind, _, _ = stream.steps_at(rows)
    tokens = StreamBias(1, (line,)).open_tokens(rows, stream)[0, :, 0]
    return "".join(
        TEXT[t] if t != r else "." for t, r in zip(tokens, rows, strict=True) if kind[r] == kind_of(stream, step)
    )


def kind_of(stream, step):
    return stream.kinds.index(step)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # Rows of products: 5160+ and 2940+; the ninth step of this kind writes the end token.
        (CounterLine(0, "products", "a", ("place",), (0,)), "321$321$3"),
        (CounterLine(0, "products", "a", ("place",), (-1,)), "*321*321*"),
        (CounterLine(0, "products", "b", ("row",), (0,)), "55554444*"),
        (CounterLine(0, "products", "b", ("none",), (0,)), "555555555"),
        (CounterLine(0, "products", "*"), "*********"),
        (CounterLine(0, "products", "sums", ("row", "place"), (-1, 1)), "....160*5"),
        (CounterLine(0, "sums", "products", ("row", "place"), (0, 0)), "51602940"),
        (CounterLine(0, "sums", "products end", ("row",), (0,)), ".+++.+++"),
        (CounterLine(0, "sums", "sums", ("row", "place"), (0, 0)), "........"),
        (CounterLine(0, "sums end", "b", ("row",), (1,)), "4*"),
    ],
)
def test_lines_by_hand(line, expected):
    assert opened(line, PRODUCT.layout((3, 2)), line.step) == expected


def test_a_line_is_readable():
    assert str(CounterLine(0, "sums", "sums", ("row", "place"), (-1, 1))) == "sums[row-1, place+1]"
    assert str(CounterLine(0, "sums", "*")) == "*" and str(CounterLine(0, "a", "b", ("none",), (2,))) == "b[2]"
    assert str(CounterLine(0, "products", "a", ("place",), (0,))) == "a[place]"


def test_a_row_that_no_line_reaches_and_the_prompt_open_their_own_token():
    stream = PRODUCT.layout((2, 2))
    bias = StreamBias(2, (CounterLine(0, "sums", "a", ("place",), (9,)),))
    rows = torch.arange(len(stream))
    assert (bias.open_tokens(rows, stream)[..., 0] == rows).all()
    assert torch.equal(bias(rows, stream) == 0, torch.eye(len(stream), dtype=torch.bool).expand(2, -1, -1))


LINE = st.builds(
    lambda head, step, target: CounterLine(head, step, *target),
    st.integers(0, 2),
    st.sampled_from(["products", "products end", "sums", "sums end"]),
    st.one_of(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from([("none",), ("row",), ("place",)]),
            st.tuples(st.integers(-3, 3)),
        ),
        st.tuples(
            st.sampled_from(["products", "sums"]),
            st.just(("row", "place")),
            st.tuples(st.integers(-2, 1), st.integers(-2, 2)),
        ),
        st.tuples(st.sampled_from(["$", "*", "="]), st.just(()), st.just(())),
    ),
)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINE, max_size=10), shape=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_open_tokens_and_the_dense_bias_agree(lines, shape):
    stream, bias = PRODUCT.layout(shape), StreamBias(3, tuple(lines))
    rows = torch.arange(len(stream))
    tokens, dense = bias.open_tokens(rows, stream), bias(rows, stream)
    assert ((dense == 0) | (dense == CLOSED)).all() and not (dense == 0).triu(1).any()
    assert (dense == 0).any(-1).all()
    assert (tokens <= rows[:, None]).all()
    for head in range(3):
        for row in rows.tolist():
            listed = [t for t in tokens[head, row].tolist() if t >= 0]
            assert sorted(listed) == (dense[head, row] == 0).nonzero().flatten().tolist()


def test_attention_over_open_tokens_is_attention_with_the_rest_closed():
    stream = PRODUCT.layout((3, 3))
    bias = by_hand(stream, 4, PRODUCT.lines_by_hand).self_biases[0]
    bias = StreamBias(4, (*bias.lines, CounterLine(0, "sums", "b", ("row",), (0,))))
    rows, generator = torch.arange(len(stream)), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, len(stream), 8, generator=generator) for _ in range(3))
    found = attend_to_open(query, key, value, OpenTokens(bias.open_tokens(rows, stream)))
    torch.testing.assert_close(found, F.scaled_dot_product_attention(query, key, value, bias(rows, stream)[None]))


def test_lines_are_saved_and_read(tmp_path):
    bias = by_hand(PRODUCT.layout(2), 8, PRODUCT.lines_by_hand).self_biases[0]
    bias.save(tmp_path / "lines.json")
    assert StreamBias.load(tmp_path / "lines.json") == bias
    (tmp_path / "lines.json").write_text('{"heads": 2}')
    with pytest.raises(ValueError, match="expected the lines of a StreamBias"):
        StreamBias.load(tmp_path / "lines.json")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (CounterLine(2, "sums", "a"), "expected a head from 0 to 1"),
        (CounterLine(0, "sums", "a", ("column",), (0,)), "expected counters among none, row, place"),
        (CounterLine(0, "sums", "a", ("row",), ()), "an offset for each"),
    ],
)
def test_lines_that_cannot_be_are_refused(line, message):
    with pytest.raises(ValueError, match=message):
        StreamBias(2, (line,))


@pytest.mark.parametrize("follows", [(), ("row", "place")])
def test_a_line_with_too_few_or_too_many_coordinates_is_refused(follows):
    bias = StreamBias(1, (CounterLine(0, "products", "a", follows, (0,) * len(follows)),))
    with pytest.raises(ValueError, match="expected a counter for each of 1 coordinates of 'a', got CounterLine"):
        bias(torch.arange(5), PRODUCT.layout(2))


def test_lines_of_another_task_are_refused():
    bias = by_hand(PRODUCT.layout(2), 2, PRODUCT.lines_by_hand).self_biases[0]
    with pytest.raises(ValueError, match="use lines on the task that they were made for"):
        bias(torch.arange(5), SUM.layout(2))


def test_dealt_lines_go_round_the_heads():
    lines = [CounterLine(5, "sums", name) for name in ("$", "*", "=")] + [CounterLine(1, "sums", "$")]
    found = dealt(4, lines)
    assert [(line.head, line.segment) for line in found.lines] == [(0, "$"), (1, "*"), (2, "="), (3, "$")]
    assert [line.head for line in dealt(2, lines).lines] == [0, 1, 0]
    assert [line.segment for line in dealt(2, lines, most=2).lines] == ["$", "*"]
    assert [line.segment for line in dealt(3, lines, most=2).lines] == ["$", "*", "$"]


# --- models


def a_model(position="kinds", biases=(), task=PRODUCT, heads=4):
    config = ModelConfig(
        decoder_layers=2, heads=heads, d_model=32, d_ff=64, position=position, architecture="decoder-only"
    )
    return new_model(task, config, 0, biases).eval()


IN_STREAMS = [name for name, scheme in SCHEMES.items() if scheme.in_streams]


def biases_of(name, task, stream):
    if name == "lines":
        return by_hand(stream, 4, task.lines_by_hand)
    return ((ALiBi(4),),) if name == "alibi" else ()


@pytest.mark.parametrize("position", IN_STREAMS)
@pytest.mark.parametrize("bias", ["none", "lines", "alibi"])
def test_cached_decoding_writes_what_uncached_decoding_and_teacher_forcing_write(position, bias):
    batch = PRODUCT.batch(PRODUCT.from_numbers([[123, 45], [907, 81]], [3, 2]))
    model = a_model(position, biases_of(bias, PRODUCT, batch.layout))
    steps = batch.target.shape[1]
    cached, uncached = (greedy_decode(model, batch.source, batch.layout, steps, cache) for cache in (True, False))
    assert torch.equal(cached, uncached)
    own = type(batch)(batch.source, cached, batch.layout)
    assert torch.equal(model(own).argmax(-1), cached) and torch.equal(model.predictions(own), cached)


@pytest.mark.parametrize("name", ["successor", "addition", "parity", "n-by-1", "many-addition"])
def test_every_task_is_decoded_in_one_stream(name):
    task = get_task(name)
    batch = task.batch(task.parse({"parity": "1011", "successor": "99", "n-by-1": "12*3"}.get(name, "12+99")))
    model = a_model("sinusoidal", task=task)
    steps = batch.target.shape[1]
    cached = greedy_decode(model, batch.source, batch.layout, steps)
    assert torch.equal(cached, greedy_decode(model, batch.source, batch.layout, steps, cache=False))


def test_no_logit_depends_on_a_later_token():
    batch = PRODUCT.batch(PRODUCT.parse("123*45"))
    model = a_model("sinusoidal")
    before = model(batch)
    changed = batch.target.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 10
    after = model(type(batch)(batch.source, changed, batch.layout))
    assert torch.equal(before[:, :10], after[:, :10]) and not torch.allclose(before[:, 10:], after[:, 10:])


def test_the_cache_forgets_what_no_line_can_reach(monkeypatch):
    task, heads = SUM, 4
    batch = task.batch(task.from_numbers([[7] * 40], [2] * 40))
    model = a_model("kinds", by_hand(batch.layout, heads, task.lines_by_hand), task)
    kept = []
    attend = type(model.decoder[0]).attend

    def watched(self, x, normed, rows, keys_values, *rest, **more):
        kept.append(keys_values[0].shape[2])
        return attend(self, x, normed, rows, keys_values, *rest, **more)

    monkeypatch.setattr(type(model.decoder[0]), "attend", watched)
    greedy_decode(model, batch.source, batch.layout, batch.target.shape[1])
    prompt, steps = batch.layout.prompt, batch.layout.rows
    # At first the whole prompt; at last a row's neighbourhood, however much was written.
    assert kept[0] == prompt and max(kept) < prompt + steps / 2 and kept[-1] < 4 * batch.layout.shape[1]


def test_a_decoder_only_model_has_no_cross_attention():
    assert not any("cross" in name for name, _ in a_model().named_parameters())
    with pytest.raises(ValueError, match="no cross-attention"):
        DecoderOnly(ModelConfig(architecture="decoder-only"), 25, (), (ALiBi(8),))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "encoder-only"}, "expected an architecture among"),
        ({"architecture": "decoder-only", "encoder_layers": 1}, "no encoder layers in a decoder-only"),
        (
            {"architecture": "decoder-only", "position": "cyclic-places"},
            "in a decoder-only model, got 'cyclic-places'",
        ),
        (
            {"architecture": "decoder-only", "position": "rotary", "rotary_width": 7},
            "rotary_width 0 in a decoder-only",
        ),
        (
            {"architecture": "decoder-only", "position": "t5", "cross_distance": "places"},
            "expected cross_distance 'left' and rotary_width 0 in a decoder-only model",
        ),
        ({"position": "kinds"}, "'kinds' positions are for decoder-only models"),
    ],
)
def test_models_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**settings)


def test_a_task_in_rows_needs_one_stream():
    with pytest.raises(
        ValueError, match="expected architecture='decoder-only' in the ModelConfig for multiplication"
    ):
        new_model(PRODUCT, ModelConfig(), 0)
    lines = by_hand(PRODUCT.layout(2), 8, PRODUCT.lines_by_hand)
    with pytest.raises(ValueError, match="for addition and these biases"):
        new_model(get_task("addition"), ModelConfig(), 0, lines)
    with pytest.raises(ValueError, match="expected lines of a stream"):
        new_model(PRODUCT, ModelConfig(architecture="decoder-only"), 0, ((self_window(8),), ()))


# --- calibration


def planted(shape, lines, heads=2, noise=0.0):
    """Attention of one layer that lies on given lines, a half of it spread over all tokens so far."""
    stream = PRODUCT.layout(shape)
    rows = torch.arange(len(stream))
    on = (StreamBias(heads, tuple(lines))(rows, stream) == 0).float()
    spread = torch.ones(len(stream), len(stream)).tril()
    weights = on / on.sum(-1, keepdim=True) + noise * spread / spread.sum(-1, keepdim=True)
    return StreamAttention(stream, (weights / weights.sum(-1, keepdim=True))[None])


def test_planted_lines_are_found_and_nothing_else():
    lines = [
        CounterLine(0, "products", "a", ("place",), (0,)),
        CounterLine(1, "products", "b", ("row",), (0,)),
        CounterLine(0, "sums", "products", ("row", "place"), (0, 0)),
        CounterLine(1, "sums", "sums", ("row", "place"), (-1, 1)),
    ]
    attention = [planted((n, m), lines, noise=0.3) for n in (2, 3, 4) for m in (2, 3, 4)]
    found = calibrate_stream(attention, CounterConfig(kappa_prompt=2.0, kappa_output=2.0))
    strongest = {(line.head, line.step): line for line in reversed(found.lines) if not line.step.endswith("end")}
    assert set(strongest.values()) == set(lines)
    assert set(lines) <= set(found.lines)


def test_which_counter_an_operand_follows_is_found_not_told():
    # A model that walked b by the place and a by the row is read as such.
    lines = [CounterLine(0, "products", "a", ("row",), (0,)), CounterLine(1, "products", "b", ("place",), (0,))]
    attention = [planted((n, m), lines, noise=0.3) for n in (3, 4) for m in (3, 4)]
    found = calibrate_stream(attention, CounterConfig(kappa_prompt=2.0, kappa_output=2.0))
    assert set([line for line in found.lines if line.step == "products"][:2]) == set(lines)


def test_the_next_line_is_sought_without_the_cells_of_the_strongest():
    # On 2 × 2 digits the strongest line's cells lie on others too, which must not be kept for them.
    line = CounterLine(0, "products", "a", ("place",), (0,))
    found = calibrate_stream([planted((2, 2), [line], heads=1)], CounterConfig(kappa_prompt=1.0))
    assert [kept for kept in found.lines if kept.step == "products" and kept.segment == "a"] == [line]


def test_the_share_is_of_all_steps_of_the_kind_in_all_shapes():
    line = CounterLine(0, "sums", "products", ("row", "place"), (0, 0))
    found = calibrate_stream([planted((n, 2), [line], heads=1) for n in (2, 3)], CounterConfig())
    row = found.table[found.table["step"] == "sums"].iloc[0]
    assert (row["segment"], row["offset"]) == ("products", (0, 0))
    assert row["share"] == pytest.approx(1.0) and row["support"] == pytest.approx(1.0)


def test_below_every_threshold_each_line_is_kept_once():
    line = CounterLine(0, "products", "a", ("place",), (0,))
    found = calibrate_stream(
        [planted((2, 2), [line], heads=1)], CounterConfig(kappa_prompt=-9.0, kappa_output=-9.0)
    )
    assert len(set(found.lines)) == len(found.lines) > 20 and line in found.lines


def test_attention_without_lines_is_refused():
    line = CounterLine(0, "products", "a", ("place",), (0,))
    with pytest.raises(ValueError, match=r"stand out by κ 50 .* found none; take a smaller κ"):
        calibrate_stream([planted((2, 2), [line], heads=1)], CounterConfig(kappa_prompt=50.0, kappa_output=50.0))
    with pytest.raises(ValueError, match="expected averaged attention of at least one shape, got none"):
        calibrate_stream([], CounterConfig())


@pytest.mark.parametrize(
    "settings", [{"min_support": 2}, {"longest": -1}, {"longest": 1.5}, {"layer": "first"}, {"kappa_prompt": "1"}]
)
def test_calibrations_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        CounterConfig(**settings)


def test_text_is_what_the_hand_computed_lines_are_read_from():
    batch = PRODUCT.batch(PRODUCT.parse("123*45"))
    assert decode(batch.in_one_stream[0]) + "&" == TEXT
