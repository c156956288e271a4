#!/usr/bin/python3
"""A PyTorch job on a local cluster grows from one replica to several when there is room and goes back to one
when another job needs it, and loses no sample: its ledger, a state of the checkpoint, has seen every
example of every epoch exactly once."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import harness

import pytest

BIN = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin"))
EPOCHS, EXAMPLES, BATCH = 100, 120, 12
WAIT_S = 240  # a process needs seconds to import torch, and the machine may be busy

PROGRAM = """
import json, os, time
import torch
import adaptdl.torch as adl
from adaptdl import checkpoint, collective, env

EPOCHS, EXAMPLES, BATCH = %d, %d, %d


class Ledger(checkpoint.State):
    def __init__(self):
        super().__init__("ledger")
        self.seen, self.pending, self.steps = {}, {}, 0

    def add(self, epoch, example):
        key = f"{epoch}.{example}"
        self.pending[key] = self.pending.get(key, 0) + 1

    def sync(self):
        for key, n in collective.allreduce(list(self.pending.items())):
            self.seen[key] = self.seen.get(key, 0) + n
        self.pending = {}

    def save(self, fileobj):
        fileobj.write(json.dumps([self.steps, self.seen]).encode())

    def load(self, fileobj):
        self.steps, self.seen = json.loads(fileobj.read())


class SameRate(adl.scaling_rules.ScalingRuleBase):
    def scale_lr(self, scale):
        return 1.0


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return i


share = env.share_path()
with open(share + "/starts", "a") as file:
    file.write(f"{env.num_restarts()} {env.replica_rank()} {env.num_replicas()}\\n")
adl.init_process_group("gloo")
ledger = Ledger()
checkpoint.load_state(ledger)
loader = adl.AdaptiveDataLoader(Numbers(), batch_size=BATCH, shuffle=True, num_workers=1)  # the tutorial's
net = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(net.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
model = adl.AdaptiveDataParallel(net, optimizer, scaling_rule=SameRate())
for epoch in adl.remaining_epochs_until(EPOCHS):
    place = 0
    for batch in loader:
        if not os.path.exists(share + "/hurry"):
            time.sleep(0.02 * len(batch))
        place += len(batch)
        own = batch.tolist()
        if place == len(loader.sampler) and loader.sampler._order.padded:
            own.pop()  # goes to another replica too, so that all have equally many
        for example in own:
            ledger.add(epoch, example)
        optimizer.zero_grad()
        (-model(torch.ones(1))).sum().backward()
        optimizer.step()
        ledger.steps += 1
ledger.sync()
if env.replica_rank() == 0:
    with open(share + "/ledger.part", "w") as file:
        json.dump([ledger.steps, net.weight.item(), ledger.seen], file)
    os.rename(share + "/ledger.part", share + "/ledger")
""" % (EPOCHS, EXAMPLES, BATCH)


class Cluster:
    """A private cluster of one node with three slots. Its rounds come often, and a job that has not
    reported is taken for a short one, which goes first."""

    def __init__(self, folder):
        self.folder = folder
        self.env = harness.environment(ADAPTDL_STATE=str(folder / "s"), OMP_WAIT_POLICY="passive")
        (folder / "config.yaml").write_text("intervalSeconds: 1\neventDelaySeconds: 0.2\n"
                                            "policy:\n  parameters: {restart_cost_s: 0.5, tprior_s: 1}\n")
        self.call("up", "--nodes", "1", "--slots", "3", "--config", str(folder / "config.yaml"))

    def call(self, *words):
        done = subprocess.run([str(BIN / "adaptdl"), *words], env=self.env, timeout=120, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 0, f"adaptdl {words}: {done.stderr}"
        return done.stdout

    def submit(self, name, command, spec):
        container = {"name": "main", "command": command,
                     "env": [{"name": "ADAPTDL_HINTS_INTERVAL", "value": "1"}]}
        job = {"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": name},
               "spec": {"maxRetries": 0, **spec, "template": {"spec": {"containers": [container]}}}}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(job))
        self.call("submit", str(path))

    def job(self, name):
        return json.loads(self.call("describe", name, "-o", "json"))

    def wait(self, name, phase, replicas, trained=0):
        """Until it is so, and has reported steps on so many replicas."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            job = self.job(name)
            profiled = (job["train"] or {}).get("maxProfiledReplicas", 0)
            if job["phase"] == phase and job["readyReplicas"] in replicas and profiled >= trained:
                return job
            assert job["phase"] not in ("Succeeded", "Failed"), (job["phase"], job["message"])
            time.sleep(0.2)
        raise AssertionError(f"{name} is {job['phase']} with {job['readyReplicas']} replicas, not {phase} with "
                             f"{replicas}\n{self.call('explain', name)}")

    def close(self):
        for words in (["delete", "--all", "--wait"], ["down"]):
            subprocess.run([str(BIN / "adaptdl"), *words], env=self.env, timeout=120,
                           stdin=subprocess.DEVNULL, capture_output=True)


@pytest.fixture
def cluster():
    if not (BIN / "adaptdl-sched").exists():
        pytest.skip(f"{BIN}/adaptdl-sched is not built")
    try:
        import adaptdl.torch  # noqa: F401
    except ImportError as error:
        pytest.skip(f"adaptdl.torch cannot be imported: {error}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="adl-torch-", dir="/tmp"))
    made = Cluster(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


def test_grows_and_shrinks_without_losing_a_sample(cluster):
    program = cluster.folder / "train.py"
    program.write_text(PROGRAM)
    other = "trap 'exit 143' TERM; while [ ! -e $ADAPTDL_SHARE_PATH/stop ]; do sleep 0.1; done"
    cluster.submit("learns", ["/usr/bin/python3", str(program)], {"maxReplicas": 3})
    cluster.wait("learns", "Running", [1])
    cluster.wait("learns", "Running", [2, 3], trained=2)
    cluster.submit("other", ["sh", "-c", other], {"minReplicas": 2, "maxReplicas": 2, "preemptible": False})
    cluster.wait("other", "Running", [2])
    cluster.wait("learns", "Running", [1])

    share = {name: cluster.folder / "s" / "jobs" / cluster.job(name)["uid"] / "share"
             for name in ("learns", "other")}
    (share["learns"] / "hurry").touch()
    job = cluster.wait("learns", "Succeeded", [0])
    (share["other"] / "stop").touch()
    cluster.wait("other", "Succeeded", [0])

    starts = [tuple(map(int, line.split())) for line in (share["learns"] / "starts").read_text().splitlines()]
    assert len(set(starts)) == len(starts)  # no replica twice
    sizes = [size for _, size in sorted({(restart, size) for restart, _, size in starts})]
    assert sizes[0] == 1 and max(sizes) >= 2, sizes  # those who join say so; who leaves in place starts nobody
    assert job["failures"] == 0
    steps, weight, seen = json.loads((share["learns"] / "ledger").read_text())
    wanted = {f"{epoch}.{example}": 1 for epoch in range(EPOCHS) for example in range(EXAMPLES)}
    assert seen == wanted
    assert steps == weight
    print(f"info - replicas {' -> '.join(map(str, sizes))}: {len(seen)} samples exactly once, {steps} steps")


if __name__ == "__main__":
    harness.main(__file__)
