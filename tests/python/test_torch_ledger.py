#!/usr/bin/python3
"""Nothing lost and nothing seen twice, with PyTorch: random histories of a job on 1 to 3 real processes,
resized, interrupted (SIGINT, SIGTERM) and killed at random moments until it is finished, by signals as a
keeper sends them: a request to stop to the replica alone, a kill to it and all its workers. A ledger, itself
a state of the checkpoint, counts how often the surviving model has seen every example of every epoch:
exactly once, extra elements apart. The model's only parameter counts its optimizer steps.

    ADL_LEDGER_SEQUENCES (100) histories from ADL_LEDGER_SEED (1) on."""

import contextlib
import json
import os
import pathlib
import pickle
import random
import signal
import tempfile
import time

import harness
import torch_fork

import torch
from torch import nn

import adaptdl.torch as adl
from adaptdl import _core, checkpoint, collective, env

SEQUENCES = int(os.environ.get("ADL_LEDGER_SEQUENCES", 100))
SEED = int(os.environ.get("ADL_LEDGER_SEED", 1))
GENERATIONS_MAX = 60
RUNNERS = 4
GRACE_S = 12  # more than two time-outs of a silent peer


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return i


class Ledger(checkpoint.State):
    """How often each (loader, epoch, example) was seen; extras are counted as example -1."""

    def __init__(self):
        super().__init__("ledger")
        self.seen, self.pending, self.steps = {}, {}, 0

    def add(self, *cell):
        self.pending[cell] = self.pending.get(cell, 0) + 1

    def sync(self):
        everybody = collective.allreduce([[list(cell), n] for cell, n in self.pending.items()])
        for cell, n in everybody:
            self.seen[tuple(cell)] = self.seen.get(tuple(cell), 0) + n
        self.pending = {}

    def save(self, fileobj):
        rows = [[list(cell), n] for cell, n in self.seen.items()]
        fileobj.write(json.dumps([self.steps, rows]).encode())

    def load(self, fileobj):
        self.steps, rows = json.loads(fileobj.read())
        self.seen = {tuple(cell): n for cell, n in rows}


class Always1(adl.scaling_rules.ScalingRuleBase):
    def scale_lr(self, scale):
        return 1.0


def hurt(fate, rank, step):
    if fate["at_step"] == step and fate["victim"] in (rank, "all"):
        os.kill(os.getpid(), fate["signal"])


def program(plan, fate):
    """The training program of one replica."""
    loaders = [adl.AdaptiveDataLoader(Numbers(n), batch_size=b, shuffle=i == 0,
                                      num_workers=plan["workers"])
               for i, (n, b) in enumerate(zip(plan["examples"], plan["batch_size"]))]
    stats = adl.Accumulator()
    adl.init_process_group("gloo")
    rank = env.replica_rank()
    ledger = Ledger()
    checkpoint.load_state(ledger)
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    model = adl.AdaptiveDataParallel(net, optimizer, schedule, scaling_rule=Always1())
    step = 0
    for epoch in adl.remaining_epochs_until(plan["epochs"]):
        for i, loader in enumerate(loaders):
            place = 0
            for batch in loader:
                hurt(fate, rank, step)
                step += 1
                if step % plan["save_every"] == 0 and rank == 0 and plan["save_every"] > 1:
                    _core.save_soon()
                place += len(batch)
                sampler = loader.sampler
                extra = place == len(sampler) and sampler._order.padded
                own = batch.tolist()
                if extra:
                    own.pop()
                    ledger.add(i, epoch, -1)
                for example in own:
                    ledger.add(i, epoch, example)
                stats["examples"] += len(own)
                if i == 0:
                    optimizer.zero_grad()
                    (-model(torch.ones(1))).sum().backward()
                    optimizer.step()
                    ledger.steps += 1
            with stats.synchronized():  # replayed after a restart: the same number again
                assert stats["examples"] == plan["examples"][i], (stats["examples"], plan, i)
                stats.clear()
        schedule.step()
        assert schedule.last_epoch == epoch + 1
    assert net.weight.item() == ledger.steps, (net.weight.item(), ledger.steps)


def fate_of(rng, replicas):
    kind = rng.choice(["run", "interrupt", "interrupt", "interrupt", "kill", "kill", "kill"])
    victim = rng.choice(["all", rng.randrange(replicas), rng.randrange(replicas)])
    fate = {"at_step": -1, "after_s": None, "victim": victim, "kind": kind,
            "signal": rng.choice([signal.SIGTERM, signal.SIGINT])}
    if kind == "kill":
        fate["signal"] = signal.SIGKILL
    if kind != "run" and rng.random() < 0.7:
        fate["at_step"] = rng.randrange(8)
    elif kind != "run":
        fate["after_s"] = rng.random() * 0.25
    return fate


def generation(plan, fate, replicas, restarts, folder):
    port = harness.free_port() if replicas > 1 else 0
    children = [torch_fork.fork(
        program, plan, fate, ADAPTDL_CHECKPOINT_PATH=folder, ADAPTDL_NUM_RESTARTS=restarts,
        ADAPTDL_MASTER_ADDR="127.0.0.1", ADAPTDL_MASTER_PORT=port, ADAPTDL_NUM_REPLICAS=replicas,
        ADAPTDL_REPLICA_RANK=rank) for rank in range(replicas)]
    for child in children:
        os.setpgid(child, child)
    if fate["after_s"] is not None:
        time.sleep(fate["after_s"])
        for rank, child in enumerate(children):
            if fate["victim"] in (rank, "all"):
                (os.killpg if fate["kind"] == "kill" else os.kill)(child, fate["signal"])
    return supervise(children)


def supervise(children):
    """Waits, as a launcher does: when a replica dies, the others notice within seconds; those that do not,
    because they are still meeting the others (which PyTorch does without looking up), are put down."""
    codes, died_s = {}, None
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # what it has left behind
                    codes[child] = os.waitstatus_to_exitcode(status)
        if died_s is None and any(code not in (0, 143) for code in codes.values()):
            died_s = time.monotonic()
        if died_s is not None and time.monotonic() - died_s > GRACE_S:
            for child in children:
                if child not in codes:
                    os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


def check(plan, folder):
    """The last checkpoint's ledger."""
    def read():
        ledger = Ledger()
        assert checkpoint.load_state(ledger)
        return ledger.seen
    seen = torch_fork.replicas(1, read, ADAPTDL_CHECKPOINT_PATH=folder)[0]
    wanted = {(i, epoch, example) for i, n in enumerate(plan["examples"])
              for epoch in range(plan["epochs"]) for example in range(n)}
    found = {cell: n for cell, n in seen.items() if cell[2] >= 0}
    assert set(found) == wanted, (plan, sorted(wanted ^ set(found))[:20])
    assert set(found.values()) == {1}, (plan, [cell for cell, n in found.items() if n != 1][:20])


def history(number, counts):
    rng = random.Random(SEED * 1000003 + number)
    plan = {"examples": [rng.randint(5, 60), rng.randint(1, 25)],
            "batch_size": [rng.randint(1, 12), rng.randint(1, 8)],
            "epochs": rng.randint(2, 4), "workers": rng.choice([0, 1, 1, 1, 2]),
            "save_every": rng.choice([1, 2, 5])}
    with tempfile.TemporaryDirectory() as folder:
        before = 0
        for restarts in range(GENERATIONS_MAX):
            replicas = rng.randint(1, 3)
            fate = fate_of(rng, replicas)
            codes = generation(plan, fate, replicas, restarts, folder)
            counts["generations"] += 1
            counts["resizes"] += before not in (0, replicas)
            counts["kills"] += codes.count(-signal.SIGKILL)
            counts["interrupts"] += 143 in codes
            counts["workers"] += bool(plan["workers"])
            before = replicas
            if fate["kind"] == "run":
                assert codes == [0] * replicas, (plan, fate, codes)
            # Gloo aborts when a peer goes while the process group is being formed: no failure of the job's.
            allowed = {0, 143, 1, -fate["signal"], -signal.SIGKILL, -signal.SIGABRT}
            assert set(codes) <= allowed, (plan, fate, codes)
            if fate["kind"] == "interrupt" and fate["at_step"] >= 0:
                # Asked to stop inside a step: all stop in order, or had finished.
                assert set(codes) <= {0, 143}, (plan, fate, codes)
            if codes == [0] * replicas:
                break
        else:
            raise AssertionError(f"not finished after {GENERATIONS_MAX} starts: {plan}")
        check(plan, folder)


def some_histories(first):
    """Every RUNNERS-th history: much of a history is waiting for peers to notice, so several run at once."""
    counts = dict.fromkeys(("generations", "resizes", "kills", "interrupts", "workers"), 0)
    for number in range(first, SEQUENCES, RUNNERS):
        history(number, counts)
    return counts


def test_every_example_exactly_once():
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, str(first)) for first in range(RUNNERS)]
        runners = [torch_fork.fork(some_histories, first, path=path, timeout=3600)
                   for first, path in enumerate(paths)]
        assert [torch_fork.status_of(runner) for runner in runners] == [0] * RUNNERS
        parts = [pickle.loads(pathlib.Path(path).read_bytes()) for path in paths]
    counts = {key: sum(part[key] for part in parts) for key in parts[0]}
    print("info - {} sequences, {generations} starts ({workers} with workers), {resizes} resizes, {kills} "
          "kills, {interrupts} interrupts, {:.0f} s".format(SEQUENCES, time.monotonic() - begin, **counts))
    assert SEQUENCES < 20 or min(counts.values()) > 0


if __name__ == "__main__":
    harness.main(__file__)
