"""What was chosen by hand is shown as it is."""

from pathlib import Path

import pytest

from abcnb.study.configurations import methods_page, resolved
from abcnb.study.methods import METHODS, PRESETS, experiment, has
from abcnb.study.settings import with_settings
from abcnb.tasks import TASKS

REPOSITORY = Path(__file__).parents[1]


def settings_in(text):
    """The `key=value` lines that `--set` may take."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [
        line for line in lines if line.rpartition(".")[2].partition("=")[0] not in ("task", "method", "preset")
    ]


@pytest.mark.parametrize("method, preset", [(m, p) for m in METHODS for p in PRESETS if has("addition", m, p)])
def test_a_shown_configuration_can_be_set_again(method, preset):
    wanted = experiment("addition", method, preset, 3)
    settings = settings_in(resolved(wanted))
    assert len(settings) > 20
    assert with_settings(wanted, settings) == wanted
    other = with_settings(experiment("addition", method, preset, 4), settings)
    assert other == wanted, "the seed is a setting too"


def test_a_shown_configuration_names_run_and_method(cli):
    code, out, _ = cli("show", "parity", "abc-places", "--set", "training.steps=7")
    wanted = with_settings(experiment("parity", "abc-places"), ["training.steps=7"])
    assert code == 0 and out == resolved(wanted) + "\n"
    assert wanted.digest in out and METHODS["abc-places"].description in out and "training.steps=7\n" in out


def test_the_page_of_configurations_is_current():
    page = (REPOSITORY / "reports" / "methods.md").read_text()
    assert page == methods_page()
    assert all(f"`{method}`" in page for method in METHODS) and all(task in page for task in TASKS)
