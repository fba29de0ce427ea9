"""Further tasks that a user of this library is likely to try, the ones that cannot work among them.

Source: this project.
"""

import torch
import torch.nn.functional as F

from abcnb.tasks.arithmetic import Addition, Successor
from abcnb.tasks.digits import propagate_carries
from abcnb.tasks.strings import StringTask
from abcnb.tasks.task import FURTHER, Task, register


class Copy(StringTask):
    """A string of digits as it is."""

    name = "copy"
    symbols = 10

    def answer(self, string):
        return string


class Palindrome(StringTask):
    """Whether a string is the same backwards (1), by whether it is so far; half are, the others but for one symbol."""

    name = "palindrome"
    answer_length = 1

    def drawn(self, count, length, generator):
        string = super().drawn(count, length, generator)
        half = length // 2
        string[:, length - half :] = string[:, :half].flip(1)
        flawed = torch.rand(count, generator=generator, device=string.device) < 0.5
        place = torch.randint(length, (count,), generator=generator, device=string.device)
        return string ^ (F.one_hot(place, length) * flawed[:, None])

    def answer(self, string):
        return (string == string.flip(1)).long().cumprod(1)


class RunLengths(StringTask):
    """How many symbols the run of equal ones has up to each symbol, modulo 10, of strings of 0 and 1."""

    name = "run-lengths"
    symbols = 10

    def drawn(self, count, length, generator):
        return torch.randint(2, (count, length), generator=generator, device=generator.device)

    def answer(self, string):
        place = torch.arange(string.shape[1], device=string.device)
        begins = F.pad(string[:, 1:] != string[:, :-1], (1, 0), value=True)
        return (place - (place * begins).cummax(1).values + 1) % self.symbols


class Majority(StringTask):
    """The symbol, 0 or 1, that a string has more of; 0 where both are as many."""

    name = "majority"

    def outputs(self, length):
        return {"digits": 1}

    def answer(self, string):
        return (2 * string.sum(1, keepdim=True) > string.shape[1]).long()


class RemainderOfSeven(StringTask):
    """n mod 7, by the remainders of what was read of n so far."""

    name = "mod-seven"
    symbols = 10
    answer_length = 1

    def answer(self, string):
        found, remainder = [], torch.zeros_like(string[:, 0])
        for digit in string.unbind(1):
            remainder = (10 * remainder + digit) % 7
            found.append(remainder)
        return torch.stack(found, 1)


class DivisionByThree(StringTask):
    """n // 3, most significant digit first, without what remains."""

    name = "divided-by-three"
    symbols = 10

    def answer(self, string):
        found, remainder = [], torch.zeros_like(string[:, 0])
        for digit in string.unbind(1):
            found.append((10 * remainder + digit) // 3)
            remainder = (10 * remainder + digit) % 3
        return torch.stack(found, 1)


class PlusSeven(Successor):
    """n + 7."""

    name = "plus-seven"
    machine = Task.machine

    def label(self, a):
        return propagate_carries(a + 7 * (torch.arange(a.shape[1], device=a.device) == 0), self.base)


class TimesSeven(Successor):
    """7 n."""

    name = "times-seven"
    machine = Task.machine

    def label(self, a):
        return propagate_carries(7 * a, self.base)


class TimesTen(Successor):
    """10 n, every digit one place higher."""

    name = "times-ten"
    machine = Task.machine

    def label(self, a):
        return F.pad(a[:, :-1], (1, 0))


class Subtraction(Addition):
    """a − b modulo 10^width: a negative difference in ten's complement, as −1 is 9…9."""

    name = "subtraction"
    symbol = "%"
    machine = Task.machine

    def label(self, a, b):
        complement = a + self.base - 1 - b + (torch.arange(a.shape[1], device=a.device) == 0)
        return propagate_carries(F.pad(complement, (0, 1)), self.base)[:, :-1]


class Bits(Addition):
    """Two numbers bit by bit."""

    bases = range(2, 3)
    default_base = 2
    machine = Task.machine


class BitwiseXor(Bits):
    """a xor b."""

    name = "bitwise-xor"
    symbol = ">"

    def label(self, a, b):
        return a ^ b


class BitwiseAnd(Bits):
    """a and b."""

    name = "bitwise-and"
    symbol = "<"

    def label(self, a, b):
        return a & b


class Comparison(Addition):
    """Which of two numbers is larger, by what is known from the first digit on: 0 neither yet, 1 a, 2 b."""

    name = "comparison"
    symbol = ">"
    machine = Task.machine

    def label(self, a, b):
        sign = torch.where(a > b, 1, torch.where(a < b, 2, 0)).flip(1)
        place = torch.arange(a.shape[1], device=a.device)
        decided = (sign != 0).long().cumsum(1).clamp(max=1)
        first = torch.where((sign != 0) & (decided.cumsum(1) == 1), place, 0).amax(1, keepdim=True)
        return decided * sign.gather(1, first)

    def read(self, output):
        return output.partition("&")[0][-1:]


class Maximum(Addition):
    """The larger of two numbers, units first: which one it is only the highest digits tell."""

    name = "maximum"
    symbol = "<"
    machine = Task.machine

    def label(self, a, b):
        larger = Comparison.label(self, a, b)[:, -1:]
        return torch.where(larger == 2, b, a)


MORE = (
    Copy, Palindrome, RunLengths, RemainderOfSeven, DivisionByThree, PlusSeven, TimesSeven, TimesTen, Subtraction,
    BitwiseXor, BitwiseAnd, Comparison, Maximum, Majority,
)  # fmt: skip
for _task in MORE:
    register(_task, FURTHER)
