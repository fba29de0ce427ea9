"""Lists in lists (ListOps with brackets), worked out row by row, innermost list first.

Worked example: in `[%3[>47]2]` the operators are % (sum modulo the base), > (maximum) and < (minimum). Lists are
worked out in the order in which they close; each becomes a row of running values, one per item, and an item that
is a list counts as its value: `47+` for the inner list; then 3, 3 + 7 = 0, 0 + 2 = 2, so `302+`; then `&`. The
answer is the last value.

Coordinates follow the content: a token's row is the list that it is in (in the order of closing), its place its
index among its siblings. The items of a list can be anywhere: digits in the prompt, values of inner lists in the
output. So the segment `items` is a table, and two inputs have different streams if their brackets differ.

A *shape* lists the tree in the order it is written: the number of items of each list, 0 for each digit. A length is a
depth: `[>47]` has depth 1. No inputs are held out: some inputs of tests at depth one, where only 33,300
exist, and a few at depth two were trained on.

Source: paper, version 002, appendix C, for ListOps of one list; lists in lists are this project's.
"""

import re
from itertools import accumulate

import torch
import torch.nn.functional as F

from abcnb.lines.coordinates import Segment, Stream, Table
from abcnb.tasks.digits import Operands, distinct
from abcnb.tasks.rows import RowTask
from abcnb.tasks.strings import SizeSampler, integers
from abcnb.tasks.task import Batch, check_not_in_rows, register
from abcnb.tasks.testsets import seeded_generator
from abcnb.tasks.tokens import CHARACTERS, DIGITS, EQUALS_ID, IDS, START_ID, decode, encode, on_device, tokens_of

TRAIN_DEPTH = 2  # depth of the deepest lists that are ever trained on
FEWEST, MOST = 2, 4  # items in a list
LISTS = 0.25  # chance that an item is a list where it may be one
TREES = 20  # trees in a test set, and in a validation
DEEPEST = 12  # depth of the deepest test: on each further level a random tree has half as many lists again
OPERATORS = "%><"


def outline(shape: tuple[int, ...]) -> list[tuple[int, list[int], int]]:
    """The lists of a shape in the order of closing: the token that opens each, its items, and the one that closes it.

    An item is the token of a digit, or −1 − n for list n of this order. Raises ValueError if it is not a tree.
    """
    missing = list(accumulate((items - 1 for items in shape), initial=1))
    if not shape or not shape[0] or missing[-1] or 0 in missing[:-1]:
        raise ValueError(f"expected one list with all its items, got {shape}")
    closed, begun, token = [], [], 1
    for items in shape:
        if items:
            begun.append((token, items, []))
            token += 2  # the bracket and the operator
            continue
        begun[-1][2].append(token)
        token += 1
        while begun and len(begun[-1][2]) == begun[-1][1]:
            start, _, found = begun.pop()
            closed.append((start, found, token))
            token += 1
            if begun:
                begun[-1][2].append(-len(closed))
    return closed


class NestedLists(RowTask):
    """Lists in lists, with the operators sum modulo the base, maximum and minimum."""

    name = "nested"
    test_sets = ("random", "hard")
    syntax = f"a list such as [%3[>47]2] of the operators {' '.join(OPERATORS)}"
    longest = DEEPEST
    train_length = TRAIN_DEPTH
    stream_vocabulary_size = len(CHARACTERS)  # brackets come last
    validation_batches = TREES
    row_names = ("values",)
    separators = "+"
    lines_by_hand = {"values": (("operators", (0,)), ("items", (0, 0)), ("values", (0, -1)))}

    def sampler(self, numbers, width, held_out, device, terms=0, shapes="all"):
        check_not_in_rows(terms, shapes)
        if numbers != "even":
            raise ValueError(f"expected numbers 'even' for {self.name}, got {numbers!r}")
        if not 1 <= width <= self.train_length:
            raise ValueError(f"expected a width from 1 to {self.train_length} lists in one another, got {width}")
        return SizeSampler(self, range(1, width + 1), held_out)

    def of_size(self, depth: int, batch: int, generator: torch.Generator) -> Operands:
        """`batch` inputs of one random tree, as token ids, [batch, tokens]."""
        return self.drawn(random_shape(depth, generator), batch, generator)

    def cases(self, test_set: str, length: int, samples: int) -> dict[str, Operands]:
        """Inputs of each kind, as token ids: at most `samples` in all, at least one per kind; one shape per kind.

        **random**: `TREES` trees of exactly this depth. **hard**: lists of two items, the first or the second of
        which is the next list; a random tree with sums only; another with the largest digit only.
        """
        generator = seeded_generator(self, length, test_set)
        if test_set == "random":
            drawn = {f"tree {n + 1}": (random_shape(length, generator), "random") for n in range(TREES)}
        else:
            drawn = {
                "first item": ((2,) * length + (0, 0) + (0,) * (length - 1), "random"),
                "second item": ((2, 0) * (length - 1) + (2, 0, 0), "random"),
                "sums": (random_shape(length, generator), "sums"),
                "nines": (random_shape(length, generator), "nines"),
            }
        count = max(1, samples // len(drawn))
        return {name: distinct(self.drawn(tree, count, generator, kind)) for name, (tree, kind) in drawn.items()}

    def shape_of_length(self, length, terms=0):
        """`length` nested lists of `MOST` items, each but the outermost the last item of the one around it."""
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

    def stream_of_shape(self, shape):
        opens, of_each, closes = zip(*outline(shape), strict=True)
        prompt = closes[-1] + 2
        lengths = torch.tensor([len(items) for items in of_each])
        ends = (lengths + 1).cumsum(0) - 1  # the step that ends each row
        starts, most = ends - lengths, int(lengths.max())
        last_value = (prompt + ends - 1).tolist()
        items = [[item if item >= 0 else last_value[-1 - item] for item in some] for some in of_each]
        values = [range(last + 1 - len(row), last + 1) for last, row in zip(last_value, items, strict=True)]

        def table(name, listed):
            return Table(name, listed[0], (len(opens),), counters=("row",), listed=tuple(listed))

        def grid(name, start, rows):
            padded = tuple(token for row in rows for token in (*row, *[-1] * (most - len(row))))
            return Table(name, start, (len(opens), most), counters=("row", "place"), listed=padded)

        segments = (
            Segment("$", 0),
            Segment("=", prompt - 1),
            table("opens", opens),
            table("operators", [token + 1 for token in opens]),
            table("closes", closes),
            grid("items", 0, items),
            grid("values", prompt, values),
            table("values end", (prompt + ends).tolist()),
        )
        row = torch.repeat_interleave(torch.arange(len(opens)), lengths + 1)
        place = torch.arange(len(row)) - starts[row]
        kind = F.pad((place == lengths[row]).long(), (0, 1))
        row, place = F.pad(row, (0, 1), value=len(opens)), F.pad(place, (0, 1))
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
        rows, digits = [], torch.where(ids < 10, ids, ids - IDS["a"] + 10)
        for start, items, _ in outline(self.shape_of((ids,))):
            operator, values = ids[:, start], []  # without `$`, tokens are one further left: this is the operator
            for item in items:
                value = digits[:, item - 1] if item >= 0 else rows[-1 - item][:, -1]
                values.append(self._joined(operator, values[-1], value) if values else value)
            rows.append(torch.stack(values, 1))
        return rows

    def _joined(self, operator: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        larger = torch.where(operator == IDS[">"], torch.maximum(a, b), torch.minimum(a, b))
        return torch.where(operator == IDS["%"], (a + b) % self.base, larger)

    def label(self, ids: torch.Tensor) -> torch.Tensor:
        """The value of the outermost list, [batch, 1]."""
        return self.rows_of(ids)[-1][:, -1:]

    def parse(self, text: str) -> Operands:
        """Token ids of an input typed by a person, batch 1; raises ValueError if it is not a list in this base."""
        text = text.replace(" ", "")
        innermost, left = rf"\[[{OPERATORS}][{DIGITS[: self.base]}]+\]", text
        while left != (closed := re.sub(innermost, "0", left)):
            left = closed
        if left != "0" or text == "0":
            raise ValueError(f"expected {self.syntax} and digits 0 to {DIGITS[self.base - 1]}, got {text[:60]!r}")
        return (encode(text)[None],)

    def read(self, output: str) -> str:
        return "".join(self.split_rows(output)[-1:]).rstrip("+")[-1:]

    def drawn(self, shape: tuple[int, ...], batch: int, generator: torch.Generator, kind="random") -> Operands:
        """Random inputs of a shape, as token ids: kind `sums` has sums only, `nines` the largest digit only."""
        device = generator.device
        opens, of_each, closes = zip(*outline(shape), strict=True)
        ids = torch.zeros(batch, closes[-1], dtype=torch.long, device=device)  # one further left, without `$`
        opens, closes = torch.tensor(opens, device=device), torch.tensor(closes, device=device)
        digits = torch.tensor([item - 1 for items in of_each for item in items if item >= 0], device=device)
        ids[:, opens - 1], ids[:, opens], ids[:, closes - 1] = IDS["["], IDS["%"], IDS["]"]
        operators = on_device(OPERATORS, device)[integers(0, len(OPERATORS), (batch, len(opens)), generator)]
        if kind != "sums":
            ids[:, opens] = operators
        some = integers(0, self.base, (batch, len(digits)), generator)
        ids[:, digits] = tokens_of(torch.full_like(some, self.base - 1) if kind == "nines" else some)
        return (ids,)


def random_shape(depth: int, generator: torch.Generator) -> tuple[int, ...]:
    """A tree of exactly this depth: one item of every list leads deeper, and any other may be a list as well."""
    items = int(integers(FEWEST, MOST + 1, (), generator))
    leads_on = int(integers(0, items, (), generator))
    shape = (items,)
    for n, chance in enumerate(torch.rand(items, generator=generator, device=generator.device).tolist()):
        is_list = depth > 1 and (n == leads_on or chance < LISTS)
        shape += random_shape(depth - 1, generator) if is_list else (0,)
    return shape


register(NestedLists)
