"""Tasks of the benchmark of Delétang et al. 2023 that are worked out from a bounded number of tokens a step.

Tests are drawn as there. An automaton writes its running state, as the paper that this repository reproduces does with
Parity, and its last state is the answer; there a model answers at once. Reversal, duplication and odds first are
written out as they are.

Source: Delétang et al., Neural Networks and the Chomsky Hierarchy, ICLR 2023, appendix A.3, and their published code
for what the text leaves open (the lengths of a sum's numbers) or has otherwise (cycle navigation's actions, which half
odds first begins with). Of odd lengths, missing duplicate has one symbol less, where theirs is padded, and expressions
have their length.
"""

import random

import torch
import torch.nn.functional as F

from abcnb.tasks.arithmetic import Addition
from abcnb.tasks.cells import EDGE, CellTask, StringInRows
from abcnb.tasks.digits import Operands
from abcnb.tasks.rows import Multiplication
from abcnb.tasks.strings import LONGEST, StringTask
from abcnb.tasks.task import FURTHER, register
from abcnb.tasks.testsets import seeded_generator
from abcnb.tasks.tokens import DIGITS

MODULUS = 5


class EvenPairs(StringTask):
    """Whether 01 and 10 together are even in number (0), that is, whether the string ends as it begins."""

    name = "even-pairs"

    def outputs(self, length):
        return {"digits": 1}

    def answer(self, string):
        return string[:, :1] ^ string[:, -1:]


class ParityCheck(StringTask):
    """Whether the ones are even in number (0), by running parities."""

    name = "parity-check"
    answer_length = 1

    def answer(self, string):
        return string.cumsum(1) % 2


class CycleNavigation(StringTask):
    """Where steps of −1, 0 and 1, written 0, 1 and 2, lead on a circle of five, by running places."""

    name = "cycle-navigation"
    symbols = MODULUS
    answer_length = 1

    def drawn(self, count, length, generator):
        return torch.randint(3, (count, length), generator=generator, device=generator.device)

    def answer(self, string):
        return (string - 1).cumsum(1) % MODULUS


class ModularArithmetic(StringTask):
    """Sums, differences and products modulo 5 without brackets; 5, 6 and 7 stand for +, − and ×.

    Below a number the product so far of its term is written, below an operator the sum of the terms before, and last
    the value of all.
    """

    name = "modular-arithmetic"
    symbols = MODULUS + 3
    answer_length = 1

    def digits_at(self, length):
        return length - 1 + length % 2

    def drawn(self, count, length, generator):
        length = self.digits_at(length)
        numbers, operators = (
            torch.randint(low, high, (count, length), generator=generator, device=generator.device)
            for low, high in ((0, MODULUS), (MODULUS, self.symbols))
        )
        return torch.where(torch.arange(length, device=numbers.device) % 2 == 0, numbers, operators)

    def outputs(self, length):
        return {"digits": length + 1}

    def answer(self, string):
        product, total, written = torch.ones_like(string[:, 0]), torch.zeros_like(string[:, 0]), []
        for symbol in string.unbind(1):
            number, times, minus = symbol < MODULUS, symbol == MODULUS + 2, symbol == MODULUS + 1
            total = torch.where(number | times, total, (total + product) % MODULUS)
            begun = torch.where(minus, MODULUS - 1, 1)
            product = torch.where(number, product * symbol % MODULUS, torch.where(times, product, begun))
            written.append(torch.where(number, product, total))
        return torch.stack([*written, (total + product) % MODULUS], 1)


class ReverseString(StringTask):
    """The string backwards."""

    name = "reverse-string"

    def answer(self, string):
        return string.flip(1)


class DuplicateString(StringTask):
    """The string twice."""

    name = "duplicate-string"

    def outputs(self, length):
        return {"first": length, "second": length}

    def answer(self, string):
        return torch.cat([string, string], 1)


class OddsFirst(StringTask):
    """Every second symbol, from the second on, then the others."""

    name = "odds-first"
    shortest = 2

    def outputs(self, length):
        return {"odds": length // 2, "others": length - length // 2}

    def answer(self, string):
        return torch.cat([string[:, 1::2], string[:, ::2]], 1)


class MissingDuplicate(StringTask):
    """A string twice, in which one symbol is missing (2): that symbol. Written is 0 until it was seen."""

    name = "missing-duplicate"
    symbols = 3
    shortest = 2
    answer_length = 1

    def digits_at(self, length):
        return length - length % 2

    def drawn(self, count, length, generator):
        half = torch.randint(2, (count, length // 2), generator=generator, device=generator.device)
        missing = torch.randint(2 * (length // 2), (count, 1), generator=generator, device=generator.device)
        return half.repeat(1, 2).scatter(1, missing, 2)

    def segments(self, length):
        return {"a": length // 2, "b": length // 2}

    def outputs(self, length):
        return {"digits": length // 2}

    def answer(self, string):
        a, b = string.chunk(2, 1)
        return torch.where(a == 2, b, torch.where(b == 2, a, 0)).cumsum(1)


def not_zero(count: int, bits: int, generator: torch.Generator) -> torch.Tensor:
    """`count` binary numbers from 1 on, of at most so many bits, [count, bits]."""
    digits = torch.randint(2, (count, bits), generator=generator)
    place = torch.randint(bits, (count,), generator=generator)
    none = digits.sum(1) == 0
    digits[none, place[none]] = 1
    return digits


class BinaryAddition(Addition):
    """The sum of two binary numbers; a length is that of the whole input, `101+10111`. Both are padded to one width."""

    name = "binary-addition"
    bases = range(2, 3)
    default_base = 2
    test_sets = ("random",)
    signs = 1  # that a length counts
    number = staticmethod(not_zero)

    def __init__(self, base: int | None = None):
        super().__init__(base)
        self.train_length = LONGEST

    def digits_at(self, length):
        return max(1, length - self.signs - 1)

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        generator, found = seeded_generator(self, length, test_set), []
        both = max(2, length - self.signs)  # bits
        firsts = torch.randint(1, both, (samples,), generator=generator)
        for first, count in zip(*(part.tolist() for part in firsts.unique(return_counts=True)), strict=True):
            pair = (self.number(count, bits, generator) for bits in (first, both - first))
            found.append([F.pad(a, (0, self.width_at(length) - a.shape[1])) for a in pair])
        return {test_set: tuple(torch.cat(part) for part in zip(*found, strict=True))}


class BinaryMultiplication(Multiplication):
    """The product of two binary numbers, in rows; a length is that of the whole input, and a test has four shapes."""

    name = "binary-multiplication"
    bases = range(2, 3)
    default_base = 2
    test_sets = ("random",)
    for_plain = {"shapes": "largest"}

    def shape_of_length(self, length):
        return length - 1 - length // 2, length // 2

    def largest_shape(self, width, terms=0):
        return width, width

    @property
    def longest_trained(self):
        return 2 * self.train_length + 1

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        generator, found = seeded_generator(self, length, test_set), {}
        for _ in range(4):
            first = int(torch.randint(1, max(2, length - 1), (), generator=generator))
            second = max(2, length - 1) - first
            pair = (not_zero(max(1, samples // 4), bits, generator) for bits in (first, second))
            found[f"{first} × {second}"] = tuple(pair)
        return found


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
        stack, actions = (
            torch.randint(low, high, (count, length), generator=generator, device=generator.device)
            for low, high in ((0, 2), (2, 5))
        )
        size = torch.randint(1, max(2, length), (count, 1), generator=generator, device=generator.device)
        return torch.where(torch.arange(length, device=stack.device) < size, stack, actions)

    def rewritten(self, symbol, left, here, right):
        pushed = torch.where(left == EDGE, torch.where(symbol < 2, symbol, symbol - 3), left)
        return torch.where(symbol == 2, torch.where(right == EDGE, self.empty, right), pushed)


PLUS, MINUS, OPEN, CLOSE, UNKNOWN, EQUALS = range(MODULUS, MODULUS + 6)  # behind the digits


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
        return 1, 2 + (length + 3) // 4  # as many brackets may be open, and one more

    def drawn(self, count, length, generator):
        """Any symbols in any order, but that no bracket closes that is not open: cells say what comes of those, too."""
        size = {"size": (count, length), "generator": generator, "device": generator.device}
        string, digits = torch.randint(MODULUS - 1, self.inside, **size), torch.randint(MODULUS, **size)
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
        ended, value = torch.randint(2 * MODULUS, (2, count), generator=generator, device=generator.device)
        end = torch.stack([torch.full_like(value, EQUALS), value % MODULUS], 1)
        string[:, -2:] = torch.where(ended[:, None] % 2 == 0, string[:, -2:], end)
        return string

    def tested(self, count, length, generator):
        inside = super().tested(count, length - 2, generator)
        value = self.label(inside.flip(1))[:, :1]
        # The first digit from a random place on, as theirs.
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

    def shape_of_length(self, length):
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
            difference, borrows = [], [zero]
            for place in range(rest.shape[1]):
                left = rest[:, [place]] - tried[:, [place]] - borrows[-1]
                difference.append(left % 2)
                borrows.append((left < 0).long())
            difference, borrow, too_much = torch.cat(difference, 1), torch.cat(borrows[1:], 1), borrows[-1]
            rows[0].append(rest + 2 * tried + 4 * difference + 8 * borrow)
            rest = torch.where(too_much == 1, rest, difference)
            root = torch.cat([1 - too_much, root[:, :-1]], 1)
            rows[1].append((rest + 2 * root + 4 * too_much).flip(1))
        return tuple(torch.stack(some, 1) for some in rows)

    def read(self, output):
        last = "".join(self.split_rows(output)[-1:]).rstrip("*")
        return "".join(str(DIGITS.find(code) // 2 % 2) for code in last).lstrip("0") or "0"


CHOMSKY = (
    EvenPairs, ModularArithmetic, ParityCheck, CycleNavigation, StackManipulation, ReverseString,
    ModularArithmeticBrackets, SolveEquation, DuplicateString, MissingDuplicate, OddsFirst, BinaryAddition,
    BinaryMultiplication, ComputeSqrt, BucketSort,
)  # fmt: skip
for _task in CHOMSKY:
    register(_task, FURTHER)
