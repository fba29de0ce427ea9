"""Training the run of an experiment: begun, resumed or found finished, by one process at a time."""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count
from pathlib import Path

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout
from safetensors.torch import save

import abcnb
from abcnb import pipeline
from abcnb.lines.algorithm1 import calibrate_matrices
from abcnb.lines.biases import Biases
from abcnb.lines.calibration import calibrate_attention
from abcnb.machine.devices import hardware, pick_device
from abcnb.machine.files import check_writable, write_atomically
from abcnb.model.checkpoint import steps_in
from abcnb.model.training import CHECKPOINT, check_training
from abcnb.model.transformer import Transformer
from abcnb.proof.pruning import lines_left, prune
from abcnb.rivals.lora import adapt
from abcnb.study import runs as run_files
from abcnb.study.experiments import FOUND, Experiment
from abcnb.study.fingerprint import UNKNOWN, fingerprint, is_current, joint
from abcnb.study.runs import Run
from abcnb.study.settings import with_settings
from abcnb.study.together import train_together

BEGUN = "code.txt"  # in an unfinished run: the fingerprint of the code that began it
Listener = Callable[[int, float], None]
INTERPOLATED = 99.0  # percent exact match in validation from which a plain model's lines can be relied on


def fit(
    experiment: Experiment,
    runs: Path | str,
    device: str = "auto",
    progress: bool = True,
    listener: Listener | None = None,
    fresh: bool = False,
) -> Run:
    """The run of an experiment: loaded if it is there, trained if not, resumed if it was interrupted.

    What a run builds on, to calibrate, prune or adapt, is fitted first. If two processes ask for the same run, one
    trains it and the other waits. Raises ValueError if the device is missing, or a stored run is damaged or
    another experiment's.

    Args:
        listener: called a few times a second with the number of steps done since its last call and the last loss, or
            with 0 and NaN while another process works on the run; if it raises, training stops and leaves a
            checkpoint.
        fresh: set aside a run that other code trained, and train it anew.
    """
    where, runs = pick_device(device), Path(runs)
    check_writable(runs)
    run = Run(runs / experiment.digest, experiment)
    run.folder.mkdir(exist_ok=True)
    with _acquired(run, listener):
        if run_files.is_finished(run.folder):
            _drop_checkpoint(run.folder)
            if is_usable(experiment, runs, fresh):
                return run_files.load_run(run.folder, experiment)
        base, code = _prepare(run, where, progress, listener, fresh)
        label = f"{experiment.task} {experiment.method} seed {experiment.seed}"
        watch = {"folder": run.folder, "owner": experiment.digest, "label": label, "progress": progress}
        watch |= {"on_step": listener, "training": experiment.training, "seed": experiment.seed}
        if experiment.lora:
            model = adapt(experiment.data(where), base.model(), experiment.lora, **watch)
        else:
            model = pipeline.retrain(experiment.data(where), run.biases(), experiment.model, **watch)
        _finish(run, model, code, hardware(where))
    return run


def fit_together(
    wanted: Iterable[Experiment],
    runs: Path,
    device: str = "auto",
    most: int = 8,
    progress: bool = True,
    fresh: bool = False,
) -> None:
    """Fit experiments that differ only in their seeds as one batched model, at most `most` at a time.

    What they build on comes first. Some are left to `fit`: experiments that differ from all others, those with
    adapters, groups in which another process works on a run, and groups for which this fails, with a line printed.
    """
    where, runs, alike = pick_device(device), Path(runs), defaultdict(list)
    wanted = dict.fromkeys(e for e in wanted if not is_usable(e, runs, fresh))
    if bases := [e.interpolation for e in wanted if e.interpolation]:
        fit_together(bases, runs, device, most, progress, fresh)
    for e in wanted:
        if not e.lora:
            alike[with_settings(e, ["seed=0"]), steps_in(runs / e.digest / CHECKPOINT)].append(e)
    for group in alike.values():
        for some in (group[at : at + most] for at in range(0, len(group), most)):
            try:
                if len(some) > 1:
                    _fit_group(some, runs, where, progress, fresh)
            except (ValueError, RuntimeError, OSError) as error:
                reason = str(error).strip().partition("\n")[0]
                told = f"{some[0].task} {some[0].method} of {len(some)} seeds: {reason}"
                print(f"Note: each goes on alone, since together they failed: {told}", file=sys.stderr)


def _fit_group(group: list[Experiment], runs: Path, where: torch.device, progress: bool, fresh: bool) -> None:
    found = [Run(runs / e.digest, e) for e in group]
    with ExitStack() as held:
        for run in found:
            run.folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(_lock(run).acquire(timeout=0))
            except Timeout:
                return
            if is_usable(run.experiment, runs, fresh):
                return
        codes = [_prepare(run, where, progress, None, fresh)[1] for run in found]
        first, data = group[0], group[0].data(where)
        models = [run_files.new_model(run.experiment, run.biases()).to(where) for run in found]
        size = len(group) * first.training.batch_size
        check_training(first.model, models[0].head.out_features, size, data.stream.rows, where)
        whose = [e.seed for e in group], [run.folder for run in found], [e.digest for e in group]
        label = f"{first.task} {first.method}, {len(group)} seeds at once"
        histories = train_together(models, data, first.training, *whose, label, progress)
        for run, model, code, history in zip(found, models, codes, histories, strict=True):
            model.history = history
            _finish(run, model, code, f"{hardware(where)}, {len(group)} models at once")


def _prepare(
    run: Run, device: torch.device, progress: bool, listener: Listener | None, fresh: bool
) -> tuple[Run | None, str]:
    """Fit what a run builds on, and put what its training starts from into its folder, which is empty or begun.

    Returns the run it builds on, and the fingerprint of the training, which shows a checkpoint of other code.
    """
    folder, experiment, first = run.folder, run.experiment, run.experiment.interpolation
    if run_files.is_finished(folder):  # by other code: out of the way, under a name that says which
        superseded = folder.parent / "superseded"
        superseded.mkdir(exist_ok=True)
        names = (superseded / f"{folder.name}-{run.code}-{n}" for n in count(1))
        folder.rename(next(name for name in names if not name.exists()))
    base = fit(first, folder.parent, str(device), progress, listener, fresh) if first else None
    check_writable(folder)
    code = joint(base.code, fingerprint()) if base else fingerprint()
    begun, checkpoint = folder / BEGUN, folder / CHECKPOINT
    if checkpoint.exists():
        before = begun.read_text() if begun.exists() else UNKNOWN
        if fresh and not is_current(before):
            checkpoint.unlink()
        else:
            code = joint(before, code)
    write_atomically(begun, lambda name: name.write_text(code))
    run_files.write_json(folder / run_files.CONFIG, asdict(experiment))
    if experiment.bias in FOUND and not checkpoint.exists():
        for file, (bias,) in zip(run_files.LINE_FILES, filter(None, _found(run, base, device)), strict=False):
            write_atomically(folder / file, bias.save)
    return base, code


def _finish(run: Run, model: Transformer, code: str, trained_on: str) -> None:
    """Write what a finished training leaves, and drop its checkpoint."""
    folder, last = run.folder, model.history[-1]
    weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
    write_atomically(folder / run_files.WEIGHTS, lambda name: name.write_bytes(save(weights)))
    metrics = {
        "history": model.history, "steps": last["step"], "seconds": last["seconds"],
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "device": model.device.type, "hardware": trained_on,
        "versions": {"abcnb": abcnb.__version__, "torch": torch.__version__},
        "code": code, "date": run_files.today(), "content": run_files.content_hash(folder, run.experiment),
    }  # fmt: skip
    run_files.write_json(folder / run_files.METRICS, metrics)
    _drop_checkpoint(folder)


def _lock(run: Run) -> FileLock:
    return FileLock(run.folder.with_name(f".{run.folder.name}.lock"))


def _acquired(run: Run, listener: Listener | None) -> AcquireReturnProxy:
    """A run's lock, held; prints a note if it has to wait for another process, which the listener can stop."""
    lock = _lock(run)
    for attempt in count():
        try:
            return lock.acquire(timeout=1)
        except Timeout:
            if not attempt:
                print(f"Note: another process works on {run.folder}; this one waits for it", file=sys.stderr)
            if listener:
                listener(0, math.nan)


def _drop_checkpoint(folder: Path) -> None:
    """Remove a finished run's checkpoint, which a killed process may have left."""
    for name in (CHECKPOINT, BEGUN):
        (folder / name).unlink(missing_ok=True)


def is_usable(experiment: Experiment, runs: Path, fresh: bool = False) -> bool:
    """Whether `fit` would return a stored run; with `fresh`, only one of current code counts."""
    folder = runs / experiment.digest
    return run_files.is_finished(folder) and (not fresh or is_current(Run(folder, experiment).code))


def steps_to_do(experiment: Experiment, runs: Path) -> int:
    """Optimizer steps that `fit` would train, including those of an interpolating model that is not there yet."""
    if is_usable(experiment, runs):
        return 0
    base = experiment.interpolation
    return experiment.training.steps + (steps_to_do(base, runs) if base else 0)


def _found(run: Run, base: Run, device: torch.device) -> Biases:
    """The lines in the base run's attention, which is saved in the new run, or those that pruning leaves."""
    experiment, plain = run.experiment, base.experiment
    if experiment.bias == "pruned":
        return lines_left(prune(base.model(), plain.data(), plain.seed))
    reached = base.metrics["history"][-1]["exact_match"]
    if reached < INTERPOLATED:
        print(
            f"Note: the plain model to be calibrated ({plain.task}, seed {plain.seed}) has {reached:.2f}% in its last "
            "validation: its attention may lack lines that the task needs; more training.steps may mend that",
            file=sys.stderr,
        )
    what = "varying" if experiment.bias == "varying" else "weights"
    what = experiment.algorithm1.average if experiment.algorithm1 else what
    attention = pipeline.attention_of(base.model(device), plain.data(device), what, plain.seed)
    tensors = {f"{shape.name}.self": shape.self_attention for shape in attention}
    if not plain.in_one_stream:
        tensors |= {f"{shape.name}.cross": shape.cross_attention for shape in attention}
    write_atomically(run.folder / run_files.ATTENTION, lambda name: name.write_bytes(save(tensors)))
    if experiment.algorithm1:
        return calibrate_matrices(*attention, experiment.algorithm1)
    searched = [experiment.searched(shape) for shape in attention]
    return calibrate_attention(searched, experiment.tau).biases(experiment.model.heads)
