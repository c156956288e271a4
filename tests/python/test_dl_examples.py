#!/usr/bin/python3
"""The programs of examples/runner, and the smaller ones of examples/pytorch, as a user runs them: alone, on two
replicas, and as jobs of a local cluster."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness

import pytest

pytest.importorskip("torch")
from dl_common import rows  # noqa: E402
from test_cluster_torch import Cluster  # noqa: E402
from test_examples import Job, epochs_of  # noqa: E402

BIN = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin"))
RUNNER = harness.ROOT / "examples" / "runner"
PYTORCH = harness.ROOT / "examples" / "pytorch"
WAIT_S = 400
SMALL = ["--generate", "40", "--batch-size", "8", "--epochs", "2"]


def run(folder, *command, **variables):
    env = harness.environment(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", **variables)
    done = subprocess.run([str(word) for word in command], cwd=folder, env=env, text=True, timeout=WAIT_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


# ---- the runner's ----

def check(folder, logs):
    table = rows(folder / logs / "valid.csv")
    assert [row["step"] for row in table] == ["1", "2"]


@pytest.mark.parametrize("name", ["one_call", "processes", "own_loaders", "whole_runner"])
def test_runners(name, tmp_path):
    text = run(tmp_path, sys.executable, RUNNER / f"{name}.py", "--data", tmp_path, *SMALL)
    check(tmp_path, "logs" if name == "whole_runner" else "logs/csv_logger")
    assert "Top models:" in text and "* Epoch (2/2) lr: " in text, text


@pytest.mark.parametrize("name", ["one_call", "own_loaders"])
def test_runners_elastically(name, tmp_path):
    if not (BIN / "adaptdl").exists():
        pytest.skip(f"{BIN}/adaptdl is not built")
    text = run(tmp_path, BIN / "adaptdl", "run", "-n", "2", "--checkpoint", "ck", "--", sys.executable,
               RUNNER / f"{name}.py", "--data", tmp_path, *SMALL)
    check(tmp_path, "logs/csv_logger")
    assert "rank 1 of 2" in text


# ---- PyTorch's ----

def options(name, folder):
    """Small ones."""
    if name == "masked_language_model":
        (folder / "text").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return {
        "linear_regression": ["--epochs", 6, "--points", 400],
        "cifar10": ["--data", folder, "--generate", 100, "--batch-size", 10, "--width", 8, "--epochs", 3, "--lr", 0.01,
                    "--workers", 0],
        "ncf": ["--people", 80, "--things", 150, "--choices", 12, "--epochs", 6, "--lr", 0.01, "--batch-size", 32],
        "masked_language_model": ["--text", folder / "text", "--epochs", 4, "--width", 32, "--lr", 0.003,
                                  "--length", 8, "--batch-size", 8],
    }[name]


PATTERNS = {
    "linear_regression": r"loss (\S+), y = \S+ x \+ \S+",
    "cifar10": r"loss (\S+), \S+ % right, batch size \d+",
    "ncf": r"hit rate (\S+), batch size \d+",
    "masked_language_model": r"(\S+) % of the masked characters right, batch size \d+",
}


def learned(name, values):
    """Did it learn? Chance is a hit rate of 0.1; the commonest character alone is 22 % of the text."""
    if "loss" in PATTERNS[name]:
        return min(values[1:]) < values[0]
    return values[-1] > {"ncf": 0.18, "masked_language_model": 30}[name]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", PATTERNS)
def test_pytorch(name, count, tmp_path):
    with Job(name, *options(name, tmp_path), count=count) as job:
        texts = job.ended()
    values = [float(value) for value, in epochs_of(texts, PATTERNS[name])]
    assert learned(name, values), texts
    print(f"info - {name} on {count} replicas: {values[0]} to {values[-1]}")


def test_bad_files_are_named(tmp_path):
    with Job("cifar10", "--data", tmp_path) as job:
        text, = job.ended(1)
    assert "CIFAR10: there is no data_batch_1.bin in" in text and "Traceback" not in text
    (tmp_path / "short").write_text("too short")
    with Job("masked_language_model", "--text", tmp_path / "short") as job:
        text, = job.ended(1)
    assert f"{tmp_path}/short: 9 characters are too few for pieces of 64" in text


# ---- as jobs ----

@pytest.fixture
def cluster():
    if not (BIN / "adaptdl-sched").exists():
        pytest.skip(f"{BIN}/adaptdl-sched is not built")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="adl-ex-", dir="/tmp"))  # short: a socket's path is limited
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    os.environ["PATH"], before = path, os.environ["PATH"]  # the job's python3 is the first on the scheduler's
    made = Cluster(folder)
    yield made
    made.close()
    os.environ["PATH"] = before
    shutil.rmtree(folder)


def test_as_jobs(cluster):
    for name in PATTERNS:
        command = [sys.executable, str(PYTORCH / f"{name}.py"), *map(str, options(name, cluster.folder))]
        cluster.submit(name.replace("_", "-"), command, {"maxReplicas": 2})
    words = ["submit", str(RUNNER), "--", "--data", str(cluster.folder / "images"), *SMALL, "--logdir",
             str(cluster.folder / "logs")]
    runner = cluster.call(*words).strip().splitlines()[-1]
    for name in list(PATTERNS) + [runner]:
        job = cluster.wait(name.replace("_", "-"), "Succeeded", [0])
        assert job["failures"] == 0, json.dumps(job)
    for name, pattern in PATTERNS.items():
        text = cluster.call("logs", name.replace("_", "-"))
        lines = [line for line in text.splitlines() if re.search(r"Epoch \d+: ", line)]
        assert lines and re.search(pattern, lines[-1]), text
    check(cluster.folder, "logs/csv_logger")


if __name__ == "__main__":
    harness.main(__file__)
