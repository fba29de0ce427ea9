"""One answer of a trained model, written token by token, beside the true one."""

import os
from pathlib import Path
from typing import NamedTuple

from abcnb.machine.devices import pick_device
from abcnb.model.decoding import write_outputs
from abcnb.study.runs import RUNS, Run, is_finished, load_run
from abcnb.study.store import REPORTS
from abcnb.tasks.tokens import decode


class Prediction(NamedTuple):
    """What a model wrote."""

    source: str  # as the model reads it
    written: str  # the output tokens, units first, the end token last
    label: str  # what they should be
    answer: str  # the number that they are read as, most significant digit first
    true: str

    @property
    def correct(self) -> bool:
        """Whether every token is right."""
        return self.written == self.label

    def __str__(self) -> str:
        return self.answer


def find_run(run: str | Path, runs: Path | str = RUNS) -> Run:
    """The one run of a folder, or of the start of a hash, in `runs` or among the committed models."""
    if not str(run):
        raise ValueError("expected a run's folder, or the start of its hash, got an empty text")
    if os.path.isdir(run) or len(Path(run).parts) != 1:
        return load_run(run)
    places = [place for place in (REPORTS / "models", Path(runs)) if place.is_dir()]
    folders = [folder for place in places for folder in place.iterdir() if folder.name.startswith(str(run))]
    # Of a run in both places the one in `runs`, whose weights are not rounded, unless it is unfinished.
    found = {folder.name: folder for folder in sorted(folders, key=is_finished)}
    if len(found) != 1:
        some = "no run" if not found else f"{len(found)} runs"
        told = f"expected a run's folder, or the start of one's hash in {runs} or {REPORTS / 'models'}"
        raise ValueError(f"{told}, got {str(run)!r}: {some}")
    return load_run(*found.values())


def predict(run: Run | str | Path, text: str | int, device: str = "auto") -> Prediction:
    """Decode one input greedily.

    Args:
        run: a trained run, its folder, or the start of its hash.
        text: in the task's own form: `99+1`, `123*456`, or `199`; anything else is refused.
        device: `auto`, `cpu` or `cuda`.
    """
    run = run if isinstance(run, Run) else find_run(run)
    e, where = run.experiment, pick_device(device)
    task = e.get_task()
    batch, model = task.batch(task.widened(task.parse(str(text)), e.train_width), e.form), run.model(where)
    written, label = decode(write_outputs(model, batch)[0]), decode(batch.target[0])
    source = batch.source if model.crossing else model.prompt(batch.source)
    return Prediction(decode(source[0]), written, label, str(task.read(written)), str(task.read(label)))
