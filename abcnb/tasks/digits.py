"""Numbers as digits: units first, [batch, width], so that column p is place p."""

from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F

FEW_SAMPLES = 50  # below this many samples, Python integers are faster than tensors
Operands = tuple[torch.Tensor, ...]


def propagate_carries(sums: torch.Tensor, base: int) -> torch.Tensor:
    """Digits of a number given as per-place sums.

    Args:
        sums: [batch, width] integers of any size, units first; negative sums borrow.
        base: the base of the digits.

    Raises:
        ValueError: if a number is negative or has more than `width` digits (on a GPU, where checking would make
            every training step wait, its digits modulo base**width are returned instead).
    """
    carries = carries_of(sums, base)
    if sums.device.type == "cpu" and carries[:, -1].any():
        got = "negative" if (carries[:, -1] < 0).any() else "larger"
        most = f"{base}**{sums.shape[1]} - 1, which fit the operands' width"
        raise ValueError(f"expected results from 0 to {most}, got a {got} one")
    return sums + carries[:, :-1] - base * carries[:, 1:]


def carries_of(sums: torch.Tensor, base: int) -> torch.Tensor:
    """The carry into each place, and the one out of the last, [batch, width + 1]."""
    if sums.device.type == "cpu" and len(sums) < FEW_SAMPLES:
        rows = [accumulate(row, lambda carry, total: (carry + total) // base, initial=0) for row in sums.tolist()]
        return torch.tensor([list(row) for row in rows], dtype=sums.dtype).reshape(len(sums), sums.shape[1] + 1)
    carries = sums.new_zeros(len(sums), sums.shape[1] + 1)
    for place in range(sums.shape[1]):
        carries[:, place + 1] = torch.div(sums[:, place] + carries[:, place], base, rounding_mode="floor")
    return carries


def length_of(number: int, base: int) -> int:
    """How many digits a number has in a base; zero has one."""
    return len(np.base_repr(number, base))


def digits_of(numbers: torch.Tensor, width: int, base: int) -> torch.Tensor:
    """Digits of integers up to 2^62: [batch] to [batch, width]."""
    filled = min(width, length_of(2**62, base))  # places that such integers can fill; higher ones are zero
    powers = base ** torch.arange(filled, device=numbers.device)
    digits = torch.div(numbers[:, None], powers, rounding_mode="floor") % base
    return F.pad(digits, (0, width - filled))


def distinct(operands: Operands) -> Operands:
    """Each sample once, in order of its first occurrence."""
    packed = torch.cat(operands, 1).to(torch.uint8).contiguous().numpy()
    _, first = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True)
    kept = torch.from_numpy(first).sort().values
    return tuple(operand[kept] for operand in operands)
