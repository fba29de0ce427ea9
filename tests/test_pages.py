import base64
import re
from dataclasses import replace

import pytest

from abcnb.show import figures, pages
from abcnb.show.pages import Markdown, Site, mathml

PIXEL = base64.b64encode(b"not really an image").decode()
NAMES = ("04_abs", "05_abc", "06_rpe_lora")


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "reports" / "html", tmp_path / "documents", NAMES, frozenset(NAMES))


def markdown(text):
    return {"cell_type": "markdown", "source": text, "metadata": {}}


def code(source, *outputs, count=1):
    kept = {"cell_type": "code", "source": source, "metadata": {}}
    return kept | {"outputs": list(outputs), "execution_count": count}


def shown(**data):
    data = {mime.replace("__", "/"): content for mime, content in data.items()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def page(site, *cells, name="05_abc", provenance=()):
    document = {"cells": [markdown("# 5 · ABC\n\n**Question.** Does $x^2$ hold?\n\nText."), *cells]}
    return pages.report_page(document, name, site, list(provenance))


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"d_l > \kappa\sigma + \mu", "<msub><mi>d</mi><mi>l</mi></msub>"),
        (r"\bar{\mathbf{A}} = \frac{1}{|\mathbb{S}|} \sum_{k} \mathbf{A}^k", "<mfrac>"),
        (r"B_{ij} \in \{0, -\infty\}", '<mo form="prefix">&#x02212;</mo><mi>&#x0221E;</mi>'),
        (r"(u) - i", "</mo><mo>&#x02212;</mo><mi>i</mi>"),
        (r"\begin{cases} 0 & i = j \\ -\infty & i \neq j \end{cases}", "<mtable>"),
        (r"\mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d}} + B\right)", "<msqrt>"),
    ],
)
def test_formulas_become_mathml(formula, expected):
    assert mathml(formula).startswith("<math ") and expected in mathml(formula)
    assert 'display="block"' in mathml(formula, "block")


@pytest.mark.parametrize("formula, reason", [(r"\foo{x}", r"\\foo is not known"), (r"\left( x", "")])
def test_a_formula_that_cannot_be_converted_is_refused_by_name(formula, reason):
    with pytest.raises(ValueError, match=re.escape(repr(formula)) + ".*" + reason):
        mathml(formula)


def test_formulas_stay_whole_in_tables_and_beside_emphasis(site):
    text = "| a | b |\n|---|---|\n| $-m\\,|i-j|$ | *x* $a_1 * b_1$ _y_ |"
    written = Markdown(site).html(text)
    assert written.count("<td>") == 2 and written.count("<math ") == 2
    assert "<em>x</em>" in written and "<em>y</em>" in written


def test_dollars_in_code_are_no_formulas(site):
    written = Markdown(site).html("`$` starts, `&` ends; cost: \\$5\n\n```\n$x$\n```\n")
    assert "<math" not in written and "<code>$</code>" in written and "$x$" in written


def test_display_formulas_scroll_on_their_own(site):
    assert '<span class="formula"><math ' in Markdown(site).html("Text\n\n$$\\sum_k A^k$$\n")


def test_headings_have_anchors_of_their_own(site):
    converter = Markdown(site)
    written = converter.html("## Step 1: lines\n\n## Step 1: lines\n\n### What $w$ & `T` do")
    assert [h["id"] for h in converter.headings] == ["step-1-lines", "step-1-lines-1", "what-w-t-do"]
    assert all(f'id="{heading["id"]}"' in written for heading in converter.headings)
    assert "<mi>w</mi>" in converter.headings[-1]["html"], "in the contents too"


def test_links_lead_to_pages_to_files_and_to_sites(site):
    written = Markdown(site).html(
        "[a](04_abs.ipynb) [b](06_rpe_lora.ipynb#x) [c](../README.md) [d](https://e.org/) [e](#f)"
    )
    hrefs = re.findall(r'href="([^"]+)"', written)
    assert hrefs == ["04_abs.html", "06_rpe_lora.html#x", "../../README.md", "https://e.org/", "#f"]


def test_anchors_as_jupyter_writes_them_lead_to_the_heading(site):
    written = Markdown(site).html(
        "## Lines or more, then?\n\n## Updates of $W_Q$\n\n"
        "[a](#Lines-or-more,-then?) [b](#Updates-of-%24W_Q%24) [c](04_abs.ipynb#Why-%24w%24?)"
    )
    hrefs = re.findall(r'href="([^"]+)"', written)
    assert [href.removeprefix("#") for href in hrefs[:2]] == re.findall(r'id="([^"]+)"', written)
    assert hrefs[2] == "04_abs.html#why-w"


def test_a_document_without_a_page_is_not_linked_to(site):
    alone = Site(site.folder, site.sources, NAMES, frozenset({"05_abc"}))
    assert Markdown(alone).html("[four](04_abs.ipynb)") == "<p>four</p>\n"
    written = page(alone)
    assert "04_abs" not in written and "06_rpe_lora" not in written


def test_a_page_has_title_contents_neighbours_and_provenance(site):
    written = page(site, markdown("## Lines & more"), provenance=["torch 2.13.0", "task = addition"])
    assert "<title>5 · ABC</title>" in written and written.count("<h1") == 1
    assert '<a href="#lines-more">Lines &amp; more</a>' in written
    assert 'rel="prev" href="04_abs.html"' in written and 'rel="next" href="06_rpe_lora.html"' in written
    assert "torch 2.13.0 · task = addition</p>" in written
    assert 'name="viewport"' in written and '<html lang="en">' in written


def test_code_is_folded_escaped_and_coloured(site):
    written = page(site, code('x = "<b>" if a < b else None', count=3))
    assert re.search(r'<details class="source"><summary>Code \[3\]</summary>\s*<pre class="code">', written)
    assert "&lt;b&gt;" in written and '<span class="k">if</span>' in written
    assert 'id="all-code"' in written


def test_images_are_embedded_and_described_by_the_function_that_drew_them(site):
    drawn = code("figures.attention_maps(x);", shown(image__png=PIXEL, text__plain="<Figure>"))
    written = page(site, markdown("## Step 1"), drawn)
    first_line = figures.attention_maps.__doc__.splitlines()[0]
    assert f'<img alt="{first_line} Section: Step 1." src="data:image/png;base64,{PIXEL}">' in written
    assert "&lt;Figure&gt;" not in written


def test_a_panel_takes_the_place_of_its_image_and_a_widget_view_is_dropped(site):
    fragment = '<div id="p1"><script>1 < 2;</script></div>'
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "abc"}, "text/plain": "VBox()"}
    both = shown(**view | {"image/png": PIXEL, pages.PANEL_MIME: fragment})
    written = page(site, code("panel", both))
    assert f'<div class="panel">{fragment}</div>' in written
    assert PIXEL not in written and "model_id" not in written and "VBox" not in written
    del both["data"][pages.PANEL_MIME]
    assert f'<img alt="VBox()" src="data:image/png;base64,{PIXEL}">' in page(site, code("panel", both))


def test_tables_scroll_and_lose_the_style_of_pandas(site):
    table = '<div>\n<style scoped>\n.dataframe {}\n</style>\n<table border="1" class="dataframe"></table></div>'
    written = page(site, code("frame", shown(text__html=table, text__plain="a b")))
    assert '<div class="wide"><div>\n\n<table border="1" class="dataframe">' in written


def test_text_loses_its_terminal_colours(site):
    stream = {"output_type": "stream", "name": "stdout", "text": "\x1b[31mred\x1b[0m <ok>"}
    assert '<pre class="text">red &lt;ok&gt;</pre>' in page(site, code("f()", stream))


def test_nothing_is_loaded_and_links_are_the_only_addresses(site):
    written = page(site, markdown("$x$ [d](https://e.org/)"), code("x", shown(image__png=PIXEL)))
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", written):
        assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag), tag
    assert "@import" not in written and "url(" not in written
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';" in written


def test_the_page_before_all_others_embeds_images_and_leads_to_them(site):
    site.sources.mkdir()
    (site.sources / "hero.png").write_bytes(base64.b64decode(PIXEL))
    text = "# Title\n\n![lines](hero.png)\n\n[4](notebooks/04_abs.ipynb) [own](../reports/html/05_abc.html)"
    first = replace(site, names=("index", *NAMES))
    written = pages.report_page({"cells": [markdown(text)]}, "index", first, ["torch 2.13.0"])
    assert (
        f'<img src="data:image/png;base64,{PIXEL}" alt="lines" />' in written and "<title>Title</title>" in written
    )
    assert '<a href="04_abs.html">4</a> <a href="05_abc.html">own</a>' in written and "torch 2.13.0" in written
    assert 'rel="next" href="04_abs.html"' in written and 'rel="prev"' not in written
    assert '<button type="button" id="all-code"' not in written
