"""A certificate of sums of many terms checked without the package: numpy, weights, and windows written by hand.

With lines in the first layer alone, a step of a row of running sums sees five tokens: the one just written, the term's
digit and the digit before it, and likewise of the sum before. A token has an id and the kind of step that it makes: 0
of the prompt, 1 of a step that writes a digit, 2 of one that ends a row.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.independent_proof import linear, norm

PLUS, START, END, EQUALS, HEADS = 10, 12, 13, 24, 16
NOWHERE = (START, 0)
BESIDE_TERM, BESIDE_SUM = ((PLUS, 0), (EQUALS, 1)), ((EQUALS, 1), (PLUS, 1))  # what stands before the units


def windows() -> Iterator[tuple[list[tuple[int, int]], int]]:
    """The five tokens of every step of every sum, and the id that is right."""
    for term in range(10):  # the first row copies the first term
        yield [(EQUALS, 1), (term, 0), (PLUS, 0), NOWHERE, NOWHERE], term
        for below in range(10):
            yield [(below, 1), (term, 0), (below, 0), NOWHERE, NOWHERE], term
    for term, total, beside, before in product(range(10), range(10), BESIDE_TERM, BESIDE_SUM):
        yield [(PLUS, 1), (term, 0), beside, (total, 1), before], (term + total) % 10
    for term, low, total, under, carry in product(range(10), range(10), range(10), range(10), range(2)):
        carried, written = divmod(low + under + carry, 10)
        right = term + total + carried
        yield [(written, 1), (term, 0), (low, 0), (total, 1), (under, 1)], right % 10
        if term == 0 and right < 10:  # terms are padded so that the sum fits
            yield [(written, 1), (term, 0), (low, 0), (total, 2), (under, 1)], right
    for digit in range(10):
        yield [(digit, 2), NOWHERE, NOWHERE, NOWHERE, NOWHERE], PLUS
        for before in BESIDE_SUM:
            yield [(PLUS, 1), NOWHERE, NOWHERE, (digit, 1), before], END


def leads(folder: Path) -> np.ndarray:
    """The lead of the right logit over any other, [windows]."""
    weights = {name: w.astype(np.float32) for name, w in load_file(folder / "weights.safetensors").items()}
    seen, right = zip(*windows(), strict=True)
    ids, kinds = np.moveaxis(np.array([*seen, [NOWHERE] * 5]), 2, 0)  # the last sees the start token from it
    size = weights["embedding.weight"].shape[1]
    x = weights["embedding.weight"][ids] * size**0.5 + weights["positions.table.weight"][kinds]
    own, read = x[:, 0], x[:, 1 + np.arange(HEADS) % 4]  # the lines are dealt to the heads in this order
    for layer in ("decoder.0", "decoder.1"):
        values = linear(norm(read, weights, f"{layer}.norm_self"), weights, f"{layer}.self_attention.value")
        values = values.reshape(len(own), HEADS, HEADS, -1)[:, np.arange(HEADS), np.arange(HEADS)]
        own = own + linear(values.reshape(len(own), size), weights, f"{layer}.self_attention.output")
        inner = linear(norm(own, weights, f"{layer}.norm_feed_forward"), weights, f"{layer}.feed_forward.0")
        own = own + linear(np.maximum(inner, 0), weights, f"{layer}.feed_forward.2")
        read = np.broadcast_to(
            own[-1:, None], (len(own), HEADS, size)
        )  # in the second layer the start token alone
    logits = linear(norm(own, weights, "norm"), weights, "head")[:-1]
    found = np.take_along_axis(logits, np.array(right)[:, None], 1)[:, 0]
    np.put_along_axis(logits, np.array(right)[:, None], -np.inf, 1)
    return found - logits.max(1)
