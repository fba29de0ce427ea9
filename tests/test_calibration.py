"""The rule, on attention that is made by hand."""

import pytest
import torch

from abcnb.lines.calibration import TAU, AveragedAttention, calibrate_attention, candidates, lines_of_heads
from abcnb.lines.coordinates import in_one
from abcnb.lines.line import Line
from abcnb.tasks.task import get_task

WIDTH, HEADS, LAYERS = 7, 8, 2
PLACE = ("place",)


def blank(task="addition", width=WIDTH, heads=HEADS, layers=LAYERS):
    """No attention at all; self-attention rests on the start token, whose share is then 1."""
    stream = get_task(task).stream(width)
    own = torch.zeros(layers, heads, stream.rows, stream.rows)
    return AveragedAttention(stream, own, torch.zeros(layers, heads, stream.rows, stream.source))


def look(average, layer, head, name, offset, weight):
    """Attention of a head along one operand's places."""
    stream = average.stream
    steps = torch.arange(stream.rows)
    tokens = stream.segment(name).tokens([steps + offset])
    on = tokens >= 0
    matrix = average.cross_attention if stream.is_crossed(name) else average.self_attention
    columns = tokens[on] - (0 if matrix is average.cross_attention else stream.source)
    matrix[layer, head, steps[on], columns] += weight
    return int(on.sum()) / stream.rows


def found_in(average, tau=TAU, attention="cross"):
    table = calibrate_attention([average], tau).table
    return {row.line: row.share for row in table[table["attention"] == attention].itertuples()}


def test_a_share_counts_all_steps_and_not_only_those_that_a_line_meets():
    average = blank()
    met = look(average, 1, 0, "a", 4, 1.0)
    assert met == 0.5  # places 4 to 7 of eight steps, the token left of the operand among them
    assert found_in(average)["a[place+4]"] == pytest.approx(0.5)
    short = blank()
    look(short, 1, 0, "a", 7, 1.0)
    with pytest.raises(ValueError, match="found none"):
        found_in(short, 0.2)


def test_lines_that_cross_a_strong_one_do_not_borrow_from_it():
    average = blank(width=2)
    look(average, 0, 0, "a", 0, 1.0)  # on three steps any line through one of these cells has a third
    assert found_in(average, 0.3) == {"a[place]": pytest.approx(1.0)}


def test_a_line_at_tau_itself_is_left():
    average = blank()
    look(average, 0, 0, "a", 0, 0.5)
    look(average, 0, 1, "b", 0, 0.25)
    assert [str(f.line) for f in lines_of_heads([average], 0.25)] == ["a[place]"]


def test_the_strongest_line_of_a_head_comes_first_and_weak_ones_are_left():
    average = blank()
    look(average, 0, 0, "a", 0, 0.5)
    look(average, 0, 0, "b", 0, 0.3)
    look(average, 0, 0, "b", -1, 0.19)
    found = [(str(f.line), round(f.share, 2)) for f in lines_of_heads([average], 0.2)]
    assert found == [("a[place]", 0.5), ("b[place]", 0.3)]


def test_lines_of_all_heads_of_all_layers_each_once_with_its_largest_share():
    average = blank()
    look(average, 0, 3, "a", 0, 0.4)
    look(average, 1, 5, "a", 0, 0.9)
    look(average, 0, 1, "b", -1, 0.6)
    calibration = calibrate_attention([average])
    assert [(str(f.line), f.layer, f.head) for f in calibration.found] == [
        ("a[place]", 1, 5),
        ("b[place-1]", 0, 1),
    ]
    assert "a[place]   0.90" in str(calibration)


def test_they_are_dealt_strongest_first_one_to_a_head():
    average = blank()
    for head, (name, offset) in enumerate((("a", 0), ("a", -1), ("b", 0))):
        look(average, 0, head, name, offset, 0.9 - 0.1 * head)
    look(average, 0, 0, "digits", -1, 0.8)
    selves, crosses = calibrate_attention([average]).biases(HEADS)
    assert [str(line) for line in crosses[0].lines][:4] == ["a[place]", "a[place-1]", "b[place]", "a[place]"]
    assert [line.head for line in crosses[0].lines] == list(range(HEADS)) and crosses[0].most == 1
    assert {str(line) for line in selves[0].lines} == {"digits[place-1]"}


def test_of_a_kind_of_step_no_more_lines_are_dealt_than_there_are_heads():
    average = blank(heads=2)
    for layer, head, name, offset in ((0, 0, "a", 0), (0, 1, "b", 0), (1, 0, "a", -1)):
        look(average, layer, head, name, offset, 0.9 - 0.1 * layer)
    calibration = calibrate_attention([average])
    assert len(calibration.found) == 3
    assert {str(line) for line in calibration.biases(2).cross_biases[0].lines} == {"a[place]", "b[place]"}


@pytest.mark.parametrize(("column", "name"), [(7, "a[0]"), (6, "a[1]"), (1, "a[first]"), (8, "+"), (0, "$")])
def test_a_token_that_stands_still_is_counted_from_the_nearer_end(column, name):
    average = blank()
    average.cross_attention[0, 0, :, column] = 0.9
    assert found_in(average) == {name: pytest.approx(0.9)}


def test_digits_read_from_the_left_and_every_second_digit_are_lines_too():
    average = blank()
    stream, steps = average.stream, torch.arange(WIDTH)
    average.cross_attention[0, 0, steps, steps + 1] = 0.9
    even = torch.arange(4)
    average.cross_attention[0, 1, even, stream.segment("b").tokens([2 * even])] = 0.9
    assert set(found_in(average)) == {"a[first-place]", "b[2place]"}


def test_candidates_begin_with_the_simplest_and_are_all_different():
    stream = get_task("addition").stream(4)
    found = candidates([stream], "digits", True)
    assert len(set(found)) == len(found) and Line(0, "digits", "a", PLACE, (0,)) in found
    assert found[0].follows in ((), ("none",), ("first",))
    assert {line.segment for line in found} == {"a", "b", "$", "+", "&"}


def test_one_causal_sequence_and_several_shapes():
    parts = []
    for width in (3, 5):
        stream = in_one(get_task("addition").stream(width))
        weights = torch.zeros(1, 2, len(stream), len(stream))
        rows = torch.arange(stream.prompt - 1, len(stream))
        tokens = stream.segment("b").tokens([rows - stream.prompt + 1])
        weights[0, 0, rows, tokens] = 0.7
        weights[0, 1, rows, 0] = 0.9
        parts.append(AveragedAttention(stream, weights))
    calibration = calibrate_attention(parts)
    assert [str(f.line) for f in calibration.found] == ["$", "b[place]"]
    (bias,), none = calibration.biases(2)
    assert none == () and bias.attention == "self" and calibration.stream.shape == (5,)


def test_products_find_which_counter_each_operand_follows():
    stream = get_task("multiplication").stream((3, 3))
    kind, row, place = stream.steps_at(torch.arange(len(stream)))
    rows = (kind == stream.kinds.index("products")).nonzero().flatten()
    weights = torch.zeros(1, 3, len(stream), len(stream))
    weights[0, 0, rows, stream.segment("b").tokens([row[rows]])] = 0.9
    a = stream.segment("a").tokens([place[rows]])
    weights[0, 1, rows[a >= 0], a[a >= 0]] = 0.8
    found = calibrate_attention([AveragedAttention(stream, weights)])
    assert [(f.line.step, str(f.line)) for f in found.found] == [("products", "b[row]"), ("products", "a[place]")]


@pytest.mark.parametrize("tau", [0, 1, -0.1, 2.0, "0.2", None])
def test_a_share_that_is_none_is_refused(tau):
    with pytest.raises(ValueError, match="expected a least share tau between 0 and 1"):
        calibrate_attention([blank()], tau)


def test_attention_that_cannot_be_calibrated_is_refused():
    with pytest.raises(ValueError, match="expected averaged attention of at least one shape"):
        calibrate_attention([])
    with pytest.raises(ValueError, match=r"more than 0.1 of a step's attention, found none; take a smaller tau"):
        calibrate_attention([blank()])
    broken = blank()
    broken.cross_attention[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="expected finite attention weights"):
        calibrate_attention([broken])


def test_over_columns_the_first_steps_alone_decide():
    """With six digits padded to twenty places most steps write zeros, and a line of digits is too weak among all."""
    average = blank(width=20)
    for step in range(20):
        column = average.stream.segment("a").tokens([torch.tensor([step])]) if step < 6 else 0
        average.cross_attention[1, 3, step, column] = 1.0
    (whole, first) = (found_in(average.over_columns(steps), 0.35) for steps in (20, 6))
    assert list(whole) == ["column[first]"] and list(first) == ["column[place+22]"]
    assert first["column[place+22]"] == pytest.approx(1.0)
