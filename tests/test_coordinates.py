import pytest
import torch

from abcnb.lines.algorithm1 import columns_on
from abcnb.lines.coordinates import NO_PLACE, Columns, in_one, of_matrix
from abcnb.lines.line import Line, LineBias
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import decode


def text_of(task, text, form="natural"):
    batch = get_task(task).batch(get_task(task).parse(text), form)
    return decode(batch.source[0]), batch.stream


@pytest.mark.parametrize(
    "task, text, form, expected",
    [
        ("addition", "12+34", "natural", {"a": "210", "b": "430", "$": "$", "+": "+", "&": "&"}),
        ("addition", "12+34", "aligned", {"a": "210", "b": "430", "$": "$", "+": "+", "&": "&"}),
        ("n-by-1", "12*3", "natural", {"a": "210", "b": "3", "$": "$", "*": "*", "&": "&"}),
        ("n-by-1", "12*3", "aligned", {"a": "210", "b": "333", "$": "$", "*": "*", "&": "&"}),
        ("successor", "12", "natural", {"a": "210", "$": "$", "&": "&"}),
        ("listops-sm", "%12", "natural", {"a": "210", "$": "$", "%": "%", "&": "&"}),
    ],
)
def test_every_token_of_a_source_is_in_one_segment(task, text, form, expected):
    source, stream = text_of(task, text, form)
    crossed = [s for s in stream.segments if stream.is_crossed(s.name)]
    assert {s.name: "".join(source[t] for t in s.tokens(s.grid()).tolist()) for s in crossed} == expected
    tokens = torch.cat([s.tokens(s.grid()) for s in crossed])
    assert sorted(tokens.tolist()) == list(range(len(source))) and stream.source == len(source)


def test_the_token_beside_an_operand_has_the_next_place():
    source, stream = text_of("addition", "12+34")  # $012+034&
    beyond = {a.name: [source[t] for t in a.tokens([torch.tensor([-1, 3])]).tolist()] for a in stream.operands}
    assert beyond == {"a": ["+", "$"], "b": ["&", "+"]}
    source, stream = text_of("addition", "12+34", "aligned")  # $+00134 …
    beyond = {a.name: [source[t] for t in a.tokens([torch.tensor([-1, 3])]).tolist()] for a in stream.operands}
    assert beyond == {"a": ["&", "+"], "b": ["&", "+"]}
    assert stream.operands[0].tokens([torch.tensor([-2, 4])]).tolist() == [-1, -1]


def test_one_causal_sequence_is_the_same_input_with_an_equality_sign():
    _, split = text_of("addition", "12+34")  # $012+034& and $640&
    one = in_one(split)  # $012+034=640&
    assert (one.source, one.prompt, len(one), one.rows) == (0, 9, 12, 4) and in_one(one) is one
    assert [s.name for s in one.segments] == ["a", "b", "$", "+", "=", "digits"]
    assert one.segment("=").start == 8 and one.segment("digits").start == 9
    assert (split.prompt, len(split), split.segment("start").start) == (10, 4, 9)
    kind, _, place = one.steps_at(torch.arange(12))
    assert kind.tolist() == [-1] * 8 + [0] * 4 and place[8:].tolist() == [0, 1, 2, 3]
    assert split.steps_at(torch.arange(4))[2].tolist() == [0, 1, 2, 3]


def test_places_of_digits_and_of_nothing_else():
    N = NO_PLACE
    _, stream = text_of("addition", "12+34")
    assert stream.own_places[:9].tolist() == [N, 2, 1, 0, N, 2, 1, 0, N]
    assert stream.own_places[9:].tolist() == [N, 0, 1, 2]  # the start token, and what is written
    part = Columns(stream, torch.tensor([1, 4]), crossing=True)
    assert stream.own_places[part.tokens].tolist() == [2, N] and part.total == 9 and len(part) == 2
    assert stream.columns().tokens.tolist() == [9, 10, 11, 12]


def test_what_is_not_there_is_refused():
    stream = get_task("addition").stream(3)
    with pytest.raises(ValueError, match=r"expected a segment among a, b, .*got 'c'; use lines on the task"):
        stream.segment("c")
    with pytest.raises(ValueError, match="expected a width of at least 1 digit, got 0"):
        get_task("addition").stream(0)


@pytest.mark.parametrize("direction", [-2, -1, 0, 1, 2])
def test_lines_over_matrix_columns_are_those_of_algorithm_1(direction):
    follows = {-2: "2place", -1: "place", 0: "none", 1: "first-place", 2: "first-2place"}[direction]
    matrix = of_matrix(get_task("addition").stream(5))
    assert {(s.name, s.shape) for s in matrix.segments} == {("column", (13,)), ("start", ()), ("digits", (6,))}
    rows = torch.arange(matrix.rows)
    for offset in (-3, 0, 4):
        bias = LineBias("cross", 1, (Line(0, "digits", "column", (follows,), (offset,)),))
        ours = bias.on_lines(rows, matrix)
        theirs = columns_on(direction, torch.tensor([offset if direction else 12 - offset]), rows, 13)
        assert ours[0, :, 0].tolist() == theirs[0].tolist()
        assert torch.equal(ours, bias.on_lines(rows, get_task("addition").stream(5)))
