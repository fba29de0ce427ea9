"""The command line, `python -m abcnb`; `--help` lists the commands.

One file, since each command is its options and a few calls into other rooms.
"""

import json
import os
import signal
import sys
import time
from itertools import cycle, product, zip_longest
from pathlib import Path
from typing import Annotated

import torch
import typer
from typer import Argument, Option

from abcnb.machine.devices import pick_device
from abcnb.machine.files import check_writable, write_atomically
from abcnb.model.evaluation import evaluate_kinds, percent, wrong_by_step
from abcnb.study import certificates, other_tasks, results, tables, views, why
from abcnb.study.configurations import methods_page, resolved
from abcnb.study.engines import open_engine
from abcnb.study.experiments import RULE
from abcnb.study.fingerprint import is_current, older
from abcnb.study.fitting import fit, fit_together
from abcnb.study.methods import METHODS, PRESETS, experiment, has
from abcnb.study.published import LENGTHS
from abcnb.study.runs import check_lengths, evaluations_of, is_finished, load_run
from abcnb.study.schedule import run_all
from abcnb.study.settings import with_settings
from abcnb.study.store import REPORTS, Store, commit_run, find_run
from abcnb.study.sweep import read_sweep
from abcnb.study.trial import attempt
from abcnb.study.verification import verify
from abcnb.tasks.own import ENDING
from abcnb.tasks.task import FURTHER, TASKS, Task
from abcnb.tasks.testsets import HARD_SAMPLES, TEST_SETS

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Small Transformers that learn arithmetic and generalize in length.",
)

# The base class of all argument errors of typer and click; some versions of typer have their own copy of click.
CommandLineError = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

INTERRUPTED = 130  # the exit status of Ctrl-C
MOST_DIGITS = 19  # of a number in an option, as in 64 bits
NUMBERS, NAMES = ("--lengths", "--seeds", "--notebooks"), ("--tasks", "--methods")
RUNS, COMMITTED = Path("runs"), Path("reports")
# The longest first, so that two workers end together.
MAIN_TASKS, MAIN_METHODS = ("parity", "addition", "n-by-1", "successor"), ("vanilla", "abs", "abc")
ALL_LENGTHS, WHY_TASKS = " ".join(map(str, LENGTHS)), " ".join(why.TASKS)

Runs = Annotated[Path, Option("--runs", help="Folder of all trained models.")]
Reports = Annotated[Path, Option("--reports", help="Folder of the committed models and results.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Samples = Annotated[int, Option(min=1, help="Test samples per length.")]
Lengths = Annotated[str, Option(help="Digits: '6 10 60'; in rows n × n digits, n terms of n, or lists n deep.")]
TaskName = Annotated[str, Argument(help=", ".join(TASKS | FURTHER) + ", or a file of your own, my_task.py:Double")]
Tasks = Annotated[str, Option(help="Tasks, separated by commas or spaces.")]
MethodName = Annotated[str, Argument(help="; ".join(f"{name}: {m.description}" for name, m in METHODS.items()))]
RunName = Annotated[str, Argument(help="A run's folder, or the start of its hash.")]
RunNames = Annotated[list[str], Argument(metavar="RUN", help="Runs' folders, or the starts of their hashes.")]
Text = Annotated[str, Argument(help="An input in the task's own form, e.g. 99+1 or 123*456.")]
Preset = Annotated[str, Option(help="; ".join(f"{name}: {text}" for name, text in PRESETS.items()))]
Seed = Annotated[int, Option(help="Of initialization and batches.")]
Settings = Annotated[list[str] | None, Option("--set", help="KEY=VALUE, e.g. training.steps=200; repeatable.")]
Fresh = Annotated[bool, Option("--fresh", help="Retrain and remeasure what was made by other code.")]


def _end(failures: list[str]) -> None:
    """Name what failed, and exit with 1 if anything did."""
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def _note(codes: set[str]) -> None:
    """Say in one line which results come from other code, if any do."""
    if line := older(codes, "--fresh", "these results"):
        print(line, file=sys.stderr)


def printable(text: str) -> str:
    """A text with its control characters escaped, since text from a file could control the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _numbers(text: str, least: int = 1) -> tuple[int, ...]:
    names = _names(text)
    if not names or not all(name.isdecimal() and len(name) < MOST_DIGITS and int(name) >= least for name in names):
        raise ValueError(
            f"expected whole numbers of at least {least}, separated by commas or spaces, got {text!r}"
        )
    return tuple(map(int, names))


def _lengths(text: str, task: Task) -> tuple[int, ...]:
    """Test lengths; by default those that the task has."""
    known = _numbers(text)
    return tuple(n for n in known if text != ALL_LENGTHS or n <= (task.longest or n))


def joined(arguments: list[str]) -> list[str]:
    """Let options take several values, as in `--lengths 6 10 60`, or be repeated: one argument, `6 10 60`."""
    result, option, places = [], "", {}
    for argument in arguments:
        named = option in NAMES and not argument.startswith("-")
        if named or (option in NUMBERS and argument.replace(",", "").isdecimal()):
            if option not in places:
                places[option] = len(result)
                result.append(argument)
            else:
                result[places[option]] += f" {argument}"
        else:
            option = argument
            result += [argument] if argument not in places else []
    return result


@app.command("fit")
def fit_command(
    task: TaskName,
    method: MethodName,
    preset: Preset = "laptop",
    seed: Seed = 0,
    set_: Settings = None,
    lengths: Lengths = ALL_LENGTHS,
    samples: Samples = 1000,
    fresh: Fresh = False,
    device: Device = "auto",
    runs: Runs = RUNS,
):
    """Train a method on a task (ABC trains what it needs first), print its exact match and its folder."""
    wanted = with_settings(experiment(task, method, preset, seed), set_ or [])
    measured = _lengths(lengths, wanted.get_task())
    check_lengths(wanted, measured, samples)
    run, where = fit(wanted, runs, device, fresh=fresh), pick_device(device)
    scores = [run.evaluate(length, samples, device=where, fresh=fresh) for length in measured]
    print(*scores, sep="\n")
    _note({run.code} | {score.code for score in scores})
    print(run.folder)


@app.command("try")
def try_command(
    task: TaskName, preset: Preset = "laptop", seed: Seed = 0, device: Device = "auto", runs: Runs = RUNS
):
    """Interpolate, calibrate, retrain and evaluate a task, and say in a sentence what came of it."""
    print(attempt(task, preset, seed, runs, device))


@app.command("show")
def show_command(
    task: TaskName,
    method: MethodName,
    preset: Preset = "laptop",
    seed: Seed = 0,
    set_: Settings = None,
    runs: Runs = RUNS,
):
    """Print the configuration of a method on a task, as `fit --set` takes it, and the lines that ABC found."""
    wanted = with_settings(experiment(task, method, preset, seed), set_ or [])
    print(resolved(wanted))
    if wanted.bias in RULE and (folder := Store(runs, REPORTS).kept(wanted)):
        print(f"\n{load_run(folder, wanted).calibration()}")


@app.command("evaluate")
def evaluate_command(
    run: RunName,
    lengths: Lengths = ALL_LENGTHS,
    samples: Samples = 10_000,
    test_set: Annotated[str, Option(help=", ".join(TEST_SETS))] = "random",
    as_json: Annotated[bool, Option("--json", help="One JSON object a line.")] = False,
    by_kind: Annotated[bool, Option("--by-kind", help="Score each kind of hard case or padding alone.")] = False,
    by_step: Annotated[bool, Option("--by-step", help="Count wrong samples at each output step, from 0.")] = False,
    fresh: Fresh = False,
    device: Device = "auto",
    runs: Runs = RUNS,
):
    """Exact match of a trained model by length."""
    if by_kind + by_step + (as_json or fresh) > 1:
        raise ValueError("expected --by-kind or --by-step alone, without --json and --fresh")
    found, where = find_run(run, runs), pick_device(device)
    measured = _lengths(lengths, found.experiment.get_task())
    check_lengths(found.experiment, measured, samples, test_set)
    if by_kind or by_step:
        e, model = found.experiment, found.model(where)
        for length in measured:
            asked = (model, e.get_task(), e.form, length, samples, test_set, e.train_width)
            if by_step:
                wrong = wrong_by_step(*asked)
                steps = ", ".join(f"{int(count)} at step {step}" for step, count in enumerate(wrong) if count)
                print(f"{length:>8}  of {len(wrong)} steps, wrong in: {steps or 'none'}")
            for kind, s in evaluate_kinds(*asked).items() if by_kind else ():
                print(f"{length:>8}  {kind:<16} {s.correct:>5} of {s.samples:<5} {s.wrong_digits} wrong digits")
        return
    scores = [found.evaluate(length, samples, test_set, where, fresh) for length in measured]
    _note({score.code for score in scores})
    if as_json:
        names = ("length", "samples", "correct", "exact_match")
        scores = [json.dumps({name: getattr(score, name) for name in names}) for score in scores]
    print(*scores, sep="\n")


@app.command("predict", context_settings={"ignore_unknown_options": True})  # "-1*3" is an input
def predict_command(run: RunName, text: Text, device: Device = "auto", runs: Runs = RUNS):
    """Decode one input greedily and print the answer beside the true one."""
    found = find_run(run, runs)
    task, answer = found.experiment.get_task(), found.predict(text, device)
    print(f"source   {answer.source}")
    if task.in_rows:
        pairs = zip_longest(task.split_rows(answer.written), task.split_rows(answer.label), fillvalue="")
        for name, (row, true) in zip(cycle(task.row_names), pairs, strict=False):
            print(f"{name:<9}{row}" + ("" if row == true else f"  (true: {true or 'no row'})"))
    else:
        print(f"written  {answer.written}  (units first)\nlabel    {answer.label}")
    right = answer.answer == answer.true
    verdict = "correct" if answer.correct else "right answer, another token is wrong" if right else "wrong"
    print(f"{verdict}: {answer.answer} (true: {answer.true})")


@app.command("runs")
def runs_command(runs: Runs = RUNS):
    """List the trained models."""
    folders = sorted(folder for folder in runs.glob("*") if is_finished(folder))
    if not folders:
        print(f"no finished runs in {runs}")
    for folder in folders:
        try:
            run = load_run(folder)
        except ValueError as error:
            print(printable(f"{folder.name}  unreadable: {error}"))
            continue
        e, m = run.experiment, run.metrics
        exact = percent(m["history"][-1]["exact_match"])
        print(f"{folder.name}  {e.task:<22} {e.method:<15} {e.preset:<12} seed {e.seed:<3}", end=" ")
        print(f"{m['steps']:>6} steps {m['seconds']:>7.0f} s  validation {exact}%")


@app.command("keep")
def keep_command(names: RunNames, runs: Runs = RUNS, reports: Reports = COMMITTED):
    """Copy runs, weights in half precision, into models/ of reports, where they are used without training."""
    for run in [find_run(name, runs) for name in names]:
        folder = commit_run(run, reports / "models")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{folder}  {size / 1e6:.1f} MB  {run.experiment.task} {run.experiment.method}")


@app.command("reproduce")
def reproduce_command(
    preset: Preset = "laptop",
    seeds: Annotated[str, Option(help="Seeds, separated by commas or spaces.")] = "0",
    tasks: Tasks = "",
    methods: Annotated[str, Option(help="Methods, likewise.")] = "",
    lengths: Lengths = ALL_LENGTHS,
    samples: Samples = 2000,
    workers: Annotated[int, Option(min=1, help="Processes of one thread each.")] = 2,
    device: Device = "auto",
    fresh: Fresh = False,
    runs: Runs = RUNS,
    reports: Reports = COMMITTED,
):
    """Train, calibrate, retrain and evaluate; print measured here beside committed and published."""
    pick_device(device)
    chosen, measured, started = _names(tasks) or MAIN_TASKS, _numbers(lengths), time.monotonic()
    named = _names(methods) or [m for m in MAIN_METHODS if any(has(t, m, preset) for t in chosen)]
    if not named:
        raise ValueError(
            f"expected --methods, since {', '.join(chosen)} at preset {preset} has none of {', '.join(MAIN_METHODS)}"
        )
    names = product(_numbers(seeds, least=0), named, chosen)  # Vanilla first: ABC calibrates it
    wanted = [experiment(task, method, preset, seed) for seed, method, task in names]
    # Measurements go beside the runs, never into the committed files.
    csv, tests = runs / "results" / "accuracy.csv", evaluations_of(measured, samples, min(samples, HARD_SAMPLES))
    failures = run_all(dict.fromkeys(wanted, tests), runs, csv, open_engine(workers=workers), device, fresh)
    both = (results.read(file) for file in (csv, reports / "results" / "accuracy.csv"))
    here, committed = (table[table["run"].isin([e.digest for e in wanted])] for table in both)
    if here.empty:
        print("nothing was measured")
    else:
        minutes = (time.monotonic() - started) / 60
        print(tables.three_ways(views.in_order(here), committed, measured))
        print(f"\n{workers} workers, {minutes:.1f} minutes. Rows: {csv}")
    _end(failures)


@app.command("sweep")
def sweep_command(
    spec: Annotated[Path, Argument(help="A TOML file; reports/sweeps/ has those behind the tables.")],
    engine: Annotated[str, Option(help="local: processes of this machine; ray: a cluster.")] = "local",
    workers: Annotated[int, Option(min=0, help="Runs at a time; 0: 2, or all of a cluster.")] = 0,
    address: Annotated[str, Option(help="Of a Ray cluster, or auto; empty starts one here.")] = "",
    gpu_share: Annotated[float, Option(min=0, max=1, help="Share of a GPU for each run on a cluster.")] = 0.0,
    together: Annotated[int, Option(min=0, help="Seeds trained as one batched model, at most; for a GPU.")] = 0,
    missing: Annotated[bool, Option("--missing", help="Skip what has all its rows in the CSV.")] = False,
    fresh: Fresh = False,
    device: Device = "auto",
    runs: Runs = RUNS,
    reports: Reports = COMMITTED,
):
    """Run the experiments that a TOML file lists; scores go into a CSV in the results folder as they come in."""
    asked, name = read_sweep(spec)
    if engine != "ray":
        pick_device(device)
    elif together:
        raise ValueError(f"expected --together with the engine local, got it with {engine!r}")
    elif not gpu_share:
        if device.startswith("cuda"):
            raise ValueError(f"expected --gpu-share above 0 for runs on {device}, got 0")
        device = "cpu"  # Ray does not hide GPUs from a task without a share of one
    wanted, csv = asked, reports.resolve() / "results" / f"{name}.csv"
    if missing:
        rows = results.read(csv)
        rows = rows[rows["code"].map(is_current).astype(bool)] if fresh else rows
        wanted = results.unmeasured(rows, wanted)
        print(f"{len(wanted)} of {len(asked)} experiments lack rows in {csv}")
        if not wanted:
            return
    if together > 1:
        fit_together(wanted, runs.resolve(), device, together, fresh=fresh)
    place = open_engine(engine, workers, address, gpu_share)
    failures = run_all(wanted, runs.resolve(), csv, place, device, fresh)
    table = results.read(csv)
    _note(set(table["code"][table["run"].isin([e.digest for e in asked])]))
    _end(failures)


@app.command("why")
def why_command(
    tasks: Tasks = WHY_TASKS,
    seeds: Annotated[str, Option(help="Seeds, likewise.")] = "70 71 72",
    only: Annotated[list[str] | None, Option(help="A variant; may be given again. Without it, all.")] = None,
    preset: Preset = "laptop",
    runs: Runs = RUNS,
    reports: Reports = COMMITTED,
):
    """Undo each choice of the rule, retrain, and write what comes of it into results/why.csv of reports."""
    csv = reports / "results" / ("why.csv" if preset == "laptop" else f"{preset}-why.csv")
    check_writable(csv.parent)
    for task, seed in product(_names(tasks), _numbers(seeds, least=0)):
        run = fit(experiment(task, "abc", preset, seed), runs, "cpu")
        why.measure(run, csv, only=only or ())


@app.command("certify")
def certify_command(
    names: RunNames,
    pruned: Annotated[bool, Option("--prune", help="First prune the heads that a model does not need.")] = False,
    record: Annotated[bool, Option("--record", help="Add the outcome to results/certificates.csv.")] = False,
    runs: Runs = RUNS,
    reports: Reports = COMMITTED,
):
    """Prove that trained models are right at every length, or show an input on which they are not."""
    failures = []
    if record:
        check_writable(reports / "results")
    for run in [find_run(name, runs) for name in names]:
        row, told = certificates.certified(run, pruned)
        print(told, flush=True)
        if record:
            results.record(reports / "results" / "certificates.csv", [row])
        failures += told.splitlines()[:1] if row["outcome"] != results.CORRECT else []
    _end(failures)


@app.command("table")
def table_command(
    readme: Annotated[Path, Option(help="Gets the short table, between its marks.")] = Path("README.md"),
    reports: Reports = COMMITTED,
):
    """Write the generated tables of README and of tables, methods, other_tasks and right_at_every_length.md."""
    # Rows of tasks in files of one's own stay out: the files may have changed since.
    table, proved = (
        rows[~rows["task"].str.contains(ENDING, regex=False)]
        for rows in (results.read(reports / "results" / f"{name}.csv") for name in ("accuracy", "certificates"))
    )
    if table.empty:
        raise ValueError(f"expected measured results in {reports / 'results' / 'accuracy.csv'}, got none")
    made = {readme: tables.overview(table, proved), reports / "tables.md": tables.long_tables(table)}
    made |= {reports / "right_at_every_length.md": tables.markdown(certificates.table(proved))}
    made |= {reports / "other_tasks.md": other_tasks.page(reports)}
    texts = {document: tables.with_table(text, document) for document, text in made.items()}
    texts |= {reports / "methods.md": methods_page()}  # all are made before the first is written
    for document, text in texts.items():
        write_atomically(document, lambda file, text=text: file.write_text(text, encoding="utf-8"))


@app.command("verify")
def verify_command(reports: Reports = COMMITTED):
    """Evaluate the committed models with this code and compare with the committed rows."""
    agreed, disagreements = verify(reports)
    print(f"{agreed} rows agree, {len(disagreements)} differ")
    _end(disagreements)


@app.command("reports")
def reports_command(
    preset: Annotated[str, Option(help="smoke, laptop or paper.")] = "laptop",
    numbers: Annotated[str, Option("--notebooks", help="Which, by number, e.g. 04 05; else all.")] = "",
    fresh: Annotated[bool, Option("--fresh", help="Execute again, with nothing that is committed.")] = False,
    live: Annotated[bool, Option("--live", help="Train live where notebooks can (some 20 minutes).")] = False,
    write_back: Annotated[bool, Option("--write-back", help="Update the committed notebooks too.")] = False,
    clean: Annotated[bool, Option("--clean", help="Only clean and check them; execute nothing.")] = False,
    device: Device = "auto",
    runs: Runs = RUNS,
    reports: Annotated[Path, Option(help="Folder for html/ and executed/.")] = Path("reports"),
):
    """Execute the notebooks that are not current, two at a time, and write the HTML pages."""
    if clean and (numbers or fresh or live or write_back):
        raise ValueError("expected --clean alone: it takes all notebooks and executes nothing")
    from abcnb.show.cleaning import clean_all
    from abcnb.show.reports import Execution, write_reports

    if clean:
        failures = clean_all()
    else:
        execution = Execution(preset, runs, reports, device, fresh, live)
        failures = write_reports(execution, _names(numbers), write_back)
        print(execution.pages() / "index.html")
    _end(failures)


@app.command("hero")
def hero_command():
    """Draw the figure that opens the README from committed files."""
    from abcnb.show.hero import write_hero

    write_hero(REPORTS, REPORTS / "hero.png")
    print(REPORTS / "hero.png")


@app.command("bench")
def bench_command(device: Device = "cpu"):
    """Measure speed as ratios within one run: on one thread, or training steps of the paper preset on a GPU."""
    from abcnb.bench import bench_cpu, bench_gpu

    where = pick_device(device)
    print(bench_gpu(where) if where.type == "cuda" else bench_cpu())


def _interrupt(*_) -> None:
    """The first Ctrl-C ends the command; the second does not wait for its clean-up."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; an invalid input gives a one-line message and exit status 2."""
    torch.set_num_threads(1)  # these small models gain little from a second one
    arguments = joined(sys.argv[1:] or ["--help"])
    told, status = None, 2
    try:
        status = app(arguments, prog_name="python -m abcnb", standalone_mode=False) or 0
    except CommandLineError as error:
        told = f"{error.format_message().rstrip('.')}. The arguments were: {' '.join(arguments)}"
    except (ValueError, OSError) as error:
        told = str(error)
    except (MemoryError, RuntimeError) as error:  # PyTorch has no kind of its own for what a CPU lacks
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        told = f"expected enough memory, got: {str(error).splitlines()[0]}; take fewer samples or smaller batches"
    except ModuleNotFoundError as error:
        told = f"expected the package {error.name} for this command; make .venv/everything installs all"
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # some versions of typer return it, others raise
        told = "interrupted; the same command goes on from here"
    if told is not None:
        print(f"abcnb: {printable(told)}", file=sys.stderr)
    raise SystemExit(status)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as in the background
        signal.signal(signal.SIGINT, _interrupt)
    main()
