"""What all panels share: controls, a line for messages, tables and pictures, and HTML for use without a kernel."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

import ipywidgets as widgets
from matplotlib.colors import to_hex
from seaborn.utils import relative_luminance


def control(kind: type, description: str, **options) -> widgets.Widget:
    """A slider, choice or text field with its description beside it."""
    look = {"style": {"description_width": "10.5em"}, "layout": {"width": "32em"}}
    return kind(description=description, **look, **options)


def text_field(value: str) -> widgets.Text:
    """An input typed by the reader, taken on Enter or on leaving the field."""
    return control(widgets.Text, "input", value=value, continuous_update=False)


def picture() -> widgets.Image:
    """An image at the size it is drawn in, smaller if the panel is narrower."""
    shape = {"width": "auto", "height": "auto", "max_width": "100%", "align_self": "flex-start"}
    return widgets.Image(format="png", layout=shape)


def table(rows: Iterable[Sequence], head: Sequence[str] = ()) -> str:
    """An HTML table that scrolls when large; a cell is a text, or a pair of a text and its colour (or None).

    Without a head, the first cell of each row is the row's heading.
    """
    heads = "".join(_cell('th scope="col"', name, ";border-bottom:1px solid") for name in head)
    body = ""
    for row in rows:
        first, *others = row
        cells = [_cell("td" if head else 'th scope="row"', first), *(_cell("td", cell) for cell in others)]
        body += f"<tr>{''.join(cells)}</tr>"
    return (
        '<div style="max-height:340px;max-width:100%;overflow:auto;line-height:1.35;margin-bottom:0.5em">'
        '<table style="border-collapse:collapse;font-family:monospace">'
        f"{f'<thead><tr>{heads}</tr></thead>' if head else ''}<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, cell: object, style: str = "") -> str:
    text, colour = cell if isinstance(cell, tuple) else (cell, None)
    if colour is not None:
        ink = "white" if relative_luminance(colour) < 0.18 else "black"
        style = f";background:{to_hex(colour)};color:{ink}"
    style = f"padding:1px 6px;white-space:nowrap;text-align:left{style}"
    return f'<{tag} style="{style}">{escape(str(text))}</{tag[:2]}>'


class Panel(widgets.VBox):
    """Controls above, a line for messages below them, results at the bottom.

    A subclass implements `redraw`, and calls `__init__`, which draws for the first time, once all is in place.

    Args:
        controls: shown in this order; whenever one changes, the panel is redrawn.
        results: the widgets that show what is drawn; hidden if the controls ask for something impossible.
        described: one line on what the panel shows.
    """

    def __init__(self, controls: Sequence[widgets.Widget], results: Sequence[widgets.Widget], described: str):
        self.text, self.described = "", described  # what the reader is told, if anything, and what the panel shows
        self.message, self.results = widgets.HTML(), widgets.VBox(list(results))
        super().__init__([*controls, self.message, self.results])
        self.update()
        self.still = self.message.value  # how the panel started, as HTML
        for shown in () if self.text else results:
            if isinstance(shown, widgets.HTML):
                self.still += shown.value
            elif isinstance(shown, widgets.Image):
                data = base64.b64encode(shown.value).decode("ascii")
                self.still += f'<p><img alt="{escape(described)}" src="data:image/png;base64,{data}"></p>'
        for moved in controls:
            moved.observe(self.update, names="value")

    def redraw(self) -> None:
        """Draw what the controls ask for; raises ValueError, with a text for the reader, if it cannot be drawn."""
        raise NotImplementedError

    def update(self, _change=None) -> None:
        """Call `redraw`; if it raises ValueError, show the message and hide the earlier results."""
        try:
            self.redraw()
            self.text = ""
        except ValueError as error:
            self.text = str(error).partition("\n")[0]
        self.results.layout.display = "none" if self.text else None
        said = f'<span role="status" style="color:#8a3b00;font-weight:600">{escape(self.text)}</span>'
        self.message.value = said if self.text else ""

    def _repr_mimebundle_(self, **kwargs) -> dict:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return bundle | {"text/plain": self.described, "text/html": self.still}
