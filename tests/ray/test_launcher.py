#!/usr/bin/env python3
"""adaptdl_on_ray_aws on a Ray cluster whose nodes come and go while the job runs."""

import json
import os
import pathlib
import pty
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray
import rayharness
import standin
from rayharness import LONG_S, until

from adaptdl_ray import command, launcher
from adaptdl_ray._supervisor import free_port

HERE = pathlib.Path(__file__).resolve().parent
# Restarts cost nothing in the eyes of the policy, so that the test sees many.
EAGER = [word for name in ("rs", "dw", "hy", "shy") for word in ("--set", f"{name}=0")]
# What a spot machine has from the notice to its end.
GRACE_S = 120


@pytest.fixture(scope="module")
def cluster():
    port = free_port()
    with rayharness.cluster({"num_cpus": 2}, ray_client_server_port=port) as found:
        found.client = f"ray://127.0.0.1:{port}"  # as from a machine that is not in the cluster
        yield found


@pytest.fixture
def folder(tmp_path):
    for name in ("ledger_job.py", "ledger_helper.py", "loop_job.py", "loops.py"):
        shutil.copy(HERE / name, tmp_path)
    return tmp_path


def launch(cluster, folder, *arguments, most=4, more=(), program="ledger_job.py", **process):
    """The launcher as a process."""
    return rayharness.command(
        "launcher", "-u", cluster.client, "-f", folder / program, "-m", most, "--interval", 1,
        "--cluster-rescale-timeout", 5, *EAGER, *more, "--", *arguments, **process)


class Reader:
    """The lines of a process, as they come."""

    def __init__(self, process):
        self.process, self.lines = process, []
        self._queue = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self):
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def wait_for(self, pattern, times=1):
        """Until so many lines, since the beginning, have had it. The order of words of the program and of the
        controller is nobody's promise."""
        deadline = time.monotonic() + LONG_S
        while sum(bool(re.search(pattern, line)) for line in self.lines) < times:
            try:
                line = self._queue.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                self.process.terminate()
                raise AssertionError(f"not within {LONG_S} s: {pattern!r}:\n" + "".join(self.lines[-60:])) from None
            if line is None:
                raise AssertionError(f"ended without {pattern!r}:\n" + "".join(self.lines[-60:]))
            self.lines.append(line)

    def end(self):
        status = self.process.wait(LONG_S)
        self.lines += iter(self._queue.get, None)
        return status


    def last(self, pattern):
        """When the program printed the last line of these, by its own clock."""
        return [float(found.group(1)) for found in (re.search(pattern + r".* at=([\d.]+)$", line) for line in self.lines)
                if found][-1]


def give_notice(service, node):
    """As EC2 words it. Returns its text, and when the machine ends by it."""
    ends = int(time.time()) + GRACE_S
    text = json.dumps({"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))})
    service.notices[node, standin.ACTION] = text
    return text, ends


def safe_since(folder):
    """When the newest checkpoint in the head's directory got its name there."""
    return max(path.stat().st_ctime for path in folder.iterdir() if path.name.startswith("checkpoint-"))


def job_status():
    name, = command._names()
    return ray.get(command._call(name, "status"), timeout=LONG_S)


def test_machines_come_and_go(cluster, folder, tmp_path):
    """One job through everything: it grows when a node comes, leaves one that gets a termination notice, survives a
    program that is killed and a node that dies, and its ledger is whole in the end."""
    service = standin.MetadataService()
    end = tmp_path / "end"
    kept = tmp_path / "kept"
    process = launch(cluster, folder, "--steps", 50, "--until", end, more=(
        "--metadata-url", service.url + "/{node}", "--checkpoint-dir", kept, "--cluster-rescale-timeout", 300))
    reader = Reader(process)
    try:
        reader.wait_for(r"START replicas=1 restarts=0 step=0")
        reader.wait_for(r"asked the autoscaler for room for 4 workers")
        reader.wait_for(r"START replicas=2 restarts=1 step=[1-9]")
        head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
        first = job_status()
        assert first["replicas"] == 2 and head not in first["nodes"] and first["requested"] == 4
        assert asked_for() == [{"CPU": 1}] * 4
        second = rayharness.add_node(cluster, num_cpus=2)
        reader.wait_for(r"START replicas=4 restarts=2 step=[1-9]")

        noticed = first["nodes"][0]
        notice, ends = give_notice(service, noticed)
        reader.wait_for(r"termination notice: " + re.escape(notice))
        reader.wait_for(r"is going to be taken away \(termination\)")
        reader.wait_for(r"STOPPED", times=3)
        reader.wait_for(r"asked the autoscaler for room for 4 workers, beside 2 on machines that go")
        assert asked_for() == [{"CPU": 1}] * 6
        reader.wait_for(r"START replicas=2 restarts=3 step=[1-9]")
        # by the clocks of those who do it: when the test gets to see it is not what counts
        stopped, trains = reader.last("STOPPED"), reader.last("START replicas=2 restarts=3")
        print(f"info - from the notice to training without the node: {trains - ends + GRACE_S:.0f} s (EC2 gives 120)")
        assert stopped <= trains < ends, (stopped, trains, ends)
        status = job_status()
        assert noticed not in status["nodes"] and len(set(status["nodes"])) == 1
        assert status["leaving"] == {noticed: "termination"}
        cluster.remove_node(cluster.workers.pop(), allow_graceful=False)  # as announced: nothing is lost

        third = rayharness.add_node(cluster, num_cpus=2)
        reader.wait_for(r"START replicas=4 restarts=4 step=[1-9]")
        assert not any("lost a worker" in line for line in reader.lines)
        os.kill(job_status()["pids"][0], signal.SIGKILL)
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
        assert asked_for() == []
        cluster.workers.append(second)
    finally:
        process.kill()
        process.wait()
        service.close()


def test_in_place(cluster, folder, tmp_path):
    """A program whose loops can: machines come, and one gets a notice, while it runs. There is a checkpoint before its
    workers leave: it may vanish meanwhile."""
    service, end = standin.MetadataService(), tmp_path / "end"
    kept = tmp_path / "kept"
    process = launch(cluster, folder, "--until", end, program="loop_job.py", more=(
        "--metadata-url", service.url + "/{node}", "--checkpoint-dir", kept, "--checkpoint-interval", 0))
    reader = Reader(process)
    try:
        reader.wait_for(r"SIZE replicas=1 restarts=0")
        reader.wait_for(r"SIZE replicas=2 restarts=0")
        before = set(job_status()["nodes"])
        added = rayharness.add_node(cluster, num_cpus=2)
        reader.wait_for(r"SIZE replicas=4 restarts=0")
        more, = set(job_status()["nodes"]) - before
        assert not kept.exists()  # nobody has asked for one yet
        _, ends = give_notice(service, more)
        reader.wait_for(r"beside 2 on machines that go")
        reader.wait_for(r"adaptdl: checkpoint-\d+\.\d+ is safe")
        safe = safe_since(kept)
        reader.wait_for(r"is going to be taken away \(termination\)")
        reader.wait_for(r"SIZE replicas=2 restarts=0", times=2)
        trains = reader.last("SIZE replicas=2 restarts=0")
        print(f"info - from the notice to training without the node, in place: {trains - ends + GRACE_S:.0f} s "
              "(EC2 gives 120)")
        assert safe <= trains < ends, (safe, trains, ends)
        assert set(job_status()["nodes"]) == before
        cluster.remove_node(added, allow_graceful=False)  # as announced: nothing is lost
        end.write_text("")
        reader.wait_for(r"END whole=True restarts=0")
        assert reader.end() == 0
        assert not any("lost a worker" in line for line in reader.lines)
    finally:
        process.kill()
        process.wait()
        service.close()


@pytest.mark.long  # a node of the test before that dies as it begins is a restart, which it does not allow for
def test_a_worker_dies_in_place(cluster, folder, tmp_path):
    """The others go on without it, be it rank 0 or another, and somebody takes its place; nobody is restarted."""
    end = tmp_path / "end"
    process = launch(cluster, folder, "--until", end, program="loop_job.py", most=2)
    reader = Reader(process)
    try:
        for count, rank in enumerate((1, 0), 1):
            reader.wait_for(r"SIZE replicas=2 restarts=0", times=count)
            pids = until(lambda: len(job_status()["pids"]) == 2 and job_status()["pids"], "two workers")
            os.kill(pids[rank], signal.SIGKILL)
            reader.wait_for(r"lost a worker; the others went on, 1 now", times=count)
            survivor, = set(pids) - {pids[rank]}
            assert survivor in until(lambda: len(job_status()["pids"]) == 2 and job_status()["pids"], "two workers again")
        reader.wait_for(r"SIZE replicas=2 restarts=0", times=3)
        end.write_text("")
        reader.wait_for(r"END whole=True restarts=0")
        assert reader.end() == 0
        assert not any("going on from" in line for line in reader.lines)
    finally:
        process.kill()
        process.wait()


def asked_for():
    """The bundles that Ray's autoscaler finds."""
    from ray.experimental.internal_kv import _internal_kv_get
    return json.loads(_internal_kv_get("autoscaler_resource_request").decode())


def test_exit_status_is_the_programs(cluster, folder):
    reader = Reader(launch(cluster, folder, "--steps", 1, "--exit", 7))
    reader.wait_for(r"END whole=True")
    reader.wait_for(r"the program failed: exit status 7")
    assert reader.end() == 7


@pytest.mark.long
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


@pytest.mark.long
def test_no_checkpoint_in_time(cluster, folder, tmp_path):
    """A program that does not stop when it is asked to: after --checkpoint-timeout it goes on from the previous checkpoint,
    and --cluster-rescale-timeout ends the wait for machines that do not come."""
    end = tmp_path / "end"
    reader = Reader(launch(cluster, folder, "--steps", 1, "--until", end, "--deaf", most=2, more=(
        "--checkpoint-timeout", 6, "--port-offset", 23450)))
    reader.wait_for(r"START replicas=1 restarts=0 step=0")
    reader.wait_for(r"goes from 1 to 2 workers")
    reader.wait_for(r"no checkpoint within 6 s: goes on from the previous one")
    reader.wait_for(r"START replicas=2 restarts=1 step=\d+0 ")
    end.write_text("")
    reader.wait_for(r"END whole=True helper=beside restarts=1")
    assert reader.end() == 0


def test_detach_attach_and_stop(cluster, folder, tmp_path):
    """CTRL-C at a terminal asks; the job that was left is found again."""
    keyboard, terminal = pty.openpty()
    reader = Reader(launch(cluster, folder, "--steps", 1, "--until", tmp_path / "never", most=1, stdin=terminal))
    reader.wait_for(r"START replicas=1 restarts=0 step=0")
    reader.process.send_signal(signal.SIGINT)
    os.write(keyboard, b"d\n")
    reader.wait_for(r"goes on; see it again with: adaptdl-ray attach")
    assert reader.end() == 0
    listed = subprocess.run([rayharness.sys.executable, "-m", "adaptdl_ray.command", "list", "--json", "-u", cluster.client],
                            stdout=subprocess.PIPE, text=True, timeout=LONG_S, check=True).stdout
    name = json.loads(listed)[0]["name"]
    shown = subprocess.run([rayharness.sys.executable, "-m", "adaptdl_ray.command", "status", name, "-u", cluster.address],
                           stdout=subprocess.PIPE, text=True, timeout=LONG_S, check=True).stdout
    assert re.search(r"^replicas +1$", shown, re.M) and re.search(r"^explain +\S", shown, re.M), shown
    reader = Reader(rayharness.command("command", "attach", name, "-u", cluster.client))
    reader.wait_for(r"START replicas=1 restarts=0 step=0")
    subprocess.run([rayharness.sys.executable, "-m", "adaptdl_ray.command", "stop", name, "-u", cluster.client],
                   timeout=LONG_S, check=True)
    reader.wait_for(r"STOPPED")
    assert reader.end() == 143
    process = rayharness.command("command", "status", name, "-u", cluster.address)
    assert "no such job on this cluster" in process.communicate(timeout=LONG_S)[0] and process.returncode == 1


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
])
def test_wrong_calls_are_one_clear_line(cluster, folder, arguments, status, words, monkeypatch, capsys):
    arguments = [cluster.address if argument == "ADDRESS" else argument for argument in arguments]
    monkeypatch.chdir(folder)
    try:
        found = launcher.main([*arguments, "-m", "2"])
    except SystemExit as end:
        found = end.code
    out = capsys.readouterr().err
    assert found == status and words in out, out
    assert len([line for line in out.splitlines() if "error: " in line or line.startswith("adaptdl_on_ray_aws: ")]) == 1, out


def test_another_ray_is_said_with_both_versions(cluster, folder):
    """Ray's own text has six lines; of its first and last alone this process's Python looked like the cluster's."""
    call = ["-u", cluster.address, "-f", "ledger_job.py", "-m", "2"]
    found = subprocess.run(
        [sys.executable, "-c", "import ray, sys; from adaptdl_ray import launcher; ray.__version__ = '2.41.9'; "
         f"sys.exit(launcher.main({call!r}))"], cwd=folder, text=True, stderr=subprocess.PIPE, timeout=LONG_S)
    said = next(line for line in found.stderr.splitlines() if line.startswith("adaptdl_on_ray_aws: "))
    assert found.returncode == 1 and "cannot join the cluster with Ray 2.41.9 and Python 3." in said, found.stderr
    assert f"The cluster was started with: Ray: {ray.__version__} Python: 3." in said, found.stderr


def test_no_node_has_that_much(cluster, folder):
    process = rayharness.command("launcher", "-u", cluster.address, "-f", "ledger_job.py", "--gpus", 4, "-m", 2,
                                 "--cluster-rescale-timeout", 1, cwd=folder)
    out, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 1 and "no node has what one worker takes (1 CPU, 4 GPU)" in out, out
    assert "Traceback" not in out


if __name__ == "__main__":
    rayharness.main(__file__)
