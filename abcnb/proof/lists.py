"""Nested lists of any depth: what a step can see when its lines stay within the list that it works out.

Such a step sees the operator, brackets, items and values of its list. An item is a digit or the value of a list,
which may be any digit, whatever that list contains: steps that end a list have no lines, so the state of its value
reveals nothing else. So lists of two to four items, each a digit or a smallest list, first in the input or not
(`trees`), show all that a step can ever see in lists of these sizes. With lines in the first layer only, no state
is read, and heads whose lines leave the list may read any token of a segment (`anywhere`).
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from abcnb.lines.line import Line
from abcnb.model.transformer import Transformer
from abcnb.proof.anywhere import Anything, Loose, all_read, anywhere, loosened
from abcnb.proof.windows import (
    CONSTANT,
    NOTHING,
    Case,
    Node,
    Token,
    Windows,
    check_count,
    count_of,
    different,
    heads_by_line,
    lined_layers,
    nodes,
)
from abcnb.tasks.nested import FEWEST, MOST, OPERATORS, NestedLists, outline
from abcnb.tasks.task import Batch
from abcnb.tasks.tokens import DIGITS, END_ID, IDS, encode
from abcnb.tasks.training_data import TrainingData

OPERATOR, ANY_DIGIT = "operator", "digit"  # tokens that may be any, as (name, number in input and output)
OF_A_LIST = ("operators", "items", "values", "opens", "closes")
KNOWN = encode(DIGITS + OPERATORS)  # token ids, indexed by the values in windows
PAIR = (FEWEST, *(0,) * FEWEST)  # the smallest list


class List(NamedTuple):
    """The tokens of a list: its operator, its items and its running values; the first value is the first item."""

    operator: Token
    items: tuple[Token, ...] = ()
    values: tuple[Token, ...] = ()


class Tree(NamedTuple):
    """The tokens of all inputs of a shape and their outputs; for each step, the token it writes and its list."""

    shape: tuple[int, ...]
    tokens: list[Token]
    rights: list[Token]
    lists: list[List]


class Seen(NamedTuple):
    """A step of a tree, and the numbers, in order, of the tokens that decide what it sees and writes."""

    tree: Tree
    step: int
    numbers: tuple[int, ...]


def trees() -> Iterator[tuple[int, ...]]:
    """Yield shapes: every list of digits and smallest lists, alone and after another list within a third."""
    for items in (items for size in range(FEWEST, MOST + 1) for items in product([(0,), PAIR], repeat=size)):
        one = (len(items), *sum(items, ()))
        yield one
        yield 3, *PAIR, *one, 0


def stays(line: Line) -> bool:
    """Whether a line leads to the operator, a bracket, an item or a value of the list that a step works out.

    `first` counts back from the end of the input's longest list, and so can leave the step's own.
    """
    own = line.follows[:1] == ("row",) and line.offset[:1] == (0,) and line.segment in OF_A_LIST
    return own and set(line.follows[1:]) <= {"none", "place", "2place"}


def tree_of(shape: tuple[int, ...], task: NestedLists) -> Tree:
    """The tree of a shape."""
    batch = task.batch(task.drawn(shape, 1, torch.Generator()))
    tokens = [(CONSTANT, number) for number in torch.cat([batch.source, batch.target[:, :-1]], 1)[0].tolist()]
    rights, lists, closed = [], [], []
    for opens, items, _ in outline(shape):
        seen = tuple((ANY_DIGIT, item) if item >= 0 else closed[-1 - item].values[-1] for item in items)
        written = batch.stream.prompt + len(rights)
        values = (seen[0], *((ANY_DIGIT, written + place) for place in range(1, len(items))))
        closed.append(List((OPERATOR, opens + 1), seen, values))
        for token in (closed[-1].operator, *(token for token, item in zip(seen, items, strict=True) if item >= 0)):
            tokens[token[1]] = token
        tokens[written : written + len(items)] = values
        rights += [*values, (CONSTANT, IDS["+"])]
        lists += [closed[-1]] * (len(items) + 1)
    return Tree(shape, tokens, [*rights, (CONSTANT, END_ID)], [*lists, List((CONSTANT, END_ID))])


def anything(model: Transformer, task: NestedLists) -> tuple[Loose, Anything]:
    """The heads whose lines leave the list that a step works out, and what they may read."""
    largest = tree_of((MOST, *PAIR * MOST), task)
    stream = task.stream(largest.shape)
    return anywhere(model, stream, largest.tokens, lambda line: not line.follows or stays(line))


def cases(model: Transformer, data: TrainingData) -> list[Case]:
    """All that steps of nested lists can see, each case shown in the first and the last tree that has it, if any.

    Raises:
        ValueError: if later layers have lines, and any line leaves its step's list or is of a step that ends it.
    """
    task, read_states = data.task, bool(lined_layers(model) - {0})
    for line in (line for heads in heads_by_line(model) for line in heads.lines):
        if read_states and not (stays(line) and line.step == "values"):
            raise ValueError(
                "expected lines within the list that a step works out, or in the first layer alone, as with "
                f"look_once=True, got {line} for {line.step}"
            )
    loose, read_anywhere = anything(model, task)
    found: dict[tuple, tuple[Seen, ...]] = {}
    for tree in (tree_of(shape, task) for shape in trees()):
        stream = task.stream(tree.shape)
        for step, node in enumerate(nodes(model, stream, tree.tokens)):
            case, seen = case_of(tree, step, node)
            found[case] = *found.get(case, (seen,))[:1], seen
            for other, read in all_read(loosened(node, loose[stream.kinds[stream.kind[step]]])[0], read_anywhere):
                if read:
                    found.setdefault(case_of(tree, step, other)[0], ())
    return [
        (*case[:2], partial(windows_of, *case, task), partial(shown, task, case[2], seen))
        for case, seen in found.items()
    ]


def case_of(tree: Tree, step: int, node: Node) -> tuple[tuple, Seen]:
    """The case of a step, its tokens renumbered (the node, the token to write, the tokens that may be any, and the
    values that follow from them), and where it was seen."""
    made = values_behind(tree, step, node.tokens)
    asked = {*node.tokens, tree.rights[step], *made, *(token for of in made.values() for token in of)}
    numbers = tuple(sorted(number for name, number in asked if name != CONSTANT))
    ranks = {number: rank for rank, number in enumerate(numbers)}
    named = {token: token if token[0] == CONSTANT else (token[0], ranks[token[1]]) for token in asked}
    leaves = tuple(named[token] for token in sorted(asked - made.keys()) if token[0] != CONSTANT)
    parts = tuple((named[value], *(named[token] for token in of)) for value, of in made.items())
    return (node.renamed(named), named[tree.rights[step]], leaves, parts), Seen(tree, step, numbers)


def values_behind(tree: Tree, step: int, tokens: tuple[Token, ...]) -> dict[Token, tuple[Token, Token, Token]]:
    """The values that decide `tokens` and what a step must write, each with the operator, the previous value and
    the item that it is made of."""
    operator, items, values = tree.lists[step]
    last = max((place for place, value in enumerate(values) if value in (*tokens, tree.rights[step])), default=0)
    pairs = zip(values[:last], items[1 : last + 1], strict=True)
    return {value: (operator, *pair) for value, pair in zip(values[1 : last + 1], pairs, strict=True)}


def is_operator(token: Token) -> bool:
    """Whether a token is an operator, or stands for what a line to operators reads."""
    return token[0].startswith(OPERATOR)


def windows_of(
    node: Node, right: Token, leaves: tuple[Token, ...], parts: tuple, task: NestedLists, most: int | None = None
) -> Windows:
    """Every window of a case, each once: what its tokens can be together, with the others that decide them."""
    if not leaves:
        return {NOTHING: torch.zeros(1, dtype=torch.uint8)}
    sizes = (len(OPERATORS) if is_operator(token) else task.base for token in leaves)
    axes = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    digits = {token: axis.flatten() for token, axis in zip(leaves, axes, strict=True)}
    for token in filter(is_operator, leaves):
        digits[token] += len(DIGITS)
    for value, operator, before, item in parts:
        pair = [KNOWN[digits[token]] for token in (operator, before, item)]
        opens, closes = (torch.full_like(pair[0], IDS[bracket]) for bracket in "[]")
        digits[value] = task.label(torch.stack([opens, *pair, closes], 1))[:, 0]
    seen = [digits[token] for token in {*node.tokens, right} if token in digits]
    some, _ = different(seen, len(digits[leaves[0]]))
    check_count(len(some), most)
    return {token: values[some].to(torch.uint8) for token, values in digits.items()}


def shown(
    task: NestedLists, leaves: tuple[Token, ...], met: tuple[Seen, ...], windows: Windows
) -> list[tuple[Batch, int, Windows]]:
    """Whole inputs of each tree in which a step has these windows; tokens that no window decides are random."""
    found = []
    for tree, step, numbers in met:
        (ids,) = task.drawn(tree.shape, count_of(windows), torch.Generator().manual_seed(0))
        closed = {one.values[-1]: one for one in tree.lists[:-1]}

        def put(token: Token, values: torch.Tensor, ids=ids, closed=closed) -> None:
            """Set a digit, or the value of a list, to these values; the list's other items change nothing."""
            if token not in closed:
                ids[:, token[1] - 1] = KNOWN[values.long()]
                return
            (_, number), (first, *others), _ = closed[token]
            put(first, values)
            for item in others:
                put(item, torch.where(ids[:, number - 1] == IDS["<"], task.base - 1, 0))

        for name, rank in sorted(leaves, reverse=True):  # operators before digits
            put((name, numbers[rank]), windows[name, rank])
        found.append((task.batch((ids,)), step, windows))
    return found
