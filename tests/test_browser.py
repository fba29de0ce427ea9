"""What a person sees: the calibration panel in JupyterLab, and on a report's page without a network."""

import pytest

from abcnb.show import cleaning, reports
from tests.lab import CHROMIUM, panel_notebook, serve, start_panel

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """A page of a given size, in a context of its own, and what it complained of."""
    contexts = []

    def open_(width=1300, height=1000, offline=False):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        contexts[-1].set_offline(offline)
        page, complaints = contexts[-1].new_page(), []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page, complaints

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of JupyterLab on the small notebook."""
    with serve(tmp_path_factory.mktemp("lab")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of the small notebook."""
    folder = tmp_path_factory.mktemp("report")
    cleaning.write(panel_notebook(), folder / "notebooks" / "05_panel.ipynb")
    execution = reports.Execution("smoke", folder / "runs", folder / "reports", "cpu")
    assert reports.write_reports(execution, [], folder=folder / "notebooks") == []
    return execution.pages() / "05_panel.html"


def change_after(page, read, act, enough=any):
    """Act, wait until any part (or all) of what `read` tells has changed, and return both."""
    before = read()
    act()
    for _ in range(100):
        after = read()
        if enough(new != old for new, old in zip(after, before, strict=True)):
            return before, after
        page.wait_for_timeout(100)
    pytest.fail(f"what was expected to change did not: from {before!r} to {after!r}")


def test_the_panel_answers_in_jupyterlab(lab, open_page):
    page, _ = open_page(height=1400)
    start_panel(page, lab)
    slider, map_ = page.get_by_role("slider").first, page.locator(".jp-OutputArea-output img.widget-image").first
    table = page.locator(".jp-OutputArea-output table").first

    def shown():
        return map_.get_attribute("src"), table.inner_text()

    slider.focus()
    change_after(page, shown, lambda: [page.keyboard.press("ArrowRight") for _ in range(3)])
    page.get_by_role("button", name="Retrain with these lines").click()
    page.get_by_text("Done: the curve is in the figure.").wait_for(timeout=60_000)


def test_the_panel_answers_on_the_page_without_a_network(report, open_page):
    page, complaints = open_page(offline=True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    panel = page.locator(".panel")
    picture, said = panel.locator("img"), panel.locator("p[role=status]")

    def shown():
        return picture.get_attribute("src"), said.inner_text()

    for name in ("τ (the rule)", "κ (Algorithm 1)"):
        panel.get_by_label(name).focus()
        change_after(page, shown, lambda: page.keyboard.press("ArrowRight"))
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_code_opens_and_formulas_are_drawn(report, open_page):
    page, complaints = open_page(offline=True)
    page.goto(report.as_uri())
    code = page.locator("details.source pre").last
    assert not code.is_visible()
    page.get_by_role("button", name="Show all code").click()
    assert code.is_visible() and "calibration_panel" in code.inner_text()
    page.get_by_role("button", name="Hide all code").click()
    assert not code.is_visible()
    fraction = page.locator("math munder, math msub").first.bounding_box()
    assert fraction["width"] > 5 and fraction["height"] > 5
    assert complaints == []


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_no_page_is_wider_than_its_window(report, open_page, width):
    page, _ = open_page(width=width)
    for file in (report, report.with_name("index.html")):
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, file.name


def test_contents_are_open_beside_the_text_and_folded_above_it(report, open_page):
    for width, open_ in ((1400, True), (500, False)):
        page, _ = open_page(width=width)
        page.goto(report.as_uri())
        assert page.get_by_role("link", name="The panel").is_visible() == open_
