import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abcnb.lines.coordinates import PROMPT
from abcnb.tasks.numbers import split_numbers
from abcnb.tasks.rows import ManyAddition, Multiplication, RowSampler
from abcnb.tasks.task import get_task
from abcnb.tasks.testsets import test_cases as cases_of
from abcnb.tasks.tokens import DIGITS, decode
from abcnb.tasks.training_data import TrainingData
from tests.little import one_sequence

PRODUCT, SUM = get_task("multiplication"), get_task("many-addition")


def text_of(batch):
    return decode(one_sequence(batch)[0]) + decode(batch.target[0, -1:])


def test_a_product_by_hand():
    batch = PRODUCT.batch(PRODUCT.parse("123 * 45"))
    # 123 × 5 = 615, 0 + 615 = 615; 123 × 4 = 492, 61 + 492 = 553: 55 3 5 5 → 5535
    assert text_of(batch) == "$123*45=5160+5160*2940+3550*&"
    assert PRODUCT.read(decode(batch.target[0])) == "5535" == str(123 * 45)
    assert PRODUCT.label(*PRODUCT.parse("123*45")).tolist() == [[5, 3, 5, 5, 0]]


def test_a_sum_by_hand():
    batch = SUM.batch(SUM.parse("12+9+80"))
    assert text_of(batch) == "$012+009+080=210+120+101+&"
    assert SUM.read(decode(batch.target[0])) == "101"


numbers = st.integers(0, 10**30)


@settings(max_examples=60)
@given(a=numbers, b=numbers, base=st.sampled_from([2, 3, 10, 16]))
def test_products_agree_with_python(a, b, base):
    task = get_task("multiplication", base)
    operands = task.parse(f"{written(a, base)}*{written(b, base)}")
    batch = task.batch(operands)
    assert int(task.read(decode(batch.target[0])), base) == a * b
    products, sums = (rows[0] for rows in task.rows_of(*operands))
    running = 0
    for j, digit in enumerate(operands[1][0].tolist()):
        assert number_of(products[j], base) == a * digit
        running = running // base + a * digit
        assert number_of(sums[j], base) == running
    assert number_of(task.label(*operands)[0], base) == a * b


@settings(max_examples=60)
@given(terms=st.lists(numbers, min_size=2, max_size=12), base=st.sampled_from([2, 10, 16]))
def test_sums_agree_with_python(terms, base):
    task = get_task("many-addition", base)
    operands = task.parse("+".join(written(n, base) for n in terms))
    batch = task.batch(operands)
    assert int(task.read(decode(batch.target[0])), base) == sum(terms)
    (rows,) = task.rows_of(*operands)
    assert [number_of(row, base) for row in rows[0]] == [sum(terms[: i + 1]) for i in range(len(terms))]
    assert number_of(task.label(*operands)[0], base) == sum(terms)


def written(number, base):
    text = ""
    while number or not text:
        number, digit = divmod(number, base)
        text = DIGITS[digit] + text
    return text


def number_of(row, base):
    return sum(digit * base**place for place, digit in enumerate(row.tolist()))


def tokens_of(stream, name, text):
    segment = stream.segment(name)
    return "".join(text[token] for token in segment.tokens(segment.grid()).tolist())


def test_every_token_is_in_one_segment_and_digits_are_counted_from_the_units():
    batch = PRODUCT.batch(PRODUCT.parse("123*45"))
    stream, text = batch.stream, text_of(batch)
    expected = {
        "a": "321", "b": "54", "$": "$", "*": "*", "=": "=", "products": "51602940", "products end": "++",
        "sums": "51603550", "sums end": "**",
    }  # fmt: skip
    assert {segment.name: tokens_of(stream, segment.name, text) for segment in stream.segments} == expected
    tokens = torch.cat([segment.tokens(segment.grid()) for segment in stream.segments])
    assert sorted(tokens.tolist()) == list(range(len(stream)))  # all but the end token, which is never read

    batch = SUM.batch(SUM.parse("12+9+80"))
    stream, text = batch.stream, text_of(batch)
    assert tokens_of(stream, "terms", text) == "210900080" and tokens_of(stream, "operators", text) == "++="
    tokens = torch.cat([segment.tokens(segment.grid()) for segment in stream.segments])
    assert sorted(tokens.tolist()) == list(range(len(stream)))


def test_steps_have_the_counters_of_the_token_that_they_write():
    stream = PRODUCT.stream((3, 2))
    kind, row, place = stream.steps_at(torch.arange(len(stream)))
    assert kind[:7].tolist() == [PROMPT] * 7
    names = [stream.kinds[k] for k in kind[7:]]
    assert names[:10] == ["products"] * 4 + ["products end"] + ["sums"] * 4 + ["sums end"]
    assert row[7:].tolist() == [0] * 10 + [1] * 10 + [2]
    assert place[7:12].tolist() == [0, 1, 2, 3, 4]
    # The end token stands where a further row would begin.
    assert (names[-1], int(row[-1]), int(place[-1])) == ("products", 2, 0)


@pytest.mark.parametrize("numbers", ["even", "repeated"])
@pytest.mark.parametrize("name", ["multiplication", "many-addition"])
def test_nothing_held_out_and_nothing_long_is_trained_on(name, numbers):
    task, generator = get_task(name), torch.Generator().manual_seed(0)
    sampler, held_out = RowSampler(task, 6, numbers=numbers), set(split_numbers()[1].tolist())
    shapes = set()
    for _ in range(200):
        operands = sampler.draw(16, generator)
        shapes.add(task.shape_of(operands))
        assert len(operands) <= 6
        for operand in operands:
            values = (operand * 10 ** torch.arange(operand.shape[1])).sum(1).tolist()
            assert max(values) < 10**6 and not held_out & set(values)
    assert len(shapes) >= 25


@pytest.mark.parametrize("width", [0, 7, -1])
def test_longer_operands_are_never_trained_on(width):
    with pytest.raises(ValueError, match="expected a width from 1 to 6 for multiplication"):
        RowSampler(PRODUCT, width)


def test_terms_beyond_six_are_never_trained_on():
    with pytest.raises(ValueError, match="expected a width from 1 and terms from 2 to 6 for many-addition, got 3"):
        RowSampler(SUM, 3, terms=7)
    with pytest.raises(ValueError, match="expected terms 0 for multiplication"):
        RowSampler(PRODUCT, 3, terms=3)
    with pytest.raises(ValueError, match="expected shapes as all or largest, got 'small'"):
        RowSampler(SUM, 3, shapes="small")


def test_one_shape_of_six_terms_of_three_digits():
    data = TrainingData("many-addition", width=3, terms=6, shapes="largest")
    generator = torch.Generator().manual_seed(0)
    drawn = [data.train(4, generator) for _ in range(30)] + data.validation(4, generator)
    shapes = {batch.stream.shape for batch in drawn}
    assert shapes == {(6, 4)} == {data.stream.shape}
    with pytest.raises(ValueError, match="terms and shapes are for products and sums in rows"):
        TrainingData("addition", terms=3)


def test_half_of_repeated_samples_have_two_digits():
    generator = torch.Generator().manual_seed(0)
    counts = {}
    for numbers in ("even", "repeated"):
        sampler = RowSampler(SUM, 6, numbers=numbers, terms=6, shapes="largest")
        terms = torch.cat(sampler.draw(2000, generator), 1)
        counts[numbers] = sum(len(set(sample) - {0}) <= 2 for sample in terms.tolist())
    # An eighth of the numbers is held out, so some samples of two digits have an operand of others among them.
    assert counts["even"] < 20 and 400 < counts["repeated"] < 1000


def test_training_batches_have_several_shapes_and_validation_the_largest():
    data, generator = TrainingData("multiplication", width=3), torch.Generator().manual_seed(0)
    assert len({data.train(4, generator).stream.shape for _ in range(60)}) == 9
    (validation,) = data.validation(4, generator)
    assert validation.stream.shape == (3, 3)


def test_validation_has_numbers_of_every_length():
    drawn = torch.cat(RowSampler(PRODUCT, 2, held_out=True).draw(4000, torch.Generator().manual_seed(0)))
    numbers = (drawn * torch.tensor([1, 10])).sum(1)
    short = numbers < 10  # none of one digit is held out: those of training stand in
    assert set(numbers[short].tolist()) == set(range(10)) and 0.2 < short.float().mean() < 0.5
    assert set(numbers[~short].tolist()) <= set(split_numbers()[1].tolist())


@pytest.mark.parametrize("task", [PRODUCT, SUM], ids=lambda task: task.name)
@pytest.mark.parametrize("length", [1, 3, 9, 20])
def test_test_sets_are_repeatable_distinct_and_of_their_length(task, length):
    for name in ("random", "hard", "unequal"):
        found, again = (cases_of(task, length, 200, name) for _ in range(2))
        for kind, operands in found.items():
            assert all(torch.equal(x, y) for x, y in zip(operands, again[kind], strict=True))
            rows = torch.cat(operands, 1)
            assert len(torch.unique(rows, dim=0)) == len(rows) > 0
            if name != "unequal":
                assert task.shape_of(operands) == task.shape_of_length(length)
        if name == "random":
            (operands,) = found.values()
            leading = [operand[:, length - 1] for operand in operands]
            assert length == 1 or all((digit > 0).all() for digit in leading)


def test_numbers_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="expected numbers among even, repeated for many-addition, got 'uniform'"):
        TrainingData("many-addition", "uniform")


def test_hard_cases_by_hand():
    hard = cases_of(PRODUCT, 4, 400, "hard")
    assert [operand.tolist() for operand in hard["all"]] == [[[9, 9, 9, 9]], [[9, 9, 9, 9]]]
    assert sorted(operand.tolist() for operand in hard["powers"][0]) == [[0, 0, 0, 1], [9, 9, 9, 9]]
    assert set(torch.cat(cases_of(SUM, 5, 400, "hard")["large digits"]).unique().tolist()) == {0, 8, 9}
    with pytest.raises(ValueError, match="random, hard, unequal for many-addition, got 'padded'"):
        cases_of(SUM, 4, 10, "padded")


@pytest.mark.parametrize(("task", "text"), [(PRODUCT, "12"), (PRODUCT, "1*2*3"), (SUM, "1+"), (SUM, "1+2a")])
def test_bad_input_is_refused(task, text):
    with pytest.raises(ValueError, match="expected NUMBER"):
        task.parse(text)


def test_numbers_may_be_longer_than_python_reads_at_once_and_their_letters_large():
    (first, second), digits = SUM.parse("9" * 5000 + "+1"), 5001
    assert first.shape == second.shape == (1, digits) and int(first.sum()) == 45_000 and int(second.sum()) == 1
    assert Multiplication(16).parse("FF*0a")[0].tolist() == [[15, 15]]


def test_rows_of_an_unfinished_output_are_read_as_far_as_they_go():
    assert Multiplication().split_rows("5160+51") == ["5160+", "51"]
    assert ManyAddition().read("210+12") == "21" and Multiplication().read("&") == "0"
