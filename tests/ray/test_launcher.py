#!/usr/bin/env python3
"""adaptdl_on_ray_aws on a Ray cluster whose nodes come and go while the job runs."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
import rayharness
import standin
from rayharness import LONG_S, until

HERE = pathlib.Path(__file__).resolve().parent
# Restarts cost nothing in the eyes of the policy, so that the test sees many.
EAGER = [word for name in ("rs", "dw", "hy", "shy") for word in ("--set", f"{name}=0")]
NOTICE = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'


@pytest.fixture(scope="module")
def cluster():
    with rayharness.cluster({"num_cpus": 2}) as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    for name in ("ledger_job.py", "ledger_helper.py"):
        shutil.copy(HERE / name, tmp_path)
    return tmp_path


def launch(cluster, folder, *arguments, program="ledger_job.py", more=()):
    """The launcher, and what it prints while it prints it."""
    process = rayharness.command(
        "launcher", "-u", cluster.address, "-f", folder / program, "-m", 4, "--interval", 1,
        "--cluster-rescale-timeout", 5, *EAGER, *more, "--", *arguments)
    return process


class Reader:
    """The lines of a process, as they come."""

    def __init__(self, process):
        self.process, self.lines = process, []

    def wait_for(self, pattern, times=1):
        """Until so many lines, since the beginning, have had it. The order of words of the program and of the
        controller is nobody's promise."""
        while sum(bool(re.search(pattern, line)) for line in self.lines) < times:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"ended without {pattern!r}:\n" + "".join(self.lines[-60:]))
            self.lines.append(line)

    def end(self):
        self.lines += self.process.stdout.readlines()
        return self.process.wait(LONG_S)


def job_status(cluster):
    out = subprocess.run([rayharness.sys.executable, "-m", "adaptdl_ray.command", "list", "--json", "-u",
                          cluster.address], stdout=subprocess.PIPE, text=True, timeout=LONG_S, check=True)
    found = json.loads(out.stdout)
    assert len(found) == 1, found
    return found[0]


def test_machines_come_and_go(cluster, folder, tmp_path):
    """One job through everything: it grows when a node comes, leaves one that gets a termination notice, survives a
    program that is killed and a node that dies, and its ledger is whole in the end."""
    service = standin.MetadataService()
    end = tmp_path / "end"
    kept = tmp_path / "kept"
    process = launch(cluster, folder, "--steps", 50, "--until", end, more=(
        "--metadata-url", service.url + "/{node}", "--checkpoint-dir", kept))
    reader = Reader(process)
    try:
        reader.wait_for(r"START replicas=1 restarts=0 step=0")
        reader.wait_for(r"asked the autoscaler for room for 4 workers")
        reader.wait_for(r"START replicas=2 restarts=1 step=[1-9]")
        head = next(node["NodeID"] for node in nodes(cluster) if "node:__internal_head__" in node["Resources"])
        first = job_status(cluster)
        assert first["replicas"] == 2 and head not in first["nodes"] and first["requested"] == 4
        second = rayharness.add_node(cluster, num_cpus=2)
        reader.wait_for(r"START replicas=4 restarts=2 step=[1-9]")

        noticed = first["nodes"][0]
        service.notices[noticed, standin.ACTION] = NOTICE
        reader.wait_for(r"termination notice: " + re.escape(NOTICE))
        reader.wait_for(r"is going to be taken away \(termination\)")
        reader.wait_for(r"STOPPED", times=3)
        reader.wait_for(r"asked the autoscaler for room for 4 workers", times=2)
        reader.wait_for(r"START replicas=2 restarts=3 step=[1-9]")
        status = job_status(cluster)
        assert noticed not in status["nodes"] and len(set(status["nodes"])) == 1
        assert status["leaving"] == {noticed: "termination"}

        third = rayharness.add_node(cluster, num_cpus=2)
        reader.wait_for(r"START replicas=4 restarts=4 step=[1-9]")
        os.kill(job_status(cluster)["pids"][0], signal.SIGKILL)
        reader.wait_for(r"lost a worker .* going on from checkpoint-")
        reader.wait_for(r"START replicas=4 restarts=5 step=[1-9]")
        cluster.remove_node(third, allow_graceful=False)
        reader.wait_for(r"lost a worker .* going on from checkpoint-", times=2)
        # Ray may still believe in the node for a moment: a start there fails, and counts as a restart.
        reader.wait_for(r"START replicas=2 restarts=([6-9]|1\d) step=[1-9]")
        end.write_text("")
        reader.wait_for(r"END whole=True helper=beside restarts=")
        assert reader.end() == 0
        assert any(path.name.startswith("checkpoint-") for path in kept.iterdir())
        cluster.remove_node(second)
    finally:
        process.kill()
        process.wait()
        service.close()


def nodes(cluster):
    code = f"import ray, json; ray.init(address={cluster.address!r}, log_to_driver=False); print(json.dumps(ray.nodes()))"
    out = subprocess.run([rayharness.sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True,
                         timeout=LONG_S)
    return json.loads(out.stdout.splitlines()[-1])


def test_exit_status_is_the_programs(cluster, folder):
    reader = Reader(launch(cluster, folder, "--steps", 1, "--exit", 7))
    reader.wait_for(r"END whole=True")
    reader.wait_for(r"the program failed: exit status 7")
    assert reader.end() == 7


def test_interrupt_stops_with_a_checkpoint(cluster, folder, tmp_path):
    """Without a terminal there is nobody to ask: CTRL-C stops. A later job goes on from the directory."""
    end = tmp_path / "end"
    more = ("--checkpoint-dir", tmp_path / "kept", "-d", folder)
    reader = Reader(rayharness.command("launcher", "-u", cluster.address, "-f", "ledger_job.py", "-m", 1, *more, "--",
                                       "--steps", 1, "--until", end, stdin=subprocess.DEVNULL))
    reader.wait_for(r"START replicas=1 restarts=0 step=0")
    until(lambda: list((tmp_path / "kept").glob("checkpoint-*")), "a checkpoint in the directory")
    reader.process.send_signal(signal.SIGINT)
    reader.wait_for(r"stopping job")
    assert reader.end() == 143 and any("STOPPED" in line for line in reader.lines)
    end.write_text("")
    reader = Reader(rayharness.command("launcher", "-u", cluster.address, "-f", "ledger_job.py", "-m", 1, *more, "--",
                                       "--steps", 1, "--until", end))
    reader.wait_for(r"START replicas=1 restarts=0 step=[1-9]")
    assert reader.end() == 0


@pytest.mark.parametrize("arguments, status, words", [
    (("-u", "ray://127.0.0.1:1", "-f", "ledger_job.py"), 1, "no Ray cluster answers there"),
    (("-u", "http://127.0.0.1:1", "-f", "ledger_job.py"), 1, "must be ray://HOST:PORT"),
    (("-u", "ADDRESS", "-f", "missing.py"), 1, "-f missing.py: no such file"),
    (("-u", "ADDRESS", "-f", "/bin/true", "-d", "."), 1, "is not in the working directory"),
    (("-u", "ADDRESS", "-f", "other.py", "-d", "."), 1, "no such file in the working directory"),
    (("-u", "ADDRESS", "-f", "ledger_job.py", "-d", "nowhere"), 1, "-d nowhere: no such directory"),
    (("-u", "ADDRESS", "-f", "ledger_job.py", "--cpus", "0"), 1, "must take some CPU or GPU"),
    (("-u", "ADDRESS", "-f", "ledger_job.py", "--set", "hop=1"), 1, "--set: "),
    (("-u", "ADDRESS", "-f", "ledger_job.py", "--cpus", "many"), 2, "must be a number, at least 0, not 'many'"),
    (("-u", "ADDRESS", "-f", "ledger_job.py", "--gpus", "4", "--cluster-rescale-timeout", "1"), 1,
     "no node has what one worker takes (1 CPU, 4 GPU)"),
])
def test_wrong_calls_are_one_clear_line(cluster, folder, arguments, status, words):
    arguments = [cluster.address if argument == "ADDRESS" else argument for argument in arguments]
    process = rayharness.command("launcher", *arguments, "-m", 2, cwd=folder)
    out, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == status and words in out, out
    assert "Traceback" not in out


if __name__ == "__main__":
    rayharness.main(__file__)
