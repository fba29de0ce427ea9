import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from abcnb.lines.calibration import AveragedAttention, calibrate_attention
from abcnb.lines.coordinates import Columns, in_one
from abcnb.lines.line import Line, LineBias, windows
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import IDS, encode
from abcnb.yours.pytorch import TokenRule, averaged, batch_mask, dense_mask, flex, record_attention

RULE = TokenRule(digits=[IDS[d] for d in "0123456789"], prompt_end=IDS["="])
LEAST = torch.finfo(torch.float32).min
PLACES = (
    Line(0, "digits", "a", ("place",), (0,)),
    Line(0, "digits", "a", ("place",), (-1,)),
    Line(1, "digits", "b", ("place",), (0,)),
    Line(1, "digits", "token 0"),
    Line(1, "digits", "digits", ("place",), (-2,)),
)
LINES = LineBias("self", 2, PLACES)


# --- coordinates


def test_the_tokens_of_a_prompt_have_the_coordinates_that_our_streams_have():
    ours = in_one(get_task("addition").stream(3))
    stream = RULE.stream(encode("$012+748=067"))
    assert len(stream) == len(ours) == 12 and stream.prompt == ours.prompt == 9
    named = tuple(line._replace(segment={"token 0": "$"}.get(line.segment, line.segment)) for line in PLACES)
    theirs = dense_mask(LineBias("self", 2, named), ours.columns())
    assert torch.equal(dense_mask(LINES, stream.columns()), theirs)


def test_operands_may_differ_in_length_and_the_output_has_one_place_per_token():
    stream = RULE.stream(encode("1234*5=0617"))
    assert stream.shape == (4, 1) and stream.rows == 5
    assert stream.segment("b").start == 5 and stream.segment("=").start == 6
    assert stream.steps_at(torch.arange(5, 11))[2].tolist()[1:] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("text, task, width", [("$012+748&", "addition", 3), ("$012&", "successor", 3)])
def test_the_tokens_of_a_source_have_the_coordinates_that_our_streams_have(text, task, width):
    ours = get_task(task).stream(width)
    found = RULE.source(encode(text), width + 1)
    assert (found.source, found.prompt, found.shape[0]) == (ours.source, ours.prompt, ours.width)
    assert found.operands == ours.operands and torch.equal(found.own_places, ours.own_places)
    assert found.segment("digits") == ours.segment("digits") and found.segment("start") == ours.segment("start")


def test_a_line_past_the_end_of_a_source_leads_nowhere():
    source = RULE.source(encode("$12+34"), 3)  # ends in the units, below which there is no token
    bias = LineBias("cross", 1, (Line(0, "digits", "b", ("place",), (-1,)),))
    opened = (dense_mask(bias, source.columns(crossing=True))[0] == 0).nonzero().tolist()
    assert opened == [[0, 0], [1, 5], [2, 4]]
    cross = torch.zeros(1, 1, 3, 6)
    cross[0, 0, [1, 1, 2], [0, 5, 4]] = torch.tensor([0.5, 0.5, 1])
    found = calibrate_attention([AveragedAttention(source, torch.zeros(1, 1, 3, 3), cross)], 0.4).table
    assert found[["line", "share"]].to_numpy().tolist() == [["b[place-1]", 0.5]]


@pytest.mark.parametrize(
    "texts, told",
    [
        (["$12+3&"], "whose prompts end with token .* got one with no such token"),
        (["$12+3=", "$1+23="], "digits at the same places of all prompts of a batch, got 2 kinds"),
        (["$12=4", "$1=42"], "make one batch of each"),
        (["$+="], "expected digits in every prompt, got none"),
    ],
)
def test_prompts_without_common_coordinates_are_refused(texts, told):
    ids = torch.stack([encode(text) for text in texts])
    with pytest.raises(ValueError, match=told):
        RULE.stream(ids)


def test_rules_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="an end of the prompt that is none of them"):
        TokenRule([0, 1], 1)
    with pytest.raises(ValueError, match="expected ids of digits"):
        TokenRule("0123456789", 11)


# --- masks


def test_a_dense_mask_opens_the_tokens_on_the_lines_and_nothing_ahead():
    mask = dense_mask(LINES, RULE.stream(encode("$12+34=64")).columns())
    opened = [[row.nonzero().flatten().tolist() for row in head] for head in mask > LEAST]
    # Tokens $ 1 2 + 3 4 = 6 4: rows of the prompt open the first token, step 0 (row 6) place 0 of either operand …
    assert opened[0] == [[0], [0], [0], [0], [0], [0], [2, 3], [1, 2], [0, 1]]
    # … and head 1 also `$` and, from step 1 on, the token two before the one that is written.
    assert opened[1] == [[0], [0], [0], [0], [0], [0], [0, 5], [0, 4, 6], [0, 3, 7]]
    assert set(mask.unique().tolist()) == {LEAST, 0.0}
    half = dense_mask(LINES, RULE.stream(encode("$12+34=64")).columns(), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.equal(half == 0, mask == 0) and half.isfinite().all()


def test_multihead_attention_sees_what_the_mask_opens_in_every_sample():
    stream = RULE.stream(encode("$12+34=64"))
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 9, 8)
    mask = dense_mask(LINES, stream.columns(), batch=3)
    assert mask.shape == (6, 9, 9)
    _, weights = attention(x, x, x, attn_mask=mask, need_weights=True, average_attn_weights=False)
    assert torch.equal(weights > 0, (dense_mask(LINES, stream.columns()) == 0).expand(3, -1, -1, -1))
    # The boolean sense is the opposite there: True closes.
    _, other = attention(x, x, x, attn_mask=mask == LEAST, need_weights=True, average_attn_weights=False)
    torch.testing.assert_close(weights, other)


def test_a_mask_of_other_lines_or_of_too_many_rows_is_refused():
    columns, source = RULE.stream(encode("$12+34=64")).columns(), RULE.source(encode("$012&"), 4)
    (own,), (cross,) = windows(source, 2)
    with pytest.raises(ValueError, match="expected columns of cross-attention for these lines"):
        dense_mask(cross, columns)
    with pytest.raises(ValueError, match="expected columns of self-attention for these lines"):
        dense_mask(own, source.columns(crossing=True), torch.arange(2))
    with pytest.raises(ValueError, match=r"expected columns, such as stream.columns\(\), got Stream"):
        dense_mask(LINES, source)


def test_windows_of_an_encoder_decoder_are_masks_of_torchs_decoder():
    stream = RULE.source(encode("$012&"), 4)
    own_columns, columns = stream.columns(), stream.columns(crossing=True)
    (selves,), (crosses,) = windows(stream, 2)
    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True).eval()
    target, memory = torch.randn(4, 4, 8), torch.randn(4, 5, 8)
    masks = {
        "tgt_mask": dense_mask(selves, own_columns, batch=4),
        "memory_mask": dense_mask(crosses, columns, batch=4),
    }
    with record_attention(layer) as weights:
        before = layer(target, memory, **masks)
    assert torch.equal(weights["multihead_attn"][2] > 0, crosses(torch.arange(4), columns) == 0)
    assert torch.equal(weights["self_attn"][0] > 0, selves(torch.arange(4), own_columns) == 0)
    memory[:, 1] += 1  # place 2 of the operand, which step 0 must not see
    after = layer(target, memory, **masks)
    torch.testing.assert_close(after[:, :2], before[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:], atol=1e-3)


SOURCE = get_task("addition").stream(4)


@pytest.mark.parametrize(
    "bias, columns",
    [
        (LINES, RULE.stream(encode("$12+34=64")).columns()),
        (windows(SOURCE, 2, 2).self_biases[0], SOURCE.columns()),
        (windows(SOURCE, 2).cross_biases[0], SOURCE.columns(crossing=True)),
        (LINES, Columns(RULE.stream(encode("$12+34=64")), torch.tensor([0, 4, 5, 6, 7, 8]))),
    ],
)
def test_flex_attention_equals_the_dense_mask(bias, columns):
    rows = len(columns.stream)
    query, key, value = (torch.randn(3, 2, n, 16) for n in (rows, len(columns), len(columns)))
    found = flex(bias, columns)
    ours = flex_attention(query, key, value, block_mask=found)
    mask = dense_mask(bias, columns)
    dense, sees = F.scaled_dot_product_attention(query, key, value, mask), (mask > LEAST).any(-1)
    torch.testing.assert_close(ours[:, sees], dense[:, sees], atol=1e-5, rtol=1e-4)
    h, q, k = torch.meshgrid(torch.arange(2), torch.arange(rows), torch.arange(len(columns)), indexing="ij")
    assert torch.equal(found.mask_mod(0, h, q, k), mask > LEAST)


# --- attention


def test_recorded_attention_is_calibrated():
    """A layer that is told where to look gives back these lines."""
    ids = torch.stack([encode(f"$1{n}+34=6{n}") for n in range(8)])
    stream = RULE.stream(ids)
    bias = LineBias("self", 2, tuple(Line(h, "digits", name, ("place",), (0,)) for h, name in enumerate("ab")))
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(8, 9, 8)
    with record_attention(attention) as weights:
        attention(x, x, x, attn_mask=dense_mask(bias, stream.columns(), batch=8))
    found = calibrate_attention([averaged([weights[""]], stream)], 0.5)
    assert {str(line.line) for line in found.found} == {"a[place]", "b[place]"}
    assert attention(x, x, x)[1].shape == (8, 9, 9)  # the hooks are gone


@pytest.mark.parametrize(
    "weights, told",
    [
        ([], "at least one layer, got none"),
        (
            [torch.full((1, 2, 8, 8), 0.1)],
            r"expected weights of shape \[batch, heads, 9, 9\], .*got \[1, 2, 8, 8\]",
        ),
        ([torch.full((2, 9, 9), 0.1)], r"got \[2, 9, 9\]"),
        ([torch.full((1, 2, 9, 9), torch.nan)], "expected finite attention weights"),
    ],
)
def test_attention_of_other_tokens_than_the_streams_is_refused(weights, told):
    with pytest.raises(ValueError, match=told):
        calibrate_attention([averaged(weights, RULE.stream(encode("$12+34=64")))])


def test_attention_is_recorded_whose_options_are_given_by_position():
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    with record_attention(attention) as weights:
        attention(x, x, x, None, False)
    assert weights[""].shape == (3, 2, 5, 5)


def test_a_model_without_attention_records_nothing():
    told = "expected a model with nn.MultiheadAttention in it, got Linear"
    with pytest.raises(ValueError, match=told), record_attention(nn.Linear(2, 2)):
        pass


def test_an_encoder_of_torch_takes_the_lines_of_every_sequence_of_a_padded_batch():
    texts = ("$12+34=64", "$1+2=3", "$123+4=721")
    ids = nn.utils.rnn.pad_sequence([encode(text) for text in texts], True, IDS["@"])
    lines = LineBias("self", 4, tuple(Line(h, "digits", "ab"[h % 2], ("place",), (-(h // 2),)) for h in range(4)))
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    encoder, embed = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), nn.Embedding(40, 16)
    sequences = RULE.sequences(ids, (ids != IDS["@"]).long())
    asked = {"mask": batch_mask(lines, sequences, ids.shape[1]).flatten(0, 1)}
    together = encoder(embed(ids), **asked)
    with torch.no_grad():  # torch's fast path, which makes NaN of a row that the masks close together
        fast = encoder(embed(ids), **asked, src_key_padding_mask=ids == IDS["@"])
    for text, row, other in zip(texts, together, fast, strict=True):
        torch.testing.assert_close(row[: len(text)], other[: len(text)], atol=1e-5, rtol=1e-4)
        own = encode(text)[None]
        mask = dense_mask(lines, RULE.stream(own).columns(), batch=1)
        torch.testing.assert_close(row[: len(text)], encoder(embed(own), mask=mask)[0], atol=1e-5, rtol=1e-4)
