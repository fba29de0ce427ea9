"""A task in a file of one's own: found, kept with the run, refused where it cannot be, and tried."""

import re
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from abcnb import TrainingData
from abcnb.__main__ import app
from abcnb.model.evaluation import Score
from abcnb.study import trial
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.tasks.task import TASKS, full_name, get_task
from abcnb.tasks.tokens import decode

DOUBLE = '''
from abcnb.tasks.digits import propagate_carries
from abcnb.tasks.task import Task


class Double(Task):
    """2n."""

    name = "double"

    def label(self, a):
        return propagate_carries(2 * a, self.base)
'''


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "my_task.py"
    file.write_text(DOUBLE)
    return file


def run_command(*command):
    return CliRunner().invoke(app, list(map(str, command)))


def test_a_task_in_a_file_is_found_by_its_class_or_alone(file, monkeypatch):
    task = get_task(f"{file}:Double")
    assert task is get_task(str(file)) and "double" not in TASKS
    assert task.label(torch.tensor([[5, 4, 0]])).tolist() == [[0, 9, 0]]
    monkeypatch.chdir(file.parent)
    assert full_name("my_task.py") == full_name(f"{file}:Double") == full_name(full_name("my_task.py"))
    assert TrainingData("my_task.py").task is task


def test_a_task_may_have_a_base_of_its_own(file):
    file.write_text(DOUBLE.replace('name = "double"', 'name, base = "double", 7'))
    data = TrainingData(str(file))
    assert (data.task.base, data.task.train_length) == (7, 7)  # 7 ** 7 is below 2 ** 20
    assert get_task(str(file), 3).base == 3


@pytest.mark.parametrize(
    "change, told",
    [
        (('"double"', '"addition"'), "expected a name of its own for Double, got 'addition'"),
        (('name = "double"', "minimum = 0"), "expected a name of the task Double"),
        (('"double"', '"double"; symbol = "-"'), "expected a symbol of double among the tokens"),
    ],
)
def test_a_class_without_a_name_of_its_own_is_refused_in_python_too(change, told):
    content = {}
    exec(DOUBLE.replace(*change), content)  # as in a notebook
    with pytest.raises(ValueError, match=told):
        TrainingData(content["Double"]())


def test_a_run_keeps_the_file_and_its_hash(file, tmp_path):
    run = fit(experiment(f"{file}:Double", "vanilla", "smoke"), tmp_path / "runs", "cpu", progress=False)
    assert load_run(run.folder).experiment.task == full_name(str(file))
    assert run_command("predict", run.folder, "45").output.endswith("(true: 90)\n")
    file.write_text(DOUBLE + "# changed\n")
    with pytest.raises(ValueError, match="as it was when the model was trained"):
        load_run(run.folder)
    assert experiment(str(file), "vanilla", "smoke").digest != run.experiment.digest


def test_a_module_beside_a_task_file_belongs_to_it(tmp_path, monkeypatch):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "tenfold_rules.py").write_text("raise ValueError('another file of that name')\n")
    monkeypatch.syspath_prepend(elsewhere)
    file, rules = tmp_path / "tenfold.py", tmp_path / "tenfold_rules.py"
    file.write_text(DOUBLE.replace("from abcnb.tasks.digits import", "from tenfold_rules import"))
    rules.write_text("def propagate_carries(a, base):\n    return a % base\n")
    before = full_name(str(file))
    assert get_task(before).label(torch.tensor([[7, 1]])).tolist() == [[4, 2]]
    rules.write_text("from abcnb.tasks.digits import propagate_carries\n")
    assert get_task(str(file)).label(torch.tensor([[7, 1]])).tolist() == [[4, 3]], "in the same process too"
    with pytest.raises(
        ValueError, match="with what it imports from its folder, as it was when the model was trained"
    ):
        get_task(before)


def test_a_folder_may_end_like_a_file_and_a_class_have_a_second_name(tmp_path):
    (tmp_path / ".pyenv").mkdir()
    file = tmp_path / ".pyenv" / "my_task.py"
    file.write_text(DOUBLE + "\nAgain = Double\n")
    assert get_task(full_name(str(file))).name == "double"


CHANGES = """
from abcnb.tasks.task import Task


class Evens(Task):
    name = "evens"

    def label(self, a):
        a[a % 2 == 1] = 0
        return a
"""


def test_a_label_may_change_the_digits_that_it_gets(file):
    file.write_text(CHANGES)
    task = get_task(str(file))
    batch = task.batch(task.parse("345"))
    assert decode(batch.source[0]) == "$0345&" and decode(batch.target[0]) == "0400&"


STRINGS = """
from abcnb.tasks.strings import StringTask


class Mine(StringTask):
    name = "mine"
    symbols = {symbols}
    codes = {codes}

    def outputs(self, length):
        return {{"{named}": length}}

    def answer(self, string):
        return {answer}
"""
FINE = {"symbols": 3, "codes": 0, "named": "digits", "answer": "string"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"symbols": 1}, "expected two digits or more of mine, .* got 0 and"),
        ({"named": "a"}, "expected a name of its own for each segment, got a twice"),
        ({"answer": "string.sort(0).values"}, "answer of mine to each input of a batch that is its own"),
        ({"answer": "string[:1]"}, "answer of mine to each input of a batch that is its own"),
    ],
)
def test_strings_that_would_teach_something_else_are_refused(file, changed, message):
    file.write_text(STRINGS.format(**FINE))
    TrainingData(str(file))
    file.write_text(STRINGS.format(**FINE | changed))
    with pytest.raises(ValueError, match=message):
        TrainingData(str(file))


def test_inputs_may_have_more_symbols_than_outputs(file):
    file.write_text(STRINGS.format(**FINE | {"symbols": 14, "codes": 10, "answer": "string % 10"}))
    task = TrainingData(str(file)).task
    assert task.batch(task.parse("d3")).source.max() < task.vocabulary_size


def test_an_operator_may_be_a_letter_that_is_no_digit(file):
    file.write_text(DOUBLE.replace('"double"', '"double"\n    symbol = "a"'))
    assert get_task(str(file)).symbol == "a"
    with pytest.raises(ValueError, match="symbol that is none of them, got 0123456789abcdef and 'a'"):
        get_task(str(file), 16)


def test_a_task_of_two_operands_without_an_operator_is_refused(file):
    task = "from abcnb.tasks.arithmetic import Addition\n\n\nclass Sum(Addition):\n    name = 'sum'\n    symbol = ''\n"
    file.write_text(task)
    with pytest.raises(ValueError, match="expected sources of sum with 11 tokens below 15, got some of 10"):
        TrainingData(str(file))


def test_a_sweep_trains_a_task_in_a_file_in_processes_of_its_own(file, tmp_path):
    spec = tmp_path / "sweep.toml"
    grid = f'[[grid]]\ntasks = ["{file}"]\nmethods = ["abc"]\nseeds = [0]\npresets = ["smoke"]\n'
    spec.write_text(f"lengths = [3]\nsamples = 10\n\n{grid}")
    done = run_command("sweep", spec, "--workers", 1, "--runs", tmp_path / "runs", "--reports", tmp_path)
    assert done.exit_code == 0, done.output
    assert full_name(str(file)) in (tmp_path / "results" / "accuracy.csv").read_text()


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", ":Double", "expected one class of a task .* got none"),
        (DOUBLE, ":Triple", "expected one class of a task .* got Double"),
        (DOUBLE + "\n\nclass Other(Double):\n    name = 'other'\n", "", "got Double, Other"),
        (DOUBLE.replace('"double"', '"addition"'), "", "expected a name of its own .* 'addition'"),
        (DOUBLE.replace('    name = "double"\n', ""), "", "expected a name of the task Double"),
        *(
            (DOUBLE.replace('"double"', f'"double"; symbol = "{symbol}"'), "", "expected a symbol of double among")
            for symbol in ("5", "&", "+*")
        ),
        ("import nothing_like_it", "", "to run, got ModuleNotFoundError"),
        ("class Double(", "", "to run, got SyntaxError"),
    ],
)
def test_what_is_no_task_file_is_refused(file, text, name, message):
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        get_task(f"{file}{name}")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a task file"):
        get_task(str(tmp_path / "nothing.py"))


@pytest.fixture
def few_samples(monkeypatch):
    monkeypatch.setattr(trial, "SAMPLES", 20)


def test_a_trial_says_that_a_task_does_not_interpolate(file, tmp_path, few_samples):
    done = run_command("try", file, "--preset", "smoke", "--runs", tmp_path / "runs")
    assert done.exit_code == 0 and done.output.count("\ndoes not interpolate: after ") == 3
    told = re.findall(r"plain model after (\d+) steps, held-out inputs of the training length: ", done.output)
    assert told == ["20", "40", "80"], "twice as long, and again"
    kept = fit(experiment(str(file), "abc", "smoke", 0), tmp_path / "runs").calibration()
    below = [line for line in done.output.splitlines() if line.startswith("strongest lines below tau 0.02: ")]
    shares = [float(share) for share in re.findall(r"([\d.]+) \(", below[0])]
    assert len(below) == 3 and 0 < len(shares) <= trial.SHOWN and shares == sorted(shares, reverse=True)
    assert shares[-1] > 0.01 and shares[0] <= 0.02 < kept.table["share"].min()


def test_a_trial_shows_lines_and_scores(file, tmp_path, monkeypatch, capsys, few_samples):
    monkeypatch.setattr(trial, "ENOUGH", 0.0)
    verdict = trial.attempt(str(file), "smoke", 0, tmp_path / "runs", "cpu")
    assert verdict == "solved: at least 0% at lengths 6, 12, 24, 60"
    told = capsys.readouterr().out
    assert 0 < told.index("share") < told.index("of 20 exact")


def test_lines_that_are_missing_are_sought_once_more(file, tmp_path, monkeypatch, capsys):
    """Of a plain model that interpolates: after twice the steps, not four times."""
    missed = SimpleNamespace(
        metrics={"history": [{"exact_match": 100.0}]}, calibration=lambda: "lines", model=lambda: None, folder="",
        evaluate=lambda length, samples, device: Score(length, 20, 4, 16, 100),
    )  # fmt: skip
    monkeypatch.setattr(trial, "fit", lambda *_: missed)
    monkeypatch.setattr(trial, "wrong_by_step", lambda *_: torch.tensor([16]))
    monkeypatch.setattr(trial, "left_out", lambda _: "")
    verdict = trial.attempt(str(file), "smoke", 0, tmp_path, "cpu")
    assert (
        verdict == "lines are missing: along those that were found a new model has 20.00% at length 6, most often "
        "wrong at output steps 0 (16 samples), from 0 (plain model of 20 steps); what a task must be like: "
        "reports/extending.md"
    )
    assert re.findall(r"after (\d+) steps", capsys.readouterr().out) == ["20", "40"]


def test_the_verdicts_of_a_trial():
    missed, wrong = Score(24, 100, 40, 60, 1000), torch.tensor([0, 7, 0, 30, 2, 4])
    assert trial.verdict([6, 12, 24]) == "solved: at least 99% at lengths 6, 12, 24"
    told = "40.00% at length 24, most often wrong at output steps 1 (7 samples), 3 (30 samples), 5 (4 samples), from 0"
    assert trial.verdict([6, 12], missed, wrong) == f"solved up to length 12: {told}"
    assert (
        trial.verdict([], missed, wrong)
        == f"lines are missing: along those that were found a new model has {told}"
    )


MISTAKES = {
    "return 2 * a": "expected digits from 0 to 9 as the answers of double, .batch, digits., got 1[0-8]",
    "return a / 2": "got tensor",
    "pass": "got None",
    "return a[0]": "got tensor",
    "return propagate_carries(2 * a, self.base)[:, :-1]": "with 7 digits for an input of .7,., got 6: say otherwise",
    "return propagate_carries(20 * a, self.base)": "expected results from 0 to 10..7 - 1",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_answers_that_cannot_be_written_are_refused_before_anything_is_trained(tmp_path, line):
    file = tmp_path / "wrong.py"
    file.write_text(DOUBLE.replace("return propagate_carries(2 * a, self.base)", line))
    done = run_command("try", file, "--runs", tmp_path / "runs", "--preset", "smoke")
    assert isinstance(done.exception, ValueError) and re.search(MISTAKES[line], str(done.exception))
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/*.safetensors"))


def test_a_task_without_an_answer_is_refused(tmp_path):
    file = tmp_path / "none.py"
    file.write_text("from abcnb.tasks.task import Task\n\n\nclass Nothing(Task):\n    name = 'nothing'\n")
    with pytest.raises(ValueError, match=r"got TypeError: the task 'nothing' does not define label\(\)"):
        TrainingData(str(file))


def test_a_string_with_a_symbol_that_it_does_not_have_is_refused(tmp_path):
    file = tmp_path / "more.py"
    text = "from abcnb.tasks.strings import StringTask\n\n\nclass More(StringTask):\n    name = 'more'\n"
    file.write_text(text + "\n    def answer(self, string):\n        return string + 1\n")
    with pytest.raises(ValueError, match=r"expected digits from 0 to 1 as the answers of more, .*, got 2"):
        TrainingData(str(file))
