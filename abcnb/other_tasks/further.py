"""Further tasks that a user of this library is likely to try, including some that cannot work.

Source: this project.
"""

import torch
import torch.nn.functional as F

from abcnb.tasks.arithmetic import OfTwo
from abcnb.tasks.digits import propagate_carries
from abcnb.tasks.strings import StringTask, integers
from abcnb.tasks.task import FURTHER, Task, register


class Copy(StringTask):
    """A string of digits as it is."""

    name, symbols = "copy", 10

    def answer(self, string):
        return string


class Palindrome(StringTask):
    """Whether a string is the same backwards (1), by whether it is so far; half are, the others but for one symbol."""

    name, answer_length = "palindrome", 1

    def drawn(self, count, length, generator):
        string = super().drawn(count, length, generator)
        half = length // 2
        string[:, length - half :] = string[:, :half].flip(1)
        flawed = torch.rand(count, generator=generator, device=string.device) < 0.5
        place = integers(0, length, (count,), generator)
        return string ^ (F.one_hot(place, length) * flawed[:, None])

    def answer(self, string):
        return (string == string.flip(1)).long().cumprod(1)


class RunLengths(StringTask):
    """How many symbols the run of equal ones has up to each symbol, modulo 10, of strings of 0 and 1."""

    name, symbols, drawn_from = "run-lengths", 10, 2

    def answer(self, string):
        place = torch.arange(string.shape[1], device=string.device)
        begins = F.pad(string[:, 1:] != string[:, :-1], (1, 0), value=True)
        return (place - (place * begins).cummax(1).values + 1) % self.symbols


class Majority(StringTask):
    """The symbol, 0 or 1, that a string has more of; 0 where both are as many."""

    name, output_length = "majority", 1

    def answer(self, string):
        return (2 * string.sum(1, keepdim=True) > string.shape[1]).long()


def divided(string: torch.Tensor, divisor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits of the quotient and remainders of a long division, most significant first, each [batch, length]."""
    found = [torch.zeros(2, len(string), dtype=torch.long, device=string.device)]
    for digit in string.unbind(1):
        rest = 10 * found[-1][1] + digit
        found.append(torch.stack([rest // divisor, rest % divisor]))
    return tuple(torch.stack(found[1:], 2))


class RemainderOfSeven(StringTask):
    """n mod 7, by the remainders of what was read of n so far."""

    name, symbols, answer_length = "mod-seven", 10, 1

    def answer(self, string):
        return divided(string, 7)[1]


class DivisionByThree(StringTask):
    """n // 3, most significant digit first, without what remains."""

    name, symbols = "divided-by-three", 10

    def answer(self, string):
        return divided(string, 3)[0]


class PlusSeven(Task):
    """n + 7."""

    name = "plus-seven"

    def label(self, a):
        return propagate_carries(a + 7 * (torch.arange(a.shape[1], device=a.device) == 0), self.base)


class TimesSeven(Task):
    """7 n."""

    name = "times-seven"

    def label(self, a):
        return propagate_carries(7 * a, self.base)


class TimesTen(Task):
    """10 n, every digit one place higher."""

    name = "times-ten"

    def label(self, a):
        return F.pad(a[:, :-1], (1, 0))


class Subtraction(OfTwo):
    """a − b modulo 10^width: a negative difference in ten's complement, as −1 is 9…9."""

    name, symbol = "subtraction", "%"

    def label(self, a, b):
        complement = a + self.base - 1 - b + (torch.arange(a.shape[1], device=a.device) == 0)
        return propagate_carries(F.pad(complement, (0, 1)), self.base)[:, :-1]


class BitwiseXor(OfTwo):
    """a xor b."""

    name, symbol, bases = "bitwise-xor", ">", range(2, 3)

    def label(self, a, b):
        return a ^ b


class BitwiseAnd(OfTwo):
    """a and b."""

    name, symbol, bases = "bitwise-and", "<", range(2, 3)

    def label(self, a, b):
        return a & b


class Comparison(OfTwo):
    """Which of two numbers is larger, by what is known from the first digit on: 0 neither yet, 1 a, 2 b."""

    name, symbol, answer_length = "comparison", ">", 1

    def label(self, a, b):
        sign = torch.where(a > b, 1, torch.where(a < b, 2, 0)).flip(1)
        first = (sign != 0).long().argmax(1, keepdim=True)
        return (sign != 0).long().cummax(1).values * sign.gather(1, first)


class Maximum(OfTwo):
    """The larger of two numbers, units first: which one it is only the highest digits tell."""

    name, symbol = "maximum", "<"

    def label(self, a, b):
        larger = Comparison.label(self, a, b)[:, -1:]
        return torch.where(larger == 2, b, a)


MORE = (
    Copy, Palindrome, RunLengths, RemainderOfSeven, DivisionByThree, PlusSeven, TimesSeven, TimesTen, Subtraction,
    BitwiseXor, BitwiseAnd, Comparison, Maximum, Majority,
)  # fmt: skip
for _task in MORE:
    register(_task, FURTHER)
