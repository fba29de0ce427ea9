"""A line of a stream as text, in settings and back."""

import pytest
from abcnb.counters import CounterLine
from hypothesis import given, settings

from abcnb.study.line_text import line_of_text, text_of_line
from abcnb.study.methods import experiment, settings_of
from abcnb.study.runs import written_biases
from abcnb.study.settings import with_settings
from tests.test_counters import LINE, PRODUCT, opened

ABOVE = "sums:products[row-1,place+1]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ABOVE, CounterLine(0, "sums", "products", ("row", "place"), (-1, 1))),
        ("sums-end:b[row+1]", CounterLine(0, "sums end", "b", ("row",), (1,))),
        ("products:b[-1]", CounterLine(0, "products", "b", ("none",), (-1,))),
        ("products:a[0]", CounterLine(0, "products", "a", ("none",), (0,))),
        ("sums:products-end[row]", CounterLine(0, "sums", "products end", ("row",), (0,))),
        ("products:*", CounterLine(0, "products", "*")),
    ],
)
def test_a_text_names_a_line(text, line):
    assert line_of_text(text, PRODUCT.layout(2)) == line and text_of_line(line) == text


@pytest.mark.parametrize(
    ("task", "text"), [("many-addition", "sums:terms[row,place+1]"), ("nested", "values:items[row,place-1]")]
)
def test_every_task_in_rows_takes_a_line(task, text):
    e = with_settings(experiment(task, "abs-place"), [f"added_line={text}"])
    lines = written_biases(e).self_biases[0].lines
    assert text in [text_of_line(line) for line in lines]


@settings(max_examples=60, deadline=None)
@given(line=LINE)
def test_every_line_is_read_back(line):
    text = text_of_line(line)
    assert " " not in text and line_of_text(text, PRODUCT.layout(3)) == line._replace(head=0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a[place]", "expected a line such as sums:products"),
        ("sums:a[place", "expected a line such as sums:products"),
        ("total:a[place]", "expected a kind of step among products, products-end, sums, sums-end, got 'total'"),
        ("sums:terms[row,place]", "expected a segment among a, b, .*, got 'terms'"),
        ("sums:products[row]", "expected 2 coordinates of products, such as row, place-1 or 2, without spaces or"),
        ("sums:products[row-1, place+1]", "expected 2 coordinates of products, .*, without spaces"),
        ("sums:a[place+0]", "expected 1 coordinates of a, .* or \\+0, got 'sums:a"),
        ("sums:a[column]", "expected 1 coordinates of a"),
        ("sums:*[row]", "expected \\* without coordinates, got 'sums:"),
        ("sums:products[row,place]", "expected an added_line that is not by hand already, got 'sums:products"),
    ],
)
def test_a_text_that_names_no_line_is_refused_before_anything_is_trained(text, told):
    with pytest.raises(ValueError, match=told):
        with_settings(experiment("multiplication", "abs-place"), [f"added_line={text}"])


def test_a_line_is_added_to_lines_by_hand_alone():
    with pytest.raises(
        ValueError, match="expected an added_line only beside lines by hand, got bias 'calibrated'"
    ):
        with_settings(experiment("multiplication", "abc-places"), [f"added_line={ABOVE}"])


def test_the_added_line_has_a_head_after_the_others():
    frozen = experiment("multiplication", "abs-place")
    changed = with_settings(frozen, [f"added_line={ABOVE}"])
    assert settings_of(changed) == f"added_line={ABOVE}" and changed.digest != frozen.digest
    before, after = (written_biases(e).self_biases[0].lines for e in (frozen, changed))
    of_sums = [str(line) for line in after if line.step == "sums"]
    by_hand = ["products[row, place]", "products[row, place-1]", "sums[row-1, place+1]", "sums[row-1, place]"]
    assert of_sums == [*by_hand, "products[row-1, place+1]", *by_hand[:3]]
    assert [line for line in after if line.step != "sums"] == [line for line in before if line.step != "sums"]
    # 123 × 45 in rows: 5160+5160*2940+3550*. The second row of sums opens 160+, the products of the row before from
    # place 1 on; the first row of sums has none before it.
    (added,) = {line._replace(head=0) for line in after} - {line._replace(head=0) for line in before}
    assert opened(added, PRODUCT.layout((3, 2)), "sums") == "....160+"
