#!/usr/bin/python3
"""Programs that other launchers start: torchrun itself, and the variables of Slurm's srun."""

import os
import re
import subprocess
import sys

import harness
import pytest

PROGRAM = """
import torch
from torch.utils.data import TensorDataset

import adaptdl.torch as adl
from adaptdl import env

adl.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.05)
parallel = adl.AdaptiveDataParallel(model, sgd)
x = torch.arange(64.0).reshape(32, 2) / 64
loader = adl.AdaptiveDataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
for epoch in adl.remaining_epochs_until(2):
    for inputs, targets in loader:
        sgd.zero_grad()
        (parallel(inputs) - targets).square().mean().backward()
        sgd.step()
place = (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.local_rank(), env.num_restarts())
open(f"result-{env.replica_rank()}", "w").write(f"{place} {model.weight.tolist()} {model.bias.tolist()}")
"""
CLEAN = re.compile("ADAPTDL_|SLURM_|MASTER_|TORCHELASTIC_|RANK$|WORLD_SIZE$|LOCAL_RANK$")


def clean_env(**more):
    env = {name: value for name, value in os.environ.items() if not CLEAN.match(name)}
    return dict(env, PYTHONPATH=harness.LIBRARY, OMP_NUM_THREADS="1", **more)


def results(folder, count=2):
    """What each replica wrote: its place, and the weights, which all of them must have."""
    texts = [(folder / f"result-{rank}").read_text() for rank in range(count)]
    places, weights = zip(*(re.fullmatch(r"(\(.*?\)) (.*)", text).groups() for text in texts))
    assert len(set(weights)) == 1
    return list(places), weights[0]


def start(folder, variables):
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen([sys.executable, "program.py"], cwd=folder, env=clean_env(**variables),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*processes):
    for process in processes:
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of two replicas by our own variables."""
    folder = tmp_path_factory.mktemp("ours")
    port = str(harness.free_port())
    finish(*(start(folder, {"ADAPTDL_MASTER_ADDR": "127.0.0.1", "ADAPTDL_MASTER_PORT": port, "ADAPTDL_NUM_REPLICAS": "2",
                            "ADAPTDL_REPLICA_RANK": str(rank)}) for rank in range(2)))
    return results(folder)[1]


def test_torchrun(tmp_path, expected):
    (tmp_path / "program.py").write_text(PROGRAM)
    # --redirects and --tee: PyTorch 1.13 fails on Python 3.11 with their defaults.
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
                           str(harness.free_port()), "--redirects", "1", "--tee", "1", "--log_dir", "logs",
                           "program.py"], cwd=tmp_path, env=clean_env(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(tmp_path) == (["(0, 2, 1, 0, 0)", "(1, 2, 1, 1, 0)"], expected)


def test_slurm(tmp_path, expected):
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_RESTART_COUNT": "4"}
    finish(*(start(tmp_path, dict(step, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))) for rank in range(2)))
    assert results(tmp_path) == (["(0, 2, 1, 0, 4)", "(1, 2, 1, 1, 4)"], expected)


def test_a_script_of_sbatch_is_one_replica(tmp_path):
    finish(start(tmp_path, {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}))
    assert results(tmp_path, 1)[0] == ["(0, 1, 1, 0, 0)"]


if __name__ == "__main__":
    harness.main(__file__)
