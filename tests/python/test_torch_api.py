#!/usr/bin/python3
"""The interface of adaptdl.torch: what it gives, what it refuses, what it does at the edges."""

import inspect
import os
import pathlib
import signal
import sys
import tempfile
import types

import harness
import pytest
import torch_fork
from torch_fork import on, one

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import adaptdl.torch as adl
from adaptdl import _core, collective, env
import adaptdl.torch.iterator


def numbers(n):
    return TensorDataset(torch.arange(n))


def small_model(**kwargs):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return adl.AdaptiveDataParallel(net, optimizer, **kwargs), optimizer


# ---- the reference ----

REFERENCE = {
    "adaptdl.torch": ["Accumulator", "AdaptiveDataLoader", "AdaptiveDataParallel", "ElasticSampler",
                      "current_dataloader", "current_epoch", "finished_epochs", "init_process_group",
                      "remaining_epochs_until", "AdaptDLTorchTrainer"],
    "adaptdl.torch.accumulator": ["Accumulator"],
    "adaptdl.torch.data": ["AdaptiveDataLoader", "AdaptiveDataLoaderHelper", "AdaptiveDataLoaderMixin",
                           "ElasticSampler", "current_dataloader"],
    "adaptdl.torch.epoch": ["current_epoch", "finished_epochs", "remaining_epochs_until"],
    "adaptdl.torch.gradient_noise_scale": ["GradientNoiseScale", "AdamGradientNoiseScale"],
    "adaptdl.torch.iterator": ["AdaptiveBPTTIterator"],
    "adaptdl.torch.parallel": ["AdaptiveDataParallel"],
    "adaptdl.torch.scaling_rules": ["AdaScale", "AdamScale", "LEGWScale", "LinearScale",
                                    "ScalingRuleBase", "SqrtScale"],
    "adaptdl.torch.trainer": ["AdaptDLTorchTrainer"],
}
SIGNATURES = {
    "adaptdl.torch.init_process_group": "(backend, init_method=None, world_size=None, rank=None)",
    "adaptdl.torch.AdaptiveDataLoader": "(dataset, batch_size=1, shuffle=False, **kwargs)",
    "adaptdl.torch.AdaptiveDataParallel":
        "(model, optimizer, lr_scheduler=None, mp_scaler=None, scaling_rule=None, "
        "name='adaptdl-dataparallel', **kwargs)",
    "adaptdl.torch.ElasticSampler": "(dataset, shuffle=True)",
    "adaptdl.torch.ElasticSampler.set_epoch": "(self, epoch, index=0)",
    "adaptdl.torch.AdaptiveDataParallel.to_tensorboard": "(self, writer, global_step, tag_prefix='')",
    "adaptdl.torch.data.AdaptiveDataLoaderHelper": "(batch_size=1)",
    "adaptdl.torch.data.AdaptiveDataLoaderHelper.autoscale_batch_size":
        "(self, max_batch_size, local_bsz_bounds=None, gradient_accumulation=False)",
    "adaptdl.torch.data.AdaptiveDataLoaderHelper.profile": "(self, commit)",
    "adaptdl.torch.data.AdaptiveDataLoaderMixin": "(batch_size)",
    "adaptdl.torch.gradient_noise_scale.GradientNoiseScale":
        "(adp, optimizer, mp_scaler=None, num_replicas=None, accum_scale=None)",
    "adaptdl.torch.iterator.AdaptiveBPTTIterator": "(dataset, batch_size, bptt_len, **kwargs)",
    "adaptdl.torch.scaling_rules.LEGWScale": "(base_warmup_epochs, data_size)",
    "adaptdl.torch.scaling_rules.ScalingRuleBase.initialize":
        "(self, adp, optimizer, patch_optimizer=False)",
    "adaptdl.torch.scaling_rules.ScalingRuleBase.step": "(self, *args, **kwargs)",
}


def resolve(path):
    parts = path.split(".")
    for i in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:i]))
        if module is not None:
            thing = module
            for name in parts[i:]:
                thing = getattr(thing, name)
            return thing
    raise AssertionError(path)


def test_everything_is_there_and_documented():
    for module, names in REFERENCE.items():
        assert set(names) <= set(resolve(module).__all__), module
        assert resolve(module).__doc__
        for name in names:
            thing = resolve(f"{module}.{name}")
            assert thing.__doc__ and "Bases" not in thing.__doc__, name
            for attribute, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert value.__doc__, f"{module}.{name}.{attribute}"
    for path, wanted in SIGNATURES.items():
        assert str(inspect.signature(resolve(path))) == wanted, path


def test_stubs_name_what_there_is():
    import ast
    for module, names in REFERENCE.items():
        stub = pathlib.Path(resolve(module).__file__).with_suffix(".pyi")
        tree = ast.parse(stub.read_text())
        defined = {node.name for node in tree.body if hasattr(node, "name")}
        defined |= {a.asname or a.name for node in tree.body if isinstance(node, ast.ImportFrom)
                    for a in node.names}
        assert set(names) <= defined, module


def test_importing_touches_neither_signals_nor_sockets():
    harness.script("""
import signal, os
before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
import torch
with open("/proc/self/status") as file:
    caught = [line for line in file if line.startswith("SigCgt")]
fds = len(os.listdir("/proc/self/fd"))
import adaptdl.torch, adaptdl.torch.iterator
with open("/proc/self/status") as file:
    assert caught == [line for line in file if line.startswith("SigCgt")]
assert fds == len(os.listdir("/proc/self/fd"))
assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
assert not torch.distributed.is_initialized()
try:
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit("no KeyboardInterrupt")
except KeyboardInterrupt:
    pass
""")


# ---- init_process_group ----

@one
def test_init_once():
    adl.init_process_group("gloo")
    assert torch.distributed.get_world_size() == 1
    with pytest.raises(RuntimeError, match="initialized already"):
        adl.init_process_group("gloo")


@one
def test_init_wrong_arguments():
    for method in ("file:///tmp/x", "tcp://", "tcp://host:port", "host:1"):
        with pytest.raises(ValueError, match="init_method"):
            adl.init_process_group("gloo", init_method=method)
    with pytest.raises((ValueError, RuntimeError)):
        adl.init_process_group("gloo", rank=3, world_size=2, init_method="tcp://127.0.0.1:1")
    with pytest.raises(Exception):
        adl.init_process_group("no such backend")
    adl.init_process_group("gloo")  # and none of these is in the way


def test_init_by_arguments():
    port = harness.free_port()

    def program(rank):
        adl.init_process_group("gloo", f"tcp://127.0.0.1:{port}", 2, rank)
        assert (env.replica_rank(), env.num_replicas()) == (rank, 2)
        value = torch.tensor([rank + 1.0])
        torch.distributed.all_reduce(value)
        assert value.item() == 3 and collective.allreduce(rank) == 1

    children = [torch_fork.fork(program, rank) for rank in range(2)]
    assert [torch_fork.status_of(child) for child in children] == [0, 0]


@on(2)
def test_init_does_not_try_again():
    """One store on each replica, over a port that rank 0's server was given: no port is guessed, nothing is tried twice."""
    made = []

    class Counted(torch.distributed.TCPStore):
        def __init__(self, address, port, *args, **kwargs):
            made.append(port)
            super().__init__(address, port, *args, **kwargs)

    torch.distributed.TCPStore = Counted
    adl.init_process_group("gloo")
    if env.replica_rank() == 0:
        assert made.pop(0) == 0
    assert len(made) == 1 and made[0] > 0


def test_model_before_init():
    with pytest.raises(RuntimeError, match="init_process_group"):
        small_model()


# ---- accumulators ----

@one
def test_accumulator_as_the_reference_has_it():
    accum = adl.Accumulator({"start": 5}, more=1.5)
    accum["a"] += 1
    accum["a"] -= 3
    accum.update({"a": 10}, b=2)
    accum.update([("b", 0.5)])
    accum.subtract(c=4)
    accum += {"c": 1}
    accum -= [("c", torch.tensor(2))]
    assert len(accum) == 0 and list(accum) == [] and "a" not in accum and accum.get("a", 7) == 7
    assert dict(accum) == {} and list(accum.items()) == []
    for wrong in (lambda: float(accum["a"]), lambda: "{:.3f}".format(accum["a"]), lambda: print(accum["a"]),
                  lambda: f"{accum['a']}", lambda: accum["a"] > 1, lambda: accum["a"] == 1, lambda: int(accum["a"]),
                  lambda: bool(accum["a"]), lambda: accum["a"] + accum["b"], lambda: sum([accum["a"]]) * 2,
                  lambda: accum.__setitem__("a", 3), lambda: repr(accum["a"]), lambda: round(accum["a"]),
                  lambda: accum.update(1, 2), lambda: accum["a"] / 2, lambda: 2 / accum["a"], lambda: -accum["a"],
                  lambda: accum.update({"a": object()})):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError):
        accum["b"] = accum["a"] + 1
    with pytest.raises(ValueError):
        accum["a"] = adl.Accumulator()["a"] + 1
    with pytest.raises(KeyError):
        del accum["a"]
    with accum.synchronized():
        assert dict(accum) == {"start": 5, "more": 1.5, "a": 8, "b": 2.5, "c": -5}
        assert isinstance(accum["a"], int) and isinstance(accum["b"], float)
        assert accum["a"] / 2 == 4 and "a" in accum and len(accum) == 5 and "zz" not in accum
        accum["a"] = 0.25
        accum["a"] += 1
        accum["new"] = accum["b"] * 2
        assert accum["a"] == 1.25 and accum["new"] == 5.0 and accum.pop("start") == 5
        with pytest.raises(KeyError, match="start"):
            accum["start"]
        accum.update(a=1)
        assert accum["a"] == 2.25 and sorted(accum.keys()) == ["a", "b", "c", "more", "new"]
        accum.clear()
        assert not accum
        accum[7] = 1
        assert list(accum) == [7]
    assert len(accum) == 0


@on(3)
def test_accumulator_sums_over_replicas():
    accum = adl.Accumulator(base=10)
    adl.init_process_group("gloo")
    for i in range(4):
        accum["n"] += env.replica_rank() * i
    accum["r{}".format(env.replica_rank())] += 1
    with accum.synchronized():
        assert dict(accum) == {"base": 10, "n": 18, "r0": 1, "r1": 1, "r2": 1}
        with accum.synchronized():
            assert accum["n"] == 18
        accum.clear()
    accum["n"] += 1
    with accum.synchronized():
        assert dict(accum) == {"n": 3}


def replayed(stop):
    """A stop in the second loop: what the first scope saw is seen again. One accumulator for all epochs,
    one for each, as the tutorial has it."""
    accum = adl.Accumulator()
    adl.init_process_group("gloo")
    loaders = [adl.AdaptiveDataLoader(numbers(12), batch_size=4) for _ in range(2)]
    printed = []
    for epoch in adl.remaining_epochs_until(2):
        each = adl.Accumulator()
        for (batch,) in loaders[0]:
            accum["sum"] += batch.sum().item()
            each["count"] += len(batch)
        with accum.synchronized(), each.synchronized():
            printed.append((epoch, accum["sum"], each["count"]))
            accum.clear()
        for i, _ in enumerate(loaders[1]):
            accum["second"] += 1
            if stop and epoch == 1 and i == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        with accum.synchronized():
            printed.append((epoch, accum["second"]))
            accum.clear()
    return printed


def test_accumulator_replay():
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(1, replayed, True, status=143, ADAPTDL_CHECKPOINT_PATH=folder)
        for printed in torch_fork.replicas(2, replayed, False, ADAPTDL_CHECKPOINT_PATH=folder):
            # One batch of the second loop was done by one replica before; the rest in halves after.
            assert printed[0] == (1, 66, 12) and printed[1][1] == 1 + 2 * 2


@one
def test_accumulators_of_past_epochs_leave_the_checkpoint():
    adl.init_process_group("gloo")
    for _ in adl.remaining_epochs_until(50):
        stats = adl.Accumulator()
        with stats.synchronized():
            pass
    assert len(adl.accumulator._bound) <= 2


# ---- wrappers ----

@one
def test_backward_outside_loops():
    adl.init_process_group("gloo")
    model, optimizer = small_model()
    loss = model(torch.ones(1, 2)).sum()
    with pytest.raises(RuntimeError, match="outside a loop"):
        loss.backward()
    model.eval()
    with torch.no_grad():
        model(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="outside a loop"):
        optimizer.step()


@one
def test_wrapper_refusals():
    adl.init_process_group("gloo")
    model, _ = small_model()
    with pytest.raises(ValueError, match="adaptdl-dataparallel"):
        small_model()
    with pytest.raises(TypeError, match="ScalingRuleBase"):
        small_model(scaling_rule="linear", name="x")
    assert isinstance(model, nn.parallel.DistributedDataParallel)


@one
def test_tensorboard():
    class Writer:
        def __init__(self):
            self.found = {}

        def add_scalar(self, tag, value, step):
            self.found[tag] = (value, step)

    adl.init_process_group("gloo")
    model, optimizer = small_model()
    loader = adl.AdaptiveDataLoader(TensorDataset(torch.randn(32, 2)), batch_size=8)
    for _ in adl.remaining_epochs_until(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        writer = Writer()
        loader.to_tensorboard(writer, 3)
        model.to_tensorboard(writer, 3, tag_prefix="job")
    assert writer.found["Total_Batch_Size"] == (8, 3)
    assert set(writer.found) == {"Total_Batch_Size", "Local_Batch_Size", "Accumulation_Steps"} | {
        "job/" + tag for tag in ("Gradient_Norm_Sqr", "Gradient_Variance", "Gain", "Learning_Rate_Factor",
                                 "Accum_Scale", "Accum_Count", "Progress")}
    assert writer.found["job/Progress"] == (4.0, 3)


@one
def test_schedules_keep_quiet():
    """A schedule that was made before the wrapper, and one made after it."""
    import warnings
    adl.init_process_group("gloo")
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        model = adl.AdaptiveDataParallel(net, optimizer, before)
        after = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        loader = adl.AdaptiveDataLoader(TensorDataset(torch.randn(8, 2)), batch_size=8)
        for _ in adl.remaining_epochs_until(2):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            before.step()
            after.step()
    assert optimizer.param_groups[0]["lr"] < 0.1


def resumed(kind, epochs, stop_at):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = {"sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
                 "adam": lambda p: torch.optim.Adam(p, 0.01)}[kind](net.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(net, optimizer, schedule)
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    loader = adl.AdaptiveDataLoader(data, batch_size=8, shuffle=True)
    steps = 0
    for _ in adl.remaining_epochs_until(epochs):
        for x, y in loader:
            if steps == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            steps += 1
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
    return {k: v.clone() for k, v in net.state_dict().items()}, optimizer.param_groups[0]["lr"], \
        model.gns.get_progress(), (model.gns.sqr_avg(), model.gns.var_avg())


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_resuming_changes_nothing(kind):
    whole = torch_fork.replicas(1, resumed, kind, 3, -1)[0]
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(1, resumed, kind, 3, 11, status=143, ADAPTDL_CHECKPOINT_PATH=folder)
        parts = torch_fork.replicas(1, resumed, kind, 3, -1, ADAPTDL_CHECKPOINT_PATH=folder)[0]
    assert all(torch.equal(whole[0][key], parts[0][key]) for key in whole[0])
    assert whole[1:3] == parts[1:3]


def another_program():
    adl.init_process_group("gloo")
    net = nn.Linear(5, 5)
    with pytest.raises(Exception) as caught:
        adl.AdaptiveDataParallel(net, torch.optim.SGD(net.parameters(), 0.1))
    assert "size mismatch" in str(caught.value) or "lr_scheduler" in str(caught.value) \
        or "state_dict" in str(caught.value)
    os._exit(0)


def test_checkpoint_of_another_model_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(1, resumed, "sgd", 1, -1, ADAPTDL_CHECKPOINT_PATH=folder)
        torch_fork.replicas(1, another_program, ADAPTDL_CHECKPOINT_PATH=folder)


def failing():
    adl.init_process_group("gloo")
    model, optimizer = small_model()
    loader = adl.AdaptiveDataLoader(TensorDataset(torch.randn(32, 2)), batch_size=8)
    for _ in adl.remaining_epochs_until(1):
        for i, (x,) in enumerate(loader):
            if i == 2 and env.replica_rank() == 0:
                raise ValueError("a bug in the program")
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()


def test_a_failing_program_saves_nothing_and_ends_the_others():
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(2, failing, status=1, ADAPTDL_CHECKPOINT_PATH=folder)
        assert os.listdir(folder) == []


# ---- autoscaling ----

def autoscaled(kind):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](net.parameters(), lr=0.01)
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(net, optimizer)
    x = torch.randn(2048, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True) + 3 * torch.randn(2048, 1))
    loader = adl.AdaptiveDataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    loader.autoscale_batch_size(256, local_bsz_bounds=(8, 128), gradient_accumulation=True)
    sizes = []
    for epoch in adl.remaining_epochs_until(4):
        for a, b in loader:
            optimizer.zero_grad()
            F.mse_loss(model(a), b).backward()
            optimizer.step()
            size = loader.current_batch_size
        assert loader.current_batch_size is None
        sizes.append(size)
        assert model.gns.get_progress() >= 128 * (epoch + 1)
    # An epoch ends at the first step past its share of the progress.
    assert model.gns.get_progress() < 128 * 4 + 32
    return sizes, [p.detach() for p in net.parameters()], model.gns.get_progress()


@pytest.mark.parametrize("replicas,kind", [(1, "sgd"), (2, "sgd"), (2, "adam")])
def test_batch_sizes_adapt(replicas, kind):
    results = torch_fork.replicas(replicas, autoscaled, kind)
    sizes, params, progress = results[0]
    assert sizes[-1] > 16 and max(sizes) <= 256
    for other in results[1:]:
        assert other[0] == sizes and other[2] == progress
        assert all(torch.equal(a, b) for a, b in zip(params, other[1]))


# ---- the older trainer ----

def older(epochs, stop_at):
    torch.manual_seed(1)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 45], 0.1)
    adl.init_process_group("gloo")
    trainer = adl.AdaptDLTorchTrainer(16, 64, (4, 32))
    state = trainer.program_reentry(net, optimizer, schedule)
    data = torch.randn(128, 4)
    steps = 0
    for epoch in range(state.epoch, epochs):
        size = trainer.get_local_bsz()
        assert 4 <= size <= 32 and trainer.get_local_bsz() == size
        rank, replicas = env.replica_rank(), env.num_replicas()
        for first in range(rank * size, 128 - (replicas - 1 - rank) * size - size + 1, replicas * size):
            if steps == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            optimizer.zero_grad()
            net(data[first:first + size]).square().mean().backward()
            optimizer.step()
            steps += 1
        assert 1 <= optimizer.predict_gain(4.0) <= 4
        with pytest.raises(ValueError):
            trainer.step(epoch + 1)
        trainer.step(epoch)
        schedule.step()
    with pytest.raises(ValueError):
        optimizer.update_scale(2.0, 7)
    return state.epoch, [p.detach().clone() for p in net.parameters()]


def test_older_trainer():
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(1, older, 4, 20, status=143, ADAPTDL_CHECKPOINT_PATH=folder)
        results = torch_fork.replicas(2, older, 4, -1, ADAPTDL_CHECKPOINT_PATH=folder)
    assert results[0][0] >= 1
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1]))


def test_older_trainer_bounds():
    with pytest.raises(ValueError):
        adl.AdaptDLTorchTrainer(64, 32)
    with pytest.raises(ValueError):
        adl.AdaptDLTorchTrainer(64, 128, (65, 128))


# ---- the extension's entry points ----

def wild(seed):
    """Every function and method of the extension with every kind of wrong argument: exceptions only."""
    import random
    rng = random.Random(seed)
    adl.init_process_group("gloo")
    from torch.utils.dlpack import to_dlpack
    block = torch.zeros(64)
    loop = _core.Loop("wild", 2)
    things = [None, True, -1, 0, 1, 3, 2**31, 2**63, -2**70, 1e308, float("nan"), "", "x", "\0", b"",
              b"12345678" * 3, b"\xff" * 24, [], [1.0], [float("inf")], [1.0, 2.0, 3.0], (), (1, 2, 3),
              ([], [], []), {}, object(), block, to_dlpack(block), to_dlpack(block.double()),
              to_dlpack(block[::2]), loop, int, lambda *a: None]
    targets = [_core.bucket_norms, _core.bucket_pair, _core.check_bounds, _core.noise_of,
               _core.current_epoch, _core.finished_epochs]
    for make in (lambda: _core.Sampler(7, True), lambda: _core.Loop("l%d" % rng.randrange(10**9), 2),
                 lambda: _core.Meter("m%d" % rng.randrange(10**9), 2),
                 lambda: _core.Sums("s%d" % rng.randrange(10**9), {}), lambda: _core.Epochs(1)):
        thing = make()
        targets += [getattr(thing, name) for name in dir(type(thing))
                    if not name.startswith("_") and callable(getattr(type(thing), name))]
        kind = type(thing)
        targets += [kind, lambda *a, kind=kind: kind.__new__(kind)]
        for name in dir(kind):
            if isinstance(getattr(kind, name), types.GetSetDescriptorType):
                targets.append(lambda *a, t=thing, n=name: setattr(t, n, *a[:1]))
                targets.append(lambda *a, t=thing, n=name: getattr(t, n))
                targets.append(lambda *a, k=kind, n=name: getattr(k.__new__(k), n))
    calls = failures = 0
    for _ in range(6000):
        target = rng.choice(targets)
        args = [rng.choice(things) for _ in range(rng.randrange(9))]
        calls += 1
        try:
            target(*args)
        except BaseException:
            failures += 1
    os._exit(0 if failures > calls // 2 else 3)


@one
def test_buffers_outlive_a_broadcast_that_is_ended():
    """As with NCCL, whose collectives are ended when a replica is lost, and leave anything behind."""
    from torch.nn.parallel import DistributedDataParallel

    from adaptdl.torch import _world
    _world.streams = lambda: True
    DistributedDataParallel._sync_buffers = lambda self: [buffer.fill_(77) for buffer in self.module.buffers()]
    adl.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    before = [buffer.clone() for buffer in net.buffers()]
    model = adl.AdaptiveDataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def held(wanted):
        return all(torch.equal(buffer, value) for buffer, value in zip(net.buffers(), wanted))
    model._sync_buffers()
    _world._group.aborted = True
    model._sync_buffers()  # the program may run ahead
    model._leave_world()
    assert held(before)
    _world._group.aborted = False
    model._sync_buffers()
    model._averaged()  # so it had come to its end
    _world._group.aborted = True
    model._leave_world()
    assert held([torch.full_like(value, 77) for value in before])


def test_wild_calls_raise():
    for seed in range(4):
        child = torch_fork.fork(wild, seed)
        assert torch_fork.status_of(child) == 0


if __name__ == "__main__":
    harness.main(__file__)
