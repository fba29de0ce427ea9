"""What each source column is: its place seen from each operand, and whether it is a digit or structure.

A source is written in one of three ways (w is the width, the number of digits operands are padded to):

    unary    $ a_w … a_1 &                    Successor, Parity; ListOps writes its operator after `$`
    natural  $ a_w … a_1 + b_w … b_1 &        Addition; N×1 writes `* b` with a single digit b
    aligned  $ + a_w b_w … a_1 b_1 &          the operator first, the operands' digits interleaved

The *place* of a digit is 0 for units, 1 for tens, and so on. The token just right of an operand has place −1
in it and the token just left of it place w, so a line that follows an operand reaches one token past either
end. Coordinates belong to the pair (segment, column): the `+` of `a+b` is place −1 of a and place w of b.

Source: paper, appendix C.4 "Input Alignment" for the aligned form; place coordinates are this project's.
"""

from dataclasses import dataclass

import torch

NO_PLACE = -2  # the place of a structural token in no operand's count


def locate(columns: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Index of each wanted column among sorted `columns`, −1 where it is not there."""
    index = torch.searchsorted(columns, wanted.contiguous()).clamp(max=len(columns) - 1)
    return torch.where(columns[index] == wanted, index, -1)


@dataclass(frozen=True, eq=False)
class Steps:
    """The columns of decoder self-attention: the steps so far, or some of them.

    Attributes:
        columns: [n], sorted step numbers; step 0 holds the start token.
        total_columns: steps of the whole output, the end token included.
    """

    columns: torch.Tensor
    total_columns: int

    def __len__(self) -> int:
        return len(self.columns)

    @staticmethod
    def all(total: int, device: str | torch.device = "cpu") -> "Steps":
        """Every step of an output of `total` tokens."""
        return Steps(torch.arange(total, device=device), total)


@dataclass(frozen=True, eq=False)
class Layout:
    """Coordinates of a source's columns, or of some of them (`select`).

    Attributes:
        width: digits that each operand is padded to.
        columns: [n], each column's index in the whole source, sorted.
        total_columns: columns of the whole source.
        column_of_place: [segments, width + 2], the column of place p of a segment at index p + 1.
        structural_columns: [k], columns of start, operator, end and a single-digit operand, left to right.
        digit_places: [n], the place of each digit in its own operand, `NO_PLACE` for a structural token.
        units_column: the column of the last operand's units digit, from which cyclic indexing counts.
    """

    width: int
    columns: torch.Tensor
    total_columns: int
    column_of_place: torch.Tensor
    structural_columns: torch.Tensor
    digit_places: torch.Tensor
    units_column: int

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def segments(self) -> int:
        """Operands that have places."""
        return len(self.column_of_place)

    @property
    def rows(self) -> int:
        """Decoder steps of an output as wide as the operands, the end token included."""
        return self.width + 1

    def select(self, columns: torch.Tensor) -> "Layout":
        """The layout of some columns only, sorted; coordinates stay those of the whole source."""
        return Layout(
            self.width,
            columns,
            self.total_columns,
            self.column_of_place,
            self.structural_columns,
            self.digit_places[locate(self.columns, columns)],
            self.units_column,
        )

    def to(self, device: str | torch.device) -> "Layout":
        """The same layout with its tensors on a device."""
        if self.columns.device == torch.device(device):
            return self
        return Layout(
            self.width,
            self.columns.to(device),
            self.total_columns,
            self.column_of_place.to(device),
            self.structural_columns.to(device),
            self.digit_places.to(device),
            self.units_column,
        )

    def places(self) -> torch.Tensor:
        """[segments, n], each column's place in each segment, `NO_PLACE` outside it."""
        places = torch.full((self.segments, self.total_columns), NO_PLACE)
        values = torch.arange(-1, self.width + 1).expand(self.segments, -1)
        return places.scatter(1, self.column_of_place.cpu(), values)[:, self.columns.cpu()]


def layout_of(digits: list[torch.Tensor], outside: list[tuple[int, int]], total: int) -> Layout:
    """A layout from each operand's digit columns, most significant first, and its (left, right) neighbours.

    Args:
        digits: for each operand its columns, [width].
        outside: for each operand the columns that stand for places `width` and −1.
        total: number of columns.
    """
    width = len(digits[0])
    digit_places = torch.full((total,), NO_PLACE)
    column_of_place = torch.empty(len(digits), width + 2, dtype=torch.long)
    for segment, (columns, (left, right)) in enumerate(zip(digits, outside, strict=True)):
        digit_places[columns] = torch.arange(width - 1, -1, -1)
        column_of_place[segment] = torch.cat([torch.tensor([right]), columns.flip(0), torch.tensor([left])])
    structural = (digit_places == NO_PLACE).nonzero().flatten()
    units_column = max(int(columns[-1]) for columns in digits)
    return Layout(width, torch.arange(total), total, column_of_place, structural, digit_places, units_column)


def _check_width(width: int) -> None:
    if width < 1:
        raise ValueError(f"expected a width of at least 1 digit, got {width}")


def unary_layout(width: int, operator: bool = False) -> Layout:
    """`$ a_w … a_1 &`, or `$ ⊕ a_w … a_1 &` with a leading operator (ListOps)."""
    _check_width(width)
    first = 2 if operator else 1
    end = first + width
    return layout_of([torch.arange(first, end)], [(first - 1, end)], end + 1)


def natural_layout(width: int, second_is_digit: bool = False) -> Layout:
    """`$ a_w … a_1 + b_w … b_1 &`, or `$ a_w … a_1 * b &` with a single-digit, structural b."""
    _check_width(width)
    a, operator = torch.arange(1, 1 + width), 1 + width
    if second_is_digit:
        return layout_of([a], [(0, operator)], width + 4)
    end = operator + width + 1
    return layout_of([a, torch.arange(operator + 1, end)], [(0, operator), (operator, end)], end + 1)


def aligned_layout(width: int) -> Layout:
    """`$ + a_w b_w … a_1 b_1 &`; N×1 repeats its single digit b after every digit of a."""
    _check_width(width)
    end = 2 + 2 * width
    return layout_of([torch.arange(2, end, 2), torch.arange(3, end, 2)], [(1, end), (1, end)], end + 1)
