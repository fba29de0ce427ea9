"""Tasks on strings of symbols: a string in, one or a few strings out.

A string keeps its own length and is not padded. Like the digits of a number, it is held last symbol first, so the
line `a[place]` leads to the symbol that is as far from the end as the one being written is from the start, and
`a[first-place]` to the one that is as far from the start. `answer` is spared that: it takes and returns strings in
reading order.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from abcnb.lines.coordinates import Stream, of_number, written_before
from abcnb.tasks.digits import Operands
from abcnb.tasks.task import Task, check_not_in_rows
from abcnb.tasks.testsets import seeded_generator
from abcnb.tasks.tokens import DIGITS

LONGEST = 12  # symbols of the longest strings that are trained on


def integers(low: int, high: int, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Random integers from `low` to `high` − 1, on the generator's device."""
    return torch.randint(low, high, size, generator=generator, device=generator.device)


class OfStrings(Task):
    """A task on strings of `symbols` symbols, written 0, 1, … as digits are."""

    test_sets = ("random",)
    lines_by_hand: dict = {}
    syntax = "STRING"
    symbols = 2  # in inputs
    codes = 0  # digits in outputs, if more than the symbols; at most 16
    drawn_from = 0  # how many of the symbols random strings have; 0 is all
    train_length = LONGEST

    @property
    def bases(self) -> range:
        """Only the number of its digits."""
        digits = max(self.codes, self.symbols)
        return range(digits, digits + 1)

    def drawn(self, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """`count` random strings, [count, digits_at(length)]; by default every symbol is equally likely."""
        return integers(0, self.drawn_from or self.symbols, (count, self.digits_at(length)), generator)

    def tested(self, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """`count` strings of a test; by default they are drawn as in training."""
        return self.drawn(count, length, generator)

    def of_size(self, length: int, batch: int, generator: torch.Generator) -> Operands:
        """`batch` training strings, as operands."""
        return (self.drawn(batch, length, generator).flip(1),)

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        strings = self.tested(samples, length, seeded_generator(self, length, test_set))
        return {test_set: (strings.flip(1),)}

    def shaped(self, operands: Operands) -> Operands:
        largest = int(operands[0].max())
        if largest >= self.symbols:
            last = DIGITS[self.symbols - 1]
            raise ValueError(f"expected symbols 0 to {last} in a string of {self.name}, got {DIGITS[largest]}")
        return operands

    def widened(self, operands: Operands, width: int) -> Operands:
        return operands


class SizeSampler:
    """Draws batches of inputs of one size, each size equally likely; held-out batches always have the last size.

    Nothing is really held out: some of the few short inputs are trained on, and tests are longer.
    """

    def __init__(self, task: Task, sizes: Sequence, held_out: bool):
        self.task, self.sizes = task, sizes[-1:] if held_out else sizes

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """`batch` inputs of one size, [batch, tokens]."""
        # On a GPU this waits for the device once a step: the size decides the sizes of all tensors.
        size = self.sizes[int(integers(0, len(self.sizes), (), generator))]
        return self.task.of_size(size, batch, generator)


class StringTask(OfStrings):
    """A task whose output is a string, or a few. A new one is a subclass with a `name` and an `answer`.

    Only a task that takes strings of some lengths alone overrides `digits_at`, one that draws them unevenly `drawn`,
    and one whose output is not as long as its input `outputs`. An `answer_length` of 0 is the whole output; what comes
    before an answer is working.
    """

    spare = 0
    answers_in_places = False
    output_length = 0  # of an output of one string; 0 is as long as the input

    def answer(self, string: torch.Tensor) -> torch.Tensor:
        """The output, [batch, output symbols], for strings [batch, length], both in reading order."""
        raise TypeError(f"the task {self.name!r} does not define answer()")

    def outputs(self, length: int) -> dict[str, int]:
        """The strings of the output, by name, and their lengths, for an input of `length` symbols."""
        return {"digits": self.output_length or length}

    def segments(self, length: int) -> dict[str, int]:
        """The strings that an input of `length` symbols is made of, by name, and their lengths."""
        return {"a": length}

    def label(self, a: torch.Tensor) -> torch.Tensor:
        return self.answer(a.flip(1))

    def steps(self, width: int) -> int:
        return sum(self.outputs(width).values()) + 1

    def outputs_at(self, length: int) -> int:
        return self.steps(self.digits_at(length))

    @lru_cache(maxsize=64)  # noqa: B019  tasks live as long as the program
    def stream(self, width: int, form: str = "natural") -> Stream:
        self._check(form, width)
        segments, steps = self.segments(width), dict(self.outputs(width))
        strings = tuple(map(written_before, segments, accumulate(segments.values()), segments.values()))
        steps[list(steps)[-1]] += 1  # the end token
        return of_number((width,), strings, {"$": 0, "&": width + 1}, width + 2, steps)

    def training_width(self, numbers: str) -> int:
        return self.digits_at(self.train_length)

    def sampler(self, numbers, width, held_out, device, terms=0, shapes="all") -> SizeSampler:
        check_not_in_rows(terms, shapes)
        if numbers not in ("even", "bucketed") or width != self.training_width(numbers):
            raise ValueError(
                f"expected 'even' or 'bucketed' numbers and a width of {self.training_width(numbers)} for {self.name}, "
                f"whose strings have their own lengths, got {numbers!r} and {width}"
            )
        return SizeSampler(self, range(self.shortest, self.train_length + 1), held_out)

    def read(self, output: str) -> str:
        return output.partition("&")[0][-self.answer_length :]
