import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.lines.line import by_hand
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import check_lengths
from abcnb.tasks.nested import OPERATORS, TRAIN_DEPTH, outline, random_shape
from abcnb.tasks.task import get_task
from abcnb.tasks.testsets import test_cases as cases_of
from abcnb.tasks.tokens import decode
from abcnb.tasks.training_data import TrainingData
from tests.little import one_sequence

TASK = get_task("nested")
OF = {"%": lambda values: sum(values) % 10, ">": max, "<": min}


def value_of(tree):
    return tree if isinstance(tree, int) else OF[tree[0]]([value_of(item) for item in tree[1]])


def text_of(tree):
    return str(tree) if isinstance(tree, int) else f"[{tree[0]}{''.join(map(text_of, tree[1]))}]"


def depth_of(text):
    depth = most = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        most = max(most, depth)
    return most


lists = st.recursive(
    st.tuples(st.sampled_from(OPERATORS), st.lists(st.integers(0, 9), min_size=1, max_size=4)),
    lambda inner: st.tuples(
        st.sampled_from(OPERATORS), st.lists(st.one_of(st.integers(0, 9), inner), min_size=1, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(lists)
def test_the_answer_is_the_value_of_the_list(tree):
    batch = TASK.batch(TASK.parse(text_of(tree)))
    assert decode(batch.source[0]) == f"${text_of(tree)}="
    assert TASK.read(decode(batch.target[0])) == str(value_of(tree))
    assert TASK.label(*TASK.parse(text_of(tree))).tolist() == [[value_of(tree)]]
    assert batch.stream.rows == batch.target.shape[1]


def test_the_worked_example():
    batch = TASK.batch(TASK.parse("[%3[>47]2]"))
    text = decode(one_sequence(batch)[0])
    assert text + decode(batch.target[0, -1:]) == "$[%3[>47]2]=47+302+&"
    tokens = {s.name: "".join(text[t] for t in s.tokens(s.grid()).tolist()) for s in batch.stream.segments}
    expected = {"$": "$", "=": "=", "opens": "[[", "operators": ">%", "closes": "]]", "values end": "++"}
    assert tokens == expected | {"items": "47372", "values": "47302"}
    # The item at place 1 of the outer list (row 1) is the inner list: its last value, in the output.
    (item,) = batch.stream.segment("items").tokens([torch.tensor([1]), torch.tensor([1])]).tolist()
    assert item == batch.stream.prompt + 1


def test_digits_beyond_nine_are_letters():
    task = get_task("nested", 16)
    assert decode(task.batch(task.parse("[%3[>4f]2]")).target[0]) == "4f+324+&"  # 3 + 15 = 16 + 2, 2 + 2
    (ids,) = task.drawn((2, 0, 0), 50, torch.Generator().manual_seed(0), "nines")
    assert decode(ids[0])[2:] == "ff]"
    TrainingData(task).train(50, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("text", ["", "3", "[%3", "[%3]]", "[3]", "[%]", "[%3a]", "[%3][%4]", "[+34]"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ValueError, match=r"expected a list such as \[%3\[>47\]2\] .*, got"):
        TASK.parse(text)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 0, 0, 0), (1, 0, 1, 0)])
def test_what_is_no_tree_is_refused(shape):
    with pytest.raises(ValueError, match="expected"):
        outline(shape)


@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("name", ["random", "hard"])
def test_test_sets_have_their_depth(depth, name):
    for operands in cases_of(TASK, depth, 200, name).values():
        texts = [decode(row) for row in operands[0]]
        assert len(set(texts)) == len(texts) > 0
        assert {depth_of(text) for text in texts} == {depth}
        assert TASK.shape_of(TASK.parse(texts[0])) == TASK.shape_of(operands)


def test_validation_is_on_several_trees():
    batches = TrainingData("nested").validation(100, torch.Generator().manual_seed(1))
    assert len({batch.stream.shape for batch in batches}) > 5
    assert sum(len(batch.source) for batch in batches) == 100
    assert {depth_of(decode(batch.source[0])) for batch in batches} == {TRAIN_DEPTH}


def test_nothing_deeper_is_trained_on():
    data, generator = TrainingData("nested"), torch.Generator().manual_seed(0)
    depths = {depth_of(decode(data.train(1, generator).source[0])) for _ in range(100)}
    assert depths == {1, TRAIN_DEPTH}
    with pytest.raises(ValueError, match="expected a width from 1 to 2 lists in one another, got 3"):
        TrainingData("nested", width=3)
    with pytest.raises(ValueError, match="expected numbers 'even' for nested, got 'repeated'"):
        TrainingData("nested", "repeated")


def test_the_lines_by_hand_decide_every_value():
    seen, generator = {}, torch.Generator().manual_seed(0)
    for depth in (1, 2, 3, 4):
        batch = TASK.batch(TASK.drawn(random_shape(depth, generator), 200, generator))
        stream, tokens = batch.stream, one_sequence(batch)
        (bias,) = by_hand(stream, 8, TASK.lines_by_hand).self_biases
        rows = torch.arange(stream.prompt - 1, len(stream))
        opened = bias.open_tokens(rows, stream)[..., 0]
        for step, kind in enumerate(stream.kind.tolist()[:-1]):
            if kind == 0:
                found, target = tokens[:, opened[:, step]].tolist(), batch.target[:, step].tolist()
                assert all(
                    seen.setdefault(tuple(key), value) == value for key, value in zip(found, target, strict=True)
                )
    assert len(seen) > 300


def test_a_calibrated_run(shared_runs):
    run = fit(experiment("nested", "abc", "smoke"), shared_runs, "cpu", progress=False)
    assert run.evaluate(3, 40).samples == 40 and run.biases().self_biases[0].lines
    assert run.attention()[0].stream.segment("items").counters == ("row", "place")


def test_trees_that_are_too_deep_are_refused_before_anything_is_drawn():
    with pytest.raises(ValueError, match="expected lengths of at most 12 for nested, got 60"):
        check_lengths(experiment("nested", "abs"), [6, 60], 100)
