"""The state of training in one file: interrupted training resumes from its checkpoint."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, safe_open, save

from abcnb.machine.files import write_atomically
from abcnb.model.transformer import Transformer

RECORD = ("step", "seconds", "loss", "exact_match", "digit_error_rate")  # fields of a validation's record


class Progress(NamedTuple):
    """How far training has come: optimizer steps, validations, seconds."""

    step: int = 0
    history: tuple[dict, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """The file that holds the weights, optimizer, generators and progress of training.

    `owner` says, as text, whose training it is; the file of another owner is refused, even if all shapes agree.
    """

    file: Path
    owner: str
    model: Transformer
    optimizer: torch.optim.Optimizer
    generator: torch.Generator

    def save(self, progress: Progress) -> None:
        """Write everything to one file, so that its parts always belong together."""
        tensors = {name: value.contiguous() for name, value in self._tensors().items()}
        metadata = {"step": str(progress.step), "seconds": str(progress.seconds), "owner": self.owner}
        metadata |= {"history": json.dumps(progress.history), "device": self.model.device.type}
        write_atomically(self.file, lambda name: name.write_bytes(save(tensors, metadata)))

    def resume(self, steps: int, validate_every: int) -> Progress:
        """Restore model, optimizer and generators from the file; without one, training begins at step 0.

        Training takes `steps` steps in all, and validates after the last as well.

        Raises:
            ValueError: the file is damaged, of another training, or of another kind of device. Nothing is changed.
        """
        if not self.file.exists():
            return Progress()
        try:
            tensors = load_file(self.file)
            with safe_open(self.file, "pt") as opened:
                metadata = opened.metadata() or {}
            progress = self._checked(tensors, metadata, steps, validate_every)
        except (SafetensorError, ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"expected a checkpoint in {self.file}, got: {reason}; delete it to train again"
            ) from None
        here, there = self.model.device.type, metadata["device"]
        if here != there:
            raise ValueError(
                f"expected to go on with {self.file} on {there}, where it was begun, got {here}; "
                "go on there, or delete it to train again here"
            )
        for name, value in self._tensors().items():  # of model and optimizer
            value.copy_(tensors[name])
        self.generator.set_state(tensors["generator"])
        torch.set_rng_state(tensors["dropout"])
        if "dropout_cuda" in tensors:
            torch.cuda.set_rng_state(tensors["dropout_cuda"], self.model.device)
        return progress

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of model and optimizer themselves, and copies of the batch and dropout generator states."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        (group,) = self.optimizer.param_groups
        for index, parameter in enumerate(group["params"]):
            state = self.optimizer.state[parameter]
            if not state:  # before the first step
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            found |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        found |= {"generator": self.generator.get_state(), "dropout": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            found["dropout_cuda"] = torch.cuda.get_rng_state(self.model.device)
        return found

    def _checked(self, tensors: dict, metadata: dict, steps: int, validate_every: int) -> Progress:
        for name in ("step", "seconds", "history", "device", "owner"):
            if name not in metadata:
                raise ValueError(f"no {name}")
        if metadata["owner"] != self.owner:
            raise ValueError(f"that of {metadata['owner'] or 'no experiment'}, not of {self.owner or 'none'}")
        if metadata["device"] == self.model.device.type:
            _check_tensors(tensors, self._tensors())
        step, seconds = int(metadata["step"]), float(metadata["seconds"])
        history = json.loads(metadata["history"])
        if not 1 <= step <= steps or not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"step {step} of {steps} after {seconds} seconds")
        if not isinstance(history, list) or not all(map(is_record, history)):
            raise ValueError("a history that is no list of validations")
        validated = [n for n in range(1, step + 1) if n % validate_every == 0 or n == steps]
        if [record["step"] for record in history] != validated:
            raise ValueError(f"a history that is not that of {step} steps")
        return Progress(step, tuple(history), seconds)


def steps_in(file: Path) -> int:
    """The optimizer steps behind a checkpoint; 0 if it is missing or unreadable."""
    try:
        with safe_open(file, "pt") as opened:
            return int(opened.metadata()["step"])
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return 0


def _check_tensors(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name in sorted(tensors.keys() ^ expected.keys()):
        raise ValueError(f"no {name}" if name in expected else f"{name}, which this model does not have")
    for name, values in tensors.items():
        got, wanted = ((value.dtype, list(value.shape)) for value in (values, expected[name]))
        if got != wanted:
            raise ValueError(f"{name} of {got[0]} and shape {got[1]} instead of {wanted[0]} and {wanted[1]}")
        if not bool(values.isfinite().all()):
            raise ValueError(f"NaN or infinity in {name}")


def is_record(record: object) -> bool:
    """Whether it has the fields of a validation's record, all numbers."""
    return isinstance(record, dict) and all(isinstance(record.get(name), (int, float)) for name in RECORD)
