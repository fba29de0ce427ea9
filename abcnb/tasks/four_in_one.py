"""The paper's four tasks as one: a token of the input says which of them is asked for.

Every input has two operands in the same layout, so one model and one set of lines serve all four:

    $0123+0748&    Addition, answered 1780&, units first
    $0123*7777&    N×1: its digit is repeated at every place
    $0123>0000&    Successor of the first operand
    $1011%0000&    Parity of the first operand's bits, answered bit by bit from the right

In the aligned form, `$+00172438&`, the sign comes first, as in Addition's.

Source: the tasks are the paper's (section 2), and N×1's repeated digit is that of its aligned form. One model for all
of them is not in the paper; its reviewers asked for it.
"""

import torch
import torch.nn.functional as F

from abcnb.tasks.arithmetic import OfTwo
from abcnb.tasks.digits import Operands
from abcnb.tasks.task import get_task, register
from abcnb.tasks.testsets import test_cases
from abcnb.tasks.tokens import IDS, on_device

SIGNS = {"successor": ">", "addition": "+", "parity": "%", "n-by-1": "*"}


class FourInOne(OfTwo):
    """Successor, Addition, Parity and N×1 in base 10, told apart by a token.

    Operands are two numbers (the second 0 if the task has only one) and, [batch, 1], the task's index in `parts`.
    """

    name = "four-in-one"
    symbol = "+"
    parts = tuple(SIGNS)
    bases = range(10, 11)
    vocabulary_size = 1 + max(IDS[sign] for sign in SIGNS.values())
    syntax = "NUMBER+NUMBER, NUMBER*DIGIT, >NUMBER or %BITS"

    def label(self, a: torch.Tensor, b: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        tasks = [get_task(name) for name in self.parts]
        taken = [(a, b[:, :1] if task.second_is_digit else b)[: task.operands] for task in tasks]
        answers = torch.stack([task.label(*some) for task, some in zip(tasks, taken, strict=True)], dim=1)
        return answers[torch.arange(len(a), device=a.device), part[:, 0]]

    def source(self, operands: Operands, form: str = "natural") -> torch.Tensor:
        a, b, part = operands
        b = torch.where(part == self.parts.index("n-by-1"), b[:, :1], b)
        written = super().source((a, b), form)
        signs = on_device("".join(SIGNS.values()), a.device)
        written[:, 1 if form == "aligned" else 1 + a.shape[1]] = signs[part[:, 0]]
        return written

    def completed(self, operands: Operands, generator: torch.Generator) -> Operands:
        a, b = operands
        return self.joined(torch.randint(len(SIGNS), (len(a), 1), generator=generator, device=a.device), a, b)

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        """Operands of each kind of each of its tasks."""
        share = max(1, samples // len(self.parts))
        cases = {name: test_cases(get_task(name), length, share, test_set) for name in self.parts}
        return {f"{name}, {kind}": self.of(name, found) for name in cases for kind, found in cases[name].items()}

    def joined(self, part: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Operands:
        """Samples of tasks `part`, [batch, 1], on two numbers, [batch, width], reduced to what each task uses."""
        is_units = torch.arange(b.shape[1], device=b.device) == 0
        takes_b = (part == self.parts.index("addition")) | ((part == self.parts.index("n-by-1")) & is_units)
        return torch.where(part == self.parts.index("parity"), a % 2, a), b * takes_b, part

    def of(self, name: str, operands: Operands) -> Operands:
        """Samples of one of the tasks, as samples of this one."""
        a = operands[0]
        b = F.pad(operands[1], (0, a.shape[1] - operands[1].shape[1])) if len(operands) > 1 else a
        return self.joined(torch.full_like(a[:, :1], self.parts.index(name)), a, b)

    def widened(self, operands: Operands, width: int) -> Operands:
        return *super().widened(operands[:2], width), *operands[2:]

    def smallest(self, width: int) -> Operands:
        return self.of("addition", super().smallest(width))

    def parse(self, text: str) -> Operands:
        text = text.replace(" ", "")
        for name, sign in SIGNS.items():
            if sign in text:
                task = get_task(name)
                return self.of(name, task.parse(text if task.operands == 2 else text.removeprefix(sign)))
        raise ValueError(f"expected {self.syntax}, got {text!r}")


register(FourInOne)
