"""What the README claims, tried: committed models, its first command, its first program, and the whole job."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import abcnb
import abcnb.positions
import abcnb.rows
import abcnb.tasks
from abcnb.evaluation import percent
from abcnb.study import results
from abcnb.study.fingerprint import fingerprint
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.study.verification import hard_samples
from abcnb.tasks import TASKS, get_task
from abcnb.tokens import decode

REPOSITORY = Path(__file__).parents[1]
MODELS = sorted(folder for folder in (REPOSITORY / "reports" / "models").iterdir() if folder.is_dir())
by_model = pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)


# --- committed models


def committed_hard_cases(folder):
    """The committed rows of a committed model on hard cases, by length."""
    table = results.read(REPOSITORY / "reports" / "results" / "accuracy.csv")
    rows = table[(table["run"] == folder.name) & (table["test_set"] == "hard")]
    return {row.length: row for row in rows.itertuples()}


def assert_reproduced(folder, row):
    """The row's exact matches come out again, and its wrong digits where the model answers most of them right.

    Where it does not, its digits are guesses, and a few of ten thousand fall otherwise with weights in half precision.
    """
    run = load_run(folder)
    data = run.experiment.data()
    (score,) = abcnb.evaluate(run.model(), data, [row.length], hard_samples(data.task), "hard")
    assert (score.samples, score.correct, score.digits) == (row.samples, row.correct, row.digits)
    if 2 * row.correct > row.samples:
        assert score.wrong_digits == row.wrong_digits
    else:
        assert score.wrong_digits == pytest.approx(row.wrong_digits, rel=1e-3)


@by_model
def test_a_committed_model_reproduces_its_row_at_six_digits(folder):
    assert_reproduced(folder, committed_hard_cases(folder)[6])


def without_errors(length):
    """Committed models whose row at a length has no wrong digit."""
    rows = {folder: committed_hard_cases(folder).get(length) for folder in MODELS}
    return [folder for folder, row in rows.items() if row is not None and not row.wrong_digits]


def test_a_model_of_lines_for_every_task_is_without_errors_at_sixty_digits():
    found = [load_run(folder).experiment for folder in without_errors(60)]
    assert {(e.task, e.method) for e in found} == {
        (task, method)
        for task in ("successor", "addition", "parity", "n-by-1")
        for method in ("abs-place", "abc-places")
    } | {("multiplication", "abc-places"), ("many-addition", "abc-places")}


@pytest.mark.parametrize("folder", without_errors(20), ids=lambda folder: folder.name)
def test_a_committed_model_without_errors_at_twenty_digits_has_none_here(folder):
    assert_reproduced(folder, committed_hard_cases(folder)[20])


@pytest.mark.slow
@pytest.mark.parametrize("folder", without_errors(60), ids=lambda folder: folder.name)
def test_a_committed_model_without_errors_at_sixty_digits_has_none_here(folder):
    assert_reproduced(folder, committed_hard_cases(folder)[60])


# --- the README's commands


def test_the_first_command_of_the_readme_prints_the_sum():
    text = (REPOSITORY / "README.md").read_text()
    command = re.search(r"\.venv/bin/python -m abcnb predict reports/models/\w+ \"[^\"]+\"", text)
    assert command, "the README has no command that predicts"
    _, *arguments = shlex.split(command[0])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    total = sum(map(int, arguments[-1].split("+")))
    assert done.stdout.splitlines()[-1] == f"correct: {total} (true: {total})"


def test_the_whole_job_runs_from_the_command_line(tmp_path):
    """As `make reproduce`, at the smoke preset and for one task: all methods, measured beside published."""
    methods = ("vanilla", "abs-place", "abc-places")
    options = ["--preset", "smoke", "--tasks", "successor", "--lengths", "3", "--samples", "50"]
    done = subprocess.run(
        [sys.executable, "-m", "abcnb", "reproduce", *options, "--device", "cpu"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = results.read(tmp_path / "runs" / "results" / "accuracy.csv")
    assert sorted(zip(table["method"], table["test_set"], strict=True)) == [
        (method, test_set) for method in sorted(methods) for test_set in ("hard", "random")
    ]
    assert set(table["code"]) == {fingerprint()}
    assert set(table["run"]) == {file.parent.name for file in tmp_path.glob("runs/*/metrics.json")}
    shown = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| successor")]
    for method in methods:
        found = table[(table["method"] == method) & (table["test_set"] == "random")]
        share = percent(100 * found["correct"].item() / found["samples"].item())
        assert ["successor", method, "here", share] in shown
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "what is committed is only read"


# --- the Python of the README and of the page on tasks


def python_of(document):
    """The Python blocks of a document, in order."""
    return re.findall(r"^```python\n(.*?)^```", (REPOSITORY / document).read_text(), re.DOTALL | re.MULTILINE)


def program():
    """The first Python block of the README that goes from training to evaluation."""
    blocks = python_of("README.md")
    found = [block for block in blocks if "abcnb.interpolate" in block]
    assert found, "the README has no ```python block with abcnb.interpolate"
    return found[0]


def printed_by(text):
    """Run a program as it is printed; returns the exact match in percent that it prints, by length."""
    with contextlib.redirect_stdout(io.StringIO()) as written:
        exec(compile(text, "README.md", "exec"), {"__name__": "__main__"})
    lines = written.getvalue().splitlines()
    found = [re.match(r"(\d+) digits: ([\d.]+)% of ([\d,]+) exact", line) for line in lines]
    assert found and all(found), lines
    return {int(match[1]): (float(match[2]), int(match[3].replace(",", ""))) for match in found}


def test_the_program_of_the_readme_runs():
    smaller, steps = re.subn(r"\bsteps=[\d_]+", "steps=20", program())
    smaller, samples = re.subn(r"\bsamples=[\d_]+", "samples=50", smaller)
    assert steps == 2 and samples == 1, "it says how long it trains, both models, and on how much it is tested"
    found = printed_by(smaller)
    assert max(found) == 60 and {count for _, count in found.values()} == {50}
    assert found[60][0] < 99, "twenty steps teach nobody to add one to sixty digits"


@pytest.mark.slow
def test_the_program_of_the_readme_generalizes_from_six_digits_to_sixty():
    """About two minutes on one thread."""
    found = printed_by(program())
    assert found[60][0] >= 99 and found[60][1] == 10_000


def test_the_lines_for_other_peoples_models_run_as_they_are_printed():
    transformers = pytest.importorskip("transformers")
    (text,) = [block for block in python_of("README.md") if "hugging_face" in block]
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4)
    plain, model = (transformers.LlamaForCausalLM(config) for _ in range(2))
    batches = [torch.tensor([[10, 1, 2, 11, 3, 4], [10, 5, 6, 11, 7, 8]])]
    trained = []
    exec(text, {"plain": plain, "model": model, "train": trained.append, "batches": batches})
    assert trained == [plain, model]
    with torch.no_grad():
        first, other = (model(ids).logits[:, -1] for ids in (batches[0], batches[0] * (batches[0] != 1)))
    assert torch.equal(first[1], other[1])


def test_the_tasks_and_the_scheme_of_the_page_on_adding_them_are_classes_that_work(tmp_path):
    task, in_rows, _, scheme = python_of("reports/extending.md")
    tasks = dict(vars(abcnb.tasks))
    exec(task, tasks)
    try:
        found = get_task("predecessor")
        assert found.read(decode(found.batch(found.parse("1000")).target[0])) == "999"
    finally:
        del TASKS["predecessor"]
    exec(in_rows, dict(vars(abcnb.rows)))
    try:
        largest = get_task("many-maximum")
        batch = largest.batch(largest.parse("12>9>80"))
        assert decode(batch.in_one_stream[0]) + "&" == "$012>009>080=210+910+980+&"
        run = fit(experiment("many-maximum", "abs-place", "smoke"), tmp_path, "cpu", progress=False)
        assert run.evaluate(3, 50).samples == 50
    finally:
        del TASKS["many-maximum"]
    schemes = dict(vars(abcnb.positions))
    exec(scheme, schemes)
    layout = get_task("addition").layout(3)
    vectors = schemes["Places"](8).source(layout)
    a, b = (layout.column_of_place[segment][1:-1] for segment in (0, 1))
    assert torch.equal(vectors[a], vectors[b]) and not torch.equal(vectors[a[0]], vectors[a[1]])


def test_the_edits_that_a_scheme_needs_suffice(tmp_path):
    shutil.copytree(REPOSITORY / "abcnb", tmp_path / "abcnb", ignore=shutil.ignore_patterns("__pycache__"))
    page = (REPOSITORY / "reports" / "extending.md").read_text()
    core, study = tmp_path / "abcnb" / "model_config.py", tmp_path / "abcnb" / "study" / "methods.py"
    in_schemes, in_methods = re.findall(r'`("places": .*?,)`', page)
    with (tmp_path / "abcnb" / "positions.py").open("a") as file:
        file.write("\n\n" + python_of("reports/extending.md")[-1])
    for file, mark, line in (
        (core, "from abcnb.positions import (\n", "    Places,\n"),
        (core, "SCHEMES: dict[str, type[Positions]] = {\n", f"    {in_schemes}\n"),
        (study, "METHODS = {\n", f"    {in_methods}\n"),
    ):
        text = file.read_text()
        assert text.count(mark) == 1
        file.write_text(text.replace(mark, mark + line))
    command = shlex.split(re.search(r"`python (-m abcnb fit addition places .*?)`", page)[1])
    command += ["--runs", str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("*/metrics.json"))) == 1


@pytest.mark.slow
def test_what_a_task_must_be_like():
    """About three minutes on one thread."""
    (text,) = [block for block in python_of("reports/extending.md") if "Difference" in block]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as written:
            exec(compile(text, "extending.md", "exec"), {"__name__": "__main__"})
    finally:
        for name in ("difference", "high-first"):
            TASKS.pop(name, None)
    found = [float(share) for share in re.findall(r"digits: ([\d.]+)%", written.getvalue())]
    at_6, at_20, difference_at_6, difference_at_20, plain, high_first = found
    assert min(at_6, at_20, plain) >= 99 and high_first < 95
    assert difference_at_6 < 20 and difference_at_20 < 1
