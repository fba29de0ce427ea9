"""HTML pages of executed documents: one file each, nothing loaded from elsewhere, formulas as MathML.

nbconvert would not do: its Markdown breaks tables whose formulas contain `|`.
"""

import base64
import os
import re
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import jinja2
import latex2mathml.converter
import mistune
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, TextLexer

from abcnb.show import figures

PANEL_MIME = "application/vnd.abcnb.panel+html"  # of a panel's fragment for a page without a kernel
_CODE_OR_FORMULA = re.compile(
    r"```.*?```|(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)|\\\$"
    r"|\$\$(?P<block>.+?)\$\$|\$(?P<inline>(?:[^$\\]|\\.)+?)\$",
    re.DOTALL,
)
# A minus after another operator, except a closing bracket, is a sign: no space around it.
_SIGN = re.compile(r"(<mo[^>]*>(?!&#x000(?:29|5D|7D|7C);)[^<]*</mo>)<mo>&#x02212;</mo>")
_DRAWN = re.compile(r"\bfigures\.(\w+)\(")

templates = jinja2.Environment(
    loader=jinja2.PackageLoader("abcnb.show"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)
templates.globals["panel"] = PANEL_MIME
templates.filters["without_terminal_colours"] = partial(re.compile(r"\x1b\[[0-9;]*m").sub, "")
templates.filters["without_pandas_style"] = partial(re.compile(r"(?s)<style scoped>.*?</style>").sub, "")


@dataclass(frozen=True)
class Site:
    """The pages of one folder, which link to each other."""

    folder: Path  # of the pages
    sources: Path  # folder of the documents that they are made from
    names: tuple[str, ...]  # of all documents, in reading order; `index` is the README
    ready: frozenset[str]  # names that have a page, now or after this build; only these are linked to


def mathml(formula: str, display: str = "inline") -> str:
    """A LaTeX formula as MathML, `inline` or `block`; ValueError if it cannot be converted."""
    try:
        text = latex2mathml.converter.convert(formula.strip(), display=display)
    except Exception as error:  # the library's errors have no common base class
        raise ValueError(f"expected a formula for MathML, got {formula!r}: {type(error).__name__}") from error
    if unknown := re.search(r"\\[A-Za-z]+", unescape(text)):
        raise ValueError(f"expected a formula for MathML, got {formula!r}: {unknown[0]} is not known")
    text = _SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', text)
    return text.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")  # ∞ is not an operator


def _formula(found: re.Match) -> str:
    """A formula found in Markdown as MathML, which Markdown leaves alone; code is returned unchanged."""
    if block := found["block"]:
        return f'<span class="formula">{mathml(block, "block")}</span>'
    return mathml(found["inline"]) if found["inline"] else found[0]


def _anchor(heading: str) -> str:
    """The anchor of a heading; Jupyter's own (hyphens for spaces, formulas as written) leads to the same one."""
    return re.sub(r"\W+", "-", unescape(heading).lower().replace("_", "")).strip("-") or "section"


def _coloured(code: str, lexer: PythonLexer | TextLexer) -> Markup:
    return Markup(highlight(code, lexer, HtmlFormatter(nowrap=True)))


class Markdown(mistune.HTMLRenderer):
    """Markdown to HTML; formulas become MathML first, so that Markdown does not interpret their `|` and `_`.

    Headings get anchors, code is coloured, and links between documents lead from page to page.
    """

    def __init__(self, site: Site):
        super().__init__(escape=False)
        self.site = site
        self.headings: list[dict] = []  # level, anchor (`id`), HTML and plain text of each so far
        self._convert = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough", "url"])

    def html(self, text: str) -> Markup:
        """The HTML of a Markdown text; ValueError if a formula cannot be converted."""
        return Markup(self._convert(_CODE_OR_FORMULA.sub(_formula, text)))

    def heading(self, text: str, level: int, **attributes) -> str:
        """A heading with a unique anchor."""
        plain = re.sub(r"<[^>]+>", "", text)
        id_ = _anchor(plain)
        while any(heading["id"] == id_ for heading in self.headings):
            id_ += "-1"
        self.headings.append({"level": level, "html": Markup(text), "text": plain, "id": id_})
        return f'<h{level} id="{id_}">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        """Coloured code."""
        lexer = PythonLexer() if info == "python" else TextLexer()
        return f'<pre class="code">{_coloured(code, lexer)}</pre>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link to a page, a file or a site; only its text if it leads to a document without a page."""
        path, hash_, anchor = url.partition("#")
        name = "index" if path.endswith("README.md") else Path(path).stem
        is_document = Path(path).suffix in (".ipynb", ".md") and name in self.site.names
        if is_document:
            if name not in self.site.ready:
                return text
            path = f"{name}.html"
        elif path and not re.match(r"[a-z]+:", url):
            path = os.path.relpath(self.site.sources / path, self.site.folder)
        if anchor and (not path or is_document):
            anchor = _anchor(unquote(anchor))
        return super().link(text, path + hash_ + anchor, title)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """A PNG, embedded."""
        data = base64.b64encode((self.site.sources / url).read_bytes()).decode("ascii")
        return super().image(text, f"data:image/png;base64,{data}", title)

    def table(self, text: str) -> str:
        """A table that scrolls if it is too wide."""
        return f'<div class="wide"><table>\n{text}</table></div>\n'


def _cell(cell: dict, markdown: Markdown) -> dict:
    """What the template shows of a cell: its HTML, or its code, outputs, number, and a description of its figure.

    The description is the first line of the drawing function's docstring, and the section.
    """
    if cell["cell_type"] == "markdown":
        return {"html": markdown.html(cell["source"])}
    what = [getattr(figures, name).__doc__.splitlines()[0] for name in _DRAWN.findall(cell["source"])[-1:]]
    what += [f"Section: {heading['text']}." for heading in markdown.headings[-1:]]
    code, described = _coloured(cell["source"], PythonLexer()), " ".join(what) or "Figure"
    return {"code": code, "outputs": cell["outputs"], "number": cell["execution_count"], "described": described}


def report_page(document: dict, name: str, site: Site, provenance: list[str]) -> str:
    """The page of an executed document; ValueError if a formula cannot be converted.

    Args:
        document: its cells and their outputs, as in the file `name`.
        provenance: what it was made with.
    """
    markdown = Markdown(site)
    first, *rest = document["cells"]
    title, _, text = first["source"].removeprefix("# ").partition("\n")
    introduction = markdown.html(text)
    cells = [_cell(cell, markdown) for cell in rest if cell["cell_type"] != "raw"]
    linked = [None, *(other if other in site.ready else None for other in site.names), None]
    place = site.names.index(name)
    return templates.get_template("report.html.j2").render(
        title=title, introduction=introduction, cells=cells,
        contents=[heading for heading in markdown.headings if heading["level"] in (2, 3)],
        provenance=provenance, previous=linked[place], next=linked[place + 2],
    )  # fmt: skip
