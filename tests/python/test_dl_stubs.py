#!/usr/bin/python3
"""The names of adaptdl.dl, contrib and compat: each has its documentation, a stub with the same arguments, and, where it does
something, a line in the table of tests of docs/runner.md."""

import ast
import importlib
import inspect
import pathlib
import re

import harness

import pytest

pytest.importorskip("torch")
MODULES = ["adaptdl.dl", *(f"adaptdl.dl.{name}" for name in (
    "callback", "callbacks", "checkpoint", "elastic", "engine", "loaders", "loggers", "metrics", "progress", "runner",
    "spawn", "supervised", "utils")), "adaptdl.contrib", "adaptdl.contrib.datasets", "adaptdl.contrib.layers",
    "adaptdl.contrib.transforms", "adaptdl.compat"]


def stub_of(module):
    """{name: node} of a stub; of a class also its methods as "Class.method"; names that are imported: None."""
    found = {}
    for node in ast.parse(pathlib.Path(module.__file__).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            found.update((alias.asname, None) for alias in node.names if alias.asname)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
            for inner in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
                if isinstance(inner, ast.FunctionDef):
                    found[f"{node.name}.{inner.name}"] = inner
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = None
        elif isinstance(node, ast.Assign):
            found[node.targets[0].id] = None
    return found


def arguments(node):
    a = node.args
    return [arg.arg for arg in a.posonlyargs + a.args + a.kwonlyargs]


def overrides(kind, key):
    """Is it a method of a class before, whose stub says the same?"""
    return any(key in vars(base) for base in kind.__mro__[1:])


def named(function):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds]


@pytest.mark.parametrize("name", MODULES)
def test_public_names(name):
    module = importlib.import_module(name)
    assert module.__doc__, name
    stub = stub_of(module)
    checked = 0
    for public in module.__all__:
        value = getattr(module, public)
        assert public in stub, f"{name}.{public} has no stub"
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{public} has no documentation"
        if inspect.isfunction(value) and isinstance(stub[public], ast.FunctionDef):
            assert arguments(stub[public]) == named(value), f"{name}.{public}"
        if inspect.isclass(value) and isinstance(stub[public], ast.ClassDef):
            for key, method in vars(value).items():
                if not inspect.isfunction(method) or (key.startswith("_") and key != "__init__"):
                    continue
                assert key == "__init__" or method.__doc__ or getattr(value.__mro__[1], key, None) is not None, \
                    f"{name}.{public}.{key} has no documentation"
                node = stub.get(f"{public}.{key}")
                assert node is not None or overrides(value, key), f"{name}.{public}.{key} has no stub"
                if node is not None and node.args.vararg is None:
                    assert arguments(node) == named(method), f"{name}.{public}.{key}"
                    checked += 1
    assert stub and (checked or name.count(".") < 2 or not [
        v for v in map(module.__dict__.get, module.__all__) if inspect.isclass(v)])


def table_of_tests():
    """{name: (file, function)} of docs/runner.md."""
    text = (harness.ROOT / "docs" / "runner.md").read_text()
    found = {}
    for names, file, function in re.findall(r"^\| ([^|]+) \| ((?:test|gpu)_\w+\.py) (\w+) \|$", text, re.MULTILINE):
        found.update({name: (file, function) for name in re.findall(r"[A-Z]\w+", re.sub(r"\(.*\)", "", names))})
    return found


def test_each_callback_engine_and_logger_has_a_test():
    """That it fails without them is test_dl_mutants.py's."""
    from adaptdl import contrib, dl
    table = table_of_tests()
    abstract = {name for name in dl.__all__ if re.match("I[A-Z]", name)} | {"Callback", "CallbackOrder"}
    wanted = {name for name in dl.__all__ if re.search("(Callback|CallbackWrapper|Logger|Engine|Runner)$", name)} - abstract
    wanted |= {name for name in contrib.__all__ if inspect.isclass(getattr(contrib, name))}
    assert wanted - set(table) == set()
    for name, (file, function) in table.items():
        source = (harness.ROOT / "tests" / "python" / file).read_text()
        assert re.search(rf"^def {function}\(", source, re.MULTILINE), f"{name}: there is no {function} in {file}"


if __name__ == "__main__":
    harness.main(__file__)
