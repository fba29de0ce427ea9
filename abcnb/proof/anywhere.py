"""Heads that may read any token of a segment: those whose lines keep no fixed distance from the step.

Where such a line leads in an input of any size is not worked out. A token stands for what its heads read, and is in
turn each token that the segment has anywhere, and the start token, beside anything that the other heads read. That may
ask too much of a model, never too little. Lines must be in the first layer alone, where a token is all that is read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product

import torch

from abcnb.lines.coordinates import Stream
from abcnb.lines.line import START_TOKEN, Line
from abcnb.model.transformer import Transformer
from abcnb.proof.windows import CONSTANT, Node, Token, heads_by_line, leaves, node_of

# By the kind of step, the heads that may read any token, and what stands for it; and what that may be.
Loose = dict[str, dict[int, Token]]
Anything = dict[Token, list[Node]]


def anywhere(
    model: Transformer, stream: Stream, tokens: list[Token], is_fixed: Callable[[Line], bool]
) -> tuple[Loose, Anything]:
    """The heads whose lines keep no fixed distance, and what they may read.

    `stream` and `tokens` are of an input that has every kind of token of every segment.
    """
    every, loose, anything = leaves(model, stream, tokens), defaultdict(dict), {}
    for heads in heads_by_line(model):
        for line in heads.lines:
            if not is_fixed(line):
                token = f"{line} of {line.step}", -2
                loose[line.step] |= dict.fromkeys(heads.numbers, token)
                anything[token] = leads_to(line, stream, every, token)
    return loose, anything


def leads_to(line: Line, stream: Stream, every: list[Node], name: Token) -> list[Node]:
    """Any token of a line's segment, and the start token; digits are called `name`."""
    segment = stream.segment(line.segment)
    *rows, places = segment.shape
    sides = *map(torch.arange, rows), torch.arange(-segment.reach, places + segment.reach)
    opened = segment.tokens([*torch.meshgrid(*sides, indexing="ij")]).flatten().tolist()
    found = (every[number] for number in (START_TOKEN, *opened) if 0 <= number < len(every))
    return list(dict.fromkeys(called(name, read) for read in found))


def called(name: Token, read: Node) -> Node:
    """What a head reads, renamed unless it is structural."""
    return read if read.reads[0][0] == CONSTANT else node_of((name,), kind=read.kind)


def loosened(node: Node, heads: dict[int, Token]) -> tuple[Node, dict[Token, Node]]:
    """A node in whose first layer tokens stand for what heads read, and what they read."""
    if node.own.own:
        own, read = loosened(node.own, heads)
        return node_of(node.reads, own, node.selves), read
    selves = (node_of((heads[n],)) if n in heads else other for n, other in enumerate(node.selves))
    return node_of(node.reads, node.own, tuple(selves)), {token: node.selves[n] for n, token in heads.items()}


def all_read(node: Node, anything: Anything) -> Iterator[tuple[Node, dict[Token, Node]]]:
    """A node with all that may be read in place of the tokens that stand for it, and what was read."""
    standing = [token for token in node.tokens if token in anything]
    for chosen in product(*(anything[token] for token in standing)):
        read = dict(zip(standing, chosen, strict=True))
        yield with_read(node, read), read


def with_read(node: Node, read: dict[Token, Node]) -> Node:
    """A node with what its heads read in place of the tokens that stood for it."""
    if not node.own:
        return read.get(node.reads[0], node)
    return node_of(node.reads, with_read(node.own, read), tuple(with_read(n, read) for n in node.selves))
