"""Lines of a stream: offsets between the counters of a step and the coordinates of the token that it looks at.

A step has two counters, its row r and its place p. A line belongs to a kind of step and a segment, says which counter
each of the segment's coordinates follows, and adds an offset:

    follows   coordinate of the token looked at
    row       r + offset
    place     p + offset
    none      offset

The line of one number's place (`lines`, frame `places`, Δ = −1) is the case of a single counter. A structural token has
no coordinates, so it is one line. As lines are written in coordinates, they mean the same at every length; a step opens
at most one token per line. A row of the attention matrix that no line of a head reaches, and every row of the prompt,
opens its own token.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from abcnb.biases import CLOSED, Biases
from abcnb.stream import Segment, Stream

FOLLOWS = ("none", "row", "place")


class CounterLine(NamedTuple):
    """One open line of one head."""

    head: int
    step: str
    segment: str
    follows: tuple[str, ...] = ()
    offset: tuple[int, ...] = ()

    def __str__(self) -> str:
        names = {"none": "", "row": "row", "place": "place"}
        at = [
            f"{names[counter]}{offset:+d}" if counter != "none" and offset else names[counter] or str(offset)
            for counter, offset in zip(self.follows, self.offset, strict=True)
        ]
        return f"{self.segment}[{', '.join(at)}]" if at else self.segment


def tokens_on(
    segment: Segment, follows: tuple[str, ...], offset: tuple[int, ...], row: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """The token that a line opens at steps of these rows and places, −1 where it is outside its segment."""
    counters = {"none": torch.zeros_like(row), "row": row, "place": place}
    coordinates = [counters[counter] + add for counter, add in zip(follows, offset, strict=True)]
    return segment.tokens(coordinates or [row])


@dataclass(frozen=True)
class StreamBias:
    """An attention bias made of lines of a stream: 0 on their tokens, −∞ elsewhere.

    Attributes:
        heads: number of heads.
        lines: of all heads and kinds of steps.

    Raises:
        ValueError: a head out of range, an unknown counter, or not as many offsets as counters.
    """

    heads: int
    lines: tuple[CounterLine, ...]

    attention = "self"

    def __post_init__(self):
        for line in self.lines:
            if not 0 <= line.head < self.heads:
                raise ValueError(f"expected a head from 0 to {self.heads - 1}, got {line!r}")
            if set(line.follows) - set(FOLLOWS) or len(line.follows) != len(line.offset):
                raise ValueError(
                    f"expected counters among {', '.join(FOLLOWS)} and an offset for each, got {line!r}"
                )

    @cached_property
    def _groups(self) -> dict[tuple[int, str], list[CounterLine]]:
        groups: dict[tuple[int, str], list[CounterLine]] = {}
        for line in self.lines:
            groups.setdefault((line.head, line.step), []).append(line)
        return groups

    def open_tokens(self, rows: torch.Tensor, stream: Stream) -> torch.Tensor:
        """The tokens that rows of the attention matrix open, [heads, rows, most lines]; −1 fills up.

        No token is listed twice, none lies in the future, and no row is without one.
        """
        for line in self.lines:
            coordinates = len(stream.segment(line.segment).shape)
            if len(line.follows) != coordinates:
                raise ValueError(
                    f"expected a counter for each of {coordinates} coordinates of {line.segment!r}, got {line!r}"
                )
        kind, row, place = stream.steps_at(rows)
        depth = max((len(lines) for lines in self._groups.values()), default=1)
        found = torch.full((self.heads, len(rows), depth), -1, device=rows.device)
        for (head, step), lines in self._groups.items():
            if step not in stream.kinds:
                raise ValueError(
                    f"expected lines of steps among {', '.join(stream.kinds)}, got {step!r}; "
                    "use lines on the task that they were made for"
                )
            here = kind == stream.kinds.index(step)
            for k, line in enumerate(lines):
                tokens = tokens_on(stream.segment(line.segment), line.follows, line.offset, row, place)
                tokens = torch.where(here & (tokens <= rows), tokens, -1)
                known = (found[head, :, :k] == tokens[:, None]).any(-1)
                found[head, :, k] = torch.where(here & ~known, tokens, found[head, :, k])
        nothing = (found < 0).all(-1)
        found[..., 0] = torch.where(nothing, rows, found[..., 0])
        return found

    def __call__(self, rows: torch.Tensor, stream: Stream) -> torch.Tensor:
        """The bias of rows and all tokens of the stream, [heads, rows, tokens]."""
        found = self.open_tokens(rows, stream)
        tokens = len(stream)
        # One column more takes the −1 that fill up.
        bias = torch.full((self.heads, len(rows), tokens + 1), CLOSED, device=rows.device)
        bias.scatter_(2, torch.where(found < 0, tokens, found), 0.0)
        return bias[..., :tokens]

    def save(self, file: Path | str) -> None:
        """Write the lines as JSON."""
        content = asdict(self) | {"lines": [line._asdict() for line in self.lines]}
        Path(file).write_text(json.dumps(content, indent=1) + "\n")

    @staticmethod
    def load(file: Path | str) -> "StreamBias":
        """Read what `save` wrote.

        Raises:
            ValueError: the file is not a saved stream bias.
            OSError: it cannot be read.
        """
        try:
            content = json.loads(Path(file).read_text())
            lines = [
                CounterLine(**line | {"follows": tuple(line["follows"]), "offset": tuple(line["offset"])})
                for line in content["lines"]
            ]
            return StreamBias(content["heads"], tuple(lines))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"expected the lines of a StreamBias as JSON in {file}, got: {error}") from error


def dealt(heads: int, lines: Iterable[CounterLine], most: int | None = None) -> StreamBias:
    """Lines of each kind of step dealt to the heads in turn, from the first line again where heads are left.

    A head then has one line per kind of step wherever there are at least as many heads as lines: nothing has to tell
    the tokens of several lines apart. The lines' own heads do not matter.

    Args:
        heads: number of heads.
        lines: of any kinds of steps.
        most: how many lines of a kind are dealt, the first ones; all by default.
    """
    by_step: dict[str, list[CounterLine]] = {}
    for line in lines:
        known = by_step.setdefault(line.step, [])
        if line._replace(head=0) not in known:
            known.append(line._replace(head=0))
    found = []
    for of_step in by_step.values():
        kept = of_step[:most]
        for number in range(max(heads, len(kept))):
            found.append(kept[number % len(kept)]._replace(head=number % heads))
    return StreamBias(heads, tuple(found))


def by_hand(stream: Stream, heads: int, offsets: dict[str, tuple[tuple[str, tuple[int, ...]], ...]]) -> Biases:
    """ABS in a stream: lines by hand, dealt to the heads.

    Args:
        stream: of any shape of the task.
        heads: number of heads.
        offsets: for each kind of step the segments that it looks at and their offsets; each coordinate follows the
            counter that it corresponds to in the task (`Segment.counters`).

    Source: paper, appendix C.4, for windows over one number; rows are this project's.
    """
    lines = [
        CounterLine(0, step, segment, stream.segment(segment).counters, offset)
        for step, seen in offsets.items()
        for segment, offset in seen
    ]
    return Biases((dealt(heads, lines),))
