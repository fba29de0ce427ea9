"""The fifteen tasks of the benchmark of Delétang et al. 2023, each worked out from a bounded number of tokens a step.

Tests are drawn as there, except that expressions with brackets have no products. An automaton writes its running
state, as Parity does in the paper that this repository reproduces, and its last state is the answer; stacks,
brackets, equations, sorting, products and roots write rows of working (`cells`, `rows`); the benchmark's models
answer at once. Reversal, duplication, odds first and sums are written as they are.

Source: Delétang et al., Neural Networks and the Chomsky Hierarchy, ICLR 2023, appendix A.3, and their published
code for what the text leaves open (the lengths of a sum's numbers) or has otherwise (cycle navigation's actions,
which half odds first begins with). At odd lengths, missing duplicate has one symbol less, where theirs is padded,
and expressions without brackets have that length.
"""

import torch
import torch.nn.functional as F

from abcnb.other_tasks import cells
from abcnb.other_tasks.cells import MODULUS
from abcnb.tasks import arithmetic
from abcnb.tasks.digits import Operands
from abcnb.tasks.rows import Multiplication
from abcnb.tasks.strings import LONGEST, StringTask, integers
from abcnb.tasks.task import FURTHER, register
from abcnb.tasks.testsets import seeded_generator


class EvenPairs(StringTask):
    """Whether 01 and 10 together are even in number (0), that is, whether the string ends as it begins."""

    name, output_length = "even-pairs", 1

    def answer(self, string):
        return string[:, :1] ^ string[:, -1:]


class ParityCheck(StringTask):
    """Whether the ones are even in number (0), by running parities."""

    name, answer_length = "parity-check", 1

    def answer(self, string):
        return string.cumsum(1) % 2


class CycleNavigation(StringTask):
    """Where steps of −1, 0 and 1, written 0, 1 and 2, lead on a circle of five, by running places."""

    name, symbols, drawn_from, answer_length = "cycle-navigation", MODULUS, 3, 1

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
        size = (count, self.digits_at(length))
        numbers = integers(0, MODULUS, size, generator)
        operators = integers(MODULUS, self.symbols, size, generator)
        return torch.where(torch.arange(size[1], device=numbers.device) % 2 == 0, numbers, operators)

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

    name, shortest = "odds-first", 2

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
    """`count` nonzero binary numbers of at most `bits` bits, [count, bits]."""
    digits = torch.randint(2, (count, bits), generator=generator)
    place = torch.randint(bits, (count,), generator=generator)
    none = digits.sum(1) == 0
    digits[none, place[none]] = 1
    return digits


class BinaryAddition(arithmetic.Addition):
    """The sum of two binary numbers; a length is that of the whole input, `101+10111`. Both are padded to one width."""

    name, bases = "binary-addition", range(2, 3)
    train_length = LONGEST
    test_sets = ("random",)
    signs = 1  # how many signs a length counts
    number = staticmethod(not_zero)

    def digits_at(self, length):
        return max(1, length - self.signs - 1)

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        generator, found = seeded_generator(self, length, test_set), []
        both = max(2, length - self.signs)  # bits of both
        firsts = torch.randint(1, both, (samples,), generator=generator)
        for first, count in zip(*(part.tolist() for part in firsts.unique(return_counts=True)), strict=True):
            pair = (self.number(count, bits, generator) for bits in (first, both - first))
            found.append([F.pad(a, (0, self.width_at(length) - a.shape[1])) for a in pair])
        return {test_set: tuple(torch.cat(part) for part in zip(*found, strict=True))}


class BinaryMultiplication(Multiplication):
    """The product of two binary numbers, in rows; a length is that of the whole input, and a test has four shapes."""

    name, bases = "binary-multiplication", range(2, 3)
    test_sets = ("random",)
    for_plain = {"shapes": "largest"}

    def shape_of_length(self, length, terms=0):
        return length - 1 - length // 2, length // 2

    def largest_stream(self, width, form="natural", terms=0):
        return self.stream((width, width), form)

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


CHOMSKY = (
    EvenPairs, ModularArithmetic, ParityCheck, CycleNavigation, cells.StackManipulation, ReverseString,
    cells.ModularArithmeticBrackets, cells.SolveEquation, DuplicateString, MissingDuplicate, OddsFirst, BinaryAddition,
    BinaryMultiplication, cells.ComputeSqrt, cells.BucketSort,
)  # fmt: skip
for _task in CHOMSKY:
    register(_task, FURTHER)
