"""Training batches of tasks whose output is in rows: a shape per batch, numbers of the training split.

Numbers have at most six digits and sums at most six terms, and only the seven eighths of the numbers that every task
trains on (`numbers.split_numbers`) are used.

    even      half of the operands have all digits of the shape, of the others each number of digits is equally likely;
              three in ten are made of digits that are 0, b − 1 or any, for the base b
    repeated  `even`, but in half of the samples all operands are made of the same two digits, where that gives a
              number of training: equal digits above one another are rare otherwise
"""

import torch

from abcnb.numbers import numbers_of_length, split_numbers
from abcnb.rows import RowTask
from abcnb.tasks import LARGEST, Operands, digits_of

FULL = 0.5  # share of operands that have all digits of the shape
# Share of operands whose digits are 0, b − 1 or any, a third each, where that gives a number of training: with random
# digits alone a step that has to tell a carry from the digit next to it is rare (0 + no carry, or b − 1 + a carry).
EXTREME = 0.3
REPEATED = 0.5  # share of the `repeated` samples that are made of two digits
ROW_NUMBERS = ("even", "repeated")
SHAPES = ("all", "largest")


class RowSampler:
    """Draws operands of shapes up to a width.

    Args:
        task: the task.
        width: the most digits of an operand.
        held_out: draw from the held-out numbers, and the largest shape alone, instead.
        device: where the digits are made.
        numbers: one of `ROW_NUMBERS`.
        terms: the most terms of a sum; 0 is as many as `width`.
        shapes: `all` up to the largest, or the `largest` alone.

    Raises:
        ValueError: a width or terms that are not from 1 (of a sum's terms, 2) to the most that is ever trained on,
            terms of a product, or unknown numbers or shapes.
    """

    def __init__(
        self,
        task: RowTask,
        width: int,
        held_out: bool = False,
        device: torch.device | str = "cpu",
        numbers: str = "even",
        terms: int = 0,
        shapes: str = "all",
    ):
        most, counted = task.train_length, (terms or width) if task.has_terms else 2
        if not 1 <= width <= most or not 2 <= counted <= most:
            asked = f"a width from 1 and terms from 2 to {most}" if task.has_terms else f"a width from 1 to {most}"
            raise ValueError(f"expected {asked} for {task.name}, got {width}" + f" and {counted}" * task.has_terms)
        if terms and not task.has_terms:
            raise ValueError(f"expected terms 0 for {task.name}, which has none, got {terms}")
        if numbers not in ROW_NUMBERS:
            raise ValueError(f"expected numbers among {', '.join(ROW_NUMBERS)} for {task.name}, got {numbers!r}")
        if shapes not in SHAPES:
            raise ValueError(f"expected shapes as {' or '.join(SHAPES)}, got {shapes!r}")
        self.task, self.device, self.kind = task, device, numbers
        sizes = task.sizes(width, terms)
        self.sizes = sizes[-1:] if held_out or shapes == "largest" else sizes
        pool = split_numbers()[held_out]
        groups = [numbers_of_length(pool, n + 1, task.base) for n in range(width)]
        if held_out:  # none of the shortest numbers are: those of training stand in for them
            trained = split_numbers()[0]
            groups = [
                group if len(group) else numbers_of_length(trained, n + 1, task.base)
                for n, group in enumerate(groups)
            ]
        self.numbers = torch.cat(groups).to(device)
        self.known = torch.zeros(LARGEST + 1, dtype=torch.bool, device=device)
        self.known[self.numbers] = True
        self.counts = torch.tensor([len(group) for group in groups], device=device)
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """`batch` operands of one shape as digits, units first, each [batch, digits]."""
        # On a GPU this waits for the device once a step: the shape decides the sizes of all tensors.
        chosen = torch.randint(len(self.sizes), (), generator=generator, device=self.device)
        alphabet = self._alphabet(batch, generator) if self.kind == "repeated" else None
        operands = (self._digits(batch, n, generator, alphabet) for n in self.sizes[int(chosen)])
        return self.task.shaped(tuple(operands))

    def _alphabet(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        """The two digits that a sample is made of, [batch, 2]; −1 for a sample that is made of any."""
        some = torch.rand(batch, 1, generator=generator, device=self.device) < REPEATED
        pair = torch.randint(self.task.base, (batch, 2), generator=generator, device=self.device)
        return torch.where(some, pair, -1)

    def _digits(
        self, batch: int, digits: int, generator: torch.Generator, alphabet: torch.Tensor | None
    ) -> torch.Tensor:
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
        if alphabet is not None:
            which = torch.randint(2, (batch, digits), generator=generator, device=device)
            built = alphabet.clamp(min=0).gather(1, which).masked_fill(places > length[:, None], 0)
            repeated = (built * base**places).sum(1).clamp(max=LARGEST)
            numbers = torch.where((alphabet[:, 0] >= 0) & self.known[repeated], repeated, numbers)
        return digits_of(numbers, digits, self.task.base)
