"""Heads that may read any token of a segment: those whose lines keep no fixed distance from the step.

Where such a line leads is not worked out for every size of input. Instead, a token stands for what its heads read:
any token of the segment or the start token, in every combination with what the other heads read. That may ask too
much of a model, never too little. All lines must be in the first layer, where heads read tokens and no states.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product

import torch

from abcnb.lines.coordinates import Stream
from abcnb.lines.line import START_TOKEN, Line
from abcnb.model.transformer import Transformer
from abcnb.proof.windows import CONSTANT, Node, Token, heads_by_line, leaves, node_of

# By kind of step and head, the token that stands for what the head reads; and by that token, all it may be.
Loose = dict[str, dict[int, Token]]
Anything = dict[Token, list[Node]]


def anywhere(
    model: Transformer, stream: Stream, tokens: list[Token], is_fixed: Callable[[Line], bool]
) -> tuple[Loose, Anything]:
    """The heads whose lines keep no fixed distance, and what they may read.

    `stream` and `tokens` belong to an input that has every kind of token of every segment.
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
    """The tokens of a line's segment, its reach included, and the start token; digits are renamed `name`."""
    segment = stream.segment(line.segment)
    *rows, places = segment.shape
    sides = *map(torch.arange, rows), torch.arange(-segment.reach, places + segment.reach)
    opened = segment.tokens([*torch.meshgrid(*sides, indexing="ij")]).flatten().tolist()
    found = (every[number] for number in (START_TOKEN, *opened) if 0 <= number < len(every))
    return list(dict.fromkeys(called(name, read) for read in found))


def called(name: Token, read: Node) -> Node:
    """What a head reads, renamed unless structural."""
    return read if read.reads[0][0] == CONSTANT else node_of((name,), kind=read.kind)


def loosened(node: Node, heads: dict[int, Token]) -> tuple[Node, dict[Token, Node]]:
    """The node with tokens standing for what `heads` read in the first layer, and what each token stands for."""
    if node.own.own:
        own, read = loosened(node.own, heads)
        return node_of(node.reads, own, node.selves), read
    selves = (node_of((heads[n],)) if n in heads else other for n, other in enumerate(node.selves))
    return node_of(node.reads, node.own, tuple(selves)), {token: node.selves[n] for n, token in heads.items()}


def all_read(node: Node, anything: Anything) -> Iterator[tuple[Node, dict[Token, Node]]]:
    """Yield the node once for every choice of what its stand-in tokens stand for, with that choice."""
    standing = [token for token in node.tokens if token in anything]
    for chosen in product(*(anything[token] for token in standing)):
        read = dict(zip(standing, chosen, strict=True))
        yield with_read(node, read), read


def with_read(node: Node, read: dict[Token, Node]) -> Node:
    """The node with what its heads read in place of the tokens that stood for it."""
    if not node.own:
        return read.get(node.reads[0], node)
    return node_of(node.reads, with_read(node.own, read), tuple(with_read(n, read) for n in node.selves))
