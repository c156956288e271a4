#!/usr/bin/python3
"""adaptdl.env and python -m adaptdl."""

import subprocess
import sys

import harness
import pytest

from adaptdl import env

VARIABLES = {
    "ADAPTDL_CHECKPOINT_PATH": ("checkpoint_path", "/ck", "/ck"),
    "ADAPTDL_SHARE_PATH": ("share_path", "/share", "/share"),
    "ADAPTDL_JOB_ID": ("job_id", "team/job", "team/job"),
    "ADAPTDL_MASTER_ADDR": ("master_addr", "10.0.0.7", "10.0.0.7"),
    "ADAPTDL_MASTER_PORT": ("master_port", "47000", 47000),
    "ADAPTDL_NUM_REPLICAS": ("num_replicas", "8", 8),
    "ADAPTDL_REPLICA_RANK": ("replica_rank", "3", 3),
    "ADAPTDL_NUM_NODES": ("num_nodes", "4", 4),
    "ADAPTDL_NUM_RESTARTS": ("num_restarts", "5", 5),
    "ADAPTDL_SUPERVISOR_URL": ("supervisor_url", "http://s:1", "http://s:1"),
    "ADAPTDL_SCHED_VERSION": ("adaptdl_sched_version", "0.1.0", "0.1.0"),
    "ADAPTDL_TENSORBOARD_LOGDIR": ("tensorboard_logdir", "/tb", "/tb"),
}
DEFAULTS = {"master_addr": "0.0.0.0", "master_port": 0, "num_replicas": 1, "replica_rank": 0,
            "num_nodes": 1, "num_restarts": 0}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_defaults():
    for name, _, _ in VARIABLES.values():
        assert getattr(env, name)() == DEFAULTS.get(name)
    assert env.from_ray() is False


def test_each_variable_is_read(monkeypatch):
    for variable, (name, text, value) in VARIABLES.items():
        monkeypatch.setenv(variable, text)
        assert getattr(env, name)() == value


def test_nodes_are_as_many_as_replicas_unless_said(monkeypatch):
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", "6")
    assert env.num_nodes() == 6


def test_an_empty_variable_is_unset(monkeypatch):
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", "")
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", "")
    assert env.checkpoint_path() is None
    assert env.num_replicas() == 1


@pytest.mark.parametrize("variable, value", [
    ("ADAPTDL_MASTER_PORT", "http"), ("ADAPTDL_MASTER_PORT", "70000"), ("ADAPTDL_NUM_REPLICAS", "0"),
    ("ADAPTDL_REPLICA_RANK", "-1"), ("ADAPTDL_NUM_RESTARTS", "1.5"), ("ADAPTDL_NUM_NODES", "1 ")])
def test_a_malformed_value_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}={value}"):
        env.num_replicas()


def test_rank_beyond_replicas_is_refused_at_initialization():
    harness.script("""
import adaptdl.collective
try:
    adaptdl.collective.initialize()
except ValueError as error:
    assert "ADAPTDL_REPLICA_RANK=2" in str(error), error
else:
    raise SystemExit("no error")
""", ADAPTDL_NUM_REPLICAS=2, ADAPTDL_REPLICA_RANK=2, ADAPTDL_MASTER_PORT=1)


def test_another_major_version_of_the_scheduler_is_refused():
    harness.script("""
import adaptdl.collective
try:
    adaptdl.collective.initialize()
except ValueError as error:
    assert "ADAPTDL_SCHED_VERSION=99.0" in str(error) and "major version" in str(error), error
else:
    raise SystemExit("no error")
""", ADAPTDL_SCHED_VERSION="99.0")


def test_arguments_of_initialize_count_afterwards():
    port = harness.free_port()
    code = f"""
import os, sys
from adaptdl import _core, collective, env
pid = os.fork()
rank = 1 if pid == 0 else 0
collective.initialize("127.0.0.1", {port}, rank, 2)
assert (env.replica_rank(), env.num_replicas(), env.num_nodes()) == (rank, 2, 2)
assert _core.world() == (rank, 2, 0)
os.environ["ADAPTDL_NUM_REPLICAS"] = "5"
assert env.num_replicas() == 2
collective.teardown()
assert env.num_replicas() == 5
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
    harness.script(code)


def test_the_module_prints_version_and_environment():
    def run(**variables):
        return subprocess.run([sys.executable, "-m", "adaptdl"], env=harness.environment(**variables),
                              capture_output=True, text=True, timeout=120)
    result = run(ADAPTDL_NUM_REPLICAS=2, ADAPTDL_REPLICA_RANK=1, ADAPTDL_JOB_SECRET="hush")
    version = (harness.ROOT / "VERSION").read_text().strip()
    assert result.returncode == 0, result.stderr
    assert f"adaptdl   {version}" in result.stdout
    assert "rank 1 of 2 on 2 nodes" in result.stdout
    assert "ADAPTDL_NUM_REPLICAS=2" in result.stdout
    assert "hush" not in result.stdout
    result = run(ADAPTDL_MASTER_PORT="x")
    assert result.returncode == 1 and "ADAPTDL_MASTER_PORT=x" in result.stderr


if __name__ == "__main__":
    harness.main(__file__)
