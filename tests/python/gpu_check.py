#!/usr/bin/env python3
"""Checks adaptdl.torch on a GPU, with the PyTorch that is installed there: python3 tests/python/gpu_check.py.
Needs the built package (ADL_PYTHON_LIB, or build/python/lib: tools/build-python) and one GPU; NCCL and Gloo.
Each check is a process of its own, or two. Exit status 0 when all pass; a line for each."""

import copy
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("ADL_PYTHON_LIB", str(ROOT / "build" / "python" / "lib"))
sys.path.insert(0, LIBRARY)

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

GRADSCALER = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


def near(a, b, tolerance):
    a, b = float(a), float(b)
    assert abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-12), (a, b)


def network(wide=False):
    torch.manual_seed(3)
    width = 512 if wide else 64
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
                         nn.Linear(16 * 36, width), nn.ReLU(), nn.Linear(width, 10)).cuda()


def images(count):
    torch.manual_seed(4)
    return TensorDataset(torch.randn(count, 3, 8, 8), torch.randint(10, (count,)))


def optimizer_of(kind, params):
    return {"sgd": lambda: torch.optim.SGD(params, lr=0.05, momentum=0.9),
            "adam": lambda: torch.optim.Adam(params, lr=1e-3),
            "adamw-fused": lambda: torch.optim.AdamW(params, lr=1e-3, fused=True)}[kind]()


def exact(kind, amp, backend):
    """One replica equals plain PyTorch, bit for bit, over 100 steps, loss scaler included."""
    import adaptdl.torch as adl
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    model, plain = network(), network()
    optimizer, plain_optimizer = (optimizer_of(kind, m.parameters()) for m in (model, plain))
    scaler, plain_scaler = (GRADSCALER(enabled=amp, growth_interval=5) for _ in range(2))
    adl.init_process_group(backend)
    model = adl.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler)
    loader = adl.AdaptiveDataLoader(images(1600), batch_size=16, shuffle=True, num_workers=2,
                                    pin_memory=True)
    steps = 0
    for _ in adl.remaining_epochs_until(1):
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            for m, o, s in ((model, optimizer, scaler), (plain, plain_optimizer, plain_scaler)):
                o.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                    loss = F.cross_entropy(m(x), y)
                s.scale(loss).backward()
                s.unscale_(o)
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                s.step(o)
                s.update()
            steps += 1
    assert steps == 100
    for a, b in zip(model.module.state_dict().values(), plain.state_dict().values()):
        assert torch.equal(a, b)
    assert scaler.get_scale() == plain_scaler.get_scale()
    assert model.gns.var_avg() > 1e-6 and 0 < model.gns.get_progress() <= 100
    print("   |G|^2 {:.4g}, tr(Sigma) {:.4g}".format(model.gns.sqr_avg(), model.gns.var_avg()))


def dictated(adl, data, batch_size, m, s):
    """A loader that dictates its sizes."""
    class Micro(adl.data.AdaptiveDataLoaderMixin):
        def __init__(self):
            super().__init__(batch_size)

        def __iter__(self):
            with self._elastic.context():
                self._elastic.sync_local_bsz()
                loop = self._elastic._bound()
                loop.set_sizes(m, s)
                rank, replicas = adl.env.replica_rank(), adl.env.num_replicas()
                for start in range(0, len(data) // (m * replicas) * m * replicas, m * replicas):
                    loop.step(m, False)
                    first = start + rank * m
                    yield [t[first:first + m].cuda() for t in data.tensors]
                    loop.commit()
    return Micro()


def accumulate(amp, replicas):
    """Four batches accumulated equal one of four times the size; a loss scale that changes within."""
    import adaptdl.torch as adl
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5)).cuda()
    plain = copy.deepcopy(net)
    optimizer, plain_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, plain))
    scaler = GRADSCALER(enabled=amp, init_scale=8.0, growth_interval=3)
    adl.init_process_group("gloo" if replicas > 1 else "nccl")
    rule = adl.scaling_rules.LinearScale()
    model = adl.AdaptiveDataParallel(net, optimizer, mp_scaler=scaler, scaling_rule=rule)
    rule.scale_lr = lambda scale: 1.0
    torch.manual_seed(6)
    data = TensorDataset(torch.randn(2048, 20), torch.randint(5, (2048,)))
    size, whole, steps = 32 // replicas, 128, 0
    for _ in adl.remaining_epochs_until(1):
        for x, y in dictated(adl, data, whole, size, 3):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            if not adl.current_dataloader().is_optim_step():
                continue
            plain_optimizer.zero_grad()
            part = [t[steps * whole:(steps + 1) * whole].cuda() for t in data.tensors]
            F.cross_entropy(plain(part[0]), part[1]).backward()
            plain_optimizer.step()
            steps += 1
    assert steps == 16
    for a, b in zip(net.parameters(), plain.parameters()):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5), (a - b).abs().max()
    assert model.gns.var_avg() > 1e-6
    if amp:
        assert scaler.get_scale() > 8.0


def statistics(kind, wide):
    """Norms by PyTorch's kernels on the GPU against the library's estimator, fed by hand."""
    import adaptdl.torch as adl
    from adaptdl import _core
    torch.manual_seed(7)
    width = 256 if wide else 16  # wide: gradients are sampled
    net = nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                        nn.Linear(width, 3)).cuda()
    params = list(net.parameters())
    optimizer = optimizer_of(kind, [{"params": params[::2]}, {"params": params[1::2]}])
    adl.init_process_group("nccl")
    model = adl.AdaptiveDataParallel(net, optimizer)
    torch.manual_seed(8)
    data = TensorDataset(torch.randn(80 * 16, 32), torch.randint(3, (80 * 16,)))
    steps, micro, taken = [], [], 0

    def norms(grads):
        if kind != "sgd" and taken >= 5:
            grads = [g / ((optimizer.state[p]["exp_avg_sq"] / (1 - 0.999 ** taken)).sqrt() + 1e-8)
                     for p, g in zip(params, grads)]
        each = [float(g.double().square().sum()) for g in grads]
        return [sum(each[::2]), sum(each[1::2])]

    for _ in adl.remaining_epochs_until(1):
        for x, y in dictated(adl, data, 8, 8, 1):
            own = torch.autograd.grad(F.cross_entropy(net(x), y), params)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            micro.append(norms(own))
            if adl.current_dataloader().is_optim_step():
                local = [sum(some) / 2 for some in zip(*micro)]
                steps.append((local, norms([p.grad for p in params]), 2, 2.0))
                micro = []
                optimizer.step()
                taken += 1
            else:
                optimizer.step()
    known = _core.noise_of(2, steps[:-1])  # the last step's are read one step later
    found = model.gns.sqr_avg(), model.gns.var_avg()
    sampled = wide and kind != "sgd"
    near(known[1], found[1], 0.1 if sampled else 1e-3)
    if sampled:  # a small difference of large sums, of an eighth of the values each
        assert abs(known[0] - found[0]) < 0.05 * known[1], (known, found)
    else:
        near(known[0], found[0], 1e-2)
    print("   {} {}".format(known, found))


def half():
    """Parameters in bfloat16."""
    import adaptdl.torch as adl
    net = nn.Linear(64, 64).cuda().bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    adl.init_process_group("nccl")
    model = adl.AdaptiveDataParallel(net, optimizer)
    loader = adl.AdaptiveDataLoader(TensorDataset(torch.randn(320, 64)), batch_size=8)
    for _ in adl.remaining_epochs_until(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x.cuda().bfloat16()).square().mean().backward()
            optimizer.step()
    assert model.gns.var_avg() > 1e-6 and model.gns.var_avg() == model.gns.var_avg()


def with_ddp(kind, backend):
    """Two replicas on one GPU equal plain DistributedDataParallel, and each other."""
    import adaptdl.torch as adl
    torch.backends.cudnn.deterministic = True
    model, plain = network(), network()
    optimizer, plain_optimizer = (optimizer_of(kind, m.parameters()) for m in (model, plain))
    adl.init_process_group(backend)
    model = adl.AdaptiveDataParallel(model, optimizer, device_ids=[0])
    plain = DistributedDataParallel(plain, device_ids=[0])
    loader = adl.AdaptiveDataLoader(images(1600), batch_size=32, shuffle=True, drop_last=True)
    for _ in adl.remaining_epochs_until(2):
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            for m, o in ((model, optimizer), (plain, plain_optimizer)):
                o.zero_grad()
                F.cross_entropy(m(x), y).backward()
                o.step()
    for a, b in zip(model.module.parameters(), plain.module.parameters()):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), (a - b).abs().max()
        first = a.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, a)
    assert model.gns.var_avg() > 1e-6


def resumes(stop):
    """Interrupted in the middle and started again: the same parameters as without."""
    import adaptdl.torch as adl
    torch.backends.cudnn.deterministic = True
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    adl.init_process_group("nccl")
    model = adl.AdaptiveDataParallel(net, optimizer, schedule)
    loader = adl.AdaptiveDataLoader(images(320), batch_size=16, shuffle=True)
    steps = 0
    for _ in adl.remaining_epochs_until(2):
        for x, y in loader:
            if steps == int(stop):
                os.kill(os.getpid(), signal.SIGTERM)
            steps += 1
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        schedule.step()
    torch.save(net.state_dict(), os.environ["CHECK_RESULT"])


def autoscaled():
    """Batch sizes adapt on a GPU, and nothing waits for it: batches of the training run ahead."""
    import adaptdl.torch as adl
    net = network(True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    adl.init_process_group("nccl")
    model = adl.AdaptiveDataParallel(net, optimizer)
    loader = adl.AdaptiveDataLoader(images(4096), batch_size=32, shuffle=True, drop_last=True)
    loader.autoscale_batch_size(1024, local_bsz_bounds=(16, 256), gradient_accumulation=True)
    for epoch in adl.remaining_epochs_until(4):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
            batch_size = loader.current_batch_size
    assert batch_size > 32, batch_size
    print("   batch size {}, gain {:.2f}".format(batch_size, model.gain))


CHECKS = {
    "exact-sgd-nccl": (1, lambda: exact("sgd", False, "nccl")),
    "exact-adam-nccl": (1, lambda: exact("adam", False, "nccl")),
    "exact-adamw-fused-nccl": (1, lambda: exact("adamw-fused", False, "nccl")),
    "exact-sgd-amp-nccl": (1, lambda: exact("sgd", True, "nccl")),
    "accumulate-nccl": (1, lambda: accumulate(False, 1)),
    "accumulate-amp-nccl": (1, lambda: accumulate(True, 1)),
    "accumulate-amp-gloo-2": (2, lambda: accumulate(True, 2)),
    "statistics-sgd": (1, lambda: statistics("sgd", False)),
    "statistics-adam": (1, lambda: statistics("adam", False)),
    "statistics-adam-sampled": (1, lambda: statistics("adam", True)),
    "bfloat16": (1, half),
    "ddp-gloo-2-sgd": (2, lambda: with_ddp("sgd", "gloo")),
    "ddp-gloo-2-adam": (2, lambda: with_ddp("adam", "gloo")),
    "autoscaled": (1, autoscaled),
}


def start(name, rank, count, port, **variables):
    env = dict(os.environ, ADAPTDL_REPLICA_RANK=str(rank), ADAPTDL_NUM_REPLICAS=str(count),
               ADAPTDL_NUM_NODES="1", ADAPTDL_MASTER_ADDR="127.0.0.1", ADAPTDL_MASTER_PORT=str(port),
               CUBLAS_WORKSPACE_CONFIG=":4096:8", **variables)
    return subprocess.Popen([sys.executable, __file__, name], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def run(name, count=1, status=0, **variables):
    """Output of the check's processes; AssertionError when one of them failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [start(name, rank, count, port, **variables) for rank in range(count)]
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=120)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(process.communicate()[0] + "\nstill running after 120 s")
    codes = [process.returncode for process in processes]
    assert codes == [status] * count, "exit statuses {}\n{}".format(codes, "\n".join(outputs))
    return outputs


def resume():
    with tempfile.TemporaryDirectory() as folder:
        results = [os.path.join(folder, name) for name in ("whole", "parts")]
        run("resumes:-1", CHECK_RESULT=results[0])
        place = os.path.join(folder, "checkpoint")
        run("resumes:27", status=143, CHECK_RESULT=results[1], ADAPTDL_CHECKPOINT_PATH=place)
        run("resumes:-1", CHECK_RESULT=results[1], ADAPTDL_CHECKPOINT_PATH=place)
        whole, parts = (torch.load(path) for path in results)
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


def main():
    if not torch.cuda.is_available():
        sys.exit("gpu_check: there is no GPU")
    print("torch {}, {}, NCCL {}".format(torch.__version__, torch.cuda.get_device_name(),
                                         torch.cuda.nccl.version()), flush=True)
    failed = 0
    checks = [(name, lambda name=name, count=count: run(name, count)) for name, (count, _) in CHECKS.items()]
    for name, check in checks + [("resume-nccl", resume)]:
        begin = time.monotonic()
        try:
            outputs = check() or []
            print("ok - {} ({:.1f} s)".format(name, time.monotonic() - begin), flush=True)
            for line in "".join(outputs[:1]).splitlines():
                if line.startswith("   "):
                    print(line)
        except AssertionError as error:
            failed += 1
            print("not ok - {}: {}".format(name, error), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        main()
    elif sys.argv[1].startswith("resumes:"):
        resumes(sys.argv[1].split(":")[1])
    else:
        CHECKS[sys.argv[1]][1]()
