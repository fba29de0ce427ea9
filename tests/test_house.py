"""The rules that the repository sets itself."""

import ast
import importlib
import re
import tomllib

import pytest

# What the modules of each room may import.
CORE = {"machine", "lines", "tasks", "model", "pipeline"}
ROOMS = {
    "surface": CORE
    | {"surface", "rivals", "other_tasks", "proof", "study"},  # `import abcnb`, which gives what a person needs
    "machine": {"machine"},
    "lines": {"machine", "lines"},
    "tasks": {"machine", "lines", "tasks"},
    "model": {"machine", "lines", "tasks", "model"},
    "pipeline": CORE,
    "rivals": CORE | {"rivals"},
    "other_tasks": CORE | {"other_tasks"},
    "yours": CORE | {"yours"},
    "proof": CORE | {"proof"},
    "study": CORE | {"surface", "rivals", "other_tasks", "proof", "study"},
    "show": CORE | {"surface", "rivals", "study", "show"},
    "bench": CORE | {"rivals", "yours", "study", "bench"},
    "__main__": CORE | {"proof", "study", "show", "bench"},
}
BAGS = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "shared", "base", "core"}


@pytest.fixture(scope="module")
def trees(repository):
    """The syntax tree of every module, by its full name."""
    files = sorted((repository / "abcnb").rglob("*.py"))
    assert len(files) > 15
    names = [".".join(file.relative_to(repository).with_suffix("").parts) for file in files]
    return {
        name.removesuffix(".__init__"): ast.parse(file.read_text())
        for name, file in zip(names, files, strict=True)
    }


@pytest.fixture(scope="module")
def own_files(repository):
    """The files that people write or commit; a copy without git has them too."""
    folders = [repository / name for name in (".ci", "abcnb", "notebooks", "reports", "tests")]
    files = [file for folder in folders for file in folder.rglob("*")] + list(repository.glob("*"))
    assert repository / "pyproject.toml" in files
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


def imports_of(tree, modules, anywhere=True):
    """Modules of abcnb that a syntax tree imports, anywhere in it or when it is itself imported."""
    found = set()
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inner = {f"{node.module}.{name.name}" for name in node.names} & modules
            found |= inner or {node.module}
    return found & modules


def room_of(module):
    """The room that a module belongs to."""
    if module == "abcnb":
        return "surface"
    return module.split(".")[1]


def test_the_core_is_small(repository):
    rooms = [repository / "abcnb" / name for name in sorted(CORE - {"pipeline"})]
    files = [file for room in rooms for file in room.glob("*.py")] + [repository / "abcnb" / "pipeline.py"]
    assert len([file for file in files if file.stem != "__init__"]) <= 30
    assert sum(len(file.read_text().splitlines()) for file in files) <= 5000


def forbidden_imports(trees):
    """(importer, imported) of every import into a room that the importer may not know."""
    return [
        (name, other)
        for name, tree in trees.items()
        for other in sorted(imports_of(tree, set(trees)))
        if room_of(other) not in ROOMS[room_of(name)]
    ]


def circle(trees):
    """Modules that import one another in a circle at module level, the first one at both ends; or nothing."""
    edges = {name: imports_of(tree, set(trees), anywhere=False) for name, tree in trees.items()}
    done: set[str] = set()

    def visit(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        found = next(filter(None, (visit(other, [*path, name]) for other in sorted(edges[name]))), [])
        done.add(name)
        return found

    return next(filter(None, (visit(name, []) for name in edges)), [])


def test_no_room_knows_of_a_room_above_it(trees):
    assert {room_of(name) for name in trees} == set(ROOMS)
    assert forbidden_imports(trees) == []


def test_no_modules_import_one_another_in_a_circle(trees):
    assert circle(trees) == []


def test_no_bag_modules(own_files):
    bags = [file for file in own_files if file.suffix == ".py" and file.stem.lower().strip("_") in BAGS]
    assert bags == []


def is_stub(function):
    """The body is `...` alone, as in a protocol."""
    body = function.body
    return len(body) == 1 and isinstance(body[0], ast.Expr) and getattr(body[0].value, "value", 0) is Ellipsis


def inherits_docstring(module, owner, name):
    """Whether a method overrides one that says what it does."""
    found = getattr(importlib.import_module(module), owner)
    return any(getattr(kind.__dict__.get(name), "__doc__", None) for kind in found.__mro__[1:])


def test_everything_public_has_a_docstring(trees):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    missing = []
    for name, tree in trees.items():
        if not ast.get_docstring(tree) and tree.body:  # a package may be empty
            missing.append(name)
        for node in tree.body:
            if not isinstance(node, kinds) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                missing.append(f"{name}.{node.name}")
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if not isinstance(method, kinds) or method.name.startswith("_") or is_stub(method):
                    continue
                if not ast.get_docstring(method) and not inherits_docstring(name, node.name, method.name):
                    missing.append(f"{name}.{node.name}.{method.name}")
    assert missing == []


def test_no_pickled_files(own_files):
    endings = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin", ".joblib", ".npy"}
    assert [file for file in own_files if file.suffix.lower() in endings] == []
    for file in own_files:
        start = file.open("rb").read(4)
        assert not re.match(rb"\x80[\x02-\x05]", start), f"{file} is a pickle"
        assert not (start == b"PK\x03\x04" and b"data.pkl" in file.read_bytes()), f"{file} holds a pickle"


def test_the_package_pickles_nothing(trees):
    for name, tree in trees.items():
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"torch.load", "torch.save", "pickle.load", "pickle.dump"}, name


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
