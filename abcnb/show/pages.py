"""HTML pages of executed documents: one file each, nothing loaded from anywhere, formulas as MathML.

nbconvert was tried and left: its Markdown breaks tables whose formulas contain `|`, so Markdown, anchors, links and
alternative texts would remain here, and it would replace `_output` and `_cells` alone.
"""

import base64
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import jinja2
import latex2mathml.converter
import mistune
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, TextLexer, get_lexer_by_name
from pygments.util import ClassNotFound

from abcnb.show import figures
from abcnb.show.panels.calibration import PANEL_MIME

LARGEST = 3_000_000  # bytes of a page

# How many arguments an element of MathML takes; browsers draw nothing sensible with fewer.
_ARGUMENTS = {"mfrac": 2, "msub": 2, "msup": 2, "mover": 2, "munder": 2, "mroot": 2, "msubsup": 3, "munderover": 3}
_CODE_OR_FORMULA = re.compile(
    r"```.*?```|(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)|\\\$"
    r"|\$\$(?P<block>.+?)\$\$|\$(?P<inline>(?:[^$\\]|\\.)+?)\$",
    re.DOTALL,
)
# A minus behind another operator, but for a closing bracket, is a sign: no space around it.
_SIGN = re.compile(r"(<mo[^>]*>(?!&#x000(?:29|5D|7D|7C);)[^<]*</mo>)<mo>&#x02212;</mo>")
_SHOWN = (PANEL_MIME, "text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")
_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc\s*=\s*[\"']?(?!data:)([^\"'\s>]+)", re.IGNORECASE)
_LINKED = re.compile(r"<link\b[^>]*\bhref\s*=\s*[\"']?(?!data:)([^\"'\s>]+)", re.IGNORECASE)
_HIGHLIGHTED = HtmlFormatter(nowrap=True)

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("abcnb.show"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)


@dataclass(frozen=True)
class Site:
    """The pages of one folder, which link to each other.

    Attributes:
        folder: of the pages.
        sources: folder of the documents that they are made from.
        names: of all documents, in reading order.
        ready: names that have a page, now or after this build; only these are linked to.
    """

    folder: Path
    sources: Path
    names: tuple[str, ...]
    ready: frozenset[str]


def mathml(formula: str, display: str = "inline") -> str:
    """A LaTeX formula as MathML, `inline` or `block`.

    Raises:
        ValueError: the formula cannot be converted.
    """
    try:
        text = latex2mathml.converter.convert(formula.strip(), display=display)
        elements = list(ElementTree.fromstring(text).iter())
    except Exception as error:  # the library's errors have no base of their own
        raise ValueError(f"expected a formula for MathML, got {formula!r}: {type(error).__name__}") from error
    for element in elements:
        tag = element.tag.rpartition("}")[2]
        unknown = re.search(r"\\[A-Za-z]+", element.text or "")
        if unknown:
            raise ValueError(f"expected a formula for MathML, got {formula!r}: {unknown[0]} is not known")
        if len(element) != _ARGUMENTS.get(tag, len(element)):
            raise ValueError(f"expected a formula for MathML, got {formula!r}: an argument is missing ({tag})")
    text = _SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', text)
    return text.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")  # ∞ is no operator


def _anchor(heading: str) -> str:
    """The anchor of a heading; Jupyter's own anchor of it (hyphens for spaces) gives the same."""
    return re.sub(r"[^\w]+", "-", unescape(heading).lower()).strip("-") or "section"


class _Renderer(mistune.HTMLRenderer):
    """Headings with anchors, code in colours, links between documents turned into links between pages."""

    def __init__(self, site: Site):
        super().__init__(escape=False)
        self.site = site
        self.headings: list[dict] = []
        self.formulas: list[tuple[str, str]] = []  # as written, and as HTML

    def set_aside(self, found: re.Match) -> str:
        """Replace a formula by a mark, and remember it."""
        if found["block"] is None and found["inline"] is None:
            return found[0]
        display = "inline" if found["block"] is None else "block"
        written = found["block"] or found["inline"]
        formula = mathml(written, display)
        self.formulas.append(
            (written, f'<span class="formula">{formula}</span>' if display == "block" else formula)
        )
        return f"\ue000{len(self.formulas) - 1}\ue001"

    def put_back(self, text: str, part: int = 1) -> str:
        """Replace marks by their formulas, as HTML (1) or as written (0)."""
        return re.sub("\ue000(\\d+)\ue001", lambda mark: self.formulas[int(mark[1])][part], text)

    def heading(self, text: str, level: int, **attributes) -> str:
        plain = self.put_back(re.sub(r"<[^>]+>", "", text), 0)
        anchor = _anchor(plain)
        taken = sum(h["base"] == anchor for h in self.headings)
        id_ = f"{anchor}-{taken}" if taken else anchor
        html = Markup(self.put_back(text))
        self.headings.append({"level": level, "html": html, "text": plain, "base": anchor, "id": id_})
        return f'<h{level} id="{id_}">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        try:
            lexer = get_lexer_by_name(info.split()[0]) if info and info.split() else TextLexer()
        except ClassNotFound:
            lexer = TextLexer()
        return f'<pre class="code">{highlight(code, lexer, _HIGHLIGHTED)}</pre>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        path, hash_, anchor = url.partition("#")
        name = path.removesuffix(".ipynb")
        if anchor and (not path or name in self.site.names):
            anchor = _anchor(unquote(anchor))
            url = f"#{anchor}"
        if name in self.site.names:
            if name not in self.site.ready:
                return text
            url = f"{name}.html{hash_}{anchor}"
        elif path and not re.match(r"[a-z]+:", url):
            url = os.path.relpath(self.site.sources / path, self.site.folder) + hash_ + anchor
        return super().link(text, url, title)

    def table(self, text: str) -> str:
        return f'<div class="wide"><table>\n{text}</table></div>\n'


class Markdown:
    """Markdown to HTML; formulas are set aside first, so that `|` and `_` in them mean nothing else."""

    def __init__(self, site: Site):
        """Make a converter that collects the headings it meets."""
        self._renderer = _Renderer(site)
        self._convert = mistune.create_markdown(renderer=self._renderer, plugins=["table", "strikethrough", "url"])

    @property
    def headings(self) -> list[dict]:
        """Level, anchor (`id`), HTML and plain text of the headings so far."""
        return self._renderer.headings

    def __call__(self, text: str) -> Markup:
        """The HTML of a Markdown text.

        Raises:
            ValueError: a formula cannot be converted.
        """
        marked = _CODE_OR_FORMULA.sub(self._renderer.set_aside, text)
        return Markup(self._renderer.put_back(self._convert(marked)))


def question(document: dict) -> tuple[str, str]:
    """Title and question of a document, as Markdown: its first line and what follows **Question.**"""
    text = document["cells"][0]["source"] if document["cells"] else ""
    title = re.match(r"#\s+(.+)", text)
    asked = re.search(r"\*\*Question\.?\*\*\s*(.+?)\s*(?:\n\s*\n|$)", text, re.DOTALL)
    return title[1].strip() if title else "", asked[1] if asked else ""


def _alternative_text(code: str, headings: Sequence[dict]) -> str:
    """What a figure shows: the first line of the docstring of the function that drew it, and its section."""
    drawn = [name for name in re.findall(r"\bfigures\.(\w+)\(", code) if hasattr(figures, name)]
    what = (getattr(figures, drawn[-1]).__doc__ or "").splitlines()[:1] if drawn else []
    where = [f"Section: {headings[-1]['text']}."] if headings else []
    return " ".join([*what, *where]) or "Figure"


def _text_block(text: str, kind: str) -> Markup:
    return Markup(f'<pre class="{kind}">{escape(_TERMINAL_COLOUR.sub("", text))}</pre>')


def _output(output: dict, markdown: Markdown, alternative_text: str) -> Markup:
    """An output of a cell in the richest form that a page can show without a kernel."""
    if output["output_type"] == "stream":
        return _text_block(output["text"], "text")
    if output["output_type"] == "error":
        return _text_block(f"{output['ename']}: {output['evalue']}", "error")
    data = output["data"]
    mime = next((mime for mime in _SHOWN if mime in data), None)
    plain = data.get("text/plain", "")
    described = alternative_text if plain.startswith("<") or not plain else plain  # <Figure size …> tells nothing
    if mime == PANEL_MIME:
        return Markup(f'<div class="panel">{data[mime]}</div>')
    if mime == "text/html":
        return Markup(f'<div class="wide">{re.sub(r"(?s)<style scoped>.*?</style>", "", data[mime])}</div>')
    if mime == "image/svg+xml":
        return Markup(f'<div class="wide" role="img" aria-label="{escape(described)}">{data[mime]}</div>')
    if mime == "image/png":
        source = "".join(data[mime].split())
        return Markup(f'<img alt="{escape(described)}" src="data:image/png;base64,{source}">')
    if mime == "text/markdown":
        return markdown(data[mime])
    return _text_block(plain, "text")


def _cells(document: dict, markdown: Markdown) -> list[dict]:
    cells = []
    for cell in document["cells"]:
        if cell["cell_type"] == "markdown":
            cells.append({"html": markdown(cell["source"])})
        elif cell["cell_type"] == "code":
            described = _alternative_text(cell["source"], markdown.headings)
            outputs = [_output(output, markdown, described) for output in cell["outputs"]]
            code = Markup(highlight(cell["source"], PythonLexer(), _HIGHLIGHTED))
            cells.append({"code": code, "outputs": outputs, "number": cell.get("execution_count")})
    return cells


def _checked(text: str, name: str) -> str:
    """The page, if none of its usual tags loads anything; the page's policy has the browser refuse the rest."""
    loaded = _LOADED.findall(text) + _LINKED.findall(text)
    if loaded:
        raise ValueError(f"expected a page {name} that loads nothing, but it asks for {loaded[0][:100]}")
    return text


def report_page(
    document: dict, name: str, site: Site, parameters: list[dict], provenance: list[tuple[str, str]]
) -> str:
    """The page of an executed document.

    Args:
        document: its cells and their outputs, as in the file.
        name: of its file, without ending.
        site: what it may link to.
        parameters: name, value and help of each.
        provenance: what it was run with, as pairs of name and value.

    Raises:
        ValueError: a formula cannot be converted, or an output would load something from elsewhere.
    """
    markdown = Markdown(site)
    title, _ = question(document)
    first, *rest = document["cells"]
    introduction = markdown(re.sub(r"^#\s+.+\n?", "", first["source"], count=1))
    cells = _cells(document | {"cells": rest}, markdown)
    place = site.names.index(name)
    neighbours = {"previous": site.names[place - 1] if place else None, "next": [*site.names, None][place + 1]}
    text = _templates.get_template("report.html.j2").render(
        title=title or name,
        introduction=introduction,
        cells=cells,
        contents=[heading for heading in markdown.headings if heading["level"] in (2, 3)],
        parameters=parameters,
        provenance=provenance,
        **{side: other if other in site.ready else None for side, other in neighbours.items()},
    )
    return _checked(text, name)


def index_page(
    documents: dict[str, dict], site: Site, results: str, provenance: list[tuple[str, str]], figure: bytes = b""
) -> str:
    """The page that lists the others.

    Args:
        documents: all of them by name.
        site: only its ready documents are linked to.
        results: the headline table, as Markdown.
        provenance: what it was made with, as pairs of name and value.
        figure: a PNG above everything else; empty for none.

    Raises:
        ValueError: a formula cannot be converted.
    """
    markdown = Markdown(site)
    entries = []
    for name, document in documents.items():
        title, asked = question(document)
        entries.append({"name": name, "title": title or name, "question": markdown(asked)})
        entries[-1]["ready"] = name in site.ready
    text = _templates.get_template("index.html.j2").render(
        title="Six digits in training, sixty in the test",
        entries=entries,
        results=markdown(results),
        provenance=provenance,
        figure=base64.b64encode(figure).decode("ascii"),
    )
    return _checked(text, "index")
