"""Right at every length: windows against inputs, certificates against another script, and models that are wrong."""

import copy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

from abcnb import TrainingData, pipeline
from abcnb.__main__ import app
from abcnb.lines.biases import Biases
from abcnb.lines.line import Line, LineBias, dealt, in_first_layer
from abcnb.proof import certificate, lists, pruning, rows
from abcnb.proof import windows as of_windows
from abcnb.proof.anywhere import anywhere, called, loosened, with_read
from abcnb.proof.certificate import Certificate, Layers, certify, lead
from abcnb.proof.places import DONE, OUTPUT, inputs_with, listed, number_of
from abcnb.proof.pruning import lines_left, prune, short_inputs, without
from abcnb.proof.windows import (
    NOTHING,
    arranged,
    arrangements,
    check_count,
    count_of,
    heads_by_line,
    nodes,
    shown,
    windows_of,
)
from abcnb.study import certificates, results
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.tasks.digits import propagate_carries
from abcnb.tasks.nested import random_shape
from abcnb.tasks.strings import StringTask
from abcnb.tasks.task import FURTHER, Machine, Task, get_task, register
from abcnb.tasks.tokens import IDS, decode, tokens_of
from tests.conftest import copied
from tests.independent_proof import least_lead
from tests.independent_rows import leads as leads_of_sums

MODELS = Path(__file__).parents[1] / "reports" / "models"
BY_HAND = {"parity": "25498318905e", "successor": "76985864133a"}
WINDOWS = {"parity": 36, "successor": 12_230}  # by hand: a step sees four places, of which the lowest is an output
TASKS = ("successor", "addition", "n-by-1", "parity", "listops-sm", "listops-max", "listops-min")


@pytest.fixture(scope="module", autouse=True)
def few_inputs():
    """Fewer than for the tables, to prune on, and to run the closest windows in again."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pruning, "ROWS", 256)
        patched.setattr(pruning, "SHAPES", 16)
        patched.setattr(certificate, "AGAIN", 48)
        patched.setattr(certificates, "TESTED", 40)
        yield


def committed(task):
    run = load_run(MODELS / BY_HAND[task])
    return run.model(), run.experiment.data()


def untrained(task, base=None, one_stream=False, seed=0, mirrored=False):
    """With lines by hand, or with `a[place]` and `a[first-place-1]`, which runs against the steps."""
    data = TrainingData(get_task(task, base), one_stream=one_stream)
    config = replace(pipeline.model_with_lines(data), d_model=16, d_ff=32, heads=8)
    biases = pipeline.lines_by_hand(data, 8)
    if mirrored:
        lines = [Line(0, "digits", "a", (follows,), (n,)) for follows, n in (("place", 0), ("first-place", 1))]
        own = Line(0, "digits", "digits", ("place",), (-1,))
        biases = Biases((dealt("self", 8, [own, *lines]),)) if one_stream else biases
        if not one_stream:
            biases = Biases((dealt("self", 8, [own]),), (dealt("cross", 8, lines),))
    return pipeline.new_model(data.task, config, seed, biases).eval(), data


@given(st.sampled_from(TASKS), st.integers(2, 12), st.integers(1, 9), st.integers(0, 1000))
def test_a_machine_writes_the_label(name, base, width, seed):
    task = get_task(name) if name == "parity" else get_task(name, base)
    draw = torch.Generator().manual_seed(seed)
    operands = [torch.randint(task.base, (20, n), generator=draw) for n in task.widths(width + 1)]
    for operand in operands[: 2 - task.second_is_digit]:
        operand[:, -1] = 0
    state = torch.full((20,), task.machine.starts[0])
    if task.second_is_digit:
        state = operands[1][:, 0] * task.base
    written = []
    for digits in zip(*(operand.T for operand in operands[: task.operands - task.second_is_digit]), strict=True):
        digit, state = task.machine.step(state, *digits)
        written.append(digit)
    assert torch.equal(torch.stack(written, 1), task.label(*operands))


@settings(max_examples=12)
@given(
    st.sampled_from(["addition", "successor", "n-by-1"]),
    st.booleans(),
    st.booleans(),
    st.integers(2, 14),
    st.integers(0, 1000),
)
def test_what_a_step_of_any_input_sees_is_a_window_and_its_logits_are_the_models(
    name, one_stream, mirrored, width, seed
):
    model, data = untrained(name, 3, one_stream, seed % 5, mirrored and name != "n-by-1")
    task, draw = data.task, torch.Generator().manual_seed(seed)
    operands = [torch.randint(3, (8, n), generator=draw) for n in task.widths(width)]
    for operand in operands[: 2 - task.second_is_digit]:
        operand[:, -1] = 0
    batch = task.batch(tuple(operands))
    with torch.no_grad():
        logits = model(batch)
    tokens = of_windows.tokens_of(model, data, width)
    ids = torch.cat([batch.source] * model.crossing + [model.sequence(batch)], 1)
    found = arrangements(model, data)
    for step, node in enumerate(nodes(model, model.stream_of(batch.stream), tokens)):
        right = (OUTPUT, step) if step < width else ("=", IDS["&"])
        kind, apart, read = arranged(node, right, width, number_of(task))
        seen = {token: ids[:, tokens.index((token[0], read[token[1]]))] for token in kind.node.tokens}
        if step < width:
            seen[kind.right] = batch.target[:, step]
        known, _ = found[kind]
        assert all(many or not unread for many, unread in zip(known, apart, strict=True))
        every = windows_of(kind, known)
        listed = set(map(tuple, torch.stack([every[token] for token in sorted(seen)], 1).tolist()))
        assert {tuple(row) for row in torch.stack([seen[t] for t in sorted(seen)], 1).tolist()} <= listed
        with torch.no_grad():
            (again,) = Layers(model).logits(kind.node, {t: d.to(torch.uint8) for t, d in seen.items()})
        torch.testing.assert_close(again, logits[:, step], atol=1e-4, rtol=1e-4)


@settings(max_examples=8)
@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(sorted(of_windows.FOLLOWED)), st.integers(-3, 3)), min_size=2, max_size=5),
    st.integers(70, 90),
)
def test_wider_inputs_show_nothing_new(one_stream, lines, width):
    model, data = untrained("successor", 3, one_stream)
    read = [Line(0, "digits", "a", (follows,), (n,)) for follows, n in lines]
    own = [Line(0, "digits", "digits", (follows,), (-abs(n),)) for follows, n in lines]
    biases = Biases((dealt("self", 10, own),), (dealt("cross", 10, read),))
    if one_stream:
        biases = Biases((dealt("self", 10, own + read),))
    config = replace(model.config, d_model=20, heads=10)
    model = pipeline.new_model(data.task, config, 0, biases).eval()
    found, number = arrangements(model, data), number_of(data.task)
    stream = model.stream_of(data.task.stream(width))
    for step, node in enumerate(nodes(model, stream, of_windows.tokens_of(model, data, width))):
        right = (OUTPUT, step) if step < width else ("=", IDS["&"])
        kind, apart, _ = arranged(node, right, width, number)
        assert all(many or not unread for many, unread in zip(found[kind][0], apart, strict=True))


def test_the_windows_of_an_addition_are_counted_by_hand():
    """Three places of both operands, a carry, and the digit written before them: 3⁶ · 2 · 3 in base 3."""
    model, data = untrained("addition", 3)
    found = arrangements(model, data).items()
    counts = [windows_of(kind, apart) for kind, (apart, _) in found]
    assert max(map(count_of, counts)) == 3**6 * 2 * 3


@pytest.mark.parametrize("task", [pytest.param("successor", marks=pytest.mark.slow), "parity"])
def test_a_committed_model_is_right_at_every_length_and_an_independent_script_agrees(task):
    model, data = committed(task)
    found = certify(model, data, progress=False)
    assert found.holds and found.windows == WINDOWS[task] and not found.wrong
    assert found.margin == pytest.approx(least_lead(MODELS / BY_HAND[task], task), abs=1e-3)
    rows = results.read(MODELS.parent / "results" / "certificates.csv")
    (row,) = rows[(rows["run"] == BY_HAND[task]) & (rows["pruned"] == 0)].itertuples()
    assert (row.outcome, row.windows) == ("correct", found.windows)
    assert row.margin == pytest.approx(found.margin, abs=1e-3)


def is_wrong(model, data, source):
    digits = torch.tensor([[int(c) for c in reversed(source.strip("$&"))]])
    batch = data.task.batch((digits,))
    return bool((model.predictions(batch) != batch.target).any())


@settings(max_examples=4)
@given(st.integers(0, 10_000), st.floats(0.02, 0.6))
def test_a_disturbed_model_is_certified_or_shown_to_be_wrong(seed, much):
    model, data = committed("parity")
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += much * weight.std(correction=0) * torch.randn(weight.shape, generator=draw)
    found = certify(model, data, progress=False)
    if found.wrong:
        assert is_wrong(model, data, found.wrong)
    else:
        bits = torch.tensor([[n >> k & 1 for k in range(9)] for n in range(512)])
        batch = data.task.batch((bits,))
        assert torch.equal(model.predictions(batch), batch.target)


def test_where_a_whole_input_gives_no_numbers_nothing_is_certified(monkeypatch):
    model, data = committed("parity")
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, batch: forward(self, batch) * float("nan"))
    assert str(certify(model, data, progress=False)).startswith("not decided")


@pytest.mark.parametrize("offsets", [{0}, {-1}, {0, -1}])
def test_a_model_without_some_of_its_lines_is_wrong(offsets):
    model, data = committed("successor")
    lines = tuple(line for line in model.cross_biases[0].lines if offsets.isdisjoint(line.offset))
    assert len(lines) < len(model.cross_biases[0].lines)
    biases = Biases(model.self_biases, (LineBias("cross", 16, lines),))
    other = pipeline.new_model(data.task, model.config, 0, biases)
    other.load_state_dict(model.state_dict())
    found = certify(other, data, progress=False)
    assert found.wrong and is_wrong(other, data, found.wrong)


def test_one_window_trained_away_is_found():
    """A model that is right except after 9 and a carry out of it, which a random input seldom has."""
    model, data = committed("successor")
    other = copy.deepcopy(model)
    kind, (apart, (met, _)) = max(arrangements(model, data).items(), key=lambda item: len(item[0].node.tokens))
    rare = {token: digits[:1] for token, digits in windows_of(kind, apart).items()}
    ((batch, _, _),) = shown(data, [met], rare)
    wrong = (batch.target[:, met.step] + 1) % 10
    other.requires_grad_(True)
    optimizer = torch.optim.Adam(other.head.parameters(), 1e-2)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(other(batch)[:, met.step], wrong)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = certify(other.requires_grad_(False), data, progress=False)
    assert found.wrong and is_wrong(other, data, found.wrong)


# Lines that leave the list that a step works out, by the reason.
LEAVING = [
    Line(0, "values", "values", ("row", "place"), (-1, 0)),  # another list
    Line(0, "values", "items", ("row", "row"), (0, -8)),  # of the ninth list the first item, and so on
    Line(0, "values", "items", ("row", "first"), (0, 0)),  # as far as the longest list of the input has items
    Line(0, "values end", "values", ("row", "none"), (0, 3)),  # there is none in a list of two
    Line(0, "values", "="),  # its state has read the first list
    Line(0, "values", "opens", ("row",), (2,)),  # whether there are two more lists
]
STAYING = [
    Line(0, "values", "operators", ("row",), (0,)),
    Line(0, "values", "closes", ("row",), (0,)),
    Line(0, "values", "items", ("row", "place"), (0, 0)),
    Line(0, "values", "values", ("row", "place"), (0, -1)),
]


def of_lists(lines, base=3, seed=0, look_once=True):
    """Untrained, with lines in the first layer alone, or in both."""
    model, data = untrained("nested", base, seed=seed)
    biases = Biases((dealt("self", 8, lines),))
    if look_once:
        biases = in_first_layer(biases, model.config.decoder_layers)
    return pipeline.new_model(data.task, model.config, seed, biases).eval(), data


@settings(max_examples=6)
@given(st.integers(1, 4), st.integers(0, 1000), st.sets(st.sampled_from(LEAVING), max_size=2))
def test_what_a_step_of_nested_lists_sees_is_a_window_and_its_logits_are_the_models(depth, seed, leaving):
    model, data = of_lists(sorted(leaving) + STAYING, seed=seed % 5, look_once=bool(leaving))
    draw = torch.Generator().manual_seed(seed)
    tree = lists.tree_of(random_shape(depth, draw), data.task)
    (ids,) = data.task.drawn(tree.shape, 8, draw)
    batch = data.task.batch((ids,))
    with torch.no_grad():
        logits = model(batch)
    whole = torch.cat([batch.source, batch.target], 1)
    known = {
        case: windows() for case, windows in ((part.args[:4], part) for _, _, part, _ in lists.cases(model, data))
    }
    loose, _ = lists.anything(model, data.task)
    for step, node in enumerate(nodes(model, batch.stream, tree.tokens)):
        node, read = loosened(node, loose[batch.stream.kinds[batch.stream.kind[step]]])
        case, seen = lists.case_of(
            tree, step, with_read(node, {name: called(name, one) for name, one in read.items()})
        )
        kept = [token for token in case[0].tokens]
        numbers = {name: one.reads[0][1] for (name, _), one in read.items()}
        shown = {(name, rank): whole[:, numbers.get(name, seen.numbers[rank])] for name, rank in kept}
        shown = {t: (d[:, None] == lists.KNOWN).long().argmax(1).to(torch.uint8) for t, d in shown.items()}
        if kept:
            listed = set(map(tuple, torch.stack([known[case][token] for token in kept], 1).tolist()))
            assert set(map(tuple, torch.stack([shown[token] for token in kept], 1).tolist())) <= listed
        with torch.no_grad():
            (again,) = Layers(model).logits(case[0], shown or {NOTHING: torch.zeros(8, dtype=torch.uint8)})
        torch.testing.assert_close(again, logits[:, step], atol=1e-4, rtol=1e-4)


def test_the_windows_of_a_list_are_counted_by_hand():
    """With lines by hand a step sees the operator, an item, and the value before, which may be any: 3 · 10 · 10; the
    first step no value before, an end the last value alone, and the end of all nothing."""
    model, data = untrained("nested")
    counts = {len(next(iter(windows().values()))) for _, _, windows, _ in lists.cases(model, data)}
    assert counts == {1, 10, 3 * 10, 3 * 10 * 10}


@pytest.mark.parametrize("line", LEAVING)
def test_a_line_that_leaves_its_list_is_refused_in_two_layers_and_may_read_anything_in_one(line):
    model, data = untrained("nested")
    other = pipeline.new_model(data.task, model.config, 0, Biases((dealt("self", 8, [line]),)))
    with pytest.raises(ValueError, match="expected lines within the list that a step works out, or in the first"):
        certify(other, data)
    other, data = of_lists([line])
    batch = data.task.batch(data.task.parse(certify(other, data, progress=False).wrong.strip("$=")))
    assert (other.predictions(batch) != batch.target).any()


def with_rows(task, base=None, lines=None):
    """Untrained, with lines in the first layer alone: by hand, or these."""
    data = TrainingData(get_task(task, base))
    config = replace(pipeline.model_with_lines(data), d_model=16, d_ff=32, heads=8)
    biases = Biases((dealt("self", 8, lines),)) if lines else pipeline.lines_by_hand(data, 8)
    model = pipeline.new_model(data.task, config, 0, in_first_layer(biases, config.decoder_layers))
    return model.eval(), data


# Beside lines by hand, such as a plain model's attention shows at the ends of rows.
ELSEWHERE = {
    "multiplication": [
        Line(0, "products", "a", ("place",), (0,)),
        Line(0, "products", "b", ("row",), (1,)),
        Line(0, "sums", "products", ("row", "place"), (0, 1)),
        Line(0, "sums", "products", ("none", "place"), (0, 0)),
        Line(0, "sums", "sums", ("row", "first"), (-1, 0)),
        Line(0, "sums end", "products end", ("none",), (1,)),
        Line(0, "sums end", "a", ("first",), (0,)),
        Line(0, "products end", "b", ("first",), (0,)),
    ],
    "many-addition": [
        Line(0, "sums", "terms", ("row", "place"), (0, 0)),
        Line(0, "sums", "sums", ("row", "place"), (-1, -1)),
        Line(0, "sums", "sums", ("none", "first"), (0, 0)),
        Line(0, "sums", "operators", ("row",), (1,)),
        Line(0, "sums", "terms", ("first", "place"), (1, 0)),
        Line(0, "sums end", "terms", ("none", "first"), (0, 0)),
        Line(0, "sums end", "operators", ("first",), (0,)),
        Line(0, "sums end", "sums", ("row", "first"), (0, 1)),
    ],
}


# Lines at no fixed distance: a head may read what they lead to anywhere.
UNFIXED = {
    "multiplication": [
        Line(0, "sums", "sums", ("row", "place"), (-1, 1)),
        Line(0, "sums", "sums", ("row", "first-row"), (0, 1)),
        Line(0, "sums", "a", ("2place",), (0,)),
        Line(0, "products end", "products", ("place", "row"), (-1, 0)),
        Line(0, "products end", "sums end", ("first-row",), (1,)),
        Line(0, "sums end", "sums", ("row", "first-row"), (0, 2)),
        Line(0, "products", "b", ("first-row",), (0,)),
        Line(0, "products", "a", ("place",), (0,)),
    ],
    "many-addition": [
        Line(0, "sums", "terms", ("row", "place"), (0, 0)),
        Line(0, "sums", "terms", ("place", "place"), (0, 0)),  # a row for each place
        Line(0, "sums", "operators", ("place",), (1,)),  # whether there are more terms than places
        Line(0, "sums", "sums", ("first-row", "row"), (1, 0)),
        Line(0, "sums end", "terms", ("row", "row"), (0, -1)),
        Line(0, "sums end", "sums", ("row", "2row"), (0, -1)),
    ],
}


# Rows that are all apart in long outputs alone: from both ends, from the step's, and those beside them.
BEFORE = Line(0, "sums", "sums", ("row", "place"), (-1, 0))
APART = [
    (
        "many-addition",
        [BEFORE, Line(0, "sums", "operators", ("row",), (1,)), Line(0, "sums", "sums", ("none", "place"), (1, 0))],
    ),
    (
        "many-addition",
        [
            BEFORE,
            Line(0, "sums", "sums", ("none", "place"), (2, 0)),
            Line(0, "sums", "sums", ("row", "place"), (-2, 0)),
            Line(0, "sums", "terms", ("row", "place"), (2, 0)),
        ],
    ),
    (
        "many-addition",
        [
            BEFORE,
            Line(0, "sums", "sums", ("none", "place"), (1, 0)),
            Line(0, "sums", "terms", ("first", "place"), (1, 0)),
            Line(0, "sums", "terms", ("row", "place"), (1, 0)),
        ],
    ),
    (
        "multiplication",
        [
            BEFORE,
            Line(0, "sums", "sums", ("none", "place"), (2, 0)),
            Line(0, "sums", "sums", ("row", "place"), (-2, 0)),
            Line(0, "sums", "b", ("row",), (2,)),
        ],
    ),
]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("multiplication", None),
        *ELSEWHERE.items(),
        *UNFIXED.items(),
        *(pytest.param(*case, marks=[pytest.mark.slow] * (n % 2)) for n, case in enumerate(APART)),
    ],
    ids=lambda part: part and str(part)[:20],
)
def test_what_a_step_of_rows_sees_is_a_window_and_its_logits_are_the_models(name, lines):
    model, data = with_rows(name, 2, lines)
    task, draw = data.task, torch.Generator().manual_seed(0)
    listed, loose = {}, rows.anything(model, task)[0]
    for _, _, windows, _ in rows.cases(model, data):
        kind, every = windows.args[0], windows()
        seen = [every[token] for token in sorted({*kind.node.tokens, kind.right}) if token in every]
        together = set(map(tuple, torch.stack(seen, 1).tolist())) if seen else {()}
        listed.setdefault((kind.node, kind.right, kind.number), set()).update(together)
    long = ((30, 2), (2, 30)) if (name, lines) in APART else ()
    for first, second in ((1, 2), (2, 5), (9, 3), (4, 9), (3, 16), *long):
        sizes = task.size(second, first) if task.has_terms else (first, second)
        batch = task.batch(rows.drawn(task, sizes, 16, draw))
        with torch.no_grad():
            logits = model(batch)
        whole, alike = torch.cat([batch.source, batch.target], 1), {}
        for step, (kind, _, seen) in enumerate(rows.steps_of(model, task, sizes, loose)):
            shown = {token: whole[:, number] for token, number in sorted(seen.numbers.items())}
            mine = set(map(tuple, torch.stack([*shown.values()], 1).tolist())) if shown else {()}
            node = with_read(kind.node, seen.read)
            assert mine <= listed[node, kind.right, kind.number]
            shown = shown or {NOTHING: torch.zeros(16, dtype=torch.uint8)}
            alike.setdefault((node, *shown), []).append((*shown.values(), logits[:, step]))
        for (node, *tokens), of_steps in alike.items():
            *shown, expected = map(torch.cat, zip(*of_steps, strict=True))
            with torch.no_grad():
                (again,) = Layers(model).logits(node, dict(zip(tokens, shown, strict=True)))
            torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)


def test_the_padding_of_the_first_sum_is_a_zero_to_all_that_see_it():
    """Steps of the second row see it as a digit of what they add; in later rows it is a constant, not any digit."""
    seen = []
    for node, _, windows, _ in rows.cases(
        *with_rows("many-addition", 2, [Line(0, "sums", "sums", ("none", "first"), (0, 0))])
    ):
        assert rows.FREE not in {name for name, _ in node.tokens}
        if windows.args[0].number.ended == ("a", "b"):
            seen += [digits for (name, _), digits in windows().items() if name == "b"]
    assert seen and not torch.cat(seen).any()


def test_lines_in_the_second_layer_alone_are_refused():
    for name in ("many-addition", "nested"):
        data = TrainingData(get_task(name))
        config = replace(pipeline.model_with_lines(data), d_model=16, d_ff=32, heads=8)
        step = data.stream.kinds[0]
        once = Biases((dealt("self", 8, [Line(0, step, step, ("row", "place"), (-7, 0))]),))
        (first, second) = in_first_layer(once, config.decoder_layers).self_biases
        model = pipeline.new_model(data.task, config, 0, Biases((second, first)))
        with pytest.raises(ValueError, match="in the first layer alone, as with look_once=True"):
            certify(model, data)


@pytest.mark.parametrize("name", ["multiplication", "many-addition"])
def test_a_small_input_has_every_kind_of_token_that_a_line_may_open(name):
    model, data = with_rows(name, 2, UNFIXED[name])
    batch = data.task.batch(rows.drawn(data.task, data.task.size(6, 6), 1, torch.Generator()))
    is_fixed = partial(rows.is_fixed, stream=batch.stream)
    _, larger = anywhere(model, batch.stream, rows.tokens_of(batch), is_fixed)
    small = rows.anything(model, data.task)[1]
    assert small and {token: set(reads) for token, reads in small.items()} == {
        t: set(r) for t, r in larger.items()
    }


def test_the_windows_of_products_are_counted_by_hand():
    """Two digits, the multiplier's and a carry, which is below it; of a sum two places of both numbers and the carry
    into the lower; at the units it sees the digit that dropped out too."""
    model, data = with_rows("multiplication")
    counts = {len(next(iter(windows().values()))) for _, _, windows, _ in rows.cases(model, data)}
    carried = sum(max(1, digit) for digit in range(10))
    assert max(counts) == 10**4 * 2 and {100 * carried, 10 * carried, 10**3} < counts


def test_an_independent_script_finds_the_windows_of_sums_and_the_same_leads(tmp_path):
    data = TrainingData("many-addition")
    config = replace(pipeline.model_with_lines(data), d_model=32, d_ff=64)
    biases = in_first_layer(pipeline.lines_by_hand(data), config.decoder_layers)
    model = pipeline.new_model(data.task, config, 0, biases).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    layers, found = Layers(model), []
    for node, right, windows_of_step, _ in rows.cases(model, data):
        windows = windows_of_step()
        with torch.no_grad():
            found.append(lead(torch.cat([*layers.logits(node, windows)]), layers.ids(right, windows)))
    assert max(map(len, found)) == 10**4 * 2  # two places of both numbers and the carry into the lower
    found, others = torch.cat(found), torch.from_numpy(leads_of_sums(tmp_path))
    for quantile in (0, 0.1, 0.5, 0.9, 1):
        assert found.quantile(quantile) == pytest.approx(float(others.quantile(quantile)), abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["80f2a8ab4bbc", "0c21da6c1505"])
def test_a_committed_model_of_rows_is_right_at_every_length(name):
    run = load_run(MODELS / name)
    found = certify(run.model(), run.experiment.data(), progress=False)
    rows = results.read(MODELS.parent / "results" / "certificates.csv")
    (row,) = rows[rows["run"] == name].itertuples()
    assert found.holds and (row.outcome, row.windows) == ("correct", found.windows)
    assert row.margin == pytest.approx(found.margin, abs=1e-3)
    if run.experiment.task == "many-addition":
        assert leads_of_sums(run.folder).min() == pytest.approx(found.margin, abs=1e-3)


@pytest.mark.parametrize("name", ["multiplication", "many-addition", "nested"])
def test_a_model_in_rows_that_is_wrong_is_shown_to_be(name):
    model, data = with_rows(name, None if name == "nested" else 3)
    found = certify(model, data, progress=False)
    batch = data.task.batch(data.task.parse(found.wrong.strip("$=")))
    assert (model.predictions(batch) != batch.target).any()


def test_a_wrong_window_that_no_input_showed_is_no_proof(monkeypatch):
    model, data = with_rows("nested")
    monkeypatch.setattr(lists, "shown", lambda *_: [])
    found = certify(model, data, progress=False)
    assert not found.holds and not found.wrong and str(found).startswith("not decided")


def test_rows_are_pruned_on_training_samples():
    model, data = with_rows("many-addition", 3)
    sizes = {batch.stream.shape for batch in short_inputs(data, torch.Generator().manual_seed(0))}
    trained = {data.task.shape_of_length(digits, terms) for terms, digits in product(range(2, 7), range(1, 7))}
    assert len(sizes) > 5 and sizes <= trained
    pruned = prune(model, data)
    assert set(heads_by_line(pruned)) <= set(heads_by_line(model))
    assert [heads.layer for heads in heads_by_line(model)] == [0] * 4


class Capped(type(get_task("successor"))):
    """Not the successor of a number that ends in sixty nines, so no longer what the inherited machine writes."""

    name = "capped"

    def label(self, a):
        capped = (a[:, :60] == 9).all(1, keepdim=True) & (a.shape[1] > 60)
        return torch.where(capped, a, super().label(a))


class Maxima(type(get_task("many-addition"))):
    name = "maxima"

    def rows_of(self, *terms):
        return (torch.stack(terms, 1).cummax(1).values,)


class Copied(type(get_task("successor"))):
    """Writes the number itself, where the inherited machine writes its successor."""

    name = "copied"

    def batch(self, operands, form="natural"):
        found = super().batch(operands, form)
        return replace(found, target=torch.cat([tokens_of(operands[0]), found.target[:, -1:]], 1))


class Claimed(Copied):
    """And says that it is its own."""

    name = "claimed"
    machine = type(get_task("successor")).machine


class Forgetful(type(get_task("n-by-1"))):
    """Its states show the carry, which is not what the second operand was."""

    name = "forgetful"
    machine = property(lambda self: get_task("n-by-1").machine._replace(shown=lambda state: state % self.base))


class Backwards(StringTask):
    name = "backwards"
    machine = Machine(1, (0,), (0,), lambda state, a: (a, state))

    def answer(self, string):
        return string.flip(1)


class Forwards(Backwards):
    name = "forwards"

    def answer(self, string):
        return string


class Parities(Backwards):
    """Of two symbols, written with four."""

    name = "parities"
    symbols, codes = 2, 4

    def answer(self, string):
        return string.flip(1) % 2

    machine = Machine(1, (0,), (0,), lambda state, a: (a % 2, state))


def test_a_task_that_changes_what_another_writes_is_not_proved_by_it():
    model, _ = committed("successor")
    model.trained_on = ""
    for task in (Capped(), Copied()):
        with pytest.raises(ValueError, match=f"for the outputs of '{task.name}', got the one of 'successor'"):
            certify(model, TrainingData(task))
    with pytest.raises(ValueError, match="for the outputs of 'forwards', got the one of 'backwards'"):
        number_of(Forwards())
    with pytest.raises(ValueError, match="a machine that writes the labels of 'forgetful', got other digits"):
        number_of(Forgetful())
    with pytest.raises(ValueError, match="inputs of 4 symbols, as many as outputs have, got 2"):
        number_of(Parities())
    with pytest.raises(ValueError, match="a machine that writes the labels of 'claimed', got other digits"):
        certify(model, TrainingData(Claimed()))
    model, _ = with_rows("many-addition", 3)
    with pytest.raises(ValueError, match="made place by place, by a machine, got 'maxima'"):
        certify(model, TrainingData(Maxima(3)))


def parity_of(**changed):
    return type("OtherParity", (type(get_task("parity")),), {"name": "other-parity"} | changed)()


def leaving_out(self, operands, form="natural"):
    return super(type(self), self).source(tuple(torch.zeros_like(a) for a in operands), form)


def test_a_machine_that_says_less_than_its_task_is_refused():
    machine, times = get_task("parity").machine, get_task("n-by-1", 3).machine
    with pytest.raises(ValueError, match="a machine for the outputs of 'other-parity'"):
        number_of(parity_of(source=leaving_out))
    of_instance = parity_of()
    of_instance.label = lambda a: 1 - a
    with pytest.raises(ValueError, match="the outputs of 'other-parity'"):
        number_of(of_instance)
    fewer = (parity_of(machine=machine._replace(ends=(0,))), type(get_task("n-by-1"))(3))
    fewer[1].__class__ = type("Some", (type(fewer[1]),), {"machine": times._replace(starts=times.starts[1:])})
    for task in fewer:  # odd numbers, and one of the digits, are never seen
        with pytest.raises(ValueError, match="expected a machine that writes the labels"):
            number_of(task)
    with pytest.raises(ValueError, match="padded with one zero at most, got 2"):
        number_of(parity_of(spare=2))
    with pytest.raises(ValueError, match="padded with a zero, as its `spare` says, got none"):
        number_of(parity_of(shaped=lambda self, operands: operands))


class Following(LineBias):
    """It opens other tokens than its lines'."""

    def open_tokens(self, rows, stream):
        return super().open_tokens((rows - 1).clamp(min=0), stream)


def test_weights_and_biases_that_windows_do_not_show_are_refused():
    model, data = committed("parity")
    model.embedding.weight.data[IDS["&"]] = 3e38  # 0 times infinity, in a head that is cut
    with pytest.raises(ValueError, match="a weight is not finite, or above"):
        certify(model, data)
    model, _ = committed("parity")
    model.self_biases = (Following("self", model.self_biases[0].heads, model.self_biases[0].lines),)
    with pytest.raises(ValueError, match="its biases are no LineBias"):
        certify(model, data)


def test_what_no_window_decides_is_refused(monkeypatch):
    data = TrainingData("successor")
    plain = pipeline.new_model(data.task, replace(pipeline.PLAIN, d_model=16, d_ff=16), 0)
    with pytest.raises(ValueError, match="one line a head"):
        certify(plain, data)
    model, _ = untrained("addition")
    with pytest.raises(ValueError, match="in the form 'natural', got 'aligned'"):
        certify(model, TrainingData("addition", form="aligned"))
    run = load_run(MODELS / "cee80470e6d0")
    with pytest.raises(
        ValueError, match="lines in the first layer alone, as with look_once=True, got them in others"
    ):
        certify(run.model(), run.experiment.data())
    positions = pipeline.new_model(
        data.task, replace(pipeline.model_with_lines(data), position="sinusoidal"), 0, pipeline.lines_by_hand(data)
    )
    with pytest.raises(ValueError, match="without positions"):
        certify(positions, data)
    run = load_run(MODELS / "751940deeb40")  # it has a[first-2place+7]
    with pytest.raises(ValueError, match="one by one"):
        certify(run.model(), run.experiment.data())
    model, data = committed("successor")
    monkeypatch.setattr(of_windows, "MOST_WINDOWS", 1000)
    with pytest.raises(ValueError, match="at most 1,000 windows"):
        certify(model, data)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="made place by place"):
        assert get_task("four-in-one").machine
    with pytest.raises(ValueError, match="made place by place"):
        assert get_task("parity-classification").machine


@given(st.sampled_from(TASKS), st.integers(2, 9), st.integers(0, 1000))
def test_inputs_have_the_digits_that_were_asked_for_and_fit_into_their_width(name, width, seed):
    task, draw = get_task(name), torch.Generator().manual_seed(seed)
    place = seed % (width - 1)
    wanted = torch.randint(task.base, (16,), generator=draw)
    operands, found = inputs_with({("a", place): wanted}, task, width, 16, draw)
    assert found.all() and torch.equal(operands[0][:, place], wanted)
    assert tuple(operand.shape[1] for operand in operands) == tuple(task.widths(width))
    assert all((operand[:, -1] == 0).all() for operand in operands[: task.operands - task.second_is_digit])


def test_digits_beyond_nine_are_told_by_their_own_tokens():
    """A model in base 12 that writes `a` at every step is right where it is asked for, and nowhere else."""
    model, data = untrained("successor", 12)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias[IDS["a"]] = 9.0
    found = certify(model, data, progress=False)
    assert found.wrong and found.leads.max() > 8 and found.leads.min() < -8


def test_inputs_have_long_runs_of_carries():
    ((digits,), _) = inputs_with({}, get_task("successor"), 7, 400, torch.Generator().manual_seed(0))
    runs = (digits == 9).long().cumprod(1).sum(1)
    assert (runs >= 4).sum() > 10  # of 400 random numbers one in twenty-five


class PlusHundred(Task):
    """n + 100, of numbers that have room for it."""

    name, shortest = "plus-hundred", 3

    def label(self, a):
        return propagate_carries(a + (torch.arange(a.shape[1]) == 2), self.base)

    @property
    def machine(self):
        def step(state, a):  # at units, at tens, at hundreds, then the carry
            whole = a + (state == 2) + (state == 4)
            return whole % self.base, torch.where(state < 2, state + 1, 3 + whole // self.base)

        return Machine(5, (0,), (3,), step)


def test_inputs_that_are_too_narrow_for_a_task_are_left_out():
    register(PlusHundred, FURTHER)
    try:
        model, data = untrained("plus-hundred")
        assert {batch.target.shape[1] - 1 for batch in short_inputs(data, torch.Generator())} == {3, 4, 5, 6, 7}
        assert prune(model, data).trained_on == model.trained_on
    finally:
        del FURTHER["plus-hundred"]


@torch.no_grad()
@pytest.mark.parametrize(("name", "base"), [("addition", 2), ("n-by-1", 4), ("plus-hundred", None)])
def test_inputs_show_the_windows_that_they_are_said_to(name, base):
    """All that were asked for, unless a machine leaves states for good, so that some steps cannot have them."""
    register(PlusHundred, FURTHER)
    try:
        model, data = untrained(name, base)
    finally:
        del FURTHER["plus-hundred"]
    layers, left_out = Layers(model), 0
    for node, right, windows, shown_by in of_windows.cases(model, data):
        some = {token: digits[:200] for token, digits in windows().items()}
        for batch, step, few in shown_by(some):
            left_out += count_of(some) - count_of(few)
            assert torch.equal(layers.ids(right, few), batch.target[:, step])
            (again,) = layers.logits(node, few)
            torch.testing.assert_close(again, model(batch)[:, step], atol=1e-4, rtol=1e-4)
    assert (left_out > 0) == (name == "plus-hundred")


def test_numbers_that_are_padded_further_are_pruned_on_no_longer_ones_than_in_training():
    data = TrainingData("addition", numbers="even", width=20)
    batches = short_inputs(data, torch.Generator())
    digits = torch.cat([batch.target[:, :-1] for batch in batches]) - IDS["0"]
    used = (digits > 0).any(0)
    assert used.tolist() == [True] * 7 + [False] * 13
    assert {batch.source.shape[1] for batch in batches} == {data.train(1, torch.Generator()).source.shape[1]}


def test_what_is_pruned_says_the_same_whatever_it_reads():
    """And the certificate need not look at it: fewer windows are enough, below."""
    model, data = committed("successor")
    before = [parameter.clone() for parameter in model.parameters()]
    pruned = prune(model.train(), data)
    assert model.training and not pruned.training
    assert all(map(torch.equal, before, model.parameters()))
    kept, every = heads_by_line(pruned), heads_by_line(model)
    assert set(kept) < set(every)
    cut = pruned.decoder[1].cross_attention
    assert {head for heads in kept if heads[:2] == (1, "cross_attention") for head in heads.numbers}.isdisjoint(
        cut.cut_heads
    )
    values = cut.keys_values(torch.randn(1, 5, 128), torch.arange(5), False)[1]
    assert values[:, cut.cut_heads].std(2).max() == 0 and len(cut.cut_heads) > 0


@torch.no_grad()
def test_the_lines_that_pruning_leaves_are_those_of_heads_that_are_open_in_some_layer_dealt_anew():
    model, data = committed("successor")
    (own,), (cross,) = model.self_biases, model.cross_biases
    assert [set(bias.lines) for (bias,) in lines_left(model)] == [set(own.lines), set(cross.lines)]
    averages = dict.fromkeys(
        (f"decoder.{layer}.{name}_attention" for layer in range(2) for name in ("self", "cross")), torch.zeros(128)
    )
    heads = [heads for heads in heads_by_line(model) if heads.attention == "cross_attention"]
    once = without(model, heads[0], averages)
    (kept,) = lines_left(once).cross_biases
    assert {str(line) for line in kept.lines} == {str(line) for line in cross.lines}  # the other layer has it
    twice = without(once, heads[0]._replace(layer=1), averages)
    (kept,) = lines_left(twice).cross_biases
    assert {str(line) for line in kept.lines} == {str(line) for line in cross.lines} - {str(heads[0])}
    assert [line.head for line in kept.lines] == list(range(16))  # all of them have the other line
    again = pipeline.new_model(data.task, model.config, 0, lines_left(twice))
    assert len(heads_by_line(again)) == len(heads_by_line(model)) - 2


def test_a_model_is_retrained_with_the_lines_that_pruning_leaves(addition_run, tmp_path):
    copied(addition_run, tmp_path)
    run = fit(experiment("addition", "abc-pruned", "smoke"), tmp_path, progress=False)
    first = load_run(tmp_path / run.experiment.interpolation.digest)
    assert run.biases() == lines_left(prune(first.model(), first.experiment.data(), 0))
    assert load_run(run.folder).predict("12+34").label == first.predict("12+34").label


def test_an_input_on_which_one_attempt_was_wrong_is_among_those_of_the_next(monkeypatch):
    run, asked = load_run(MODELS / BY_HAND["successor"]), []
    task = run.experiment.get_task()
    shown = task.batch(task.parse("199"))
    found = [Certificate(torch.tensor([-1.0, 2.0]), 1e-6, shown), Certificate(torch.tensor([5.0]), 1e-6)]

    def watched(model, data, seed, also, share):
        asked.append((seed, share, [decode(batch.source[0]) for batch in also]))
        return model

    monkeypatch.setattr(certificates, "prune", watched)
    monkeypatch.setattr(certificates, "certify", lambda model, data, most: found.pop(0))
    row, _ = certificates.certified(run, pruned=True)
    assert asked == [(0, 0.5, []), (1, 0.25, ["$0199&"])] and row["outcome"] == "correct"


@pytest.mark.parametrize(("windows", "tried"), [((9, 9, 5), [9, 9, 5]), ((9, 8, 7, 9, 8), [9, 8, 7, 9, 8, 9])])
def test_attempts_with_few_windows_come_first(monkeypatch, windows, tried):
    """Of each attempt the windows, of which at most six are few; all that are tried to their end hold."""
    run, asked, left = load_run(MODELS / BY_HAND["successor"]), [], list(windows)

    def certify(count, data, most):
        asked.append(count)
        if most is not None:
            check_count(count, most)
        return Certificate(torch.ones(count), 1e-6)

    monkeypatch.setattr(certificates, "FEW", 6)
    monkeypatch.setattr(certificates, "wrong_input", lambda *_: None)
    monkeypatch.setattr(certificates, "prune", lambda *_: left.pop(0))
    monkeypatch.setattr(certificates, "certify", certify)
    monkeypatch.setattr(certificates, "heads_by_line", lambda model: [])
    row, _ = certificates.certified(run, pruned=True)
    assert asked == tried and row["windows"] == tried[-1] and row["outcome"] == "correct"


def test_of_attempts_that_do_not_hold_the_first_counts(monkeypatch):
    run = load_run(MODELS / BY_HAND["successor"])
    monkeypatch.setattr(certificates, "prune", lambda model, *_: model)
    monkeypatch.setattr(certificates, "wrong_input", lambda *_: None)
    monkeypatch.setattr(certificates, "certify", lambda *_, most: check_count(7, 3))
    row, told = certificates.certified(run, pruned=True)
    assert row["outcome"].startswith("refused: expected at most 3 windows, got 7") and "refused" in told


def test_a_model_is_tested_before_windows_are_tried():
    """One that learned six digits."""
    run = load_run(MODELS / experiment("addition", "vanilla").digest)
    row, told = certificates.certified(run)
    source = row["outcome"].removeprefix("wrong on $").removesuffix("&")
    assert row["outcome"] in told and not run.predict(source).correct and len(source) > len("000000+000000")


def test_pruning_heeds_inputs_beside_its_own(monkeypatch):
    model, data = committed("successor")
    monkeypatch.setattr(pruning, "ROWS", 14)
    batch = data.task.batch(data.task.parse("0" + 30 * "9"))

    def leads(model):
        with torch.no_grad():
            return lead(model(batch).flatten(0, 1), batch.target.flatten()).min()

    assert leads(prune(model, data, 0, [batch])) > pruning.SHARE * min(leads(model), 7.5) > 0


def test_certify_prunes_records_and_goes_on_after_a_refusal(tmp_path):
    command = ["certify", "751940deeb40", BY_HAND["successor"], "--record", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1 and "refused: expected lines that go through the places one by one" in done.output
    assert CliRunner().invoke(app, ["certify", BY_HAND["successor"], "--prune", *command[3:]]).exit_code == 0
    rows = results.read(tmp_path / "results" / "certificates.csv")
    assert rows["outcome"].str.split(":").str[0].tolist() == ["refused", "correct", "correct"]
    assert rows["pruned"].tolist() == [0, 0, 1]
    _, whole, fewer = rows["windows"]
    assert whole == WINDOWS["successor"] > fewer > 0
    shown = certificates.table(rows).set_index("method")
    right = {"abs": "1 of 1", "abs pruned": "1 of 1", "abc": "0 of 1"}
    assert shown["right at every length"].to_dict() == right
    assert shown["not proved"]["abc"] == "refused: 0"


def test_past_unread_places_a_machine_may_be_in_any_state_that_some_number_of_them_leads_to():
    class Alternating(type(get_task("successor"))):
        """It writes the number itself, but in every second place what is missing to nine."""

        name = "alternating"
        machine = Machine(2, (0,), (0, 1), lambda state, a: (torch.where(state == 0, a, 9 - a), 1 - state))

        def label(self, a):
            return torch.where(torch.arange(a.shape[1]) % 2 == 0, a, 9 - a)

    number = number_of(Alternating())
    both, even = number.through("a", OUTPUT), {(digit, digit) for digit in range(10)}
    assert set(map(tuple, listed([both, number.past], [0]).tolist())) == even
    every = listed([number.past, both, number.past], [0]).tolist()
    assert set(map(tuple, every)) == even | {(digit, 9 - digit) for digit in range(10)} and len(every) == 20
    assert listed([both], [0]).tolist() == [[0, 0]]  # the last place, which is padding
    assert number_of(PlusHundred()).past[0] == {
        ((), state) for state in (0, 1, 2, 3, 4, DONE)
    }  # 0 past none alone
