"""Training the run of an experiment: begun, resumed, or found finished; one process at a time."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors.torch import save_file

import abcnb
from abcnb import pipeline
from abcnb.lines.algorithm1 import calibrate_matrices
from abcnb.lines.biases import Biases
from abcnb.lines.calibration import calibrate_attention
from abcnb.machine.devices import hardware, pick_device
from abcnb.machine.files import check_writable, write_atomically
from abcnb.model.training import CHECKPOINT
from abcnb.proof.pruning import lines_left, prune
from abcnb.rivals.lora import adapt
from abcnb.study import runs as run_files
from abcnb.study.experiments import FOUND, Experiment
from abcnb.study.fingerprint import UNKNOWN, fingerprint, is_current, joint
from abcnb.study.runs import Run

BEGUN = "code.txt"  # of an unfinished run: the fingerprint of the code that began it
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

    ABC first fits the experiment it calibrates. If two processes ask for the same run, one trains it and the other
    waits. A device that is not there, and a stored run that is damaged or another experiment's, are refused.

    Args:
        listener: called a few times a second with the number of steps done since its last call and the last loss, or
            with 0 and NaN while another process works on the run; what it raises stops the training, which leaves a
            checkpoint.
        fresh: set aside a run that other code trained, and train it anew.
    """
    where, runs = pick_device(device), Path(runs)
    check_writable(runs)
    folder = runs / experiment.digest
    folder.mkdir(exist_ok=True)
    with _alone(FileLock(runs / f".{experiment.digest}.lock"), folder, listener):
        run = Run(folder, experiment)
        if run_files.is_finished(folder):
            _drop_checkpoint(folder)
            if not fresh or is_usable(experiment, runs, fresh):
                return run_files.run_of(experiment, folder)
            _set_aside(run)
        check_writable(folder)
        first = experiment.interpolation
        base = fit(first, runs, device, progress, listener, fresh) if first else None
        code = _begin(folder, joint(base.code, fingerprint()) if base else fingerprint(), fresh)
        run_files.write_json(folder / run_files.CONFIG, asdict(experiment))
        if experiment.bias in FOUND and not (folder / CHECKPOINT).exists():
            _calibrate_into(folder, experiment, base, where)
        label = f"{experiment.task} {experiment.method} seed {experiment.seed}"
        watch = {"folder": folder, "owner": experiment.digest, "label": label, "progress": progress}
        watch |= {"on_step": listener, "training": experiment.training, "seed": experiment.seed}
        if experiment.lora:
            model = adapt(experiment.data(where), base.model(), experiment.lora, **watch)
        else:
            model = pipeline.retrain(experiment.data(where), run.biases(), experiment.model, **watch)
        weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
        write_atomically(folder / run_files.WEIGHTS, lambda name: save_file(weights, name))
        metrics = {
            "history": model.history, "steps": model.history[-1]["step"], "seconds": model.history[-1]["seconds"],
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "device": where.type, "hardware": hardware(where),
            "versions": {"abcnb": abcnb.__version__, "torch": torch.__version__},
            "code": code, "date": run_files.today(), "content": run_files.content_hash(folder, experiment),
        }  # fmt: skip
        run_files.write_json(folder / run_files.METRICS, metrics)
        _drop_checkpoint(folder)
    return run


@contextmanager
def _alone(lock: FileLock, folder: Path, listener: Listener | None) -> Iterator[None]:
    """Hold a run's lock; a wait for another process is said, and can be stopped by the listener."""
    for attempt in count():
        try:
            lock.acquire(timeout=1)
            break
        except Timeout:
            if not attempt:
                print(f"Note: another process works on {folder}; this one waits for it", file=sys.stderr)
            if listener:
                listener(0, math.nan)
    try:
        yield
    finally:
        lock.release()


def _drop_checkpoint(folder: Path) -> None:
    """Remove a finished run's checkpoint, which a kill may have left."""
    for name in (CHECKPOINT, BEGUN):
        (folder / name).unlink(missing_ok=True)


def _begin(folder: Path, code: str, fresh: bool) -> str:
    """The fingerprint of the training that begins or goes on in a folder; a checkpoint of other code shows in it."""
    begun, checkpoint = folder / BEGUN, folder / CHECKPOINT
    if checkpoint.exists():
        before = begun.read_text() if begun.exists() else UNKNOWN
        if fresh and not is_current(before):
            checkpoint.unlink()
        else:
            code = joint(before, code)
    write_atomically(begun, lambda name: name.write_text(code))
    return code


def _set_aside(run: Run) -> None:
    """Move a run out of the way, under a name that says which code trained it."""
    superseded, name = run.folder.parent / "superseded", f"{run.folder.name}-{run.code}"
    superseded.mkdir(exist_ok=True)
    run.folder.rename(next(free for n in count(1) if not (free := superseded / f"{name}-{n}").exists()))


def is_usable(experiment: Experiment, runs: Path, fresh: bool = False) -> bool:
    """Whether `fit` would return a stored run; with `fresh`, only one trained by this code counts."""
    folder = runs / experiment.digest
    return run_files.is_finished(folder) and (not fresh or is_current(Run(folder, experiment).code))


def steps_to_do(experiment: Experiment, runs: Path) -> int:
    """Optimizer steps that `fit` would train, including those of an interpolating model that is not there yet."""
    if is_usable(experiment, runs):
        return 0
    base = experiment.interpolation
    return experiment.training.steps + (steps_to_do(base, runs) if base else 0)


def _calibrate_into(folder: Path, experiment: Experiment, base: Run, device: torch.device) -> None:
    """Calibrate the base run's attention, or prune it, and leave what was found in the folder."""
    plain = base.experiment
    if experiment.bias == "pruned":
        _write_lines(folder, lines_left(prune(base.model(), plain.data(), plain.seed)))
        return
    reached = base.metrics["history"][-1]["exact_match"]
    if reached < INTERPOLATED:
        print(
            f"Note: the plain model to be calibrated ({plain.task}, seed {plain.seed}) has {reached:.2f}% in its last "
            "validation: its attention may lack lines that the task needs; more training.steps may mend that",
            file=sys.stderr,
        )
    what = experiment.algorithm1.average if experiment.algorithm1 else "weights"
    attention = pipeline.attention_of(base.model(device), plain.data(device), what, plain.seed)
    tensors = {f"{shape.name}.self": shape.self_attention for shape in attention}
    if not plain.in_one_stream:
        tensors |= {f"{shape.name}.cross": shape.cross_attention for shape in attention}
    write_atomically(folder / run_files.ATTENTION, lambda name: save_file(tensors, name))
    if experiment.algorithm1:
        biases = calibrate_matrices(*attention, experiment.algorithm1)
    else:
        searched = [experiment.searched(shape) for shape in attention]
        biases = calibrate_attention(searched, experiment.tau).biases(experiment.model.heads)
    _write_lines(folder, biases)


def _write_lines(folder: Path, biases: Biases) -> None:
    for file, (bias,) in zip(run_files.LINE_FILES, filter(None, biases), strict=False):
        write_atomically(folder / file, bias.save)
