"""What a person sees: the calibration panel in JupyterLab, and on a report's page without a network."""

import pytest

from abcnb.model.decoding import write_outputs
from abcnb.show import cleaning, reports, try_page
from abcnb.study.runs import load_run
from abcnb.tasks.tokens import decode
from tests.conftest import copied
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
def runs(tmp_path_factory, addition_run):
    """The runs that the small notebook shows, so that its kernels need not train them."""
    return copied(addition_run, tmp_path_factory.mktemp("panel") / "runs").folder.parent


@pytest.fixture(scope="module")
def lab(tmp_path_factory, runs):
    """The address of JupyterLab on the small notebook."""
    with serve(tmp_path_factory.mktemp("lab"), panel_notebook("smoke", runs)) as (address, _):
        yield address


@pytest.fixture(scope="module")
def report(tmp_path_factory, runs):
    """The page of the small notebook."""
    folder = tmp_path_factory.mktemp("report")
    cleaning.write(panel_notebook(), folder / "notebooks" / "05_panel.ipynb")
    execution = reports.Execution("smoke", runs, folder / "reports", "cpu")
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


# --- the page on which models add


@pytest.fixture(scope="module")
def adding(tmp_path_factory, repository):
    """The page with the committed models."""
    file = tmp_path_factory.mktemp("try") / "try.html"
    file.write_text(try_page.try_page(repository / "reports"), encoding="utf-8")
    return file


def wait_until(page, fits):
    """Asks again and again: the page's own policy forbids what `wait_for_function` would do there."""
    for _ in range(100):
        if fits():
            return
        page.wait_for_timeout(100)
    pytest.fail("what was waited for did not come")


def opened(open_page, adding, **size):
    page, complaints = open_page(offline=True, **size)
    page.goto(adding.as_uri())
    wait_until(page, lambda: page.locator("#failed").inner_text())
    return page, complaints


def added(page, a, b):
    page.locator("#a").fill(a)
    page.locator("#b").fill(b)
    page.get_by_role("button", name="Add").click()
    done = "([a, b]) => state.a === a && state.b === b && state.steps.plain.length > state.width"
    wait_until(page, lambda: page.evaluate(done, [a, b]))
    return page.locator("#right").inner_text(), page.locator("#failed").inner_text()


OUTPUTS = """([name, pairs]) => pairs.map(([a, b]) => [...models[name].write(sourceOf(a, b), widthOf(a, b))]
    .map((step) => DATA.characters[step.token]).join(""))"""


@pytest.mark.parametrize("name, lengths", [("lined", (3, 6, 12, 24)), ("plain", (3, 6, 7, 9))])
def test_the_page_writes_what_the_models_write(open_page, adding, repository, name, lengths):
    """200 sums or more for each model, hard cases among them, to the last token."""
    page, complaints = opened(open_page, adding)
    run = load_run(repository / "reports" / "models" / getattr(try_page, name.upper()))
    task, model, compared = run.experiment.get_task(), run.model(), 0
    for length in lengths:
        for test_set in ("random", "hard"):
            for operands in task.cases(test_set, length, 30).values():
                batch = task.batch(task.widened(operands, run.experiment.train_width))
                texts = ["".join(map(str, number)) for a in operands for number in a.flip(1).tolist()]
                pairs = [[text.lstrip("0") or "0" for text in pair] for pair in zip(*_halves(texts), strict=True)]
                found = page.evaluate(OUTPUTS, [name, pairs])
                for mine, theirs, (a, b) in zip(found, write_outputs(model, batch), pairs, strict=True):
                    compared += 1
                    assert mine == decode(theirs)[: len(mine)], (a, b)
    assert compared >= 200 and complaints == []


def _halves(texts):
    return texts[: len(texts) // 2], texts[len(texts) // 2 :]


def test_a_long_sum_is_right_and_the_plain_model_is_not(open_page, adding):
    page, complaints = opened(open_page, adding)
    right, failed = added(page, "9" * 200, "1")
    assert right == "All 201 digits are right." and "digits are wrong, the first at place" in failed
    assert added(page, "999999", "1") == ("All 7 digits are right.",) * 2
    page.locator("#a").fill("12x")
    page.get_by_role("button", name="Add").click()
    assert "expected digits, got “12x”" in page.locator("#told").inner_text()
    assert complaints == []


def test_a_line_that_is_taken_away_is_missed(open_page, adding):
    page, _ = opened(open_page, adding)
    chip = page.get_by_role("button", name="b[place] ")
    chip.click()
    wait_until(page, lambda: "wrong" in page.locator("#right").inner_text())
    assert chip.get_attribute("aria-pressed") == "false"
    chip.press("Enter")
    wait_until(page, lambda: page.locator("#right").inner_text().startswith("All "))
    page.locator("#tau").evaluate("(tau) => { tau.value = 0.8; tau.dispatchEvent(new Event('change')); }")
    wait_until(page, lambda: "wrong" in page.locator("#right").inner_text())
    assert page.locator("#share").inner_text().startswith("0.80: ")


def test_the_step_moves_by_keyboard_and_by_itself_and_a_phone_shows_it(open_page, adding):
    page, complaints = opened(open_page, adding, width=400, height=800)
    step = page.get_by_role("slider", name="Step")
    step.focus()
    change_after(page, lambda: [page.locator("#at").inner_text()], lambda: page.keyboard.press("ArrowRight"))
    play = page.get_by_role("button", name="Play")
    change_after(page, lambda: [page.locator("#at").inner_text()], play.click)
    page.get_by_role("button", name="Pause").click()
    assert page.locator("#near td.now").first.is_visible() and page.locator("#near td.seen").count() >= 2
    assert page.evaluate("document.documentElement.scrollWidth") == 400 and complaints == []


def test_the_page_is_small_and_loads_nothing(adding):
    text = adding.read_text(encoding="utf-8")
    assert len(text.encode()) <= 3_000_000 and "default-src 'none'" in text
    assert "http://" not in text and "https://" not in text
