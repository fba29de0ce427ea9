import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from abcnb.study.methods import experiment
from abcnb.study.runs import Prediction, load_run
from tests.conftest import assert_refused


def test_fit_prints_scores_and_the_folder_last(cli, tmp_path):
    small = ["--set", "training.steps=4", "--set", "training.validate_every=2"]
    code, out, err = cli(
        "fit", "successor", "vanilla", "--preset", "smoke", "--samples", 20, "--lengths", "3,6", *small
    )
    assert code == 0, err
    *scores, last = out.splitlines()
    assert [line.partition("%")[0].split()[0] for line in scores] == ["3", "6"]
    assert all("% of 20 exact" in line for line in scores)
    run = load_run(tmp_path / last)
    assert (tmp_path / last).parent == tmp_path / "runs"
    assert run.metrics["steps"] == 4 and run.experiment.training.validate_every == 2
    assert all(part in err for part in ("successor vanilla seed 0", "4/4", "exact=")), "the progress bar"


@pytest.mark.parametrize(
    ("command", "told"),
    [([], "reproduce"), (["fit"], "--seed"), (["predict"], "--device"), (["reproduce"], "--preset")],
)
def test_help(cli, command, told):
    code, out, err = cli(*command, "--help")
    assert (code, err) == (0, "") and told in out


def test_evaluate_as_json_lines(cli, vanilla_run):
    code, out, _ = cli("evaluate", vanilla_run.folder, "--json", "--lengths", "3 6", "--samples", 25)
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    for line, length in zip(lines, (3, 6), strict=True):
        score = vanilla_run.evaluate(length, 25)
        assert line == {
            "length": length, "samples": 25, "correct": score.correct, "exact_match": score.exact_match,
        }  # fmt: skip


def test_evaluate_by_the_start_of_the_hash(cli, vanilla_run, abc_run):
    start = vanilla_run.folder.name[:8]
    code, out, _ = cli("evaluate", start, "--runs", vanilla_run.folder.parent, "--lengths", 3, "--samples", 25)
    assert code == 0
    assert out.startswith("3 digits: ") and "% of 25 exact" in out and out.count("\n") == 1


def test_predict_shows_what_was_written_and_what_is_right(cli, vanilla_run):
    code, out, _ = cli("predict", vanilla_run.folder, "199")
    assert code == 0
    source, written, label, verdict = out.splitlines()
    assert source.split() == ["source", "$0000199&"] and label.split() == ["label", "0020000&"]
    right = written.split()[1] == "0020000&"
    assert verdict.startswith("correct" if right else "wrong") and verdict.endswith("(true: 200)")


def test_a_product_is_predicted_row_by_row(cli, product_run):
    code, out, _ = cli("predict", product_run.folder, "12*34")
    assert code == 0 and out.startswith("source   $12*34=\n")
    # 12 × 4 = 48, 12 × 3 = 36, 4 + 36 = 40: the rows are shown beside what they should be
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["products", "sums", "products", "sums"]
    assert all(row in out for row in ("840+", "840*", "630+", "040*")) and "(true: 408)" in out


def test_a_right_answer_with_a_wrong_row_is_said_to_be_that(cli, product_run, monkeypatch):
    written = Prediction("$0*5=", "00+10*00+&", "00+00*&", "0", "0")
    monkeypatch.setattr("abcnb.study.runs.Run.predict", lambda *_: written)
    code, out, _ = cli("predict", product_run.folder, "0*5")
    rows = [line.split(maxsplit=1)[1] for line in out.splitlines()[1:4]]
    assert code == 0 and rows == ["00+", "10*  (true: 00*)", "00+  (true: no row)"]
    assert out.splitlines()[-1] == "right answer, another token is wrong: 0 (true: 0)"


def test_runs_lists_what_is_there(cli, vanilla_run, abc_run):
    code, out, _ = cli("runs", "--runs", vanilla_run.folder.parent)
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert re.search(r"successor +vanilla +smoke +seed 0 +20 steps", lines[vanilla_run.folder.name])
    assert " abc " in lines[abc_run.folder.name]
    code, out, _ = cli("runs", "--runs", "elsewhere")
    assert code == 0 and out.strip() == "no finished runs in elsewhere"


HUGE = [
    (["--set", "training.batch_size=1000000000"], "expected a training step on 1,000,000,000 samples"),
    (["--set", "width=1000000"], "expected a width of at most 10,000 digits"),
    (
        ["--set", "width=10000", "--set", "training.batch_size=100000"],
        "expected a training step on 100,000 samples",
    ),
    (["--set", "model.d_model=1000000"], "expected a model of 2 layers of d_model 1,000,000"),
    (["--set", "model.decoder_layers=1000000000"], "expected a model of 1,000,000,000 layers"),
    (["--seed", str(2**64 - 1)], f"expected a seed from 0 to {2**32 - 1}"),
    (["--set", "training.weight_decay=nan"], "expected weight_decay as a finite number, got nan"),
    (["--lengths", "1000000000000"], "expected a test of 1,000 samples of 1,000,000,000,000 digits to fit into"),
    (["--lengths", "1000000", "--samples", "1"], "expected attention over 1,000,002 tokens to fit into"),
    (["--set", f"training.validation_samples={10**18}"], "expected enough memory, got"),
    (["--samples", "100000000000"], "expected a test of 100,000,000,000 samples of 6 digits to fit into"),
]


@pytest.mark.parametrize("arguments, told", HUGE)
def test_what_does_not_fit_this_machine_is_refused_before_it_begins(cli, small_machine, tmp_path, arguments, told):
    lengths = [] if "--lengths" in arguments else ["--lengths", "6" if "--samples" not in arguments else "60"]
    told = told.replace("samples of 6 digits", "samples of 60 digits")
    assert_refused(cli("fit", "successor", "vanilla", "--preset", "smoke", *lengths, *arguments), told)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    "task, method, setting, told",
    [
        ("successor", "abs-cpi", "window.w=1000000", "expected a window of w at most 10,000, got 1,000,000"),
        ("many-addition", "abc", "tau=1", "expected tau between 0 and 1"),
        ("multiplication", "vanilla", "width=1000000000", "expected a width"),
    ],
)
def test_settings_beyond_all_sense_are_refused(cli, task, method, setting, told):
    assert_refused(cli("fit", task, method, "--preset", "smoke", "--set", setting), told)


def test_a_sweep_that_cannot_be_is_refused_before_it_begins(cli, small_machine, tmp_path):
    grid = '[[grid]]\ntasks = ["successor"]\nmethods = ["vanilla"]\npresets = ["smoke"]\n'
    spec = tmp_path / "sweep.toml"
    spec.write_text("x = " + "[" * 20_000)
    assert_refused(cli("sweep", spec), "expected TOML in", "recursion")
    spec.write_text("lengths = [1000000000]\n" + grid)
    assert_refused(cli("sweep", spec), "expected a test of 10,000 samples of 1,000,000,000 digits to fit into")
    (tmp_path / "reports").write_text("a file")
    spec.write_text("lengths = [6]\n" + grid)
    assert_refused(cli("sweep", spec), "expected a folder that can be written to", "reports")
    assert not list((tmp_path).rglob("*.safetensors"))


def test_evaluate_refuses_what_does_not_fit(cli, small_machine, vanilla_run, abc_run):
    for folder, length, told in (
        (vanilla_run.folder, 10**6, "expected attention over 1,000,00"),
        (abc_run.folder, 10**9, "expected a test of 1 samples of 1,000,000,000 digits"),
        (vanilla_run.folder, 10**15, "expected a test of 1 samples of 1,000,000,000,000,000 digits"),
    ):
        assert_refused(cli("evaluate", folder, "--lengths", length, "--samples", "1"), told)


def test_control_characters_of_a_file_do_not_reach_the_terminal(cli, vanilla_run, tmp_path):
    folder = shutil.copytree(vanilla_run.folder, tmp_path / "runs" / "aaaa")
    content = json.loads((folder / "config.json").read_text()) | {"task": "\x1b]0;mine\x07successor"}
    (folder / "config.json").write_text(json.dumps(content))
    _, out, err = cli("runs")
    assert "unreadable" in out and "\x1b" not in out + err and r"\x1b" in out
    code, out, err = cli("evaluate", folder)
    assert code == 2 and "\x1b" not in out + err


def training(folder):
    """The process of a training that has begun."""
    program = [sys.executable, "-m", "abcnb", "fit", "successor", "vanilla", "--runs", str(folder)]
    # Where the tests run in the background, SIGINT is ignored, and a child would inherit that.
    process = subprocess.Popen(
        program, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    while not list(folder.rglob("config.json")):
        assert process.poll() is None
        time.sleep(0.1)
    return process


def test_a_second_interrupt_ends_with_130(tmp_path):
    process = training(tmp_path)
    process.send_signal(signal.SIGINT)
    told = next(line for line in process.stderr if "interrupted" in line)
    process.send_signal(signal.SIGINT)  # while it ends; where Python has given its handlers back, it dies of it
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), "130 for a shell, either way"
    assert "Traceback" not in told + err


@pytest.mark.parametrize("metrics", ["{}", "{", "3", '{"history": null}'])
def test_runs_goes_on_past_a_damaged_run(cli, vanilla_run, tmp_path, metrics):
    shutil.copytree(vanilla_run.folder, tmp_path / "runs" / "aaaa")
    shutil.copytree(vanilla_run.folder, tmp_path / "runs" / "bbbb")
    (tmp_path / "runs" / "aaaa" / "metrics.json").write_text(metrics)
    code, out, err = cli("runs")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["aaaa", "bbbb"]
    assert "unreadable" in out.splitlines()[0]


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["addition", "gpt"], ["expected a method among", "got 'gpt'"]),
        (["addition", "vanilla", "--preset", "desktop"], ["expected a preset among", "'desktop'"]),
        (["addition", "vanilla", "--seed", "-1"], ["expected a seed from 0 to", "-1"]),
        (["addition", "vanilla", "--seed", "one"], ["one"]),
        (["addition", "vanilla", "--set", "steps"], ["key=value", "'steps'"]),
        (["addition", "vanilla", "--lengths", "six"], ["expected whole numbers of at least 1", "'six'"]),
        (["addition", "vanilla", "--lengths", ""], ["expected whole numbers", "got ''"]),
        (["addition", "vanilla", "--lengths", "0"], ["0"]),
        (["addition", "vanilla", "--samples", "many"], ["many"]),
        (["addition", "vanilla", "--samples", "0"], ["0"]),
        (["addition", "vanilla", "--device", "tpu"], ["expected a device among", "'tpu'"]),
        (["addition", "vanilla", "--set", "width=2"], ["expected a width of at least 7", "got 2"]),
        (["addition"], ["Missing argument", "method"]),
    ],
)
def test_fit_refuses_bad_input_in_one_line_and_leaves_nothing(cli, tmp_path, arguments, told):
    preset = [] if "--preset" in arguments else ["--preset", "smoke"]
    steps = ["--set", "training.steps=1"]  # should a bad input be trained after all
    assert_refused(cli("fit", *arguments, *preset, *steps), *told)
    assert list(tmp_path.rglob("*")) == []


def test_a_file_where_runs_should_be_is_refused(cli, tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    outcome = cli("fit", "successor", "vanilla", "--preset", "smoke", "--set", "training.steps=1")
    assert_refused(outcome, "runs")


def test_a_file_where_models_should_be_is_refused(cli, vanilla_run, tmp_path):
    (tmp_path / "reports").write_text("not a folder")
    assert_refused(
        cli("keep", vanilla_run.folder, "--reports", "reports"), "expected a folder that can be written to"
    )


def test_escapes_among_arguments_do_not_reach_the_terminal(cli):
    _, _, said = cli("show", "\x1b[31mfoo")
    assert "\x1b" not in said and "Missing argument 'method'. The arguments were: show" in said


@pytest.mark.parametrize("run", ["nowhere", "", "*", "/nowhere/at/all", "../..", "f" * 5000])
def test_a_run_that_is_not_there_is_refused(cli, run):
    assert_refused(cli("evaluate", run), "expected a")


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["reproduce", "--tasks", "parity-classification", "--preset", "decoder-only"], "expected --methods"),
        (["reproduce", "--tasks", "sums"], "expected a task among"),
        (["reproduce", "--methods", "vanilla,gpt"], "expected a method among"),
        (["reproduce", "--preset", "huge"], "expected a preset among"),
        (["reproduce", "--seeds", "first"], "'first'"),
        (["reports", "--notebooks", "1", "99"], "'99'"),
        (["reports", "--preset", "huge"], "'huge'"),
        (["reports", "--clean", "--notebooks", "05"], "expected --clean alone"),
        (["sweep", "none.toml"], "expected a sweep file, got none.toml: No such file"),
        (["verify", "--reports", "none"], "expected committed models in none/models"),
    ],
)
def test_what_leaves_nothing_to_do_is_refused(cli, tmp_path, arguments, told):
    assert_refused(cli(*arguments), told)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_start_are_refused(cli, vanilla_run, tmp_path):
    for name in ("ab1", "ab2"):
        shutil.copytree(vanilla_run.folder, tmp_path / "runs" / name)
    assert_refused(cli("evaluate", "ab"), "2 runs", "'ab'")


@pytest.mark.parametrize(
    "task, text, told",
    [
        ("parity", "1012", ["digits 0 to 1", "'2'"]),
        ("parity", "", ["NUMBER", "nothing"]),
        ("successor", "12a", ["digits 0 to 9", "'a'"]),
        ("successor", "-5", ["digits 0 to 9", "'-5'"]),
    ],
)
def test_predict_refuses_what_is_not_a_number_of_the_task(cli, vanilla_run, parity_run, task, text, told):
    run = parity_run if task == "parity" else vanilla_run
    assert_refused(cli("predict", run.folder, text), *told)


def test_evaluate_refuses_an_unknown_test_set_or_length(cli, vanilla_run):
    assert_refused(cli("evaluate", vanilla_run.folder, "--test-set", "carry"), "random, hard", "'carry'")
    assert_refused(cli("evaluate", vanilla_run.folder, "--lengths", "-3"), "'-3'")


@pytest.mark.parametrize("test_set, kinds", [("hard", 5), ("padded", 20), ("unequal", 1)])
def test_evaluate_by_kind_adds_up_to_the_test_set(cli, vanilla_run, test_set, kinds):
    options = ["--test-set", test_set, "--lengths", "3", "--samples", "50"]
    _, out, _ = cli("evaluate", vanilla_run.folder, *options, "--by-kind")
    lines = [line.split() for line in out.splitlines()]
    assert {line[0] for line in lines} == {"3"} and len(lines) == kinds
    _, out, _ = cli("evaluate", vanilla_run.folder, *options, "--json")
    whole = json.loads(out)
    counts = [[int(word) for word in line[-6:] if word.isdecimal()] for line in lines]
    assert sum(c[-3] for c in counts) == whole["correct"] and sum(c[-2] for c in counts) == whole["samples"]


@pytest.mark.parametrize("test_set", ["hard", "padded"])
def test_evaluate_by_step_counts_every_wrong_digit(cli, vanilla_run, test_set):
    options = ["--test-set", test_set, "--lengths", "3", "--samples", "300"]
    _, out, _ = cli("evaluate", vanilla_run.folder, *options, "--by-step")
    steps = re.findall(r"(\d+) at step (\d+)", out)
    run = load_run(vanilla_run.folder)
    whole = run.evaluate(3, 300, test_set)
    assert sum(int(count) for count, _ in steps) == whole.wrong_digits > 0
    assert [int(step) for _, step in steps] == sorted({int(step) for _, step in steps})
    assert_refused(cli("evaluate", vanilla_run.folder, "--by-step", "--by-kind"), "--by-kind or --by-step alone")


def test_settings_change_the_experiment_that_is_trained(cli, tmp_path):
    small = ["--set", "training.steps=2", "--set", "interpolation.training.steps=3", "--set", "seed=4"]
    code, out, err = cli("fit", "parity", "abc", "--preset", "smoke", *small, "--lengths", 2, "--samples", 5)
    assert code == 0, err
    run = load_run(tmp_path / out.splitlines()[-1])
    assert run.metrics["steps"] == 2 and run.experiment.seed == run.experiment.interpolation.seed == 4
    inner = load_run(tmp_path / "runs" / run.experiment.interpolation.digest)
    assert inner.metrics["steps"] == 3
    assert run.experiment.digest != experiment("parity", "abc", "smoke", 4).digest


def test_several_lengths_may_follow_their_option():
    from abcnb.__main__ import joined

    assert joined(["evaluate", "5f", "--lengths", "6", "10", "60", "--samples", "9"]) == [
        "evaluate", "5f", "--lengths", "6 10 60", "--samples", "9",
    ]  # fmt: skip
    assert joined(["reproduce", "--seeds", "0", "1"]) == ["reproduce", "--seeds", "0 1"]
    repeated = ["evaluate", "5f", "--lengths", "6", "--samples", "9", "--lengths", "10", "60"]
    assert joined(repeated) == ["evaluate", "5f", "--lengths", "6 10 60", "--samples", "9"]
    assert joined(["evaluate", "--lengths", "6,", "10", "60"]) == ["evaluate", "--lengths", "6, 10 60"]
    assert joined(["reproduce", "--tasks", "addition", "parity", "--seeds", "1"]) == [
        "reproduce", "--tasks", "addition parity", "--seeds", "1",
    ]  # fmt: skip
    assert joined(["evaluate", "--lengths", "6", "5f"]) == ["evaluate", "--lengths", "6", "5f"]
