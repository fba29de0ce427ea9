"""What all panels share: a line for messages, pictures, tables, and a mime bundle that needs no kernel."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

import ipywidgets as widgets

from abcnb.show.panels.drawing import sentence, stacked, to_png

LABEL_WIDTH = "10.5em"
_WIDE = {"description_width": LABEL_WIDTH}


def slider(kind: type, description: str, **options) -> widgets.Widget:
    """A slider that redraws while it moves; a finer step or wider range comes with `options`."""
    return kind(description=description, continuous_update=True, style=_WIDE, layout={"width": "28em"}, **options)


def dropdown(description: str, options: Sequence, value) -> widgets.Dropdown:
    """A choice of one."""
    return widgets.Dropdown(
        description=description, options=options, value=value, style=_WIDE, layout={"width": "28em"}
    )


def text_field(description: str, value: str) -> widgets.Text:
    """A line typed by the reader, taken on Enter or on leaving the field."""
    return widgets.Text(
        description=description, value=value, continuous_update=False, style=_WIDE, layout={"width": "36em"}
    )


def picture() -> widgets.Image:
    """An image at the size it is drawn in, smaller where the panel is narrower."""
    shape = {"width": "auto", "height": "auto", "max_width": "100%", "align_self": "flex-start"}
    return widgets.Image(format="png", layout=shape)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], words: int = 0) -> str:
    """An HTML table that scrolls when long; the first `words` columns are aligned left."""
    align = ["left" if i < words else "right" for i in range(len(header))]
    style = "padding:1px 7px;white-space:nowrap;text-align:"
    heads = "".join(
        f'<th scope="col" style="{style}{a};border-bottom:1px solid">{escape(name)}</th>'
        for name, a in zip(header, align, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{style}{a}">{escape(str(v))}</td>' for v, a in zip(row, align, strict=True))
        + "</tr>"
        for row in rows
    )
    whole = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return (
        '<div style="max-height:340px;max-width:100%;overflow:auto;display:inline-block;line-height:1.35">'
        f'<table style="border-collapse:collapse">{whole}</table></div>'
    )


class Panel(widgets.VBox):
    """Controls above, a line for messages below them, results at the bottom.

    A subclass implements `redraw`, and calls `start` when all is in place.

    Attributes:
        text: what the reader is told; empty where nothing has to be said.
        described: one line on what the panel shows.
        message: the widget that shows the text.
        results: the box of what is drawn; hidden where the controls ask for something that cannot be.
        still: the figures of how the panel started, as one PNG.
    """

    def __init__(self, controls: Sequence[widgets.Widget], results: Sequence[widgets.Widget], described: str):
        self.text, self.described, self.still = "", described, b""
        self.message = widgets.HTML()
        self.results = widgets.VBox(list(results))
        super().__init__([*controls, self.message, self.results])

    def start(self, controls: Iterable[widgets.Widget], pictures: Sequence[widgets.Image]) -> None:
        """Draw for the first time, keep that picture, and from now on redraw whenever a control moves."""
        self.update()
        drawn = [picture.value for picture in pictures if picture.value]
        self.still = stacked(drawn) if drawn else to_png(sentence(self.text))
        for control in controls:
            control.observe(self.update, names="value")

    def redraw(self) -> str:
        """Draw what the controls ask for.

        Returns:
            A line for the reader, or nothing.

        Raises:
            ValueError: they ask for something that cannot be drawn; its text is for the reader.
        """
        raise TypeError(f"the panel {type(self).__name__!r} does not define redraw()")

    def update(self, _change=None) -> None:
        """`redraw`; what cannot be drawn becomes a message, and the results of before are hidden."""
        try:
            self.say(self.redraw())
            self.results.layout.display = None
        except ValueError as error:
            self.say((str(error).splitlines() or ["this cannot be drawn"])[0])
            self.results.layout.display = "none"

    def say(self, text: str) -> None:
        """Show one line; an empty one takes it away."""
        self.text = text
        style = "color:#8a3b00;font-weight:600"
        self.message.value = f'<span role="status" style="{style}">{escape(text)}</span>' if text else ""

    def _repr_mimebundle_(self, **kwargs) -> dict:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return bundle | {"text/plain": self.described, "image/png": base64.b64encode(self.still).decode("ascii")}
