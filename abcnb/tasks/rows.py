"""Tasks whose output is written in rows: products of two numbers, sums of many terms.

Worked example, `multiplication`, 123 × 45: the prompt is `$123*45=`. For each digit of the multiplier, units first,
the model writes a row of products, 123 × 5 = 615 as `5160+`, and a row of running sums, `5160*`; then 123 × 4 = 492 as
`2940+`, and 61 + 492 = 553 as `3550*`, since the first digit of a running sum is final and drops out. The end token
`&` follows. The answer is the first digit of every running sum and the rest of the last one: 5, 3, 5, 5, 0: 5535.

`many-addition`, 12 + 9 + 80: the prompt is `$012+009+080=`, the rows are the running sums `210+120+101+&`, and the
answer, 101, is the last row.

Digits are held units first, shape [batch, width], as for every task. Operands of a product keep their own lengths, and
a row of a × b has one digit more than a. Terms are padded to what their sum takes.
"""

import re
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Segment, Stream, in_rows
from abcnb.tasks.digits import Operands, length_of, propagate_carries
from abcnb.tasks.row_numbers import RowSampler, row_cases
from abcnb.tasks.task import Batch, Task, register
from abcnb.tasks.testsets import seeded_generator
from abcnb.tasks.tokens import END_ID, tokens_of

TRAIN_LENGTH = 6  # digits of the longest operand, and the most terms, that are ever trained on


class RowTask(Task):
    """A task whose output has rows; it is written in one stream and learned by decoder-only models.

    `train_length` is the most digits of an operand, and the most terms, that are ever trained on (of lists, the depth).
    A *shape* is (digits of a, digits of b) for a product and (terms, digits they are padded to) for a sum. A subclass
    defines `shape_of_length`, `shape_of`, `stream_of_shape`, `rows_of` and `label`.
    """

    in_rows = True
    numbers = "even"
    for_plain: dict = {}
    test_sets = ("random", "hard", "unequal")
    has_terms = False  # any number of operands, two at least
    hard_kind: str  # of hard cases, beside those of all (`row_numbers`)
    row_names: tuple[str, ...]  # the rows of a round, in order
    separators: str  # the character that ends each of them

    def __init__(self, base: int | None = None):
        super().__init__(base)
        self.train_length = type(self).train_length or min(TRAIN_LENGTH, self.train_length)

    def shape_of_length(self, length: int, terms: int = 0) -> tuple[int, ...]:
        """The shape of a test of a length: length × length digits, or `terms`, if not as many, of as many digits."""
        raise TypeError(f"the task {self.name!r} does not define shape_of_length()")

    def stream_of_shape(self, shape: tuple[int, ...]) -> Stream:
        """The coordinates of a shape."""
        raise TypeError(f"the task {self.name!r} does not define stream_of_shape()")

    def rows_of(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The digits of all rows of each name, units first, each [batch, rounds, digits of a row]."""
        raise TypeError(f"the task {self.name!r} does not define rows_of()")

    def size(self, first: int, second: int) -> tuple[int, ...]:
        """The digits of each operand: of a product's two, or of `first` terms of `second` digits."""
        return (second,) * first if self.has_terms else (first, second)

    def sizes(self, width: int, terms: int = 0) -> list[tuple[int, ...]]:
        """`size` of every input up to the largest one of a training."""
        digits, terms = range(1, width + 1), range(2, (terms or width) + 1)
        return [self.size(m, n) for n in digits for m in terms] if self.has_terms else [*product(digits, digits)]

    def outputs_at(self, length):
        return self.stream(length).rows

    def operands_at(self, length):
        return length if self.has_terms else 2

    def training_width(self, numbers):
        return self.train_length

    def sampler(self, numbers, width, held_out, device, terms=0, shapes="all"):
        return RowSampler(self, width, held_out, device, numbers, terms, shapes)

    def cases(self, test_set, length, samples):
        return row_cases(self, length, samples, test_set, seeded_generator(self, length, test_set))

    def largest_stream(self, width, form="natural", terms=0):
        return self.stream(self.shape_of_length(width, terms), form)

    @lru_cache(maxsize=512)  # noqa: B019  tasks live as long as the program
    def stream(self, shape: int | tuple[int, ...], form: str = "natural") -> Stream:
        """The coordinates of a shape; a number stands for `shape_of_length`."""
        self._check(form)
        if isinstance(shape, int):
            return self.stream(self.shape_of_length(shape), form)
        return self.stream_of_shape(shape)

    def batch(self, operands: Operands, form: str = "natural") -> Batch:
        """Prompt, output in rows and stream of operands given as digits."""
        rows = [part for row in zip(self.rows_of(*operands), self.separators, strict=True) for part in row]
        target = F.pad(tokens_of(*rows).flatten(1), (0, 1), value=END_ID)
        return Batch(self.source(operands, form), target, self.stream_of(operands, form))

    def source(self, operands: Operands, form: str = "natural") -> torch.Tensor:
        """Token ids of the prompt, [batch, tokens]."""
        self._check(form)
        parts = [part for operand in operands for part in (self.symbol, operand.flip(1))]
        return tokens_of("$", *parts[1:], "=")

    def shaped(self, operands):
        return operands

    def widened(self, operands: Operands, width: int) -> Operands:
        """The operands as they are: their shape is the input's own."""
        return operands

    def split_rows(self, output: str) -> list[str]:
        """The rows of an output's text, each with its separator, up to the end token."""
        rows = re.split(f"(?<=[{re.escape(self.separators)}])", output.partition("&")[0])
        return [row for row in rows if row]


class Multiplication(RowTask):
    """a × b of any lengths, schoolbook: a row of products and a row of running sums for each digit of b."""

    name = "multiplication"
    operands = 2
    symbol = "*"
    hard_kind = "powers"
    for_plain = {"width": 4, "shapes": "largest"}
    first_layer_apart = True
    row_names = ("products", "sums")
    separators = "+*"
    # A digit of a product needs the multiplier's digit and, for the carry, the multiplicand's place before as well;
    # a digit of a sum the row of products and the sum before, which stands one place higher.
    lines_by_hand = {
        "products": (("a", (0,)), ("a", (-1,)), ("b", (0,))),
        "sums": (("products", (0, 0)), ("products", (0, -1)), ("sums", (-1, 1)), ("sums", (-1, 0))),
    }

    def shape_of_length(self, length, terms=0):
        return length, length

    def outputs_at(self, length):
        return 2 * length * (length + 2) + 1

    def shape_of(self, operands):
        return operands[0].shape[1], operands[1].shape[1]

    def stream_of_shape(self, shape):
        n, m = shape
        prompt = (
            Segment("a", n, (n,), (-1,), 1, ("place",)),
            Segment("b", n + 1 + m, (m,), (-1,), 1, ("row",)),
            Segment("$", 0),
            Segment("*", n + 1),
            Segment("=", n + m + 2),
        )
        return in_rows(shape, prompt, n + m + 3, self.row_names, m, (n + 1, n + 1))

    def rows_of(self, a, b):
        n, m = a.shape[1], b.shape[1]
        products = propagate_carries(F.pad(a, (0, 1)).repeat_interleave(m, 0) * b.reshape(-1, 1), self.base)
        products = products.view(-1, m, n + 1)
        # The running sum of row j is what the sum of products 0 to j, each shifted by its row, has from place j on.
        shifted = F.pad(products, (0, m)).flatten(1)[:, : m * (n + m)].view(-1, m, n + m)
        partial = propagate_carries(shifted.cumsum(1).flatten(0, 1), self.base).view(-1, m, n + m)
        index = torch.arange(n + 1, device=a.device) + torch.arange(m, device=a.device)[:, None]
        return products, partial.gather(2, index.expand(len(a), -1, -1))

    def label(self, a, b):
        """a × b, [batch, digits of a + digits of b]."""
        _, sums = self.rows_of(a, b)
        return torch.cat([sums[:, :-1, 0], sums[:, -1]], dim=1)

    def read(self, output: str) -> str:
        sums = [row[:-1] for row in self.split_rows(output)[1::2]]
        return super().read("".join([*(row[:1] for row in sums[:-1]), *sums[-1:]]))


class ManyAddition(RowTask):
    """The sum of any number of terms: a row of running sums for each."""

    name = "many-addition"
    operands = 2  # at least
    symbol = "+"
    syntax = "NUMBER+NUMBER+…"
    has_terms = True
    hard_kind = "large digits"
    numbers = "repeated"
    for_plain = {"numbers": "even", "width": 3, "terms": 6, "shapes": "largest"}
    first_layer_apart = True
    row_names = ("sums",)
    separators = "+"
    lines_by_hand = {"sums": (("terms", (0, 0)), ("terms", (0, -1)), ("sums", (-1, 0)), ("sums", (-1, -1)))}

    def width_of(self, terms: int, digits: int) -> int:
        """Digits that terms of so many digits are padded to: what their sum takes."""
        return digits + length_of(terms, self.base)

    def shape_of_length(self, length, terms=0):
        return terms or length, self.width_of(terms or length, length)

    def outputs_at(self, length):
        return length * (self.width_of(length, length) + 1) + 1

    def shape_of(self, operands):
        return len(operands), operands[0].shape[1]

    def stream_of_shape(self, shape):
        terms, width = shape
        prompt = (
            Segment("terms", width, (terms, width), (width + 1, -1), 1, ("row", "place")),
            Segment("$", 0),
            Segment("operators", width + 1, (terms,), (width + 1,), 0, ("row",)),
        )
        return in_rows(shape, prompt, 1 + terms * (width + 1), self.row_names, terms, (width,))

    def rows_of(self, *terms):
        sums = torch.stack(terms, dim=1).cumsum(1)
        return (propagate_carries(sums.flatten(0, 1), self.base).view(sums.shape),)

    def label(self, *terms):
        """The sum, [batch, digits]."""
        return propagate_carries(torch.stack(terms).sum(0), self.base)

    def shaped(self, operands):
        width = self.width_of(len(operands), max(operand.shape[1] for operand in operands))
        return tuple(F.pad(operand, (0, width - operand.shape[1])) for operand in operands)

    def _split(self, text):
        if self.symbol not in text:
            raise ValueError(f"expected {self.syntax}, got {text[:60]!r}")
        return text.split(self.symbol)

    def read(self, output: str) -> str:
        return super().read("".join(self.split_rows(output)[-1:]).rstrip("+"))


for _task in (Multiplication, ManyAddition):
    register(_task)
