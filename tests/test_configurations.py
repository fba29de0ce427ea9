"""What was chosen by hand is shown as it is."""

from pathlib import Path

import pytest

from abcnb.study.configurations import KIND, methods_page, resolved, told
from abcnb.study.methods import METHODS, experiment, has
from abcnb.study.settings import with_settings

REPOSITORY = Path(__file__).parents[1]


def settings_in(text):
    """The `key=value` lines that `--set` may take."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [
        line for line in lines if line.rpartition(".")[2].partition("=")[0] not in ("task", "method", "preset")
    ]


@pytest.mark.parametrize("method", [method for method in METHODS if has("addition", method)])
def test_a_shown_configuration_can_be_set_again(method):
    wanted = experiment("addition", method, seed=3)
    settings = settings_in(resolved(wanted))
    assert len(settings) > 20
    assert with_settings(wanted, settings) == wanted
    other = with_settings(experiment("addition", method, seed=4), settings)
    assert other == wanted, "the seed is a setting too"


def test_a_shown_configuration_names_run_and_method(cli):
    code, out, _ = cli("show", "parity", "abc", "--set", "training.steps=7")
    wanted = with_settings(experiment("parity", "abc"), ["training.steps=7"])
    assert code == 0 and out == resolved(wanted) + "\n"
    assert "# told: where operands and rows begin and end" in out
    assert wanted.digest in out and METHODS["abc"].description in out and "training.steps=7\n" in out


def test_the_lines_that_were_found_are_shown(cli, abc_run):
    options = ["--preset", "smoke", "--runs", abc_run.folder.parent]
    code, out, _ = cli("show", "successor", "abc", *options)
    table = str(abc_run.calibration())
    assert code == 0 and out.endswith(table + "\n") and "share" in table and "digits" in table
    assert table not in cli("show", "successor", "abc", *options, "--seed", "1")[1]


def test_what_is_told_goes_by_bias_positions_and_distance():
    place = "the place of every digit in its operand"
    assert told(experiment("addition", "rope")) == () and told(experiment("addition", "alibi-cross")) == ()
    assert told(with_settings(experiment("addition", "alibi-cross"), ["bias=alibi-places"])) == (place,)
    assert told(with_settings(experiment("addition", "t5"), ["model.cross_distance=places"])) == (place,)
    assert told(experiment("multiplication", "abc")) == (*told(experiment("addition", "abc")), KIND)


def test_the_page_of_configurations_is_current():
    page = (REPOSITORY / "reports" / "methods.md").read_text()
    assert page == methods_page()
    assert all(f"`{method}`" in page for method in METHODS)
