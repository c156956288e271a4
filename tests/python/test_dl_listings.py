#!/usr/bin/python3
"""The tutorial's four programs as they stand in the document, with only their import lines changed, their epochs
shortened, and some images of CIFAR-10 (its binary files in data/, where they are) or generated ones of the same shape;
and with their import lines unchanged. They run alone, as processes of ddp=True, and elastically under a launcher."""

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


TRAIN, TEST, IMAGE_BYTES = 80, 32, 1 + 3 * 32 * 32


def make_images(folder, real=harness.ROOT / "data"):
    """The first images of each of CIFAR-10's files; what is not there is generated."""
    sys.path.insert(0, harness.LIBRARY)
    from adaptdl.contrib import CIFAR10, make_cifar10
    made = folder / CIFAR10.FOLDER
    made.mkdir()
    for name, count in [(name, TRAIN // 5) for name in CIFAR10.TRAIN] + [(CIFAR10.TEST[0], TEST)]:
        if (real / CIFAR10.FOLDER / name).exists():
            with open(real / CIFAR10.FOLDER / name, "rb") as file:
                (made / name).write_bytes(file.read(count * IMAGE_BYTES))
    make_cifar10(folder, train=TRAIN, test=TEST)


@pytest.fixture
def folder(tmp_path):
    """A directory with images."""
    make_images(tmp_path)
    return tmp_path


def test_the_images_are_real_ones_where_there_are_some(tmp_path):
    real, made = tmp_path / "real", tmp_path / "made"
    (real / "cifar-10-batches-bin").mkdir(parents=True)
    made.mkdir()
    (real / "cifar-10-batches-bin" / "data_batch_2.bin").write_bytes(b"\3" * 30 * IMAGE_BYTES)
    make_images(made, real)
    found = {path.name: path.read_bytes() for path in (made / "cifar-10-batches-bin").iterdir()}
    assert found["data_batch_2.bin"] == b"\3" * 16 * IMAGE_BYTES
    assert len(found) == 6 and len(found["data_batch_1.bin"]) == 16 * IMAGE_BYTES and len(found["test_batch.bin"]) == 32 * IMAGE_BYTES


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
@pytest.mark.parametrize("number", range(4))
def test_with_the_imports_as_they_are(number, folder):
    (folder / "program.py").write_text(shortened(PROGRAMS[number]))
    text = run(folder, sys.executable, "-m", "adaptdl.compat.catalyst", "program.py")
    check(folder, text, LOGDIRS[number], files=number < 3)


@needs_document
def test_with_a_line_before_the_imports(folder):
    """The other way: the program says it itself, and so do the processes of ddp=True, which import it."""
    line = "from adaptdl.compat import install_catalyst; install_catalyst()\n"
    (folder / "program.py").write_text(line + shortened(PROGRAMS[1]))
    check(folder, run(folder, sys.executable, "program.py"), LOGDIRS[1])


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
