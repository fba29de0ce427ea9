"""The run of an experiment: the folder that a trained model leaves, and how it comes about.

An experiment asked for twice is trained once. Its run lives in `runs/<digest>/`:

    config.json          the experiment
    weights.safetensors  the trained model
    self-0.json, cross-0.json, …  ABC: its line biases (one file a layer where layers differ)
    attention.safetensors  ABC: the averaged attention that was calibrated
    metrics.json         validations, steps, seconds, hardware; written last: a folder without it is unfinished
    evaluations.json     exact match by test set and length, as far as asked for
"""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import abcnb
from abcnb.biases import ALiBi, Bias
from abcnb.calibration import AveragedAttention, average_attention, calibrate
from abcnb.evaluation import Score, evaluate
from abcnb.experiments import Experiment, from_dict
from abcnb.lines import LineBias, cross_window, self_window
from abcnb.lora import add_adapters
from abcnb.model import Transformer
from abcnb.sampling import Sampler
from abcnb.tasks import Batch
from abcnb.training import CHECKPOINT, pick_device, train, write_atomically

RUNS = Path(abcnb.__file__).parents[1] / "runs"  # of the repository, wherever the caller is
CONFIG, METRICS, WEIGHTS = "config.json", "metrics.json", "weights.safetensors"


class TaskData:
    """Training and validation batches of an experiment, made on a device."""

    def __init__(self, experiment: Experiment, device: torch.device | str = "cpu"):
        self.task, self.form, self.device = experiment.get_task(), experiment.form, torch.device(device)
        arguments = (self.task, experiment.train_numbers, experiment.train_width)
        self._train = Sampler(*arguments, device=device)
        self._held_out = Sampler(*arguments, held_out=True, device=device)
        self._layout = self.task.layout(experiment.train_width, self.form).to(self.device)

    def _batch(self, sampler: Sampler, size: int, generator: torch.Generator) -> Batch:
        batch = self.task.batch(sampler.draw(size, generator), self.form)
        return Batch(batch.source, batch.target, self._layout)

    def train(self, size: int, generator: torch.Generator) -> Batch:
        """Training numbers."""
        return self._batch(self._train, size, generator)

    def validation(self, size: int, generator: torch.Generator) -> Batch:
        """Held-out numbers of the same distribution."""
        return self._batch(self._held_out, size, generator)


def build_model(
    experiment: Experiment,
    selves: tuple[Bias, ...],
    crosses: tuple[Bias, ...],
    adapted: dict[str, torch.Tensor] | None = None,
) -> Transformer:
    """A freshly initialised model; the same for the same seed. `adapted`: the weights that LoRA freezes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        vocabulary = experiment.get_task().vocabulary_size
        model = Transformer(experiment.model, vocabulary, selves, crosses)
        if adapted:
            model.load_state_dict(adapted)
        if experiment.lora:
            add_adapters(model, experiment.lora)
        return model


def written_biases(experiment: Experiment) -> tuple[tuple[Bias, ...], tuple[Bias, ...]]:
    """The (self, cross) biases of every method but ABC, which reads them off attention."""
    heads = experiment.model.heads
    if experiment.bias == "alibi":
        return (ALiBi(heads),), ()
    if experiment.bias == "alibi-cross":
        return (ALiBi(heads),), (ALiBi(heads),)
    if experiment.bias == "window":
        window = experiment.window
        segments = experiment.get_task().layout(experiment.train_width, experiment.form).segments
        return (self_window(heads, window.w),), (cross_window(heads, segments, window.w, window.sides),)
    return (), ()


@dataclass(frozen=True)
class Run:
    """A trained model's folder."""

    folder: Path
    experiment: Experiment

    @property
    def metrics(self) -> dict:
        """Validations, steps, seconds and hardware."""
        return json.loads((self.folder / METRICS).read_text())

    def biases(self) -> tuple[tuple[Bias, ...], tuple[Bias, ...]]:
        """The (self, cross) biases the model was trained with."""
        if self.experiment.bias != "calibrated":
            return written_biases(self.experiment)
        layers = self.experiment.model.decoder_layers if self.experiment.calibration.layer == "each" else 1
        missing = [
            name
            for kind in ("self", "cross")
            for layer in range(layers)
            if not (self.folder / (name := f"{kind}-{layer}.json")).is_file()
        ]
        if missing:
            raise ValueError(f"the line bias {missing[0]} is missing")
        selves, crosses = (
            tuple(LineBias.load(self.folder / f"{kind}-{layer}.json") for layer in range(layers))
            for kind in ("self", "cross")
        )
        return selves, crosses

    def attention(self) -> AveragedAttention:
        """ABC: the averaged attention of the interpolating model."""
        tensors = load_file(self.folder / "attention.safetensors")
        interpolation = self.experiment.interpolation
        layout = interpolation.get_task().layout(interpolation.train_width, interpolation.form)
        return AveragedAttention(tensors["self"], tensors["cross"], layout)

    def model(self, device: str | torch.device = "cpu") -> Transformer:
        """The trained model, in evaluation mode."""
        model = build_model(self.experiment, *self.biases())
        model.load_state_dict(load_file(self.folder / WEIGHTS))
        return model.to(device).eval()

    def known_score(self, length: int, samples: int, test_set: str = "random") -> Score | None:
        """What `evaluate` would return, where it has been measured."""
        return self._evaluations().get(f"{test_set} {length} {samples}")

    def evaluate(self, length: int, samples: int = 10_000, test_set: str = "random", device="cpu") -> Score:
        """Exact match at one length; measured once and then remembered in the run's folder."""
        if known := self.known_score(length, samples, test_set):
            return known
        e = self.experiment
        model, width = self.model(device), e.train_width
        measured = evaluate(model, e.get_task(), e.form, length, samples, test_set, width)
        with FileLock(self.folder / ".lock"):
            scores = self._evaluations() | {f"{test_set} {length} {samples}": measured}
            content = json.dumps({key: asdict(score) for key, score in scores.items()}, indent=1)
            write_atomically(self._evaluations_file, lambda name: name.write_text(content))
        return measured

    @property
    def _evaluations_file(self) -> Path:
        return self.folder / "evaluations.json"

    def _evaluations(self) -> dict[str, Score]:
        """Measured scores by test set, length and samples asked for.

        Raises:
            ValueError: the file is damaged.
        """
        if not self._evaluations_file.exists():
            return {}
        try:
            known = json.loads(self._evaluations_file.read_text())
            return {key: Score(**content) for key, content in known.items()}
        except (json.JSONDecodeError, AttributeError, TypeError) as error:
            raise ValueError(
                f"expected scores as JSON in {self._evaluations_file}, got: {error}; delete it to measure again"
            ) from None


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a run that was trained to its end."""
    return (folder / METRICS).is_file()


def load_run(folder: Path) -> Run:
    """A finished run.

    Raises:
        ValueError: the folder is missing, unfinished, damaged, or not a run.
    """
    missing = [name for name in (CONFIG, METRICS, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"expected a finished run in {folder}, but it has no {missing[0]}")
    try:
        run = Run(folder, from_dict(Experiment, json.loads((folder / CONFIG).read_text())))
        run.model()
        wanted = ("history", "steps", "seconds", "parameters", "device", "hardware")
        missing = [key for key in wanted if key not in run.metrics]
        if missing:
            raise ValueError(f"{METRICS} without {missing[0]!r}")
    except (ValueError, RuntimeError, SafetensorError, KeyError, AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"expected a run of this version of abcnb in {folder}, got: {reason}") from error
    return run


def run_of(experiment: Experiment, folder: Path) -> Run:
    """The finished run of an experiment, from the folder that holds it.

    Raises:
        ValueError: as `load_run`, or the folder holds another experiment's run.
    """
    stored = load_run(folder).experiment
    if stored.digest != experiment.digest:
        raise ValueError(
            f"expected the run of {experiment.digest} in {folder}, but its {CONFIG} describes "
            f"{stored.digest}: a default was changed, or the folder was copied by hand; remove it"
        )
    return Run(folder, experiment)


def hardware(device: torch.device) -> str:
    """The processor's name and how many threads it ran on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = named[0].partition(":")[2].strip() if named else name
    return f"{name}, {torch.get_num_threads()} thread(s)"


def fit(
    experiment: Experiment,
    runs: Path,
    device: str = "auto",
    progress: bool = True,
    listener: Callable[[int], None] | None = None,
) -> Run:
    """The run of an experiment: loaded if it is there, trained if not, resumed if it was interrupted.

    Two processes that ask at once train it once; the second waits.

    Args:
        experiment: what to train; ABC first fits the experiment it calibrates.
        runs: the folder of all runs.
        device: `auto`, `cpu` or `cuda`.
        progress: show progress bars.
        listener: called with the number of steps done since its last call.
    """
    where = pick_device(device)
    folder = runs / experiment.digest
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(runs / f".{experiment.digest}.lock"):
        if is_finished(folder):
            return run_of(experiment, folder)
        interpolation = experiment.interpolation
        base = fit(interpolation, runs, device, progress, listener) if interpolation else None
        config = json.dumps(asdict(experiment), indent=1)
        write_atomically(folder / CONFIG, lambda name: name.write_text(config))
        if experiment.calibration:
            _calibrate_into(folder, experiment, base, where)
        run = Run(folder, experiment)
        adapted = base.model().state_dict() if experiment.lora else None
        model = build_model(experiment, *run.biases(), adapted).to(where)
        history = train(
            model,
            TaskData(experiment, where),
            experiment.training,
            experiment.seed,
            folder,
            f"{experiment.task} {experiment.method} seed {experiment.seed}",
            progress,
            listener,
        )
        weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
        write_atomically(folder / WEIGHTS, lambda name: save_file(weights, name))
        metrics = {
            "history": history,
            "steps": history[-1]["step"],
            "seconds": history[-1]["seconds"],
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "device": where.type,
            "hardware": hardware(where),
            "versions": {"abcnb": abcnb.__version__, "torch": torch.__version__},
        }
        content = json.dumps(metrics, indent=1)
        write_atomically(folder / METRICS, lambda name: name.write_text(content))
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return run


def steps_to_do(experiment: Experiment, runs: Path) -> int:
    """Optimizer steps that `fit` has to account for: of the experiment and of an interpolation not yet there."""
    if is_finished(runs / experiment.digest):
        return 0
    base = experiment.interpolation
    return experiment.training.steps + (steps_to_do(base, runs) if base else 0)


CALIBRATION_BATCHES, CALIBRATION_BATCH_SIZE = 16, 256


def attention_of(run: Run, what: str, device: str | torch.device = "cpu") -> AveragedAttention:
    """A run's attention averaged over a random subset of its training samples."""
    data = TaskData(run.experiment, device)
    generator = torch.Generator(device=torch.device(device)).manual_seed(run.experiment.seed + 2)
    batches = [data.train(CALIBRATION_BATCH_SIZE, generator) for _ in range(CALIBRATION_BATCHES)]
    return average_attention(run.model(device), batches, what)


def _calibrate_into(folder: Path, experiment: Experiment, base: Run, device: torch.device) -> None:
    """Calibrate the base run's attention and leave attention and biases in the folder."""
    average = attention_of(base, experiment.calibration.average, device)
    tensors = {"self": average.self_attention, "cross": average.cross_attention}
    write_atomically(folder / "attention.safetensors", lambda name: save_file(tensors, name))
    found = calibrate(average, experiment.calibration)
    for kind, biases in (("self", found.self_biases), ("cross", found.cross_biases)):
        for layer, bias in enumerate(biases):
            write_atomically(folder / f"{kind}-{layer}.json", bias.save)
