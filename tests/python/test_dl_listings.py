#!/usr/bin/python3
"""The tutorial's four programs as they stand in the document, with only their import lines changed, their epochs
shortened, and generated images of CIFAR-10's shape; and with their import lines unchanged. They run alone, as
processes of ddp=True, and elastically under a launcher."""

import csv
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import harness

import pytest

pytest.importorskip("torch")
BIN = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin"))
WAIT_S = 400
EPOCHS = 2


def listings():
    """The Python programs of the document."""
    found = sorted(harness.SHARED.glob("seeds/004*"))
    if not found:
        return []
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", found[0].read_text())
    # One line of the last listing is a column too far to the right.
    return [textwrap.dedent(block).replace('\n if __name__', '\nif __name__') for block in blocks]


PROGRAMS = listings()
needs_document = pytest.mark.skipif(not PROGRAMS, reason="the document is not there")


def shortened(program):
    """The same for fewer epochs."""
    changed = program.replace("num_epochs = 10", f"num_epochs = {EPOCHS}").replace("return 10", f"return {EPOCHS}")
    assert changed != program
    return changed


def ours(program):
    changed = re.sub(r"^from catalyst", "from adaptdl", program, flags=re.MULTILINE)
    assert "catalyst" not in changed and changed != program
    return changed


@pytest.fixture
def folder(tmp_path):
    """A directory with images."""
    sys.path.insert(0, harness.LIBRARY)
    from adaptdl.contrib import make_cifar10
    make_cifar10(tmp_path, train=80, test=32)
    return tmp_path


def run(folder, *command, status=0, **variables):
    env = harness.environment(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", **variables)
    done = subprocess.run([str(word) for word in command], cwd=folder, env=env, text=True, timeout=WAIT_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    return done.stdout


def check(folder, text, logdir, files=True):
    """Each epoch has one row, and a model."""
    for epoch in range(1, EPOCHS + 1):
        assert len(re.findall(rf"^(\[0\] )?train \({epoch}/{EPOCHS}\) .*loss: ", text, re.MULTILINE)) == 1, text
        assert len(re.findall(rf"^(\[0\] )?\* Epoch \({epoch}/{EPOCHS}\) lr: ", text, re.MULTILINE)) == 1, text
    base = folder / logdir
    for key in ("train", "valid", "_epoch_"):
        with open(base / ("csv_logger" if files else "") / f"{key}.csv", newline="") as file:
            assert [row["step"] for row in csv.DictReader(file)] == [str(i + 1) for i in range(EPOCHS)]
    models = {path.name for path in (base / ("checkpoints" if files else "")).iterdir() if path.is_file()}
    assert {"model.last.pth", "model.best.pth", "model.storage.json"} <= models, models
    assert len([name for name in models if re.fullmatch(r"model\.\d{4}\.pth", name)]) == 1, models
    tensorboard = base / "tensorboard" if files else base
    assert len(list(tensorboard.glob("*/events.out.tfevents.*"))) == 3


LOGDIRS = ["logdir1", "logdir2", "logdir2", "logdir3"]


@needs_document
@pytest.mark.parametrize("number", range(4))
def test_with_other_imports(number, folder):
    (folder / "program.py").write_text(ours(shortened(PROGRAMS[number])))
    text = run(folder, sys.executable, "program.py")
    check(folder, text, LOGDIRS[number], files=number < 3)


@needs_document
@pytest.mark.parametrize("number", [3])
def test_with_the_imports_as_they_are(number, folder):
    (folder / "program.py").write_text(shortened(PROGRAMS[number]))
    text = run(folder, sys.executable, "-m", "adaptdl.compat.catalyst", "program.py")
    check(folder, text, LOGDIRS[number], files=number < 3)


@needs_document
@pytest.mark.parametrize("number", [1, 3])
def test_elastically(number, folder):
    """Under a launcher ddp=True starts no processes: the launcher's are there."""
    if not (BIN / "adaptdl").exists():
        pytest.skip(f"{BIN}/adaptdl is not built")
    (folder / "program.py").write_text(ours(shortened(PROGRAMS[number])))
    text = run(folder, BIN / "adaptdl", "run", "-n", "2", "--checkpoint", "ck", "--", sys.executable, "program.py")
    assert "initialized (gloo, rank 1 of 2)" in text
    check(folder, text, LOGDIRS[number], files=number < 3)


def test_the_real_package_is_not_replaced(tmp_path):
    (tmp_path / "catalyst.py").write_text("")
    text = harness.script(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from adaptdl import compat
try:
    compat.install_catalyst()
except RuntimeError as error:
    print(error)
""")
    assert text.startswith("the package catalyst is installed, and is not replaced")


if __name__ == "__main__":
    harness.main(__file__)
