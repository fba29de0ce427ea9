"""Three frames of the page on which models add, for the README: `python -m tests.frames` writes reports/try.png."""

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.lab import CHROMIUM

REPORTS, STEPS, MARGIN = Path(__file__).parents[1] / "reports", (2, 3, 4), 24


def frames(page):
    """The digits around each step, as pictures."""
    for step in STEPS:
        page.get_by_role("slider", name="Step").evaluate(
            f"(s) => {{ s.value = {step}; s.dispatchEvent(new Event('input')); }}"
        )
        yield Image.open(io.BytesIO(page.locator("#near").screenshot()))


def main():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 430, "height": 900}, device_scale_factor=2)
        page.goto((REPORTS / "html" / "try.html").as_uri())
        page.get_by_text("digits are right.").first.wait_for()
        taken = list(frames(page))
        browser.close()
    width = sum(frame.width for frame in taken) + MARGIN * (len(taken) - 1)
    together, at = Image.new("RGB", (width, taken[0].height), "white"), 0
    for frame in taken:
        together.paste(frame, (at, 0))
        at += frame.width + MARGIN
    together.quantize(32).save(REPORTS / "try.png", optimize=True)


if __name__ == "__main__":
    main()
