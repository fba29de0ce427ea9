"""Tasks on which Transformers fail in the benchmark of Huang et al. 2025: copying, Parity, binary sums.

Tests are drawn as there: 51 to 100 tokens, 101 to 150, and up to 50, its training lengths. Training here has at
most 12 symbols, or two numbers of 12 bits. Parity writes its running state, where the benchmark's models answer at
once; the numbers of a sum are padded to the same width, and its digits are written units first.

Source: Huang et al., A Formal Framework for Understanding Length Generalization in Transformers, ICLR 2025, and their
published code for how inputs are drawn.
"""

import torch

from abcnb.other_tasks.chomsky import BinaryAddition, ParityCheck
from abcnb.other_tasks.further import Copy
from abcnb.tasks.digits import Operands
from abcnb.tasks.strings import integers
from abcnb.tasks.task import FURTHER, register

RANGE = 50  # how many lengths a test has


class OfManyLengths:
    """A test of length 100 has lengths 51 to 100, each as often as any other."""

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        """Operands by length, equally many of each."""
        lengths = range(max(self.shortest, length - RANGE + 1), length + 1)
        count, drawn = max(1, samples // len(lengths)), super().cases
        return {f"{n} tokens": drawn(test_set, n, count)[test_set] for n in lengths}


class HuangCopy(OfManyLengths, Copy):
    """A string of 0 and 1 as it is."""

    name, symbols = "huang-copy", 2


class HuangParity(OfManyLengths, ParityCheck):
    """Whether the ones are even in number (0), by running parities; every number of ones is as likely as any other."""

    name = "huang-parity"

    def drawn(self, count, length, generator):
        ones = integers(0, length + 1, (count, 1), generator)
        order = torch.rand(count, length, generator=generator, device=generator.device).argsort(1)
        return (order < ones).long()


class HuangAddition(OfManyLengths, BinaryAddition):
    """The sum of two binary numbers, which begin with 1 unless they have one bit; a length counts `+` and `=` too."""

    name, shortest, signs = "huang-addition", 4, 2

    @staticmethod
    def number(count, bits, generator):
        digits = torch.randint(2, (count, bits), generator=generator)
        digits[:, -1] |= int(bits > 1)
        return digits


HUANG = (HuangCopy, HuangParity, HuangAddition)
for _task in HUANG:
    register(_task, FURTHER)
