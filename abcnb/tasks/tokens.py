"""The character-level vocabulary: text to token ids and back.

Source: paper, version "From Interpolation to Extrapolation", section 3.2: fifteen tokens, the ten digits, `+`, `*`, and
`$`, `&`, `@` for start, end and padding. They come first, so a decimal task's ids are the paper's. Bases above ten add
the digits `a` to `f`, ListOps its operators, and a single stream `=` between input and output.
"""

from functools import lru_cache

import torch

CHARACTERS = "0123456789+*$&@" + "abcdef" + "%><" + "=" + "[]"
IDS = {character: i for i, character in enumerate(CHARACTERS)}
START_ID, END_ID, PAD_ID, EQUALS_ID = (IDS[character] for character in "$&@=")
PAPER_VOCABULARY = 15

DIGITS = "0123456789abcdef"  # the character of each digit, 0 to 15
SYMBOLS = tuple("+*%><abcdef")  # what a task may take as its operator, unless it is one of its digits


def encode(text: str) -> torch.Tensor:
    """Token ids of a text, [characters]; raises ValueError if a character is not in the vocabulary."""
    unknown = sorted(set(text) - set(CHARACTERS))
    if unknown:
        raise ValueError(f"expected characters among {CHARACTERS!r}, got {''.join(unknown)!r} in {text[:60]!r}")
    return torch.tensor([IDS[character] for character in text], dtype=torch.long)


@lru_cache(maxsize=64)
def on_device(text: str, device: torch.device) -> torch.Tensor:
    """Token ids of a text, cached on a device: copying them there in training would make every step wait."""
    return encode(text).to(device)


def tokens_of(*parts: str | torch.Tensor) -> torch.Tensor:
    """Token ids of texts and of digits, [..., digits], one after another; at least one part must be digits."""
    some = next(part for part in parts if isinstance(part, torch.Tensor))
    ids, size = on_device(DIGITS, some.device), (*some.shape[:-1], -1)
    found = [on_device(part, some.device).expand(size) if isinstance(part, str) else ids[part] for part in parts]
    return torch.cat(found, -1)


def decode(ids: torch.Tensor) -> str:
    """Text of a one-dimensional tensor of token ids."""
    return "".join(CHARACTERS[i] for i in ids.tolist())
