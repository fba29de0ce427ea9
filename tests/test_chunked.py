import random
from dataclasses import replace

import pytest
import torch
from abcnb.layout import Steps
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb import evaluation
from abcnb.biases import ALiBi
from abcnb.configs import ModelConfig
from abcnb.decoding import count_errors_in_chunks
from abcnb.evaluation import count_errors
from abcnb.lines import Line, LineBias, cross_window, self_window
from abcnb.model import Transformer
from abcnb.tasks import get_task

SMALL = ModelConfig(d_model=32, d_ff=64, heads=2, decoder_layers=2, position="none")


def make_model(task, selves, crosses, layers=2, position="none", **settings):
    config = replace(SMALL, decoder_layers=layers, position=position, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Transformer(config, task.vocabulary_size, tuple(selves), tuple(crosses)).eval()


def operands_of(task, width, samples=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    widths = [n - 1 if n == width else n for n in task.widths(width)]  # room for the result
    drawn = tuple(torch.randint(task.base, (samples, n), generator=generator) for n in widths)
    return task.widened(drawn, width)


def in_chunks(model, task, operands, form, chunk):
    """Errors, the logits of every counted step, and the most steps in one pass."""
    logits, most = [], 0
    total = task.batch(operands, form).target.shape[1]
    decode = type(model).run_decoder

    def spy(x, rows, *rest):
        nonlocal most
        found, kept = decode(model, x, rows, *rest)
        start = len(torch.cat(logits, 1)[0]) if logits else 0
        counted = (rows >= start) & (rows < min(start + chunk, total))
        logits.append(found[:, counted])
        most = max(most, len(rows))
        return found, kept

    model.run_decoder = spy
    try:
        errors = count_errors_in_chunks(model, task, operands, form, chunk)
    finally:
        del model.run_decoder
    return errors, torch.cat(logits, 1), most


def assert_chunks_are_exact(model, task, operands, form, chunk):
    """Not only the errors, also the logits: an untrained model is wrong nearly everywhere anyhow."""
    batch = task.batch(operands, form)
    with torch.no_grad():
        whole = model(batch)
    errors, logits, most = in_chunks(model, task, operands, form, chunk)
    torch.testing.assert_close(logits, whole, atol=2e-5, rtol=2e-4)
    assert torch.equal(errors, count_errors(model, task, operands, form))
    return most


@pytest.mark.parametrize("position", ["none", "cyclic-places", "cyclic-columns", "sinusoidal"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name, form", [("successor", "natural"), ("addition", "aligned"), ("n-by-1", "natural")])
def test_chunks_are_exact_with_abs_windows(position, layers, name, form):
    task = get_task(name)
    operands = operands_of(task, 30)
    segments = task.layout(30, form).segments
    for w, sides in ((1, "past"), (2, "both")):
        model = make_model(task, [self_window(2, w)], [cross_window(2, segments, w, sides)], layers, position)
        for chunk in (1, 7, 16, 31, 1000):
            most = assert_chunks_are_exact(model, task, operands, form, chunk)
            assert most <= min(31, chunk + layers * w)


@st.composite
def chunked_cases(draw):
    layers = draw(st.integers(1, 3))
    name, form = draw(
        st.sampled_from(
            [("successor", "natural"), ("addition", "natural"), ("addition", "aligned"), ("n-by-1", "natural")]
        )
    )
    width = draw(st.integers(3, 14))
    segments = get_task(name).layout(width, form).segments

    def bias(attention):
        def line(head):
            # Reachable offsets: a line that misses the whole matrix is a case of its own below.
            direction = draw(st.integers(-2, 2))
            segment = draw(st.integers(0, segments - 1)) if attention == "cross" else 0
            frame = draw(st.sampled_from(["columns", "places"]))
            offset = draw(st.integers(-4, 4)) if direction else draw(st.integers(0, width))
            return Line(head, frame, direction, segment, offset, draw(st.floats(-2, 2)))

        lines = [line(head) for head in (0, 1) for _ in range(draw(st.integers(1, 3)))]
        return LineBias(attention, 2, tuple(lines), "nearest")

    selves, crosses = (
        tuple(bias(attention) for _ in range(draw(st.sampled_from([1, layers]))))
        for attention in ("self", "cross")
    )
    position = draw(st.sampled_from(["none", "cyclic-places", "cyclic-columns", "sinusoidal"]))
    chunk = draw(st.sampled_from([1, 2, 3, 5, 8]))
    return name, form, width, layers, selves, crosses, position, chunk


def leaves_a_row_open(bias, rows, columns):
    heads, where, _ = bias.open_cells(rows, columns)
    reached = {
        (h, r) for h, line in zip(heads.tolist(), where, strict=True) for r in rows.tolist() if line[r] >= 0
    }
    return len(reached) < bias.heads * len(rows)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chunked_cases())
def test_chunks_are_exact_with_any_lines(case):
    name, form, width, layers, selves, crosses, position, chunk = case
    task = get_task(name)
    operands = operands_of(task, width)
    model = make_model(task, selves, crosses, layers, position)
    rows = torch.arange(width + 1)
    unreachable = any(leaves_a_row_open(bias, rows, Steps.all(width + 1)) for bias in selves) or any(
        leaves_a_row_open(bias, rows, task.layout(width, form)) for bias in crosses
    )
    if unreachable:
        with pytest.raises(ValueError, match="chunked evaluation needs every row to open finitely many columns"):
            count_errors_in_chunks(model, task, operands, form, chunk)
    else:
        assert_chunks_are_exact(model, task, operands, form, chunk)


def test_chunks_are_exact_where_the_layers_look_back_differently():
    """The top layer looks at step 9, and the layer below it shows step 9 the step before that."""
    task = get_task("successor")
    below = LineBias("self", 2, tuple(Line(head, "columns", 1, 0, -3) for head in (0, 1)))
    top = LineBias("self", 2, tuple(Line(head, "columns", 0, 0, 9) for head in (0, 1)))
    cross = (cross_window(2, 1),)
    for selves in ((below, top), (top, below)):
        model = make_model(task, selves, cross, layers=2)
        assert_chunks_are_exact(model, task, operands_of(task, 30), "natural", 5)


@pytest.mark.parametrize("name", ["parity", "parity-classification", "listops-sm"])
def test_chunks_are_exact_for_other_tasks(name):
    task = get_task(name)
    # Classification writes one token; its window must still reach the source.
    model = make_model(task, [self_window(2)], [cross_window(2, 1)], position="cyclic-places")
    assert_chunks_are_exact(model, task, operands_of(task, 12), "natural", 4)


def test_chunks_count_the_steps_of_a_classification():
    task = get_task("parity-classification")
    early = LineBias("self", 2, tuple(Line(head, "columns", -1, 0, 3) for head in range(2)), "transparent")
    with pytest.raises(ValueError, match="leaves row 0 open to all"):
        count_errors_in_chunks(
            make_model(task, [early], [cross_window(2, 1)]), task, operands_of(task, 12), "natural", 4
        )


def test_chunks_accept_transparent_rows_where_there_are_none():
    task = get_task("successor")
    windows = self_window(2), cross_window(2, 1)
    model = make_model(task, *([replace(window, closed_rows="transparent")] for window in windows))
    assert_chunks_are_exact(model, task, operands_of(task, 12), "natural", 5)


def one_line(error):
    text = str(error.value)
    return text.startswith("chunked evaluation needs ") and "\n" not in text


@pytest.mark.parametrize(
    "selves, crosses, told",
    [
        ([LineBias("self", 2, (Line(0, "places", 1, 0, 0),))], [cross_window(2, 1)], "head 1 is transparent"),
        ([self_window(2)], [LineBias("cross", 2, (Line(1, "places", -1, 0, 0),))], "head 0 is transparent"),
        ([ALiBi(2)], [cross_window(2, 1)], "self-attention has"),
        ([], [cross_window(2, 1)], "self-attention has"),
        ([self_window(2)], [], "cross-attention has"),
        ([self_window(2), ALiBi(2)], [cross_window(2, 1)], "self-attention has"),
    ],
)
def test_chunks_refuse_what_is_not_made_of_lines(selves, crosses, told):
    task = get_task("successor")
    with pytest.raises(ValueError) as error:
        count_errors_in_chunks(make_model(task, selves, crosses), task, operands_of(task, 12), "natural", 5)
    assert told in str(error.value) and one_line(error)


@pytest.mark.parametrize("attention", ["self", "cross"])
def test_chunks_refuse_a_row_open_to_all(attention):
    task = get_task("successor")
    late = LineBias(  # head 1 begins only at row 4
        attention, 2, (Line(0, "columns", 1, 0, 0), Line(1, "columns", 1, 0, -4)), "transparent"
    )
    selves, crosses = ([late], [cross_window(2, 1)]) if attention == "self" else ([self_window(2)], [late])
    with pytest.raises(ValueError, match=f"{attention}-attention head 1 leaves row 0 open to all") as error:
        count_errors_in_chunks(make_model(task, selves, crosses), task, operands_of(task, 12), "natural", 5)
    assert one_line(error)


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"position": "rotary"}, "'rotary'"),
        ({"position": "relative"}, "'relative'"),
        ({"encoder_layers": 1}, "identity encoder"),
    ],
)
def test_chunks_refuse_models_that_look_at_everything(settings, told):
    task = get_task("successor")
    model = make_model(task, [self_window(2)], [cross_window(2, 1)], **settings)
    with pytest.raises(ValueError, match=told) as error:
        count_errors_in_chunks(model, task, operands_of(task, 12), "natural", 5)
    assert one_line(error)


def test_twenty_thousand_digits_take_the_memory_of_one_chunk(successors):
    """Two layers of w = 1 look two steps back, and no pass holds more than a chunk and those two."""
    task, models = successors
    model = models["half-trained"]
    draw = random.Random(0)
    operands = (torch.tensor([[draw.randrange(10) for _ in range(20_000)]]),)
    errors, logits, most = in_chunks(model, task, operands, "natural", 1024)
    assert most == 1024 + 2
    assert logits.shape[1] == 20_001
    target = task.batch(operands).target
    assert torch.equal(errors, (logits.argmax(-1) != target).sum(1))
    other, _, most = in_chunks(model, task, operands, "natural", 777)
    assert most == 777 + 2
    assert torch.equal(errors, other)
    # The place-wise model does on 20,000 digits what it does on 200 of them: wrong here and there.
    assert (errors > 0).all() and (errors < 20_001).all()


LATE = tuple(Line(head, "columns", 1, 0, -4) for head in (0, 1))  # reaches no row before the fifth


@pytest.mark.parametrize(
    "selves, crosses, chunked",
    [
        ([self_window(2)], [cross_window(2, 1)], True),
        ([ALiBi(2)], [], False),
        # Calibrated in the paper's frame: every head has a line, some rows are open to all.
        ([self_window(2)], [LineBias("cross", 2, LATE, "transparent")], None),
    ],
)
def test_long_outputs_are_counted_in_chunks_where_that_is_exact(monkeypatch, selves, crosses, chunked):
    task = get_task("successor")
    model = make_model(task, selves, crosses)
    operands = operands_of(task, 30)
    whole = count_errors(model, task, operands, "natural")
    steps, run_decoder = [], model.run_decoder
    monkeypatch.setattr(
        model, "run_decoder", lambda x, rows, *rest: steps.append(len(rows)) or run_decoder(x, rows, *rest)
    )
    monkeypatch.setattr(evaluation, "LONG", 5)
    for tokens_a_sample, size in ((1, 5), (8, 8)):  # few samples are counted in longer chunks
        tokens = int(tokens_a_sample * len(operands[0]))
        monkeypatch.setattr(evaluation, "TOKENS_PER_PASS", {"cpu": tokens})
        assert torch.equal(count_errors(model, task, operands, "natural"), whole)
        if chunked is not None:  # two layers of windows look two steps back
            assert max(steps) == (size + 2 if chunked else 31)
        steps.clear()
