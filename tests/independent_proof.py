"""A certificate checked without the package: numpy, a model's weights, and lines and inputs written by hand.

Short inputs hold every window of Successor's and Parity's models with lines by hand: a step sees four places at most,
and what is carried in from below them. So all inputs of up to five digits show each step all that it can ever see.
"""

from itertools import product
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ENDS, START, EPSILON = 13, 12, 1e-5  # ids of `&` and `$`; digits are their own ids


def norm(x, weights, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def read(x, weights, name, columns):
    """Attention of one token a head: `columns` [heads, steps]."""
    values, heads = linear(x, weights, f"{name}.value"), len(columns)
    values = values.reshape(*values.shape[:2], heads, -1)
    seen = np.stack([values[:, columns[head], head] for head in range(heads)], 2)
    return linear(seen.reshape(len(x), columns.shape[1], -1), weights, f"{name}.output")


def leads(folder, digits, label):
    """[inputs, steps], from digits, most significant first, and labels, units first."""
    weights = {name: w.astype(np.float32) for name, w in load_file(folder / "weights.safetensors").items()}
    n, width = digits.shape
    ends = np.full((n, 1), ENDS)
    source = np.concatenate([ends * 0 + START, digits, ends], 1)
    target = np.concatenate([label, ends], 1)
    written = np.concatenate([ends * 0 + START, label], 1)
    steps, table = np.arange(width + 1), weights["embedding.weight"] * weights["embedding.weight"].shape[1] ** 0.5
    own, crossed = table[written], table[source]
    heads = np.arange(16)[:, None]  # the lines: the two tokens before, and the place written and the one before it
    at = {"self": steps - heads % 2, "cross": width - steps + heads % 2}
    columns = {name: np.where(column < 0, 0, column) for name, column in at.items()}  # or the start token
    for layer in range(2):
        name = f"decoder.{layer}"
        own = own + read(
            norm(own, weights, f"{name}.norm_self"), weights, f"{name}.self_attention", columns["self"]
        )
        own = own + read(crossed, weights, f"{name}.cross_attention", columns["cross"])
        inner = np.maximum(
            linear(norm(own, weights, f"{name}.norm_feed_forward"), weights, f"{name}.feed_forward.0"), 0
        )
        own = own + linear(inner, weights, f"{name}.feed_forward.2")
    logits = linear(norm(own, weights, "norm"), weights, "head")
    right = np.take_along_axis(logits, target[..., None], 2)[..., 0]
    np.put_along_axis(logits, target[..., None], -np.inf, 2)
    return right - logits.max(-1)


def least_lead(folder: Path, task: str) -> float:
    """The least lead of a right logit over any other, on all these inputs."""
    base, found = (2 if task == "parity" else 10), np.inf
    for width in range(2, 7):  # one place more than digits
        digits = np.pad(np.array(list(product(range(base), repeat=width - 1))), ((0, 0), (1, 0)))
        if task == "successor":
            number = (digits * 10 ** np.arange(width)[::-1]).sum(1) + 1
            label = number[:, None] // 10 ** np.arange(width) % 10
        else:
            label = digits[:, ::-1].cumsum(1) % 2
        for part in range(0, len(digits), 10_000):
            found = min(found, leads(folder, digits[part : part + 10_000], label[part : part + 10_000]).min())
    return float(found)
