"""Tasks that read a string and write rows of working, one or a few for each of its symbols.

In most of them a row of cells is rewritten for each symbol (`CellTask`): what a cell holds after it follows from the
symbol, from what it held before, and from its neighbours. So a step needs four tokens at fixed offsets, `symbols[row]`
and `cells[row-1, place-1]` to `[row-1, place+1]`; stacks, sorting by insertion and brackets can be written so.

Worked example, sorting 4, 2, 3 (5 is an empty cell): `$423=` is answered by `455+245+234+&`.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Segment, in_rows
from abcnb.tasks.digits import Operands
from abcnb.tasks.rows import RowTask
from abcnb.tasks.strings import StringSampler
from abcnb.tasks.task import check_not_in_rows
from abcnb.tasks.testsets import seeded_generator
from abcnb.tasks.tokens import DIGITS, on_device

EDGE = -1  # what is beyond the first and the last cell


class StringInRows(RowTask):
    """A task on strings of `symbols` symbols whose working is in rows; both are written as digits.

    Attributes:
        symbols: of inputs.
        codes: digits of outputs, as many as symbols at least and at most 16.
        a_round: symbols that are read for each round of rows; of several, lines tell which.
        shortest, train_length: symbols of the strings of a training.
    """

    operands = 1
    test_sets = ("random",)
    for_plain = {"shapes": "largest"}
    first_layer_apart = True
    row_names = ("cells",)
    separators = "+"
    lines_by_hand: dict = {}
    symbols = 2
    codes: int
    a_round = 1
    shortest = 1
    train_length = 8

    def __init__(self, base: int | None = None):
        self.bases = range(self.codes, self.codes + 1)
        self.default_base = self.codes
        longest = self.train_length
        super().__init__(base)
        self.train_length = longest

    def widths_of(self, length: int) -> tuple[int, ...]:
        """How many digits a row of each of `row_names` has."""
        return (length,)

    def drawn(self, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """`count` strings of a training, [count, length]: each symbol as likely as any other."""
        return torch.randint(self.symbols, (count, length), generator=generator, device=generator.device)

    def tested(self, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """`count` strings of a test, [count, length]; drawn as those of a training where nothing else is said."""
        return self.drawn(count, length, generator)

    def sampler(self, numbers, width, held_out, device, terms=0, shapes="all"):
        check_not_in_rows(terms, "all")
        if numbers != "even" or not self.shortest <= width <= self.train_length:
            raise ValueError(
                f"expected 'even' numbers and a width from {self.shortest} to {self.train_length} for {self.name}, "
                f"got {numbers!r} and {width}"
            )
        return StringSampler(self, held_out or shapes == "largest", device, width)

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        strings = self.tested(samples, length, seeded_generator(self, length, test_set))
        return {test_set: (strings.flip(1),)}

    def shape_of_length(self, length):
        return length, *self.widths_of(length)

    def shape_of(self, operands):
        return self.shape_of_length(operands[0].shape[1])

    @lru_cache(maxsize=256)  # noqa: B019  tasks live as long as the program
    def stream_of_shape(self, shape):
        length, *widths = shape
        rounds = length // self.a_round
        grid = ((rounds,), (1,)) if self.a_round == 1 else ((rounds, self.a_round), (self.a_round, 1))
        prompt = (Segment("symbols", 1, *grid, 0, ("row",)), Segment("$", 0), Segment("=", length + 1))
        return in_rows(shape, prompt, length + 2, self.row_names, rounds, tuple(widths))

    def source(self, operands: Operands, form: str = "natural") -> torch.Tensor:
        self._check_form(form)
        (string,) = operands
        return self._join("$", on_device(DIGITS, string.device)[string.flip(1)], "=")

    def shaped(self, operands):
        largest = int(operands[0].max())
        if largest >= self.symbols:
            last = DIGITS[self.symbols - 1]
            raise ValueError(f"expected symbols 0 to {last} in a string of {self.name}, got {DIGITS[largest]}")
        return operands

    def label(self, a):
        """The last row of each name, [batch, digits]."""
        return torch.cat([rows[:, -1] for rows in self.rows_of(a)], 1)

    @property
    def syntax(self) -> str:
        """How a person writes an input."""
        return "STRING"

    def _split(self, text):
        return [text]


class CellTask(StringInRows):
    """A task that is worked out in cells. A new one is a subclass with a `name`, these numbers and `rewritten`.

    Attributes:
        first: what the first cells hold before the first symbol.
        empty: what all others hold then.
    """

    first: tuple[int, ...] = ()
    empty: int

    def rewritten(
        self, symbol: torch.Tensor, left: torch.Tensor, here: torch.Tensor, right: torch.Tensor
    ) -> torch.Tensor:
        """What the cells hold after a symbol, [batch, cells of all rows].

        Args:
            symbol: [batch, 1].
            left, here, right: what each cell's left neighbour, the cell and its right neighbour held before, each
                [batch, cells]; `EDGE` where there is none.
        """
        raise TypeError(f"the task {self.name!r} does not define rewritten()")

    def rows_of(self, a):
        string, rows = a.flip(1), []
        widths = self.widths_of(string.shape[1])
        cells = torch.full((len(a), sum(widths)), self.empty, device=a.device)
        for place, code in enumerate(self.first):
            cells[:, place] = code
        for symbol in string.split(1, 1):
            beside = F.pad(cells, (1, 1), value=EDGE)
            cells = self.rewritten(symbol, beside[:, :-2], cells, beside[:, 2:])
            rows.append(cells)
        return torch.stack(rows, 1).split(widths, 2)

    def read(self, output: str) -> str:
        last = (self.split_rows(output) or [""])[-1]
        return last.rstrip(self.separators).rstrip(DIGITS[self.empty])
