"""Tasks that read a string and write rows of working, one or a few for each symbol or pair of symbols.

In most of them a row of cells is rewritten for each symbol (`CellTask`): what a cell then holds follows from the
symbol, from what it held before, and from its neighbours. So a step needs four tokens at fixed offsets, `symbols[row]`
and `cells[row-1, place-1]` to `[row-1, place+1]`; stacks, insertion sort and brackets can be written this way.

Worked example, sorting 4, 2, 3 (5 is an empty cell): `$423=` is answered by `455+245+234+&`.

Source of the five tasks: Delétang et al. (`chomsky`).
"""

import random

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Segment, in_rows
from abcnb.tasks.digits import carries_of
from abcnb.tasks.rows import RowTask
from abcnb.tasks.strings import LONGEST, OfStrings, SizeSampler, integers
from abcnb.tasks.task import check_not_in_rows
from abcnb.tasks.tokens import DIGITS

EDGE = -1  # what is beyond the first and the last cell
MODULUS = 5  # of expressions


class StringInRows(OfStrings, RowTask):
    """A task on strings whose working is in rows."""

    for_plain = {"shapes": "largest"}
    first_layer_apart = True
    row_names = ("cells",)
    separators = "+"
    train_length = 8
    a_round = 1  # symbols read for each round of rows; if several, lines tell which

    def widths_of(self, length: int) -> tuple[int, ...]:
        """How many digits a row of each of `row_names` has."""
        return (length,)

    def sampler(self, numbers, width, held_out, device, terms=0, shapes="all"):
        check_not_in_rows(terms, "all")
        if numbers != "even" or not self.shortest <= width <= self.train_length:
            raise ValueError(
                f"expected 'even' numbers and a width from {self.shortest} to {self.train_length} for {self.name}, "
                f"got {numbers!r} and {width}"
            )
        return SizeSampler(self, range(self.shortest, width + 1), held_out or shapes == "largest")

    def shape_of_length(self, length, terms=0):
        return length, *self.widths_of(length)

    def stream_of_shape(self, shape):
        length, *widths = shape
        rounds = length // self.a_round
        grid = ((rounds,), (1,)) if self.a_round == 1 else ((rounds, self.a_round), (self.a_round, 1))
        prompt = (Segment("symbols", 1, *grid, 0, ("row",)), Segment("$", 0), Segment("=", length + 1))
        return in_rows(shape, prompt, length + 2, self.row_names, rounds, tuple(widths))


class CellTask(StringInRows):
    """A task that is worked out in cells. A new one is a subclass with a `name`, its numbers and `rewritten`."""

    first: tuple[int, ...] = ()  # what the first cells hold before the first symbol
    empty: int  # what all others hold then

    def rewritten(self, symbol, left, here, right) -> torch.Tensor:
        """What the cells hold after a symbol, [batch, 1], given what each cell and its two neighbours held before.

        `left`, `here`, `right` and the result are [batch, cells of all rows]; `EDGE` where there is no neighbour.
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
        last = "".join(self.split_rows(output)[-1:])
        return last.rstrip(self.separators).rstrip(DIGITS[self.empty])


class BucketSort(CellTask):
    """Five symbols in order, by insertion: cells hold those read so far; 5 is an empty cell."""

    name = "bucket-sort"
    symbols, codes, empty = 5, 6, 5

    def rewritten(self, symbol, left, here, right):
        return torch.where(here <= symbol, here, torch.where(left <= symbol, symbol, left))


class StackManipulation(CellTask):
    """A stack, its bottom first (0, 1), then pop (2), push 0 (3), push 1 (4): what is left, top first; 2 is nothing."""

    name = "stack-manipulation"
    symbols, codes, empty = 5, 5, 2

    def drawn(self, count, length, generator):
        stack, actions = (integers(low, high, (count, length), generator) for low, high in ((0, 2), (2, 5)))
        size = integers(1, max(2, length), (count, 1), generator)
        return torch.where(torch.arange(length, device=stack.device) < size, stack, actions)

    def rewritten(self, symbol, left, here, right):
        pushed = torch.where(left == EDGE, torch.where(symbol < 2, symbol, symbol - 3), left)
        return torch.where(symbol == 2, torch.where(right == EDGE, self.empty, right), pushed)


PLUS, MINUS, OPEN, CLOSE, UNKNOWN, EQUALS = range(MODULUS, MODULUS + 6)  # after the digits


def expression(length: int, draw: random.Random) -> list[int]:
    """The symbols of a random expression with brackets."""
    if length < 5:
        digit = draw.randrange(MODULUS)
        return [[digit], [MINUS, digit], [OPEN, digit, CLOSE], [OPEN, MINUS, digit, CLOSE]][length - 1]
    left, operator = draw.randrange(1, length - 3), draw.choice((PLUS, MINUS))
    return [OPEN, *expression(left, draw), operator, *expression(length - left - 3, draw), CLOSE]


class ModularArithmeticBrackets(CellTask):
    """Sums and differences modulo 5 in brackets; 5 to 8 stand for +, −, ( and ).

    A first row holds the sum so far, a second the sign of what comes next (0: +, 1: −, 2: no sign yet) and the signs
    before the open brackets (11, 12; 13: none), innermost first. Behind an unknown (`SolveEquation`) the sign is 3 to 5
    in place of 0 to 2 if that counts as positive, 6 to 8 if negative, and behind the equals sign 9 or 10.
    """

    name = "modular-arithmetic-brackets"
    symbols, codes, empty = 9, 14, 13
    inside = 9  # symbols of expressions
    first = (0, 0)
    train_length = LONGEST
    row_names = ("sums", "signs")
    separators = "+*"

    def widths_of(self, length):
        return 1, 2 + (length + 3) // 4  # a sign, as many cells as brackets can be open, and one more

    def drawn(self, count, length, generator):
        """Symbols in any order, except that no unopened bracket closes: the cells are defined for all of these."""
        string = integers(MODULUS - 1, self.inside, (count, length), generator)
        digits = integers(0, MODULUS, (count, length), generator)
        string, depth = torch.where(string < MODULUS, digits, string), torch.zeros_like(string[:, 0])
        for symbol in string.unbind(1):
            symbol[(symbol == CLOSE) & (depth == 0)] = OPEN
            depth += (symbol == OPEN).long() - (symbol == CLOSE).long()
        return string

    def tested(self, count, length, generator):
        draw = random.Random(int(torch.randint(2**60, (), generator=generator)))
        return torch.tensor([expression(length, draw) for _ in range(count)])

    def rewritten(self, symbol, left, here, right):
        number, place = symbol < MODULUS, torch.arange(here.shape[1], device=here.device)
        solved = torch.where(right == 9, symbol - here, here - symbol)
        added = here + torch.where(right % 3 == 1, -1, 1) * symbol
        total = torch.where(number, torch.where(right > 8, solved, added) % MODULUS, here)
        # Where there is no sign, that of the innermost bracket counts.
        known, minus = here // 3, torch.where(here % 3 == 2, (right == 12).long(), here % 3)
        sign = torch.where(number | (symbol == CLOSE), 3 * known + 2, here)
        after = {PLUS: 3 * known + minus, MINUS: 3 * known + 1 - minus, UNKNOWN: 3 * minus + 5}
        for which, code in (after | {EQUALS: 8 + known.clamp(min=1)}).items():
            sign = torch.where(symbol == which, code, sign)
        sign = torch.where(here > 8, here, sign)
        around = torch.where(here == self.empty, 11, here)
        opened = torch.where(place != 2, left, torch.where(left % 3 == 2, around, 11 + left % 3))
        closed = torch.where(right == EDGE, self.empty, right)
        outer = torch.where(symbol == OPEN, opened, torch.where(symbol == CLOSE, closed, here))
        return torch.where(place == 0, total, torch.where(place == 1, sign, outer))

    def read(self, output):
        return "".join(self.split_rows(output)[-2:-1])[:1]


class SolveEquation(ModularArithmeticBrackets):
    """The digit that is written x (9) in an expression whose value stands behind an equals sign (10), modulo 5."""

    name = "solve-equation"
    symbols, inside = 11, 10
    shortest = 3

    def drawn(self, count, length, generator):
        string = super().drawn(count, length, generator)
        ended, value = integers(0, 2 * MODULUS, (2, count), generator)
        end = torch.stack([torch.full_like(value, EQUALS), value % MODULUS], 1)
        string[:, -2:] = torch.where(ended[:, None] % 2 == 0, string[:, -2:], end)
        return string

    def tested(self, count, length, generator):
        inside = super().tested(count, length - 2, generator)
        value = self.label(inside.flip(1))[:, :1]
        # The first digit from a random place on, as in the benchmark.
        places = torch.randint(length - 2, (count, 1), generator=generator) + torch.arange(length - 2)
        first = (inside.gather(1, places % (length - 2)) < MODULUS).long().argmax(1, keepdim=True)
        asked = inside.scatter(1, places.gather(1, first) % (length - 2), UNKNOWN)
        return torch.cat([asked, torch.full_like(value, EQUALS), value], 1)


class ComputeSqrt(StringInRows):
    """The square root of a binary number, rounded down, digit by digit; of odd lengths, behind a zero.

    With two more bits the remainder r becomes 4r + these bits, and if 4q + 1 can be taken away (q: the root),
    its next digit is 1. A first row, units first, has a bit of that remainder, of 4q + 1 (×2), of their difference (×4)
    and the borrow (×8); a second, units last, a bit of the remainder that is kept, of the root (×2) and whether it was
    too much (×4).
    """

    name = "compute-sqrt"
    codes = 16
    a_round = 2
    train_length = LONGEST
    row_names = ("tried", "kept")
    separators = "+*"

    def drawn(self, count, length, generator):
        bits = super().drawn(count, length, generator)
        bits[:, -1:] |= (bits == 0).all(1, keepdim=True)  # no number is 0
        return F.pad(bits, (length % 2, 0))

    def shape_of_length(self, length, terms=0):
        return super().shape_of_length(length + length % 2)

    def shaped(self, operands):
        (bits,) = super().shaped(operands)
        return (F.pad(bits, (0, bits.shape[1] % 2)),)

    def widths_of(self, length):
        return (length // 2 + 2,) * 2

    def rows_of(self, a):
        rest = root = a.new_zeros(len(a), self.widths_of(a.shape[1])[0])
        one, zero, rows = torch.ones_like(a[:, :1]), torch.zeros_like(a[:, :1]), ([], [])
        for bits in reversed(a.split(2, 1)):
            rest, tried = torch.cat([bits, rest[:, :-2]], 1), torch.cat([one, zero, root[:, :-2]], 1)
            borrowed = -carries_of(rest - tried, 2)
            difference = rest - tried - borrowed[:, :-1] + 2 * borrowed[:, 1:]
            borrow, too_much = borrowed[:, 1:], borrowed[:, -1:]
            rows[0].append(rest + 2 * tried + 4 * difference + 8 * borrow)
            rest = torch.where(too_much == 1, rest, difference)
            root = torch.cat([1 - too_much, root[:, :-1]], 1)
            rows[1].append((rest + 2 * root + 4 * too_much).flip(1))
        return tuple(torch.stack(some, 1) for some in rows)

    def read(self, output):
        last = "".join(self.split_rows(output)[-1:]).rstrip("*")
        return "".join(str(DIGITS.find(code) // 2 % 2) for code in last).lstrip("0") or "0"
