"""Lists in lists (ListOps with brackets), worked out row by row, innermost list first.

Worked example: in `[%3[>47]2]` the operators are % (sum modulo the base), > (maximum) and < (minimum). Lists are worked
out in the order in which they close; each is a row of running values, one for every item, and an item that is a list
stands for its value: `47+` for the inner list, then 3, 3 + 7 = 0, 0 + 2 = 2, so `302+`, and `&`. The answer is the last
value.

Coordinates come from the content: a token is in a list (its row, in the order of closing) and has an index among its
siblings (its place). The items of a list are wherever they stand, digits in the prompt and values of inner lists in the
output; so the segment `items` is a table, and the streams of two inputs differ where their brackets do.

A *shape* lists the tree in the order it is written: the number of items of each list, 0 for each digit. A length is a
depth: `[>47]` has depth 1.

Source: paper, version 002, appendix C, for ListOps of one list; lists in lists are this project's.
"""

import re
from functools import lru_cache

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Segment, Stream, Table
from abcnb.tasks.digits import Operands, distinct
from abcnb.tasks.rows import RowTask
from abcnb.tasks.task import Batch, check_not_in_rows, register
from abcnb.tasks.testsets import seeded_generator
from abcnb.tasks.tokens import CHARACTERS, DIGITS, EQUALS_ID, IDS, START_ID, decode, encode, on_device, tokens_of

TRAIN_DEPTH = 2  # of the deepest lists that are ever trained on
FEWEST, MOST = 2, 4  # items of a list
LISTS = 0.25  # chance that an item is a list where it may be one
TREES = 20  # of a test set, and of a validation
DEEPEST = 12  # of a test: a random tree has half as many again on each further level
OPERATORS = "%><"


def outline(shape: tuple[int, ...]) -> list[tuple[int, list[int], int]]:
    """The lists of a shape in the order of closing: the token that opens each, its items, and the one that closes it.

    An item is the token of a digit, or −1 − n for the list n of this order.

    Raises:
        ValueError: no tree.
    """
    closed, begun, token = [], [], 1
    for number, items in enumerate(shape):
        if number and not begun:
            raise ValueError(f"expected one list, got more after it: {shape}")
        if items:
            begun.append((token, items, []))
            token += 2  # the bracket and the operator
            continue
        if not begun:
            raise ValueError(f"expected a list, got the digit alone: {shape}")
        begun[-1][2].append(token)
        token += 1
        while begun and len(begun[-1][2]) == begun[-1][1]:
            start, _, found = begun.pop()
            closed.append((start, found, token))
            token += 1
            if begun:
                begun[-1][2].append(-len(closed))
    if begun or not closed:
        raise ValueError(f"expected every list with all its items, got {shape}")
    return closed


class NestedLists(RowTask):
    """Lists in lists, of the operators sum modulo the base, maximum and minimum."""

    name = "nested"
    test_sets = ("random", "hard")
    syntax = f"a list such as [%3[>47]2] of the operators {' '.join(OPERATORS)}"
    longest = DEEPEST
    train_length = TRAIN_DEPTH
    stream_vocabulary_size = len(CHARACTERS)  # brackets are the last of them
    validation_batches = TREES
    row_names = ("values",)
    separators = "+"
    lines_by_hand = {"values": (("operators", (0,)), ("items", (0, 0)), ("values", (0, -1)))}

    def sampler(self, numbers, width, held_out, device, terms=0, shapes="all"):
        check_not_in_rows(terms, shapes)
        if numbers != "even":
            raise ValueError(f"expected numbers 'even' for {self.name}, got {numbers!r}")
        return TreeSampler(self, width, held_out)

    def cases(self, test_set, length, samples):
        return nested_cases(self, length, samples, test_set, seeded_generator(self, length, test_set))

    def shape_of_length(self, length):
        """As many lists in one another, each but the innermost the last item of the one around it."""
        return (MOST, *(0,) * (MOST - 1)) * (length - 1) + (MOST, *(0,) * MOST)

    def shape_of(self, operands):
        shape, begun = [], []
        for character in decode(operands[0][0]):
            if character == "[" or character in DIGITS:
                if begun:
                    shape[begun[-1]] += 1
                shape.append(0)
            if character == "[":
                begun.append(len(shape) - 1)
            elif character == "]":
                begun.pop()
        return tuple(shape)

    @lru_cache(maxsize=512)  # noqa: B019  tasks live as long as the program
    def stream_of_shape(self, shape):
        lists = outline(shape)
        prompt = lists[-1][2] + 2
        lengths = torch.tensor([len(items) for _, items, _ in lists])
        ends = (lengths + 1).cumsum(0) - 1  # the step that ends each row
        starts, most = ends - lengths, int(lengths.max())
        last_value = (prompt + ends - 1).tolist()
        cells = [[item if item >= 0 else last_value[-1 - item] for item in items] for _, items, _ in lists]
        values = [[prompt + int(start) + k for k in range(n)] for start, n in zip(starts, lengths, strict=True)]
        opens = tuple(start for start, _, _ in lists)
        of_list, grid = ("row",), (len(lists), most)
        segments = (
            Segment("$", 0),
            Segment("=", prompt - 1),
            Table("opens", opens[0], grid[:1], counters=of_list, listed=opens),
            Table("operators", opens[0] + 1, grid[:1], counters=of_list, listed=tuple(n + 1 for n in opens)),
            Table("closes", lists[0][2], grid[:1], counters=of_list, listed=tuple(end for _, _, end in lists)),
            Table("items", 0, grid, counters=("row", "place"), listed=_padded(cells, most)),
            Table("values", prompt, grid, counters=("row", "place"), listed=_padded(values, most)),
            Table(
                "values end",
                prompt + int(ends[0]),
                grid[:1],
                counters=of_list,
                listed=tuple((prompt + ends).tolist()),
            ),
        )
        row = torch.repeat_interleave(torch.arange(len(lists)), lengths + 1)
        place = torch.arange(len(row)) - starts[row]
        kind = (place == lengths[row]).long()
        row, place, kind = (
            torch.cat([part, torch.tensor([end])]) for part, end in ((row, len(lists)), (place, 0), (kind, 0))
        )
        return Stream(segments, prompt, ("values", "values end"), shape, kind, row, place)

    def batch(self, operands: Operands, form: str = "natural") -> Batch:
        """Prompt, output in rows and stream of operands given as token ids."""
        self._check(form)
        (ids,) = operands
        source = F.pad(ids, (1, 1), value=EQUALS_ID)
        source[:, 0] = START_ID
        rows = [part for values in self.rows_of(ids) for part in (values, "+")]
        return Batch(source, tokens_of(*rows, "&"), self.stream_of(operands))

    def rows_of(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """The running values of every list, in the order of closing, each [batch, items]."""
        rows = []
        for start, items, _ in outline(self.shape_of((ids,))):
            operator, values = ids[:, start], []  # without `$` a token is one further left: its operator
            for item in items:
                value = ids[:, item - 1] if item >= 0 else rows[-1 - item][:, -1]
                values.append(self._joined(operator, values[-1], value) if values else value)
            rows.append(torch.stack(values, 1))
        return rows

    def _joined(self, operator: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        larger = torch.where(operator == IDS[">"], torch.maximum(a, b), torch.minimum(a, b))
        return torch.where(operator == IDS["%"], (a + b) % self.base, larger)

    def label(self, ids: torch.Tensor) -> torch.Tensor:
        """The value of the whole, [batch, 1]."""
        return self.rows_of(ids)[-1][:, -1:]

    def parse(self, text: str) -> Operands:
        """An input typed by a person, as token ids of batch 1.

        Raises:
            ValueError: brackets that do not match, a list without operator or items, or a digit that the base lacks.
        """
        text = text.replace(" ", "")
        innermost, left = rf"\[[{OPERATORS}][{DIGITS[: self.base]}]+\]", text
        while left != (closed := re.sub(innermost, "0", left)):
            left = closed
        if left != "0" or text == "0":
            raise ValueError(f"expected {self.syntax} and digits 0 to {DIGITS[self.base - 1]}, got {text[:60]!r}")
        return (encode(text)[None],)

    def read(self, output: str) -> str:
        rows = self.split_rows(output)
        return rows[-1].rstrip("+")[-1:] if rows else ""

    def drawn(
        self, shape: tuple[int, ...], batch: int, generator: torch.Generator, kind: str = "random"
    ) -> Operands:
        """Random inputs of a shape, as token ids: of the kinds `sums` and `nines` with one operator or digit alone."""
        lists, device = outline(shape), generator.device
        text = [""] * (lists[-1][2] + 1)
        for start, items, end in lists:
            text[start], text[start + 1], text[end] = "[", "%", "]"
            for item in items:
                if item >= 0:
                    text[item] = "0"
        ids = encode("".join(text)).to(device).expand(batch, -1).clone()
        operators = torch.tensor([start for start, _, _ in lists], device=device)
        digits = torch.tensor([item - 1 for _, items, _ in lists for item in items if item >= 0], device=device)
        pick = torch.randint(len(OPERATORS), (batch, len(operators)), generator=generator, device=device)
        if kind != "sums":
            ids[:, operators] = on_device(OPERATORS, device)[pick]
        some = torch.randint(self.base, (batch, len(digits)), generator=generator, device=device)
        ids[:, digits] = torch.full_like(some, self.base - 1) if kind == "nines" else some
        return (ids,)


def _padded(rows: list[list[int]], most: int) -> tuple[int, ...]:
    return tuple(cell for row in rows for cell in row + [-1] * (most - len(row)))


def random_shape(depth: int, generator: torch.Generator) -> tuple[int, ...]:
    """A tree of exactly this depth: one item of every list leads on, each other may be a list as well."""

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator, device=generator.device))

    shape, waiting = [], [(depth, True)]  # what is still to be written, the next one last
    while waiting:
        depth, is_list = waiting.pop()
        items = whole(FEWEST, MOST + 1) if is_list else 0
        shape.append(items)
        leads_on = whole(0, items) if items else 0
        chances = torch.rand(items, generator=generator, device=generator.device).tolist()
        inner = [(depth - 1, depth > 1 and (n == leads_on or c < LISTS)) for n, c in enumerate(chances)]
        waiting += reversed(inner)
    return tuple(shape)


class TreeSampler:
    """Draws inputs of random trees.

    Args:
        task: the task.
        depth: of the deepest trees; each depth up to it is equally likely.
        held_out: trees of that depth alone. No inputs are held out: a test at depth one, where there are 33,300, and
            now and then at depth two, meets some that were trained on.

    Raises:
        ValueError: a depth that is never trained on.
    """

    def __init__(self, task: NestedLists, depth: int, held_out: bool = False):
        if not 1 <= depth <= task.train_length:
            raise ValueError(f"expected a width from 1 to {task.train_length} lists in one another, got {depth}")
        self.task, self.depths = task, [depth] if held_out else list(range(1, depth + 1))

    def draw(self, batch: int, generator: torch.Generator) -> Operands:
        """`batch` inputs of one shape as token ids, [batch, tokens]."""
        chosen = torch.randint(len(self.depths), (), generator=generator, device=generator.device)
        return self.task.drawn(random_shape(self.depths[int(chosen)], generator), batch, generator)


def nested_cases(
    task: NestedLists, depth: int, samples: int, test_set: str, generator: torch.Generator
) -> dict[str, Operands]:
    """Inputs of each kind of a test set, as token ids, at most `samples` over all kinds; each has one shape.

    **random**: `TREES` trees of exactly this depth. **hard**: lists of two items of which the first, or the second, is
    the next list; sums alone in a random tree; the largest digit alone in another.
    """
    if test_set == "random":
        wanted = {f"tree {n + 1}": (random_shape(depth, generator), "random") for n in range(TREES)}
    else:
        wanted = {
            "first item": ((2,) * depth + (0, 0) + (0,) * (depth - 1), "random"),
            "second item": ((2, 0) * (depth - 1) + (2, 0, 0), "random"),
            "sums": (random_shape(depth, generator), "sums"),
            "nines": (random_shape(depth, generator), "nines"),
        }
    count = max(1, samples // len(wanted))
    return {name: distinct(task.drawn(shape, count, generator, kind)) for name, (shape, kind) in wanted.items()}


register(NestedLists)
