#!/usr/bin/python3
"""adaptdl.client against a cluster on this machine, over its socket and over TCP; and the notebook of the examples,
executed."""

import itertools
import os
import pathlib
import shutil
import subprocess
import tempfile

import harness
import pytest

from adaptdl import client

BIN = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin"))
WAIT_S = 240


def job_file(script, name=None):
    metadata = {"name": name} if name else {"generateName": "job-"}
    return {"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": metadata,
            "spec": {"template": {"spec": {"containers": [{"name": "main", "command": ["sh", "-c", script]}]}}}}


@pytest.fixture(scope="module")
def cluster():
    """Its client. Paths of sockets must be short: not below pytest's folder."""
    state = tempfile.mkdtemp(prefix="adl-client-")
    env = harness.environment(ADAPTDL_STATE=state)
    env.pop("ADAPTDL_SERVER", None)
    subprocess.run([BIN / "adaptdl", "up", "--nodes", "1", "--slots", "2", "--listen", "127.0.0.1:0"], env=env, check=True,
                   capture_output=True, timeout=WAIT_S)
    try:
        yield client.Client(state=state)
    finally:
        for words in (["delete", "--all", "--wait"], ["down"]):
            subprocess.run([BIN / "adaptdl", *words], env=env, capture_output=True, timeout=WAIT_S)
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def on_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


def test_a_job_from_beginning_to_end(cluster):
    job = cluster.submit(job_file("echo one; echo two"))
    assert job["name"].startswith("job-") and job["namespace"] == "default"
    name = job["name"]
    assert [*cluster.logs(name, follow=True)] == ["one", "two"]
    done = cluster.wait(name, timeout=WAIT_S)
    assert done["phase"] == "Succeeded" and done["spec"]["spec"]["template"]
    assert [*cluster.logs(name, tail=1)] == ["two"]
    assert name in [each["name"] for each in cluster.list(phase="Succeeded")]
    assert cluster.list(namespace="elsewhere") == []
    events = [*cluster.events(name)]
    assert events[0]["type"] == "JobCreated" and events[-1]["message"] == "Running -> Succeeded"
    assert [*cluster.events(name, since=events[-2]["seq"])] == events[-1:]
    followed = itertools.islice(cluster.events(f"default/{name}", since=events[0]["seq"], follow=True), len(events) - 1)
    assert [*followed] == events[1:]
    cluster.delete(name)
    with pytest.raises(client.ClientError) as error:
        while True:  # it is gone when its replicas are
            cluster.wait(name, "Deleted")
    assert error.value.code == 404 and name in str(error.value)


def test_a_failed_job_is_over_as_well(cluster):
    body = job_file("exit 3", "fails")
    body["spec"]["maxRetries"] = 0
    cluster.submit(body)
    assert cluster.wait("fails", timeout=WAIT_S)["phase"] == "Failed"


def test_waiting_ends(cluster):
    cluster.submit(job_file("sleep 600", "ignored"), name="sleeper")
    assert cluster.wait("sleeper", "Running", timeout=WAIT_S)["phase"] == "Running"
    with pytest.raises(TimeoutError, match="job default/sleeper is Running"):
        cluster.wait("sleeper", timeout=1)
    cluster.delete("sleeper")


def test_mistakes_are_named(cluster, tmp_path):
    with pytest.raises(client.ClientError, match="apiVersion: is missing") as error:
        cluster.submit({"kind": "AdaptDLJob"})
    assert error.value.code == 400
    with pytest.raises(client.ClientError, match="no job default/nobody") as error:
        cluster.get("nobody")
    assert error.value.code == 404
    with pytest.raises(client.ClientError, match="nobody"):
        next(cluster.logs("nobody"))
    with pytest.raises(client.ClientError, match="does not answer.*adaptdl up") as error:
        client.Client(state=str(tmp_path)).list()
    assert error.value.code is None
    with pytest.raises(ValueError, match="server must be"):
        client.Client("sched:80")
    with pytest.raises(ValueError, match="arguments go with a path"):
        cluster.submit(job_file("true"), arguments=["x"])


def test_a_folder_and_a_file(cluster, tmp_path, on_path):
    (tmp_path / "adaptdljob.yaml").write_text("""
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: folder}
spec: {template: {spec: {containers: [{name: main, command: [sh, hello.sh], args: [nobody]}]}}}
""")
    (tmp_path / "hello.sh").write_text("echo hello $1\n")
    job = cluster.submit(tmp_path, name="renamed", arguments=["world"])
    assert job["name"] == "renamed"
    assert [*cluster.logs("renamed", follow=True)] == ["hello world"]
    with pytest.raises(client.ClientError, match="no-such-folder"):
        cluster.submit("no-such-folder")


def test_over_tcp_with_a_token(cluster):
    address = cluster._ask("GET", "/api/v1/cluster")["dashboard"].split("#")[0].rstrip("/")
    state = pathlib.Path(cluster.server.partition(":")[2]).parent
    token = (state / "token").read_text().strip()
    assert client.Client(address, token=token).list() is not None
    with pytest.raises(client.ClientError) as error:
        client.Client(address, token="wrong").list()
    assert error.value.code == 401


def test_the_module_talks_to_the_default_cluster(cluster, monkeypatch):
    monkeypatch.delenv("ADAPTDL_SERVER", raising=False)
    monkeypatch.setenv("ADAPTDL_STATE", os.path.dirname(cluster.server.partition(":")[2]))
    name = client.submit(job_file("echo hi"))["name"]
    assert [*client.logs(name, follow=True)] == ["hi"]
    assert client.wait(name, timeout=WAIT_S)["phase"] == client.get(name)["phase"] == "Succeeded"
    assert name in [job["name"] for job in client.list()]
    assert [*client.events(name)]
    assert client.delete(name)["name"] == name


def test_the_notebook(cluster, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.delenv("ADAPTDL_SERVER", raising=False)
    monkeypatch.setenv("ADAPTDL_STATE", os.path.dirname(cluster.server.partition(":")[2]))
    monkeypatch.setenv("PYTHONPATH", harness.LIBRARY)
    folder = harness.ROOT / "examples" / "notebook"
    book = nbformat.read(folder / "cluster.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "kept without outputs"
    nbclient.NotebookClient(book, timeout=WAIT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    text = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "")
                   for cell in book.cells for output in cell.get("outputs", []))
    for part in ("replica 0 of 1\nstep 0\nstep 1\nstep 2", "'Succeeded'", "JobPhase Running -> Succeeded", "400 "):
        assert part in text, text


if __name__ == "__main__":
    harness.main(__file__)
