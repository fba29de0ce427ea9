"""Tasks that no method was chosen on, many of them on strings: inputs, labels against plain Python, a run."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb import TrainingData, calibrate, evaluate, interpolate, retrain
from abcnb.model import evaluation
from abcnb.other_tasks.chomsky import CHOMSKY
from abcnb.other_tasks.further import MORE
from abcnb.other_tasks.huang import HUANG
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment, has
from abcnb.study.other_tasks import IN_RANGES
from abcnb.tasks.strings import LONGEST, StringTask
from abcnb.tasks.task import FURTHER, TASKS, get_task, register
from abcnb.tasks.tokens import decode

STRINGS = [task.name for task in CHOMSKY if issubclass(task, StringTask)]
NUMBERS = ["binary-addition", "binary-multiplication"]


class Echo(StringTask):
    name = "echo"
    symbols = 10

    def answer(self, string):
        return string


@pytest.fixture
def echo():
    register(Echo, FURTHER)
    yield get_task("echo")
    del FURTHER["echo"]


def stack(string):
    left = []
    for symbol in map(int, string):
        if symbol == 2:
            del left[-1:]
        else:
            left.append(symbol % 3)
    return "".join(map(str, reversed(left)))


def in_brackets(string):
    return eval("".join("01234+-()"[int(c)] for c in string)) % 5


def unknown(string):
    inside, _, value = string.partition("a")
    return "".join(d for d in "01234" if in_brackets(inside.replace("9", d)) == int(value))


def value(expression):
    return eval("".join("+-*"[int(c) - 5] if c > "4" else c for c in expression)) % 5


# The answer of each, from the input as text.
ANSWERS = {
    "even-pairs": lambda s: str((s.count("01") + s.count("10")) % 2),
    "modular-arithmetic": lambda s: str(value(s)),
    "parity-check": lambda s: str(s.count("1") % 2),
    "cycle-navigation": lambda s: str((s.count("2") - s.count("0")) % 5),
    "stack-manipulation": stack,
    "reverse-string": lambda s: s[::-1],
    "modular-arithmetic-brackets": lambda s: str(in_brackets(s)),
    "solve-equation": unknown,
    "duplicate-string": lambda s: s + s,
    "missing-duplicate": lambda s: (s[len(s) // 2 :] + s[: len(s) // 2])[s.index("2")],
    "odds-first": lambda s: s[1::2] + s[::2],
    "binary-addition": lambda s: f"{sum(int(a, 2) for a in s.split('+')):b}",
    "binary-multiplication": lambda s: f"{int(s.split('*')[0], 2) * int(s.split('*')[1], 2):b}",
    "compute-sqrt": lambda s: f"{math.isqrt(int(s, 2)):b}",
    "bucket-sort": lambda s: "".join(sorted(s)),
    "huang-copy": lambda s: s,
    "huang-parity": lambda s: str(s.count("1") % 2),
    "huang-addition": lambda s: f"{sum(int(a, 2) for a in s.split('+')):b}",
}


def both(source, sign, base=10):
    return [int(part, base) for part in source.split(sign)]


def runs(string):
    found = []
    for i, symbol in enumerate(string):
        found.append((found[-1] + 1) % 10 if i and string[i - 1] == symbol else 1)
    return "".join(map(str, found))


ANSWERS |= {
    "copy": lambda s: s,
    "palindrome": lambda s: str(int(s == s[::-1])),
    "run-lengths": runs,
    "majority": lambda s: str(int(s.count("1") > s.count("0"))),
    "mod-seven": lambda s: str(int(s) % 7),
    "divided-by-three": lambda s: str(int(s) // 3).zfill(len(s)),
    "plus-seven": lambda s: str(int(s) + 7),
    "times-seven": lambda s: str(int(s) * 7),
    "times-ten": lambda s: str(int(s) * 10),
    "subtraction": lambda s: str((both(s, "%")[0] - both(s, "%")[1]) % 10 ** s.index("%")),
    "bitwise-xor": lambda s: f"{both(s, '>', 2)[0] ^ both(s, '>', 2)[1]:b}",
    "bitwise-and": lambda s: f"{both(s, '<', 2)[0] & both(s, '<', 2)[1]:b}",
    "comparison": lambda s: "0" if both(s, ">")[0] == both(s, ">")[1] else "12"[both(s, ">")[0] < both(s, ">")[1]],
    "maximum": lambda s: str(max(both(s, "<"))),
}


@settings(max_examples=250)
@given(st.sampled_from(sorted(ANSWERS)), st.integers(1, 70), st.sampled_from(["random", "hard"]))
def test_answers_are_those_of_plain_python(name, length, test_set):
    task = get_task(name)
    test_set = test_set if test_set in task.test_sets else "random"
    for operands in task.cases(test_set, max(length, task.shortest), 12).values():
        batch = task.batch(operands)
        assert batch.stream.rows == batch.target.shape[1]
        for source, target in zip(batch.source, batch.target, strict=True):
            assert task.read(decode(target)) == ANSWERS[name](decode(source).strip("$&="))


def test_there_is_an_answer_for_every_task_that_no_method_was_chosen_on():
    assert set(ANSWERS) == {task.name for task in (*CHOMSKY, *HUANG, *MORE)} == set(FURTHER)
    assert set(IN_RANGES) == {task.name for task in HUANG}
    assert not set(ANSWERS) & set(TASKS)


def test_equal_numbers_have_no_larger_one():
    task = get_task("comparison")
    assert task.read(decode(task.batch(task.parse("17>17")).target[0])) == "0"


def test_half_of_the_strings_are_palindromes():
    task = get_task("palindrome")
    for length in (1, 8, 9):
        batch = task.batch(task.cases("random", length, 2000)["random"])
        share = (batch.target[:, -2] == 1).float().mean()
        # one flaw in the middle of an odd string leaves it a palindrome
        assert share == pytest.approx(0.5 + 0.5 * (length % 2) / length, abs=0.05)


def test_working_is_written_before_the_answer():
    task = get_task("modular-arithmetic")
    batch = task.batch(task.parse("3746271"))  # 3 × 4 − 2 × 1
    # Below numbers the term so far, 3, 12, −2 and −2; below operators the sum of the terms before, 0, 2 and 2; then 0.
    assert decode(batch.target[0]) == "30223230&"
    assert task.read("30223230&") == "0"


@pytest.mark.parametrize("name", STRINGS)
def test_strings_keep_their_lengths_and_every_length_is_trained_on(name):
    task, generator, seen = get_task(name), torch.Generator().manual_seed(0), set()
    data = TrainingData(name)
    for _ in range(150):
        batch = data.train(4, generator)
        seen.add(batch.source.shape[1] - 2)
    assert seen == {task.digits_at(n) for n in range(task.shortest, LONGEST + 1)}
    (held_out,) = data.validation(8, generator)
    assert held_out.source.shape[1] - 2 == data.width == task.digits_at(LONGEST)


def test_symbols_are_even_and_begin_with_zero_too(echo):
    (string,) = echo.cases("random", 9, 4000)["random"]
    shares = torch.bincount(string.flatten(), minlength=10) / string.numel()
    assert (shares - 0.1).abs().max() < 0.01 and string.shape == (4000, 9)
    assert (echo.cases("random", 9, 4000)["random"][0] == string).all(), "the same for every model"


def test_the_lengths_of_a_sum_are_those_of_the_benchmark():
    """Its first number has 1 to L − 2 bits, evenly, and no number is 0."""
    a, b = get_task("binary-addition").cases("random", 12, 6000)["random"]
    assert a.shape == b.shape == (6000, 11) and a.any(1).all() and b.any(1).all()
    assert not a[:, 10].any() and not b[:, 10].any()
    bits = (a * torch.arange(1, 12)).max(1).values
    assert bits.max() == 10 and 0.04 < (bits == 10).float().mean() < 0.06  # half of a tenth lead with 1


def test_a_test_has_fifty_lengths_in_equal_parts():
    cases = get_task("huang-copy").cases("random", 100, 2000)
    assert [len(a) for (a,) in cases.values()] == [40] * 50
    assert [a.shape[1] for (a,) in cases.values()] == list(range(51, 101))


def test_every_number_of_ones_is_as_likely_as_any_other():
    ones = get_task("huang-parity").drawn(8000, 9, torch.Generator().manual_seed(0)).sum(1)
    assert (torch.bincount(ones, minlength=10) / 800 - 1).abs().max() < 0.15


def test_sums_have_their_lengths_and_begin_with_one():
    """`1+0=` is the shortest; of 12 tokens, signs included, the first number has 1 to 9 bits, evenly."""
    task = get_task("huang-addition")
    assert next(iter(task.cases("random", 50, 470))) == "4 tokens"
    operands = task.cases("random", 50, 20_000)["12 tokens"]
    bits = torch.stack([(a * torch.arange(1, a.shape[1] + 1)).max(1).values for a in operands])
    long = bits.min(0).values > 1
    assert (bits.sum(0)[long] == 10).all() and (bits.sum(0) <= 10).all()
    assert bits.max() == 9


@pytest.mark.parametrize("text, output", [("2048", "2048&"), ("0", "0&")])
def test_what_a_person_types_is_not_padded(echo, text, output):
    batch = echo.batch(echo.parse(text))
    assert (decode(batch.source[0]), decode(batch.target[0])) == (f"${text}&", output)
    assert echo.read(output) == text


@pytest.mark.parametrize("numbers, width", [("uniform", 0), ("even", 7), ("long", 12)])
def test_other_numbers_and_widths_are_refused(numbers, width):
    with pytest.raises(
        ValueError, match="expected 'even' or 'bucketed' numbers and a width of 12 for reverse-string"
    ):
        TrainingData("reverse-string", numbers, width)


def test_strings_have_no_lines_by_hand_and_are_not_padded():
    assert not any(has("reverse-string", method) for method in ("abs", "abs-cpi", "abc-paper", "lora-long"))
    assert not has("reverse-string", "vanilla", "paper") and has("subtraction", "vanilla", "paper")
    assert all(has("reverse-string", method) for method in ("vanilla", "abc", "rope"))


def test_an_output_of_two_strings_has_two_kinds_of_steps():
    stream = get_task("odds-first").stream(5)
    assert stream.kinds == ("odds", "others")
    assert stream.kind.tolist() == [0, 0, 1, 1, 1, 1] and stream.place.tolist() == [0, 1, 0, 1, 2, 3]
    others = stream.segment("others")
    assert others.tokens([torch.arange(3)]).tolist() == [10, 11, 12]  # $ 5 symbols & | start 2 odds


@pytest.mark.parametrize(
    "name, text, output",
    [
        ("bucket-sort", "423", "455+245+234+&"),
        ("stack-manipulation", "01422", "02222+10222+11022+10222+02222+&"),  # 0, 1, push 1, pop, pop
        # −(1 + 2): the sign before the bracket, c, turns those inside; −1 = 4, −1 − 2 = 2
        ("modular-arithmetic-brackets", "671528", "0+1ddd*0+1cdd*4+2cdd*4+1cdd*2+2cdd*2+2ddd*&"),
        # 10 − 1 = 1 (e: 0 − 1 = 1 with a borrow), so the root begins with 1; 101 − 101 = 0, so it is 11
        ("compute-sqrt", "1001", "e100+0003*3030+0022*&"),
    ],
)
def test_a_row_of_cells_is_rewritten_for_each_symbol(name, text, output):
    task = get_task(name)
    assert decode(task.batch(task.parse(text)).target[0]) == output


@pytest.mark.parametrize("name", ["bucket-sort", "stack-manipulation", "solve-equation", "compute-sqrt"])
def test_what_is_no_output_is_read_as_something(name):
    task = get_task(name)
    assert all(isinstance(task.read(text), str) for text in ("", "&", "@$1", "12+", "0+1*&"))


def test_a_person_may_type_three_bits_but_no_two():
    task = get_task("compute-sqrt")
    assert decode(task.batch(task.parse("111")).source[0]) == "$0111="
    with pytest.raises(ValueError, match="expected symbols 0 to 1 in a string of compute-sqrt, got 2"):
        task.parse("102")


def test_expressions_of_a_training_have_symbols_in_any_order_and_no_bracket_closes_that_is_not_open():
    task = get_task("solve-equation")
    strings = task.drawn(4000, 12, torch.Generator().manual_seed(0))
    depth = ((strings == 7).long() - (strings == 8).long()).cumsum(1)
    assert (depth >= 0).all() and (depth.max(1).values > 3).any()
    assert torch.bincount(strings[:, :10].flatten(), minlength=11)[10] == 0
    assert 0.47 < (strings[:, 10] == 10).float().mean() < 0.53 and (strings[strings[:, 10] == 10][:, 11] < 5).all()


@pytest.mark.parametrize(
    "name", ["bucket-sort", "stack-manipulation", "modular-arithmetic-brackets", "solve-equation"]
)
def test_a_cell_follows_from_what_its_lines_show(name):
    """The symbol, the cell and its neighbours in the row before, the token before it, and the first cells of the other
    kinds of rows before."""
    task = get_task(name)
    strings = task.drawn(1500, 10, torch.Generator().manual_seed(0))
    kinds = task.rows_of(strings.flip(1))
    before = [torch.cat([torch.full_like(rows[:, :1], -9), rows[:, :-1]], 1) for rows in kinds]  # at first nothing
    for rows, here in zip(kinds, before, strict=True):
        edge, known = torch.where(here[..., :1] == -9, -9, -1), {}
        beside, own = torch.cat([edge, here, edge], 2), torch.cat([torch.full_like(rows[..., :1], -1), rows], 2)
        others = (cells[..., :1].expand_as(rows) for cells in before if cells is not here)
        symbols = strings[:, :, None].expand_as(rows)
        parts = (symbols, beside[..., :-2], here, beside[..., 2:], own[..., :-1], *others)
        seen = torch.stack(parts, -1).flatten(0, 2).tolist()
        for cells, code in zip(map(tuple, seen), rows.flatten().tolist(), strict=True):
            assert known.setdefault(cells, code) == code


def test_rows_of_a_round_may_have_widths_of_their_own():
    stream = get_task("modular-arithmetic-brackets").stream(1)
    assert stream.kinds == ("sums", "sums end", "signs", "signs end") and stream.prompt == 3  # $ symbol =
    assert stream.kind.tolist() == [0, 1, 2, 2, 2, 3, 0] and stream.place.tolist() == [0, 1, 0, 1, 2, 3, 0]
    places = [torch.zeros(3, dtype=torch.long), torch.arange(3)]
    assert stream.segment("signs").tokens(places).tolist() == [5, 6, 7]


@pytest.mark.parametrize("numbers, width", [("uniform", 0), ("even", 9)])
def test_cells_take_strings_of_their_training_lengths(numbers, width):
    with pytest.raises(ValueError, match="expected 'even' numbers and a width from 1 to 8 for bucket-sort"):
        TrainingData("bucket-sort", numbers, width)


@pytest.mark.parametrize("name", ["duplicate-string", "compute-sqrt"])
def test_a_run_is_trained_with_the_lines_of_its_plain_model_and_tested(tmp_path, name):
    run = fit(experiment(name, "abc", "smoke"), tmp_path, "cpu", progress=False)
    assert run.calibration().biases(run.experiment.model.heads) == run.biases()
    score = run.evaluate(14, 30)
    assert score.samples == 30 and score.wrong_digits > 0, "after so few steps"


@pytest.mark.slow
@pytest.mark.parametrize("name, line", [("reverse-string", "a[place]"), ("duplicate-string", "a[first-place]")])
def test_the_line_is_found_and_strings_of_any_length_are_written(name, line):
    data = TrainingData(name)
    plain = interpolate(data, progress=False)
    lines = calibrate(plain, data)
    assert line in [str(found.line) for found in lines.found]
    model = retrain(data, lines, progress=False)
    assert all(score.correct == score.samples for score in evaluate(model, data, [3, 12, 50], 500))


def test_every_task_refuses_lengths_that_it_has_no_test_of():
    for task in map(get_task, TASKS | FURTHER):
        assert evaluation.test_inputs(task, task.shortest, 4, "random", 1)
        with pytest.raises(ValueError, match="at least"):
            evaluation.test_inputs(task, task.shortest - 1, 4, "random", 1)
