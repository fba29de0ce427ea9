"""What the README claims, tried: committed models, its first command, its first program, and the whole job."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch

import abcnb
import abcnb.model.positions
import abcnb.tasks.arithmetic
import abcnb.tasks.rows
from abcnb.model.evaluation import percent
from abcnb.study import results
from abcnb.study.fingerprint import fingerprint
from abcnb.study.fitting import fit
from abcnb.study.methods import experiment
from abcnb.study.runs import load_run
from abcnb.tasks.task import get_task
from abcnb.tasks.testsets import HARD_SAMPLES
from abcnb.tasks.tokens import decode
from tests.inline import InlineEngine

REPOSITORY = Path(__file__).parents[1]
MODELS = sorted(folder for folder in (REPOSITORY / "reports" / "models").iterdir() if folder.is_dir())


# --- committed models


@cache
def hard_cases():
    """All committed rows of hard cases."""
    files = (REPOSITORY / "reports" / "results" / f"{name}.csv" for name in ("accuracy", "development"))
    return pd.concat([results.read(file) for file in files]).query("test_set == 'hard'")


def committed_hard_cases(folder):
    """The committed rows of a committed model on hard cases, by length."""
    return {row.length: row for row in hard_cases().query("run == @folder.name").itertuples()}


@pytest.mark.parametrize("task", ["successor", "addition"])
def test_the_committed_lines_are_those_of_the_committed_plain_model(task):
    """Notebooks show both: a plain model from another processor has other weights."""
    abc, plain = (load_run(MODELS[0].parent / experiment(task, name).digest) for name in ("abc", "vanilla"))
    (found,) = abcnb.pipeline.attention_of(plain.model(), plain.experiment.data())
    (kept,) = abc.attention()
    for name in ("self_attention", "cross_attention"):
        torch.testing.assert_close(getattr(found, name), getattr(kept, name), atol=1e-4, rtol=1e-4)


def assert_reproduced(folder, row):
    """The row's exact matches come out again, and its wrong digits where the model answers most of them right.

    Where it does not, its digits are guesses, and a few of ten thousand fall otherwise with weights in half precision.
    """
    run = load_run(folder)
    model, data = run.model(), run.experiment.data()
    assert run.experiment.digest == folder.name and model.history
    (score,) = abcnb.evaluate(model, data, [row.length], HARD_SAMPLES, "hard")
    assert (score.samples, score.correct, score.digits) == (row.samples, row.correct, row.digits)
    if 2 * row.correct > row.samples:
        assert score.wrong_digits == row.wrong_digits
    else:
        assert score.wrong_digits == pytest.approx(row.wrong_digits, rel=1e-3)


def without_errors(length):
    """Committed models whose row at a length has no wrong digit."""
    rows = {folder: committed_hard_cases(folder).get(length) for folder in MODELS}
    return [folder for folder, row in rows.items() if row is not None and not row.wrong_digits]


def test_a_model_of_found_lines_for_every_task_is_without_errors_at_twelve_digits():
    found = [load_run(folder).experiment for folder in without_errors(12)]
    tasks = ("successor", "addition", "parity", "n-by-1", "multiplication", "many-addition")
    assert {(e.task, e.method) for e in found} >= {(task, "abc") for task in tasks}


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_committed_model_reproduces_its_row(folder):
    """At twelve digits where it makes no error there, else at six, as outputs in rows, or of lists at depth three."""
    rows, in_rows = committed_hard_cases(folder), load_run(folder).experiment.get_task().in_rows
    lengths = (6, 3) if in_rows else (12, 6)
    assert_reproduced(folder, rows[next(n for n in lengths if n in rows and (n < 12 or not rows[n].wrong_digits))])


# --- the README's commands


def test_the_first_command_of_the_readme_prints_the_sum(cli, monkeypatch):
    text = (REPOSITORY / "README.md").read_text()
    command = re.search(r"\.venv/bin/python -m abcnb predict reports/models/\w+ \"[^\"]+\"", text)
    assert command, "the README has no command that predicts"
    *_, run, text = shlex.split(command[0])
    monkeypatch.chdir(REPOSITORY)
    code, out, err = cli("predict", run, text)
    total = sum(map(int, text.split("+")))
    assert (code, out.splitlines()[-1]) == (0, f"correct: {total} (true: {total})"), err


def test_the_whole_job_runs_from_the_command_line(cli, tmp_path, monkeypatch):
    """As `make reproduce`, at the smoke preset and for one task: all methods, measured beside published."""
    methods = ("vanilla", "abs", "abc")
    options = ["--preset", "smoke", "--tasks", "successor", "--lengths", "3", "--samples", "50"]
    monkeypatch.setattr("abcnb.__main__.open_engine", lambda **_: InlineEngine())
    code, out, err = cli("reproduce", *options, "--device", "cpu")
    assert code == 0, err
    table = results.read(tmp_path / "runs" / "results" / "accuracy.csv")
    assert sorted(zip(table["method"], table["test_set"], strict=True)) == [
        (method, test_set) for method in sorted(methods) for test_set in ("hard", "random")
    ]
    assert set(table["code"]) == {fingerprint()}
    assert set(table["run"]) == {file.parent.name for file in tmp_path.glob("runs/*/metrics.json")}
    shown = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| successor")]
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
    """Run a program as it is printed; returns the exact matches in percent that it prints, by length, and its end."""
    with contextlib.redirect_stdout(io.StringIO()) as written:
        exec(compile(text, "README.md", "exec"), {"__name__": "__main__"})
    matches = [
        re.match(r"(\d+) digits: ([\d.]+)% of ([\d,]+) exact", line) for line in written.getvalue().splitlines()
    ]
    found = {int(m[1]): (float(m[2]), int(m[3].replace(",", ""))) for m in matches if m}
    assert found and "share" in written.getvalue(), written.getvalue()
    return found, written.getvalue().splitlines()[-1]


def test_the_program_of_the_readme_runs(small_pipeline):
    short = "training=abcnb.TrainingConfig(steps=30)"
    smaller, trained = re.subn(r"abcnb\.(interpolate|retrain)\((.+)\)", rf"abcnb.\1(\2, {short})", program())
    smaller, samples = re.subn(r"\bsamples=[\d_]+", "samples=50", smaller)
    assert trained == 2 and samples == 1, "it trains both models, and says on how much it is tested"
    found, told = printed_by(smaller)
    assert {count for _, count in found.values()} == {50}
    assert found[max(found)][0] < 99 and told.startswith("wrong on $"), "thirty steps teach nobody to add"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_program_of_the_readme_generalizes_from_six_digits(seed):
    """About three minutes on one thread."""
    seeded, calls = re.subn(r"abcnb\.(interpolate|retrain|calibrate)\(", rf"\g<0>seed={seed}, ", program())
    seeded = re.sub(r"(seed=\d+), ((?:plain, )?data(?:, lines)?)", r"\2, \1", seeded)
    found, told = printed_by(seeded)
    print(f"seed {seed}: {found}, {told}")
    longest = max(found)
    assert told.startswith("correct at every length: ")
    assert calls == 3 and longest > 6 and found[longest][0] >= 99 and found[longest][1] == 10_000


def test_the_tasks_and_the_scheme_of_the_page_on_adding_them_are_classes_that_work(tmp_path):
    task, string, two_back, in_rows, scheme = python_of("reports/extending.md")
    for name, text in {"my_task": task, "string": string, "rows": in_rows, "two": f"{task}\n\n{two_back}"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = get_task(f"{tmp_path}/string.py")
    assert found.read(decode(found.batch(found.parse("2048")).target[0])) == "0482"
    found = get_task(f"{tmp_path}/my_task.py")
    assert found.read(decode(found.batch(found.parse("1000")).target[0])) == "999"
    assert ("a", (-2,)) in get_task(f"{tmp_path}/two.py:TwoBack").lines_by_hand["digits"]
    largest = get_task(f"{tmp_path}/rows.py")
    batch = largest.batch(largest.parse("12>9>80"))
    assert decode(batch.source[0]) + decode(batch.target[0]) == "$012>009>080=210+910+980+&"
    run = fit(experiment(f"{tmp_path}/rows.py", "abs", "smoke"), tmp_path, "cpu", progress=False)
    assert run.evaluate(3, 50).samples == 50
    schemes = dict(vars(abcnb.model.positions))
    schemes["SCHEMES"] = dict(schemes["SCHEMES"])
    exec(scheme, schemes)
    columns = get_task("addition").stream(3).columns(crossing=True)
    vectors = schemes["Halves"](8).vectors(columns)
    assert torch.equal(vectors[4], abcnb.model.positions.Sinusoidal(8).vectors(columns)[2])


def test_the_edits_that_a_scheme_needs_suffice(tmp_path):
    shutil.copytree(REPOSITORY / "abcnb", tmp_path / "abcnb", ignore=shutil.ignore_patterns("__pycache__"))
    page = (REPOSITORY / "reports" / "extending.md").read_text()
    study = tmp_path / "abcnb" / "study" / "methods.py"
    (in_methods,) = re.findall(r'`("halves": .*?,)`', page)
    with (tmp_path / "abcnb" / "model" / "positions.py").open("a") as file:
        file.write("\n\n" + python_of("reports/extending.md")[-1])
    text = study.read_text()
    assert text.count("METHODS = {\n") == 1
    study.write_text(text.replace("METHODS = {\n", f"METHODS = {{\n    {in_methods}\n"))
    command = shlex.split(re.search(r"`python (-m abcnb fit addition halves .*?)`", page)[1])
    command += ["--runs", str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("*/metrics.json"))) == 1
