"""The run of an experiment: the folder `runs/<digest>/` that a trained model leaves (`fitting` trains it).

    config.json          the experiment
    weights.safetensors  the trained model
    self-0.json, cross-0.json  ABC: the lines of all layers
    attention.safetensors  ABC: the averaged attention that was calibrated, `<shape>.self` and `<shape>.cross`
    metrics.json         validations, steps, seconds, hardware, the code's fingerprint, a hash of experiment and
                         weights; written last: a folder without it is unfinished
    evaluations.json     exact match by test set, length and samples asked for, with the same hash

A run made by other code is used unless a fresh one is asked for; then it is moved to `runs/superseded/`."""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file

import abcnb
from abcnb import pipeline
from abcnb.lines.algorithm1 import MatrixLines
from abcnb.lines.biases import NO_BIASES, Biases, own_token_first
from abcnb.lines.calibration import AveragedAttention, Calibration, calibrate_attention
from abcnb.lines.line import LineBias, by_hand, in_first_layer, windows
from abcnb.machine.devices import pick_device
from abcnb.machine.files import write_atomically
from abcnb.model.checkpoint import is_record
from abcnb.model.configs import SCHEMES
from abcnb.model.decoding import write_outputs
from abcnb.model.evaluation import Score, check_dense, check_request
from abcnb.model.transformer import Transformer
from abcnb.rivals.distances import ALiBi
from abcnb.rivals.lora import new_adapted
from abcnb.study.experiments import FOUND, LINES, Experiment, from_dict
from abcnb.study.fingerprint import UNKNOWN, fingerprint, is_current, joint
from abcnb.tasks.tokens import decode

RUNS = Path(abcnb.__file__).parents[1] / "runs"  # in the repository, wherever the caller is
CONFIG, METRICS, WEIGHTS, EVALUATIONS = "config.json", "metrics.json", "weights.safetensors", "evaluations.json"
ATTENTION, LINE_FILES = "attention.safetensors", ("self-0.json", "cross-0.json")
Test = tuple[str, int, int]  # an evaluation: test set, length in digits, samples
# Biases that apply ALiBi to cross-attention too, and what it takes a source column's distance from.
CROSS_DISTANCE_OF = {"alibi-cross": "left", "alibi-places": "places"}


def new_model(e: Experiment, biases: Biases) -> Transformer:
    """A freshly initialized model of an experiment."""
    if e.lora:
        return new_adapted(e.get_task(), e.model, e.seed, e.lora, biases=biases)
    return pipeline.new_model(e.get_task(), e.model, e.seed, biases)


def written_biases(e: Experiment) -> Biases:
    """The biases of an experiment that does not read them off another model."""
    heads = e.model.heads
    if e.bias == "alibi":
        return Biases((ALiBi(heads),))
    if e.bias in CROSS_DISTANCE_OF:
        return Biases((ALiBi(heads),), (ALiBi(heads, CROSS_DISTANCE_OF[e.bias]),))
    if e.bias == "by-hand":
        return by_hand(e.stream, heads, e.get_task().lines_by_hand)
    if e.bias == "own-token":
        return own_token_first(e.model.decoder_layers)
    return windows(e.stream, heads, e.window.w, e.window.sides) if e.bias == "window" else NO_BIASES


def evaluations_of(lengths: Sequence[int], samples: int, hard_samples: int) -> list[Test]:
    """Both main test sets at each length; one with 0 samples is left out."""
    sizes = (("random", samples), ("hard", hard_samples))
    return [(name, length, size) for length in lengths for name, size in sizes if size]


def check_lengths(e: Experiment, lengths: Sequence[int], samples: int, test_set: str = "random") -> None:
    """Raise ValueError for tests that cannot be run, before anything is trained or drawn."""
    task = e.get_task()
    along_lines = e.bias in LINES and not e.model.encoder_layers and SCHEMES[e.model.position].absolute
    for length in lengths:
        check_request(task, length, samples, test_set)
        if hasattr(scheme := e.model.positions(), "max_position"):  # raises if it has too few
            size = length if task.in_rows else max(task.width_at(length), e.train_width)
            scheme.vectors(e.stream_of(task.stream(size, e.form)).columns())
        if not along_lines:  # a long input needs a matrix of all pairs
            check_dense(task.outputs_at(length))


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


@dataclass(frozen=True)
class Run:
    """A trained model's folder."""

    folder: Path
    experiment: Experiment

    @property
    def metrics(self) -> dict:
        """Validations, steps, seconds, hardware, versions, code and date."""
        return json.loads((self.folder / METRICS).read_text())

    @property
    def code(self) -> str:
        """Fingerprint of the code that trained it, after its interpolating model's; `UNKNOWN` if unreadable."""
        try:
            return self.metrics.get("code", UNKNOWN)
        except (OSError, ValueError, AttributeError):
            return UNKNOWN

    def biases(self) -> Biases:
        """The biases the model was trained with."""
        e = self.experiment
        if e.bias in FOUND:
            kind = MatrixLines if e.algorithm1 else LineBias
            files = LINE_FILES[:1] if e.in_one_stream else LINE_FILES
            found = Biases(*((kind.load(self.folder / file),) for file in files))
        else:
            found = written_biases(e)
        return in_first_layer(found, e.model.decoder_layers) if e.look_once else found

    def calibration(self) -> Calibration:
        """ABC: the lines in the attention of the interpolating model, with their shares."""
        return calibrate_attention(self.attention(), self.experiment.tau)

    def attention(self) -> list[AveragedAttention]:
        """ABC: the averaged attention of the interpolating model, for each shape."""
        plain, file = self.experiment.interpolation, self.folder / ATTENTION
        task, found = plain.get_task(), []
        try:
            tensors = load_file(file)
            for name in (name.removesuffix(".self") for name in tensors if name.endswith(".self")):
                shape = tuple(map(int, name.split("x")))
                stream = plain.stream_of(task.stream(shape if task.in_rows else shape[0], plain.form))
                crossing = [] if plain.in_one_stream else [tensors[f"{name}.cross"]]
                average = AveragedAttention(stream, tensors[f"{name}.self"], *crossing)
                found.append(self.experiment.searched(average))
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            told = f"expected the averaged attention of a run in {file}, got: {str(error).splitlines()[0]}"
            raise ValueError(f"{told}; remove {self.folder} and train again") from None
        return found

    def model(self, device: str | torch.device = "cpu") -> Transformer:
        """The trained model, in evaluation mode, on a device or on the one named as in `pick_device`."""
        model = new_model(self.experiment, self.biases())
        weights = load_file(self.folder / WEIGHTS)
        model.load_state_dict(weights)
        if bad := next((name for name, values in weights.items() if not values.isfinite().all()), None):
            raise ValueError(
                f"expected finite weights in {self.folder}, got NaN or infinity in {bad}: its training diverged, "
                "or the file is damaged; train with a smaller training.learning_rate, or remove the folder"
            )
        model.history, model.trained_on = self.metrics["history"], self.experiment.data().described
        return model.to(pick_device(str(device))).eval()

    def predict(self, text: str, device: str = "auto") -> Prediction:
        """Greedily decode one input in the task's own form, as in `abcnb.predict`."""
        e, model = self.experiment, self.model(device)
        task = e.get_task()
        batch = task.batch(task.widened(task.parse(str(text)), e.train_width), e.form)
        written, label = decode(write_outputs(model, batch)[0]), decode(batch.target[0])
        source = batch.source if model.crossing else model.prompt(batch.source)
        return Prediction(decode(source[0]), written, label, str(task.read(written)), str(task.read(label)))

    def known_score(self, length: int, samples: int, test_set: str = "random") -> Score | None:
        """The stored score that `evaluate` would return; None if there is none."""
        return self._evaluations().get(f"{test_set} {length} {samples}")

    def evaluate(
        self,
        length: int,
        samples: int = 10_000,
        test_set: str = "random",
        device: str | torch.device = "cpu",
        fresh: bool = False,
    ) -> Score:
        """Exact match, as in `abcnb.evaluate`, stored in the folder; `fresh` remeasures what other code did."""
        known = self.known_score(length, samples, test_set)
        content, code = self.metrics["content"], joint(self.code, fingerprint())
        if known and (not fresh or known.code == code or is_current(known.code)):
            return known
        (measured,) = pipeline.evaluate(self.model(device), self.experiment.data(), length, samples, test_set)
        measured = replace(measured, code=code, date=today())
        try:
            with FileLock(self.folder / ".lock"):
                scores = self._evaluations() | {f"{test_set} {length} {samples}": measured}
                known = {"content": content} | {key: asdict(score) for key, score in scores.items()}
                write_json(self.folder / EVALUATIONS, known)
        except OSError as error:
            print(f"Note: this score could not be kept in {self.folder}: {error}", file=sys.stderr)
        return measured

    def _evaluations(self) -> dict[str, Score]:
        """Measured scores by test set, length and samples asked for; none if they belong to other weights."""
        file = self.folder / EVALUATIONS
        if not file.exists():
            return {}
        try:
            known = json.loads(file.read_text())
            same = known.pop("content") == self.metrics["content"]
            scores = {key: from_dict(Score, content) for key, content in known.items()} if same else {}
            if wrong := [score for score in scores.values() if not 0 <= score.correct <= score.samples]:
                raise ValueError(f"no score: {wrong[0]!r}")
            return scores
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
            told = f"expected scores as JSON in {file}, got: {error}; delete it to measure again"
            raise ValueError(told) from None


def write_json(file: Path, content: dict) -> None:
    """Write a run's JSON file atomically."""
    write_atomically(file, lambda name: name.write_text(json.dumps(content, indent=1)))


def content_hash(folder: Path, experiment: Experiment) -> str:
    """Hash an experiment with its weights, so that metrics and scores of another run are recognized."""
    weights = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    return hashlib.sha256(f"{experiment.digest} {weights}".encode()).hexdigest()[:16]


def today() -> str:
    """Today's date, as stored with runs and scores."""
    return date.today().isoformat()


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a run whose training is finished."""
    return (folder / METRICS).is_file()


def load_run(folder: Path | str, wanted: Experiment | None = None) -> Run:
    """A finished run; ValueError if it is missing, unfinished, damaged, not a run or not the wanted one."""
    folder = Path(folder)
    if missing := [name for name in (CONFIG, METRICS, WEIGHTS) if not (folder / name).is_file()]:
        why = f"it has no {missing[0]}" if folder.is_dir() else "there is no such folder"
        raise ValueError(f"expected a finished run in {folder}, but {why}")
    try:
        run = Run(folder, from_dict(Experiment, json.loads((folder / CONFIG).read_text())))
        metrics = run.metrics
        kinds = {"history": list, "steps": int, "seconds": (int, float), "parameters": int}
        kinds |= dict.fromkeys(("device", "hardware", "content"), str)
        kinds |= {name: str for name in ("code", "date") if name in metrics}
        if wrong := [name for name, kind in kinds.items() if not isinstance(metrics.get(name), kind)]:
            raise ValueError(f"{METRICS} with {wrong[0]} {metrics.get(wrong[0])!r}")
        if not metrics["history"] or not all(map(is_record, metrics["history"])):
            raise ValueError(f"{METRICS} with a history that is no list of validations")
        if metrics["content"] != content_hash(folder, run.experiment):
            raise ValueError(f"{CONFIG} or {WEIGHTS} of another run than {METRICS}")
        run.model()
    except (ValueError, RuntimeError, OSError, SafetensorError, KeyError, AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"expected a run of this version of abcnb in {folder}, got: {reason}") from error
    if wanted and run.experiment.digest != wanted.digest:
        raise ValueError(
            f"expected the run of {wanted.digest} in {folder}, but its {CONFIG} describes {run.experiment.digest}: "
            "a default was changed, or the folder was copied by hand; remove it"
        )
    return Run(folder, wanted) if wanted else run
