"""Parameters of notebooks, as papermill passes them."""

import pytest

from abcnb.study.parameters import checked, name_list, seed_list

DECLARED = {"task": str, "text": str, "samples": int, "kappa": float, "live": bool, "seeds": list, "device": str}
DEFAULTS = {
    "task": "addition",
    "text": "",
    "samples": 1000,
    "kappa": 0.5,
    "live": True,
    "seeds": [0],
    "device": "cpu",
}


def given(cell="", declared=DECLARED, **values):
    """A notebook's variables after papermill's cell."""
    parameters = "\n".join(f"{name}: {kind.__name__} = None  # default" for name, kind in declared.items())
    namespace = DEFAULTS | {"In": ["", "%matplotlib inline", parameters, cell, "other: int = 3"]} | values
    return {name: value for name, value in namespace.items() if name in declared or name == "In"}


def test_what_is_right_stays():
    assert checked(given()) == DEFAULTS


@pytest.mark.parametrize(
    "name, value, found",
    [
        ("text", 199, "199"),
        ("text", "199", "199"),
        ("samples", "200", 200),
        ("samples", 200.0, 200),
        ("kappa", 1, 1.0),
        ("kappa", "0.25", 0.25),
        ("live", "False", False),
        ("live", "true", True),
        ("seeds", "0,1", "0,1"),
    ],
)
def test_numbers_and_text_are_both_taken(name, value, found):
    result = checked(given(**{name: value}))[name]
    assert result == found and type(result) is type(found)


@pytest.mark.parametrize(
    "name, value, told",
    [
        ("samples", 0, "expected samples of at least 1, got 0"),
        ("samples", -1, "expected samples of at least 1, got -1"),
        ("samples", "many", "expected samples as int, got 'many'"),
        ("samples", 2.5, "expected samples as int, got 2.5"),
        ("samples", True, "expected samples as int, got True"),
        ("samples", None, "expected samples as int, got None"),
        ("samples", float("inf"), "expected samples as int, got inf"),
        ("kappa", "nan", "expected kappa as float, got 'nan'"),
        ("live", 3, "expected live as bool, got 3"),
        ("live", "maybe", "expected live as bool, got 'maybe'"),
        ("text", ["199"], "expected text as str"),
        ("device", "tpu", "expected a device among"),
    ],
)
def test_what_is_none_is_refused_in_one_line(name, value, told):
    with pytest.raises(ValueError, match=told) as error:
        checked(given(**{name: value}))
    assert "\n" not in str(error.value)


def test_an_unknown_parameter_is_refused():
    with pytest.raises(ValueError, match=r"expected a parameter among task, text, .*, got 'sample'"):
        checked(given("# Parameters\ntext = '199'\nsample = 3\n"))
    checked(given("# Parameters\ntext = '199'\nsamples = 3\n"))
    checked(given("sample = 3"))  # a reader's own cell


def test_a_preset_and_a_folder_that_are_not_there_are_refused(tmp_path):
    declared = DECLARED | {"preset": str, "reports_dir": str}
    checked(given(declared=declared, preset="smoke", reports_dir=str(tmp_path)))
    checked(given(declared=declared, preset="smoke", reports_dir=""))
    with pytest.raises(ValueError, match="expected a preset among smoke, laptop, paper, got 'large'"):
        checked(given(declared=declared, preset="large", reports_dir=""))
    with pytest.raises(ValueError, match="expected reports_dir as a folder that is there, got '/nowhere'"):
        checked(given(declared=declared, preset="smoke", reports_dir="/nowhere"))


@pytest.mark.parametrize(
    "seeds, found", [(3, [3]), ([0, 1], [0, 1]), ("[0, 1]", [0, 1]), ("0, 1", [0, 1]), ("4", [4])]
)
def test_seeds_are_a_list_or_the_text_of_one(seeds, found):
    assert seed_list(seeds) == found


@pytest.mark.parametrize("seeds", ["", [], "one", [0.5], [True], [-1], "-1", None, {"a": 1}])
def test_what_are_no_seeds_is_refused(seeds):
    with pytest.raises(ValueError, match="expected seeds as a list of whole numbers such as"):
        seed_list(seeds)


@pytest.mark.parametrize("names", [["a", "b"], "a,b", "['a', 'b']", '["a", "b"]', " a , b "])
def test_names_are_a_list_or_text(names):
    assert name_list(names, ["a", "b", "c"], "letters") == ["a", "b"]


@pytest.mark.parametrize("names", ["", [], "d", ["a", "d"], 3, None])
def test_what_are_no_names_is_refused(names):
    with pytest.raises(ValueError, match="expected letters among a, b, c, got"):
        name_list(names, ["a", "b", "c"], "letters")
