"""The rules that the repository sets itself."""

import ast
import importlib
import re
import tomllib

import pytest

# A module imports only from those before it.
ORDER = [
    "paper",
    "tokens", "layout", "tasks", "sampling", "carries", "biases", "lines", "positions", "learned_biases", "model",
    "attention", "lora", "decoding", "evaluation", "training", "calibration", "experiments", "runs", "cost",
    "methods", "sweep", "results", "store", "figures", "panel_figures", "panel_html", "panel", "retraining",
    "recalibration", "explorer", "pages", "cleaning", "reports", "engines", "schedule", "reproduction", "bench",
    "bench_gpu", "__main__",
]  # fmt: skip
BAGS = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "shared", "base", "core"}


@pytest.fixture(scope="module")
def trees(repository):
    files = sorted((repository / "abcnb").rglob("*.py"))
    assert len(files) > 15
    return {file: ast.parse(file.read_text()) for file in files}


@pytest.fixture(scope="module")
def own_files(repository):
    """The files that people write or commit; a copy without git has them too."""
    folders = [repository / name for name in (".ci", "abcnb", "notebooks", "reports", "tests")]
    files = [file for folder in folders for file in folder.rglob("*")] + list(repository.glob("*"))
    assert repository / "pyproject.toml" in files
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


def imports_of(tree):
    """Modules of abcnb that a syntax tree imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module)
            found |= {f"{node.module}.{name.name}" for name in node.names if node.module == "abcnb"}
    return {name.split(".")[1] for name in found if name.startswith("abcnb.")} - {"__version__"}


def test_imports_run_downwards(trees):
    for file, tree in trees.items():
        below = imports_of(tree)
        if file.stem == "__init__":
            assert not below
            continue
        assert file.stem in ORDER, f"{file.name} has no place in the order"
        above = {name for name in below if ORDER.index(name) >= ORDER.index(file.stem)}
        assert not above, f"{file.name} imports {above}"


def test_the_readme_lists_every_module_in_the_order_of_imports(repository):
    section = (repository / "README.md").read_text().partition("## The house")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `abcnb/")]
    listed = [name for row in rows for name in re.findall(r"`abcnb/(\w+)\.py`", row)]
    assert listed == [name for name in ORDER if name in listed]
    unnamed = {name for name in ORDER if name not in listed and f"`{name}`" not in section}
    assert not unnamed


def test_the_import_check_sees_imports_of_every_kind():
    text = "import abcnb.model\nfrom abcnb import results, __version__\ndef f():\n    from abcnb.tasks import x"
    assert imports_of(ast.parse(text)) == {"model", "results", "tasks"}


def test_no_module_knows_of_notebooks_but_those_that_execute_them(trees):
    for file in trees:
        if file.name not in ("reports.py", "cleaning.py", "__main__.py"):  # the command line runs them
            text = file.read_text().replace('context="notebook"', "")  # seaborn's name of a text size
            assert "notebook" not in text.lower(), file.name


def test_no_bag_modules(own_files):
    bags = [file for file in own_files if file.suffix == ".py" and file.stem.lower().strip("_") in BAGS]
    assert bags == []


def is_stub(function):
    """The body is `...` alone, as in a protocol."""
    body = function.body
    return len(body) == 1 and isinstance(body[0], ast.Expr) and getattr(body[0].value, "value", 0) is Ellipsis


def inherits_docstring(module, owner, name):
    found = getattr(importlib.import_module(f"abcnb.{module}"), owner)
    return any(getattr(kind.__dict__.get(name), "__doc__", None) for kind in found.__mro__[1:])


def test_everything_public_has_a_docstring(trees):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    missing = []
    for file, tree in trees.items():
        if not ast.get_docstring(tree):
            missing.append(file.stem)
        for node in tree.body:
            if not isinstance(node, kinds) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                missing.append(f"{file.stem}.{node.name}")
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if not isinstance(method, kinds) or method.name.startswith("_") or is_stub(method):
                    continue
                if not ast.get_docstring(method) and not inherits_docstring(file.stem, node.name, method.name):
                    missing.append(f"{file.stem}.{node.name}.{method.name}")
    # `forward` is PyTorch's name for a call, and says what it does where that is not plain.
    assert missing == []


def test_no_pickled_files(own_files):
    endings = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin", ".joblib", ".npy"}
    assert [file for file in own_files if file.suffix.lower() in endings] == []
    for file in own_files:
        start = file.open("rb").read(4)
        assert not re.match(rb"\x80[\x02-\x05]", start), f"{file} is a pickle"
        assert not (start == b"PK\x03\x04" and b"data.pkl" in file.read_bytes()), f"{file} holds a pickle"


def test_the_package_pickles_nothing(trees):
    for file, tree in trees.items():
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"torch.load", "torch.save", "pickle.load", "pickle.dump"}, file.name


def test_constraints_pin_torch(repository):
    assert "torch==2.13.0" in (repository / "constraints.txt").read_text().split()


def test_environment_yml_asks_for_what_pyproject_asks_for(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [
        entry for extra in ("notebooks", "dev") for entry in project["optional-dependencies"][extra]
    ]
    wanted = [re.sub(r"^torch(?=\W|$)", "pytorch", entry.replace(" ", "")) for entry in wanted]
    text = (repository / "environment.yml").read_text()
    listed = text.partition("\ndependencies:")[2].splitlines()
    entries = [line.split("#")[0].strip().removeprefix("- ").strip(" \"'") for line in listed]
    entries = [entry.replace(" ", "") for entry in entries if entry]
    assert entries[0] == "python" + project["requires-python"]
    assert sorted(entries[1:]) == sorted(wanted)
