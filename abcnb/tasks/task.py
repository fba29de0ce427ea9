"""Tasks: how operands become a source sequence and a label.

Worked example, Addition at width 4: operands 123 and 748 are padded to `0123` and `0748`; the natural
source is `$0123+0748&`, the aligned one `$+00172438&`. The label is 871 written units first, because a
carry travels from units upwards and the decoder can then follow it: `1780&`. The decoder is fed `$1780`.

Digits are held units first, shape [batch, width], so that column p is place p.

Source: paper, section 2 (tasks), appendix B (numbers, lengths).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Stream, of_number, written_before
from abcnb.tasks.digits import Operands, digits_of, length_of
from abcnb.tasks.numbers import LARGEST, Sampler, smallest_width
from abcnb.tasks.own import ENDING, in_file
from abcnb.tasks.testsets import TEST_SETS
from abcnb.tasks.tokens import DIGITS, EQUALS_ID, IDS, PAPER_VOCABULARY, START_ID, SYMBOLS, tokens_of


@dataclass(frozen=True)
class Batch:
    """Sequences ready for the model."""

    source: torch.Tensor  # [batch, source columns], token ids
    target: torch.Tensor  # [batch, rows], the label's digits, units first, then the end token
    stream: Stream  # the coordinates of both

    @property
    def decoder_input(self) -> torch.Tensor:
        """[batch, rows], the target shifted right, after the start token."""
        return F.pad(self.target[:, :-1], (1, 0), value=START_ID)


class Machine(NamedTuple):
    """A task place by place, from the units on: it reads a digit of each operand, writes one, passes a state on.

    The state may be a carry or a running parity. This defines a task at every length at once, `label` at one.
    """

    states: int  # how many states there are, numbered from 0
    starts: tuple[int, ...]  # the states before the units
    ends: tuple[int, ...]  # the states allowed after the last place; in others the result exceeds the width
    # (state, digit of each operand) to (digit written, next state), on tensors of any shape
    step: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    shown: Callable[[torch.Tensor], torch.Tensor] | None = None  # the one-digit second operand that a state holds


class Task:
    """One arithmetic task in one base.

    A new task is a subclass with a `name` and a `label`, plus one `register` line. Results have at most one digit
    more than the operands, which are padded by one; strings are not padded (`strings`). A task of two operands
    derives from `Addition` or `NByOne` and sets `symbol`, one of `tokens.SYMBOLS`. The attributes that a subclass
    may set are listed first.
    """

    name: str  # in code and on the command line
    operands = 1  # or 2
    has_terms = False  # whether it takes any number of operands, at least `operands`
    forms = ("natural",)  # that its source can be written in, the natural one first
    symbol = ""  # the operator's character, if it has one
    second_is_digit = False  # the second operand is a single digit, however long the first is
    minimum = 0  # the smallest number drawn
    spare = 1  # zeros that operands have beyond the longest number's digits, in training and in tests
    answer_length = 0  # tokens at the end of the output that are the answer; 0: all are its digits, units first
    answers_in_places = True  # one digit for each place of a padded operand, as decoder-only models need
    in_rows = False  # whether the output is in rows (`rows`)
    shortest = 1  # length of the shortest test, and of the shortest training string
    longest = 0  # length of the longest test; 0 is no limit
    test_sets = tuple(TEST_SETS)  # the test sets that it has
    validation_batches = 1  # in one validation: inputs of one shape may be much easier than those of another
    numbers = "bucketed"  # training numbers by default: inputs of several sizes
    for_plain: dict = {"numbers": "even"}  # what its plain model gets instead, as arguments of `TrainingData`
    # Whether every token sees only itself in the first layer of its plain model, which leaves it to the last layer
    # to show which tokens a step needs.
    first_layer_apart = False
    bases = range(2, 17)  # the usual one is 10, or the first if that is not among them, or `base` of the class
    length_base = 0  # the base in which a test's length counts digits, if not the task's own
    train_length = 0  # digits of the longest `even` numbers; 0: one less than 2^20 has, six in base 10
    stream_vocabulary_size = EQUALS_ID + 1  # where input and output are one stream, with `=` between them

    def __init__(self, base: int | None = None):
        usual = getattr(type(self), "base", 10 if 10 in self.bases else self.bases[0])
        self.base = usual if base is None else base
        if self.base not in self.bases:
            several = f" from {self.bases[0]} to {self.bases[-1]}" if len(self.bases) > 1 else f" {self.bases[0]}"
            raise ValueError(f"expected a base{several} for {self.name}, got {base}")
        if self.base < 2 or self.symbol in [*DIGITS[: self.base]]:
            told = f"expected two digits or more of {self.name}, and a symbol that is none of them, got"
            raise ValueError(f"{told} {DIGITS[: self.base]} and {self.symbol!r}")
        self.length_base = self.length_base or self.base
        self.train_length = self.train_length or length_of(LARGEST, self.base) - 1

    @property
    def lines_by_hand(self) -> dict[str, tuple[tuple[str, tuple[int, ...]], ...]]:
        """ABS: for each kind of step, the segments that it has to look at, each with its offsets.

        Here, what a carry needs: the place written and the one before in every operand, and the last two inputs.
        """
        numbers = "ab"[: self.operands - self.second_is_digit]
        lines = [(name, (offset,)) for name in numbers for offset in (0, -1)] + [("b", ())] * self.second_is_digit
        return {"digits": (*lines, ("digits", (-1,)), ("digits", (-2,)))}

    @property
    def vocabulary_size(self) -> int:
        """15, the paper's, unless the base or the operator needs further tokens."""
        return max(PAPER_VOCABULARY, 1 + max(IDS[character] for character in DIGITS[: self.base] + self.symbol))

    def label(self, *operands: torch.Tensor) -> torch.Tensor:
        """The label's digits, units first, from the operands' digits, each [batch, width]."""
        raise TypeError(f"the task {self.name!r} does not define label()")

    @property
    def machine(self) -> Machine:
        """The task place by place, at every length; raises ValueError if its output is not made that way."""
        raise ValueError(f"expected a task whose output is made place by place, by a machine, got {self.name!r}")

    def digits_at(self, length: int) -> int:
        """Digits, in the task's own base, of the largest number of `length` digits in `length_base`."""
        return length

    @property
    def longest_trained(self) -> int:
        """The longest training length, measured as test lengths are: even for Parity, in decimal digits."""
        return max(n for n in range(1, 1 + self.train_length) if self.digits_at(n) <= self.train_length)

    def width_at(self, length: int) -> int:
        """Digits that operands of a test of this length are padded to."""
        return self.digits_at(length) + self.spare

    def outputs_at(self, length: int) -> int:
        """Output tokens of a test of this length."""
        return self.width_at(length) + 1

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        """Operands of each kind of a test set, as digits, units first: at most `samples`, at least one a kind."""
        return TEST_SETS[test_set](self, length, samples)

    def training_width(self, numbers: str) -> int:
        """The default training width, with room for every operand and result."""
        return max(self.train_length + self.spare, smallest_width(self, numbers))

    def sampler(self, numbers: str, width: int, held_out: bool, device, terms: int = 0, shapes="all") -> Sampler:
        """The sampler for training or validation; raises ValueError for anything that the task does not have."""
        check_not_in_rows(terms, shapes)
        return Sampler(self, numbers, width, held_out, device)

    def completed(self, operands: Operands, generator: torch.Generator) -> Operands:
        """Training samples: the numbers drawn, and whatever is not drawn from the training numbers."""
        if not self.second_is_digit:
            return operands
        a = operands[0]
        return a, torch.randint(self.base, (len(a), 1), generator=generator, device=a.device)

    def largest_stream(self, width: int, form: str = "natural", terms: int = 0) -> Stream:
        """The coordinates of the largest input that is trained on."""
        return self.stream(width, form)

    def widths(self, width: int) -> tuple[int, ...]:
        """Digits of each operand when the first has `width`."""
        return (width, 1) if self.second_is_digit else (width,) * self.operands

    @lru_cache(maxsize=64)  # noqa: B019  tasks live as long as the program
    def stream(self, width: int, form: str = "natural") -> Stream:
        """The coordinates of an input of this width and form, as an encoder-decoder has it."""
        self._check(form, width)
        structure = {token: n for n, token in enumerate("$" + self.symbol)} | {"&": len(self.symbol) + width + 1}
        operand = written_before("a", len(self.symbol) + width, width)
        return of_number((width,), (operand,), structure, len(self.symbol) + width + 2, self.steps(width))

    def stream_of(self, operands: Operands, form: str = "natural") -> Stream:
        """The coordinates of operands given as digits."""
        return self.stream(self.shape_of(operands), form)

    def shape_of(self, operands: Operands) -> int | tuple[int, ...]:
        """The width of operands, or the shape of those of a task in rows."""
        return operands[0].shape[1]

    def steps(self, width: int) -> int:
        """Output tokens of operands of this width, the end token included."""
        return width + 1

    def _check(self, form: str, width: int = 1) -> None:
        if form not in self.forms:
            raise ValueError(f"the task {self.name!r} is written in forms {', '.join(self.forms)}, got {form!r}")
        if width < 1:
            raise ValueError(f"expected a width of at least 1 digit, got {width}")

    def source(self, operands: Operands, form: str = "natural") -> torch.Tensor:
        """Token ids of the source, [batch, columns]."""
        self._check(form)
        (a,) = operands
        return tokens_of("$" + self.symbol, a.flip(1), "&")

    def check_architecture(self, architecture: str) -> None:
        """Raise ValueError if the architecture cannot learn the task."""
        if self.in_rows and architecture != "decoder-only":
            raise ValueError(
                f"expected a decoder-only model for {self.name}, whose output is in rows, got {architecture}"
            )
        if architecture == "decoder-only" and not self.answers_in_places:
            raise ValueError(
                f"expected an encoder-decoder for {self.name}, whose answer is not one digit for each place"
            )

    def batch(self, operands: Operands, form: str = "natural") -> Batch:
        """Source and target of operands given as digits; `label` gets copies, which it may change."""
        target = tokens_of(self.label(*(operand.clone() for operand in operands)), "&")
        return Batch(self.source(operands, form), target, self.stream_of(operands, form))

    def parse(self, text: str) -> Operands:
        """Operands typed by a person, as digits of batch 1, `shaped`; raises ValueError if they are not valid."""
        texts, alphabet = self._split(text.replace(" ", "").lower()), DIGITS[: self.base]
        for operand in texts:
            wrong = sorted(set(operand) - set(alphabet))
            if wrong or not operand:
                got = f"the character {wrong[0]!r}" if wrong else "nothing"
                raise ValueError(
                    f"expected {self.syntax} with digits {alphabet[0]} to {alphabet[-1]}, got {got} in {text[:60]!r}"
                )
        if self.second_is_digit and len(texts[1]) > 1:
            raise ValueError(f"expected a single-digit second operand, got {texts[1]!r} in {text!r}")
        return self.shaped(tuple(torch.tensor([[alphabet.index(c) for c in reversed(part)]]) for part in texts))

    def shaped(self, operands: Operands) -> Operands:
        """Operands of their own lengths, padded as in a sample of the task."""
        return self.widened(operands, max(operand.shape[1] for operand in operands) + self.spare)

    def widened(self, operands: Operands, width: int) -> Operands:
        """Operands padded with zeros to at least `width` digits, each [batch, digits]."""
        widths = self.widths(max(operands[0].shape[1], width))
        return tuple(F.pad(a, (0, max(0, w - a.shape[1]))) for a, w in zip(operands, widths, strict=True))

    def smallest(self, width: int) -> Operands:
        """The smallest operands, of batch 1: a stand-in where only the columns matter."""
        return tuple(digits_of(torch.tensor([self.minimum]), n, self.base) for n in self.widths(width))

    @property
    def syntax(self) -> str:
        """How a person writes an input."""
        return f"NUMBER{self.symbol}NUMBER" if self.operands == 2 else f"{self.symbol}NUMBER"

    def _split(self, text: str) -> list[str]:
        if self.operands == 1:
            return [text.removeprefix(self.symbol)]
        parts = text.split(self.symbol)
        if len(parts) < 2 or (len(parts) > 2 and not self.has_terms):
            raise ValueError(f"expected {self.syntax}, got {text[:60]!r}")
        return parts

    def read(self, output: str) -> str:
        """What a person reads off an output's text (digits units first, up to the end token)."""
        written = output.partition("&")[0]
        return written[-self.answer_length :] if self.answer_length else written[::-1].lstrip("0") or "0"


def check_not_in_rows(terms: int, shapes: str) -> None:
    """Raise ValueError for terms or shapes, which only products and sums in rows have."""
    if (terms, shapes) != (0, "all"):
        raise ValueError(f"terms and shapes are for products and sums in rows, got {terms} and {shapes!r}")


TASKS: dict[str, type[Task]] = {}
FURTHER: dict[str, type[Task]] = {}  # tasks that no method was chosen on; they have only `vanilla` and `abc`


def register(task: type[Task], among: dict[str, type[Task]] = TASKS) -> type[Task]:
    """Make a task known by its name; raises ValueError for one that is not `checked`."""
    among[checked(task).name] = task
    return task


def checked(task: type[Task]) -> type[Task]:
    """A task's class; ValueError if it has no name of its own, or a symbol that is not in `SYMBOLS`."""
    if not getattr(task, "name", ""):
        raise ValueError(f"expected a name of the task {task.__name__}, by which it is asked for, got none")
    other = (TASKS | FURTHER).get(task.name, task)
    if (other.__module__, other.__name__) != (task.__module__, task.__name__):  # a notebook may define one again
        raise ValueError(f"expected a name of its own for {task.__name__}, got {task.name!r}, of another task")
    if task.symbol and task.symbol not in SYMBOLS:
        raise ValueError(
            f"expected a symbol of {task.name} among the tokens {' '.join(SYMBOLS)}, got {task.symbol!r}: take one "
            "that the task does not use otherwise; what it looks like means nothing to a model"
        )
    return task


@lru_cache(maxsize=64)
def _instance(kind: type[Task], base: int | None) -> Task:
    return kind(base)


def full_name(name: str) -> str:
    """The name by which a run knows a task: as given or, for a task in a file, with its path and hash (`own`)."""
    return in_file(name, Task)[0] if ENDING in name else name


def get_task(name: str, base: int | None = None) -> Task:
    """The task of that name, or in that file (`own`); one instance per task and base.

    Raises ValueError if the name is unknown, the file has no such task, or the task does not have the base.
    """
    known = TASKS | FURTHER
    if name in known:
        return _instance(known[name], base)
    if ENDING not in name:
        raise ValueError(f"expected a task among {', '.join(known)}, or a file such as my_task.py, got {name!r}")
    return _instance(checked(in_file(name, Task)[1]), base)
