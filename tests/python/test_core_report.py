#!/usr/bin/python3
"""adaptdl.report: what it refuses, and the curve of a job that is killed after it told of steps that no checkpoint
has."""

import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import time

import harness

import pytest

import adaptdl
from test_cluster_torch import BIN, WAIT_S, Cluster


def test_mistakes_are_named():
    for call, kind, text in [
        (lambda: adaptdl.report(loss="0.5"), TypeError, "metric 'loss' must be a number, not '0.5'"),
        (lambda: adaptdl.report(loss=[1, 2]), TypeError, "metric 'loss' must be a number, not list"),
        (lambda: adaptdl.report([("loss", 1)]), TypeError, "metrics must be a dict, not list"),
        (lambda: adaptdl.report({3: 1}), TypeError, "the name of a metric must be a str, not 3"),
        (lambda: adaptdl.report(loss=1, step=-1), ValueError, "step must be a whole number from 0 on, not -1"),
        (lambda: adaptdl.report(loss=1, step=1.5), ValueError, "not 1.5"),
        (lambda: adaptdl.report(loss=1, step=2**60), ValueError, "beyond 2^53"),
        (lambda: adaptdl.report({"": 1}), ValueError, "a metric needs a name"),
        (lambda: adaptdl.report({"a\nb": 1}), ValueError, "not printable"),
        (lambda: adaptdl.report({"x" * 101: 1}), ValueError, "at most 100 bytes"),
    ]:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value)


def test_alone_nothing_happens():
    adaptdl.report(loss=0.5, accuracy=1, step=3)
    adaptdl.report({"valid/loss": float("nan")})
    adaptdl.report()


PROGRAM = """
import json, os, sys, time
import adaptdl
from adaptdl import checkpoint, env

class Place(checkpoint.State):
    step = -1
    def save(self, fileobj):
        fileobj.write(str(self.step).encode())
    def load(self, fileobj):
        self.step = int(fileobj.read())

place = Place("place")
checkpoint.load_state(place)
for step in range(place.step + 1, 61):
    adaptdl.report({"valid/attempt": env.num_restarts()}, loss=step / 2, step=step)
    place.step = step
    if step % 10 == 0:
        checkpoint.save_all_states()
    if step == 35 and env.num_restarts() == 0:
        adaptdl.report(late=1.0)
        with open(sys.argv[1] + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".part", sys.argv[1])
        time.sleep(10000)
"""


class Socket(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def ask(cluster, path):
    connection = Socket(cluster.folder / "s" / "adaptdl.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text


def curves_of(cluster, name):
    """{metric: [(step, value)]}"""
    items = json.loads(ask(cluster, f"/api/v1/jobs/default/{name}/metrics"))["items"]
    return {item["name"]: list(zip(item["steps"], item["values"])) for item in items}


@pytest.fixture
def cluster():
    if not (BIN / "adaptdl-sched").exists():
        pytest.skip(f"{BIN}/adaptdl-sched is not built")
    if "ADL_PYTHON_SANITIZED" in os.environ:
        pytest.skip("the programs are built without sanitizers, which their jobs would need to be loaded with")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="adl-rep-", dir="/tmp"))  # short: a socket's path is limited
    made = Cluster(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


def test_a_killed_job_has_one_curve(cluster):
    """Killed at step 35, after the scheduler has it; its checkpoint is of step 30."""
    program = cluster.folder / "tell.py"
    program.write_text(PROGRAM)
    pid = cluster.folder / "pid"
    cluster.submit("tells", [sys.executable, str(program), str(pid)], {"maxReplicas": 1, "maxRetries": 3})
    end = time.monotonic() + WAIT_S
    while not pid.exists() or "late" not in cluster.job("tells")["metrics"]:
        assert time.monotonic() < end, cluster.call("logs", "--no-follow", "tells")
        time.sleep(0.1)
    job = cluster.job("tells")
    assert job["metrics"]["loss"]["step"] == 35 and job["metrics"]["loss"]["value"] == 17.5
    assert "loss 17.5 at step 35" in cluster.call("describe", "tells")
    assert "loss 17.5" in cluster.call("top", "--once")
    assert 'adaptdl_job_metric{job="default/tells",metric="loss"} 17.5\n' in ask(cluster, "/metrics")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    job = cluster.wait("tells", "Succeeded", [0])
    curves = curves_of(cluster, "tells")
    assert curves["loss"] == [(step, step / 2) for step in range(61)]
    assert curves["valid/attempt"] == [(step, int(step > 30)) for step in range(61)]
    assert "late" not in curves and sorted(job["metrics"]) == ["loss", "valid/attempt"]


if __name__ == "__main__":
    harness.main(__file__)
