"""Training and validation batches of a task."""

import random
from reprlib import repr as short

import torch

from abcnb.lines.coordinates import Stream, in_one
from abcnb.machine.devices import pick_device
from abcnb.tasks.task import Batch, Task, checked, get_task
from abcnb.tasks.tokens import DIGITS, on_device

WIDEST = 10_000  # the most digits that operands are padded to; training runs out of memory long before
ALONE = 8  # inputs answered alone, too, to compare with their answers in a batch


class TrainingData:
    """Training and validation batches of a task, made on a device.

    Args:
        task: the task, or its name.
        numbers: what operands are drawn from, one of `TRAIN_NUMBERS` (in rows, `ROW_NUMBERS`); empty is the task's
            own, of several sizes, so that a model with lines learns nothing that holds at only one size.
        width: digits that operands are padded to; 0 is the least that training numbers and their results need, at
            least one more than the training length. For a task in rows, the most digits of an operand (for
            `nested`, the greatest depth); 0 is the training length.
        form: how sources are written, one of the task's forms.
        device: where batches are made: `auto`, `cpu`, `cuda`, or a torch device.
        terms, shapes: for tasks in rows, as in `RowSampler`.
        one_stream: whether it is for decoder-only models; tasks in rows always are.

    Attributes: `stream`, the coordinates of the largest input, and all of these except `terms` and `shapes`.

    Raises:
        ValueError: if the task or machine lacks what is asked for, or answers are not written as the task says.
    """

    def __init__(
        self,
        task: Task | str,
        numbers: str = "",
        width: int = 0,
        form: str = "natural",
        device: torch.device | str = "cpu",
        terms: int = 0,
        shapes: str = "all",
        one_stream: bool = False,
    ):
        self.task = get_task(task) if isinstance(task, str) else task
        if not isinstance(self.task, Task):
            raise ValueError(f"expected a task or its name, such as 'addition', got {short(task)}")
        checked(type(self.task))
        if not isinstance(width, int):
            raise ValueError(f"expected a width as a whole number, got {width!r}")
        if width > WIDEST:
            raise ValueError(f"expected a width of at most {WIDEST:,} digits, got {width:,}")
        self._is_default = (numbers, width, terms, shapes) == ("", 0, 0, "all")
        self.numbers, self.form = numbers or self.task.numbers, form
        self.device = pick_device(device) if isinstance(device, str) else device
        self.width = width or self.task.training_width(self.numbers)
        drawn = {"device": self.device, "terms": terms, "shapes": shapes}
        self._train = self.task.sampler(self.numbers, self.width, False, **drawn)
        self._held_out = self.task.sampler(self.numbers, self.width, True, **drawn)
        self._check_answers()
        largest = self.task.largest_stream(self.width, form, terms)
        self.one_stream = one_stream or not largest.source
        self.stream = in_one(largest) if self.one_stream else largest
        self._streams: dict[Stream, Stream] = {}

    def _check_answers(self) -> None:
        task, generator = self.task, torch.Generator(self.device).manual_seed(0)
        vocabulary = task.stream_vocabulary_size if task.in_rows else task.vocabulary_size
        digits = f"expected digits from 0 to {task.base - 1} as the answers of {task.name}, [batch, digits], got"
        drawn = self._train.draw(64, generator)
        try:
            answer = task.label(*(operand.clone() for operand in drawn))
            if not isinstance(answer, torch.Tensor) or answer.dtype != torch.long or answer.dim() != 2:
                raise ValueError(f"{digits} {short(answer)}")
            if len(wrong := answer[(answer < 0) | (answer >= task.base)]):
                raise ValueError(f"{digits} {int(wrong[0])}")
            batch = task.batch(drawn, self.form)
            alone = [task.batch(tuple(o[n : n + 1] for o in drawn), self.form).target for n in range(ALONE)]
        except (TypeError, IndexError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{digits} {type(error).__name__}: {error}") from error
        if batch.target.shape[1] != batch.stream.rows:
            raise ValueError(
                f"expected answers of {task.name} with {batch.stream.rows - 1} digits for an input of "
                f"{batch.stream.shape}, got {batch.target.shape[1] - 1}: say otherwise in steps() or outputs()"
            )
        written = on_device(DIGITS[: task.base] + "&" + getattr(task, "separators", ""), self.device)
        if not bool(torch.isin(batch.target, written).all()):
            raise ValueError(f"{digits} a larger one")
        if len(batch.target) != 64 or not torch.equal(torch.cat(alone), batch.target[:ALONE]):
            raise ValueError(
                f"expected an answer of {task.name} to each input of a batch that is its own, got others when inputs "
                "stand beside each other: dimension 0 is the batch"
            )
        columns = batch.stream.source or batch.stream.prompt
        if batch.source.shape != (64, columns) or int(batch.source.max()) >= vocabulary:
            raise ValueError(
                f"expected sources of {task.name} with {columns} tokens below {vocabulary}, got some of "
                f"{batch.source.shape[1]} tokens up to {int(batch.source.max())}"
            )

    @property
    def described(self) -> str:
        """What a model is trained on: task, base and form."""
        return f"{self.task.name} in base {self.task.base}, {self.form} form"

    @property
    def for_plain(self) -> "TrainingData":
        """What a plain model is trained on: the task's `for_plain`, mostly inputs of one size, so that it need not
        find out the size; this data itself if numbers, a width, terms or shapes were asked for."""
        if not self._is_default or not self.task.for_plain:
            return self
        kept = {"form": self.form, "device": self.device, "one_stream": self.one_stream}
        return TrainingData(self.task, **kept, **self.task.for_plain)

    def _batch(self, sampler, size: int, generator: torch.Generator) -> Batch:
        batch = self.task.batch(sampler.draw(size, generator), self.form)
        if batch.stream not in self._streams:  # cached on the device: copying them would make every step wait
            stream = in_one(batch.stream) if self.one_stream else batch.stream
            self._streams[batch.stream] = stream.to(self.device)
        return Batch(batch.source, batch.target, self._streams[batch.stream])

    def train(self, size: int, generator: torch.Generator) -> Batch:
        """`size` samples of the training numbers; the generator must be on `device`."""
        return self._batch(self._train, size, generator)

    def validation(self, size: int, generator: torch.Generator) -> list[Batch]:
        """About `size` held-out samples, in one batch or the task's `validation_batches`.

        For `bucketed` numbers, strings and outputs in rows, they have only the largest size.
        """
        parts = min(size, self.task.validation_batches)
        return [self._batch(self._held_out, size // parts, generator) for _ in range(parts)]


def generator_for(purpose: str, seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for a purpose other than training, whose numbers are not those of any training seed."""
    return torch.Generator(device=device).manual_seed(random.Random(f"{purpose} {seed}").getrandbits(60))
