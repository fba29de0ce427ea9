import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.lines.biases import Biases, causal
from abcnb.lines.coordinates import Columns, in_one
from abcnb.lines.line import FOLLOWS, Line, LineBias, by_hand, dealt, in_first_layer, windows
from abcnb.model.layers import gathered
from abcnb.pipeline import lines_by_hand
from abcnb.tasks.task import get_task
from abcnb.tasks.training_data import TrainingData

INF = float("inf")
ADD = get_task("addition").stream(2)  # $ a1 a0 + b1 b0 &, then $ y0 y1
PLACE = ("place",)


def opened(bias, stream, crossing=False):
    """For each head and row the columns that are open."""
    found = bias(torch.arange(len(stream)), stream.columns(crossing=crossing))
    return [[row.nonzero().flatten().tolist() for row in head == 0] for head in found]


@pytest.mark.parametrize(
    "line, columns",
    [
        (Line(0, "digits", "a", PLACE, (0,)), [2, 1, 0]),  # past its last digit, the token left of it
        (Line(0, "digits", "a", PLACE, (-1,)), [3, 2, 1]),  # before its units, the token right of it
        (Line(0, "digits", "b", PLACE, (0,)), [5, 4, 3]),
        (Line(0, "digits", "b", PLACE, (1,)), [4, 3, 0]),  # nowhere at the last step: the start token
        (Line(0, "digits", "b", ("first-place",), (0,)), [4, 5, 6]),
        (Line(0, "digits", "a", ("2place",), (-1,)), [3, 1, 0]),
        (Line(0, "digits", "a", ("none",), (1,)), [1, 1, 1]),
        (Line(0, "digits", "a", ("first",), (1,)), [2, 2, 2]),
        (Line(0, "digits", "+"), [3, 3, 3]),
    ],
)
def test_lines_of_the_natural_form_by_hand(line, columns):
    assert opened(LineBias("cross", 1, (line,)), ADD, True) == [[[column] for column in columns]]


def test_lines_of_the_aligned_form_by_hand():
    stream = get_task("addition").stream(2, "aligned")  # $ + a1 b1 a0 b0 &
    lines = tuple(
        Line(h, "digits", name, PLACE, (offset,)) for h, (name, offset) in enumerate((("a", 0), ("b", -1)))
    )
    assert opened(LineBias("cross", 2, lines), stream, True) == [[[4], [2], [1]], [[6], [5], [3]]]


def test_the_single_digit_of_n_by_1_has_a_line_of_its_own():
    stream = get_task("n-by-1").stream(2)  # $ a1 a0 * b &
    assert opened(LineBias("cross", 1, (Line(0, "digits", "b"),)), stream, True) == [[[4], [4], [4]]]


def test_self_attention_by_hand():
    own, before, start = (Line(0, "digits", "digits", PLACE, (n,)) for n in (-1, -2, -3))
    assert opened(LineBias("self", 1, (own,)), ADD) == [[[0], [1], [2]]]
    assert opened(LineBias("self", 1, (before,)), ADD) == [[[0], [0], [1]]]
    assert opened(LineBias("self", 1, (start, Line(0, "digits", "start"))), ADD) == [[[0], [0], [0]]]
    ahead = Line(0, "digits", "digits", PLACE, (0,))  # what a step writes lies in the future
    assert opened(LineBias("self", 1, (ahead,)), ADD) == [[[0], [0], [0]]]


def test_one_causal_sequence_by_hand():
    stream = in_one(ADD)  # $ a1 a0 + b1 b0 = y0 y1
    line = Line(0, "digits", "b", PLACE, (0,))
    assert opened(LineBias("self", 1, (line,)), stream) == [[[0]] * 6 + [[5], [4], [3]]]
    with pytest.raises(ValueError, match="expected the stream of an encoder-decoder"):
        LineBias("cross", 1, (line,)).open_tokens(torch.arange(3), stream)


def test_products_by_hand():
    task = get_task("multiplication")
    stream = task.stream((2, 1))  # $12*3=630+630*&: tokens 6 to 8 and 9, 10 to 12 and 13
    line = Line(0, "sums", "products", ("row", "place"), (0, 0))
    above = Line(1, "sums", "sums", ("row", "place"), (-1, 1))
    found = opened(LineBias("self", 2, (line, above)), stream)
    first = stream.segment("products").start
    assert found[0][stream.prompt + 3 : stream.prompt + 6] == [[first], [first + 1], [first + 2]]
    assert found[1] == [[0]] * len(stream), "there is no row before the first, and the other kinds have no line"


lines_of_addition = st.builds(
    lambda head, name, follows, offset: Line(head, "digits", name, (follows,), (offset,)),
    st.integers(0, 1),
    st.sampled_from(["a", "b"]),
    st.sampled_from([f for f in FOLLOWS if "row" not in f]),
    st.integers(-8, 8),
)


@settings(max_examples=60)
@given(st.lists(lines_of_addition, max_size=5), st.integers(1, 6), st.data())
def test_dense_and_open_tokens_agree_and_no_row_is_empty(lines, width, data):
    stream = get_task("addition").stream(width)
    bias, rows = LineBias("cross", 2, tuple(lines)), torch.arange(stream.rows)
    found, dense = bias.open_tokens(rows, stream), bias(rows, stream.columns(crossing=True))
    for head in range(2):
        for row in rows.tolist():
            listed = [token for token in found[head, row].tolist() if token >= 0]
            assert listed and len(set(listed)) == len(listed)
            assert dense[head, row].eq(0).nonzero().flatten().tolist() == sorted(listed)
    some = sorted(data.draw(st.sets(st.integers(0, stream.source - 1), min_size=1)))
    part = Columns(stream, torch.tensor(some), crossing=True)
    assert torch.equal(bias(rows, part), dense[..., some])


@settings(max_examples=40)
@given(st.lists(lines_of_addition, max_size=4))
def test_lines_are_written_and_read_again(tmp_path_factory, lines):
    file = tmp_path_factory.mktemp("lines") / "cross.json"
    bias = LineBias("cross", 2, tuple(lines))
    bias.save(file)
    assert LineBias.load(file) == bias


LINES = ('{"x": 1}', '"a"', "[1]", "1", "null")  # that are none


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 100_000,
        "\x00",
        *(f'{{"attention": "cross", "heads": 1, "lines": [{line}]}}' for line in LINES),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "cross.json").write_text(text)
    with pytest.raises(ValueError, match="expected the lines of a LineBias as JSON"):
        LineBias.load(tmp_path / "cross.json")


@pytest.mark.parametrize(
    "line, printed",
    [
        (Line(0, "digits", "a", PLACE, (0,)), "a[place]"),
        (Line(0, "digits", "a", PLACE, (-1,)), "a[place-1]"),
        (Line(0, "digits", "a", ("first-place",), (1,)), "a[first-place-1]"),
        (Line(0, "digits", "a", ("first",), (0,)), "a[first]"),
        (Line(0, "digits", "a", ("none",), (3,)), "a[3]"),
        (Line(0, "sums", "sums", ("row", "place"), (-1, 1)), "sums[row-1, place+1]"),
        (Line(0, "digits", "$"), "$"),
    ],
)
def test_lines_print_as_they_are_read(line, printed):
    assert str(line) == printed


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: LineBias("both", 1, ()), "expected an attention"),
        (lambda: LineBias("self", "2", ()), "expected heads as a whole number of at least 1, got '2'"),
        (
            lambda: dealt("self", 0, [Line(0, "digits", "$")]),
            "expected heads as a whole number of at least 1, got 0",
        ),
        (lambda: windows(ADD, 8, -1), "expected w ≥ 0 and sides"),
        (lambda: windows(ADD, 8, 1, "left"), "got 1 and 'left'"),
        (lambda: windows(in_one(ADD), 2), "expected the stream of an encoder-decoder for windows"),
        (lambda: windows(get_task("duplicate-string").stream(3), 2), "with one output, got outputs first, second"),
        (lambda: LineBias("self", 1, (Line(1, "digits", "$"),)), "expected a head from 0 to 0"),
        (lambda: LineBias("self", 1, (Line(0, "digits", "a", ("column",), (0,)),)), "expected counters among"),
        (lambda: LineBias("self", 1, (Line(0, "digits", "a", PLACE, ()),)), "a whole offset for each"),
        (lambda: LineBias("self", 1, (Line(0, "digits", "a", PLACE, (0.5,)),)), "a whole offset for each"),
    ],
)
def test_lines_that_cannot_be_are_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(
    "attention, line, told",
    [
        ("cross", Line(0, "digits", "c", PLACE, (0,)), "expected a segment among a, b"),
        ("cross", Line(0, "digits", "a"), "expected a counter for each of 1 coordinates"),
        ("self", Line(0, "digits", "a", PLACE, (0,)), "expected lines to tokens that this attention sees"),
        ("cross", Line(0, "sums", "a", PLACE, (0,)), "expected lines of steps among digits"),
    ],
)
def test_lines_of_another_task_are_refused(attention, line, told):
    with pytest.raises(ValueError, match=told):
        LineBias(attention, 1, (line,)).open_tokens(torch.arange(3), ADD)


# --- by hand, and dealt


def test_the_papers_windows_by_hand():
    (own,), (cross,) = windows(ADD, 2, 1)
    assert opened(own, ADD) == [[[0], [0, 1], [1, 2]]] * 2
    assert opened(cross, ADD, True) == [[[2, 3, 5, 6], [1, 2, 4, 5], [0, 1, 3, 4]]] * 2
    _, (both,) = windows(get_task("successor").stream(3), 1, 1, "both")  # $ a2 a1 a0 &
    assert opened(both, get_task("successor").stream(3), True) == [[[2, 3, 4], [1, 2, 3], [0, 1, 2], [0, 1]]]


def test_lines_are_dealt_one_to_a_head_and_from_the_first_again():
    first, second, third = (Line(7, "digits", "a", PLACE, (n,)) for n in range(3))
    of_four = dealt("cross", 4, [first, second, third, second])
    assert [(line.head, line.offset) for line in of_four.lines] == [(0, (0,)), (1, (1,)), (2, (2,)), (3, (0,))]
    of_two = dealt("cross", 2, [first, second, third])
    assert [(line.head, line.offset) for line in of_two.lines] == [(0, (0,)), (1, (1,)), (0, (2,))]
    assert (of_four.most, of_two.most) == (1, 2)


def test_lines_by_hand_are_those_of_the_task():
    selves, crosses = by_hand(ADD, 4, get_task("addition").lines_by_hand)
    assert [str(line) for line in crosses[0].lines] == ["a[place]", "a[place-1]", "b[place]", "b[place-1]"]
    assert {str(line) for line in selves[0].lines} == {"digits[place-1]", "digits[place-2]"}
    (one,), none = by_hand(in_one(ADD), 6, get_task("addition").lines_by_hand)
    assert none == () and len({str(line) for line in one.lines}) == 6


def test_lines_in_the_first_layer_alone_leave_the_others_the_start_token():
    biases = by_hand(ADD, 4, get_task("addition").lines_by_hand)
    for name, part, whole in zip(("self", "cross"), in_first_layer(biases, 3), biases, strict=True):
        assert part[:1] == whole and len(part) == 3 and part[1] == part[2]
        assert opened(part[2], ADD, name == "cross") == [[[0]] * len(ADD)] * 4
    assert in_first_layer(biases, 1) == biases
    assert in_first_layer(by_hand(in_one(ADD), 4, get_task("addition").lines_by_hand), 2).cross_biases == ()
    for other in (Biases((causal,)), in_first_layer(biases, 2)):
        with pytest.raises(ValueError, match="the same in all layers"):
            in_first_layer(other, 2)


@pytest.mark.parametrize("task, one_stream", [("n-by-1", False), ("addition", True), ("many-addition", True)])
def test_attention_with_one_line_a_head_is_a_gather(task, one_stream):
    data = TrainingData(task, one_stream=one_stream)
    rows, selves_and_crosses = torch.arange(len(data.stream)), lines_by_hand(data)
    for bias in (*selves_and_crosses.self_biases, *selves_and_crosses.cross_biases):
        columns = data.stream.columns(crossing=bias.attention == "cross")
        query = torch.randn(2, bias.heads, len(rows), 4)
        key, value = torch.randn(2, 2, bias.heads, len(columns), 4)
        masked = F.scaled_dot_product_attention(query, key, value, attn_mask=bias(rows, columns))
        opened = bias.open_tokens(rows, data.stream)
        assert bias.most == 1
        for head in range(bias.heads):
            torch.testing.assert_close(masked[:, head], value[:, head, opened[head, :, 0]])
        ours, theirs = (value.clone().requires_grad_() for _ in range(2))
        copied, plain = gathered(ours, opened), theirs.gather(2, opened[None].expand(2, -1, -1, 4))
        for mixed in (copied, plain):
            mixed.backward(query)
        # To the bit: what was trained with `Tensor.gather` comes out again.
        assert torch.equal(copied, plain) and torch.equal(ours.grad, theirs.grad)
