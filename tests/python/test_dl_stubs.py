#!/usr/bin/python3
"""The names of adaptdl.dl, contrib and compat: each has its documentation, and a stub with the same arguments."""

import ast
import importlib
import inspect
import pathlib

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
                if node is not None and node.args.vararg is None:
                    assert arguments(node) == named(method), f"{name}.{public}.{key}"
                    checked += 1
    assert stub and (checked or name.count(".") < 2 or not [
        v for v in map(module.__dict__.get, module.__all__) if inspect.isclass(v)])


if __name__ == "__main__":
    harness.main(__file__)
