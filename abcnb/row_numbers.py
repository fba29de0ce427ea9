"""Training batches of tasks whose output is in rows: a shape per batch, numbers of the training split.

Numbers have at most six digits and sums at most six terms, and only the seven eighths of the numbers that every task
trains on (`numbers.split_numbers`) are used.
"""

import torch

from abcnb.numbers import numbers_of_length, split_numbers
from abcnb.rows import ManyAddition, RowTask
from abcnb.tasks import LARGEST, Operands, digits_of

FULL = 0.5  # share of operands that have all digits of the shape; of the others each number of digits is as likely
# Share of operands whose digits are 0, b − 1 or any, a third each, where that gives a number of training: with random
# digits alone a step that has to tell a carry from the digit next to it is rare (0 + no carry, or b − 1 + a carry).
EXTREME = 0.3


class RowSampler:
    """Draws operands of shapes up to a width.

    Args:
        task: the task.
        width: the most digits of an operand, and the most terms.
        held_out: draw from the held-out numbers, and the largest shape alone, instead.
        device: where the digits are made.

    Raises:
        ValueError: a width that is not from 1 (for sums, 2) to the longest that is ever trained on.
    """

    def __init__(self, task: RowTask, width: int, held_out: bool = False, device: torch.device | str = "cpu"):
        least = 2 if isinstance(task, ManyAddition) else 1
        if not least <= width <= task.train_length:
            raise ValueError(f"expected a width from {least} to {task.train_length} for {task.name}, got {width}")
        self.task, self.device = task, device
        sizes = [(n, m) for n in range(1, width + 1) for m in range(least, width + 1)]
        self.shapes = [(width, width)] if held_out else sizes  # (digits of the first or of every term, the other)
        pool = split_numbers()[held_out]
        groups = [numbers_of_length(pool, n + 1, task.base) for n in range(width)]
        self.numbers = torch.cat(groups).to(device)
        self.known = torch.zeros(LARGEST + 1, dtype=torch.bool, device=device)
        self.known[self.numbers] = True
        self.counts = torch.tensor([len(group) for group in groups], device=device)
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """`batch` operands of one shape as digits, units first, each [batch, digits]."""
        # On a GPU this waits for the device once a step: the shape decides the sizes of all tensors.
        chosen = torch.randint(len(self.shapes), (), generator=generator, device=self.device)
        digits, other = self.shapes[int(chosen)]
        if isinstance(self.task, ManyAddition):
            width = self.task.width_of(other, digits)
            return tuple(self._digits(batch, digits, width, generator) for _ in range(other))
        return tuple(self._digits(batch, n, n, generator) for n in (digits, other))

    def _digits(self, batch: int, digits: int, width: int, generator: torch.Generator) -> torch.Tensor:
        base, device = self.task.base, self.device
        draws = torch.rand(4, batch, generator=generator, device=device, dtype=torch.float64)
        length = torch.where(draws[0] < FULL, digits - 1, (draws[1] * digits).long())
        numbers = self.numbers[self.starts[length] + (draws[2] * self.counts[length]).long()]
        places = torch.arange(digits, device=device)
        pick = torch.randint(3, (batch, digits), generator=generator, device=device)
        other = torch.randint(base, (batch, digits), generator=generator, device=device)
        built = torch.where(pick == 0, 0, torch.where(pick == 1, base - 1, other)).masked_fill(
            places > length[:, None], 0
        )
        extreme = (built * base**places).sum(1).clamp(max=LARGEST)
        numbers = torch.where((draws[3] < EXTREME) & self.known[extreme], extreme, numbers)
        return digits_of(numbers, width, self.task.base)
