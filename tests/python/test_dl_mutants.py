#!/usr/bin/python3
"""Would the tests notice? For a class of the table of tests of docs/runner.md: a copy of the package in which the class has
no methods of its own, and the test that the table names, which must pass on a copy where nothing was taken away and fail
there. ADL_MUTANTS names classes, or says "all"; tools/mutate-runner is the command. Without it a few take their turn."""

import os
import pathlib
import subprocess
import sys

import harness

import pytest

pytest.importorskip("torch")
from test_dl_stubs import table_of_tests  # noqa: E402

TABLE = table_of_tests()
FEW = "AMPEngine CSVLogger CriterionCallback MetricAggregationCallback TensorboardLogger"  # two quick tests in all
WAIT_S = 1200

# What a base class does not have does nothing; of a class with no method but __init__ that one goes.
WITHOUT = """

def _without(kind):
    from inspect import isfunction
    own = [key for key, value in vars(kind).items() if isfunction(value) and key != "__init__"] or ["__init__"]
    for key in own:
        if any(key in vars(base) for base in kind.__mro__[1:]):
            delattr(kind, key)
        else:
            setattr(kind, key, lambda *args, **kwargs: None)


_without({name})
"""


def copy_without(name, folder):
    """The package below the folder, by links; only one file is another. The name "" takes nothing away."""
    from adaptdl import contrib
    package = "contrib" if name in contrib.__all__ else "dl"
    place, origin = folder, pathlib.Path(harness.LIBRARY)
    for inner in ("adaptdl", package, "__init__.py"):
        place.mkdir()
        for path in origin.iterdir():
            if path.name not in (inner, "__pycache__"):
                (place / path.name).symlink_to(path)
        place, origin = place / inner, origin / inner
    place.write_text(origin.read_text() + (WITHOUT.format(name=name) if name else ""))
    return folder



def run_test(file, function, library):
    """The result lines of one test on such a package, and all that it printed."""
    done = subprocess.run([sys.executable, str(harness.ROOT / "tests" / "python" / file), "-x", "-k", function],
                          env={**os.environ, "ADL_PYTHON_LIB": str(library)}, timeout=WAIT_S, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [line for line in done.stdout.splitlines() if line.startswith((f"ok - {function}", f"not ok - {function}"))]
    return lines, done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Does a test of the table pass on a copy of the package? Each is asked once."""
    library, asked = copy_without("", tmp_path_factory.mktemp("whole") / "lib"), {}

    def passes(file, function):
        if (file, function) not in asked:
            asked[file, function] = run_test(file, function, library)
        return asked[file, function]
    return passes


def chosen():
    names = os.environ.get("ADL_MUTANTS") or FEW
    return list(TABLE) if names == "all" else names.split()


@pytest.mark.parametrize("name", chosen())
def test_its_test_fails_without(name, whole, tmp_path):
    assert name in TABLE, f"docs/runner.md names no test of {name}"
    file, function = TABLE[name]
    if file.startswith("gpu_"):
        pytest.skip(f"its test needs a GPU: tests/python/{file} {function}")
    lines, text = whole(file, function)
    assert lines and all(line.startswith("ok") for line in lines), f"{file} {function} fails anyway\n{text}"
    lines, text = run_test(file, function, copy_without(name, tmp_path / "lib"))
    assert any(line.startswith("not ok") for line in lines), \
        f"{file} {function} does not notice that {name} does nothing\n{text}"
    print(f"info - without {name}: {[line for line in lines if line.startswith('not ok')][0]}"[:200])


if __name__ == "__main__":
    harness.main(__file__)
