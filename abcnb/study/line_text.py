"""A line of a stream as the text that settings have: `sums:products[row-1,place+1]`, without spaces."""

import re

from abcnb.counters import CounterLine
from abcnb.stream import Stream

FORM = re.compile(r"([^:]+):([^\[\]]+)(?:\[(.+)\])?")
COORDINATE = re.compile(r"(row|place)?([+-]?\d{1,9})?")


def text_of_line(line: CounterLine) -> str:
    """A line's kind of step and the line as it is printed; a space in a name is written as `-`."""
    return f"{line.step}:{line}".replace(", ", ",").replace(" ", "-")


def line_of_text(text: str, stream: Stream) -> CounterLine:
    """The line that a text names, of head 0.

    Args:
        text: as `text_of_line` writes it.
        stream: of any shape of the task.

    Raises:
        ValueError: a text of another form, or a kind of step, a segment or coordinates that the task does not have.
    """
    form = FORM.fullmatch(text)
    if not form:
        raise ValueError(f"expected a line such as sums:products[row-1,place+1], got {text!r}")
    step, name, inside = form.groups()
    kinds = {known.replace(" ", "-"): known for known in stream.kinds}
    segments = {known.name.replace(" ", "-"): known for known in stream.segments}
    for what, found, known in (("kind of step", step, kinds), ("segment", name, segments)):
        if found not in known:
            raise ValueError(f"expected a {what} among {', '.join(known)}, got {found!r} in {text!r}")
    parts = [COORDINATE.fullmatch(part) for part in inside.split(",")] if inside else []
    wanted = len(segments[name].shape)
    if None not in parts and len(parts) == wanted:
        follows, offset = tuple(part[1] or "none" for part in parts), tuple(int(part[2] or 0) for part in parts)
        line = CounterLine(0, kinds[step], segments[name].name, follows, offset)
        if text_of_line(line) == text:  # one text for each line: two would be two experiments
            return line
    told = f"{wanted} coordinates of {name}, such as row, place-1 or 2, without spaces or +0"
    raise ValueError(f"expected {told if wanted else f'{name} without coordinates'}, got {text!r}")
