"""How long a program takes to its first step beyond what PyTorch itself takes.

Runs two small programs in turns, one with plain DistributedDataParallel and one with adaptdl.torch, and
compares the time from the end of `import torch` to the end of the first step.
    bench_torch_start.py PACKAGE_FOLDER [RUNS]
"""

import os
import statistics
import subprocess
import sys

PROGRAM = """
import sys, time
import torch, torch.distributed, torch.nn.parallel, torch.utils.data
begin = time.perf_counter()
cuda = torch.cuda.is_available()
backend, device = ("nccl", "cuda") if cuda else ("gloo", "cpu")
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(x):
    optimizer.zero_grad()
    model(x.to(device)).square().mean().backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    print(time.perf_counter() - begin)
    sys.stdout.flush()
    import os
    os._exit(0)
if sys.argv[1] == "plain":
    torch.distributed.init_process_group(backend, "tcp://127.0.0.1:%d" % int(sys.argv[2]),
                                         world_size=1, rank=0)
    model = torch.nn.parallel.DistributedDataParallel(model)
    for (x,) in torch.utils.data.DataLoader(data, 16):
        step(x)
else:
    import adaptdl.torch
    adaptdl.torch.init_process_group(backend)
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    for epoch in adaptdl.torch.remaining_epochs_until(1):
        for (x,) in adaptdl.torch.AdaptiveDataLoader(data, 16):
            step(x)
"""


def seconds(kind, package, run):
    environment = {**os.environ, "PYTHONPATH": package}
    port = str(21000 + (os.getpid() + 7 * run) % 20000)
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind, port], env=environment, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return float(done.stdout)


def main():
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    plain, ours = [], []
    for run in range(runs):
        plain.append(seconds("plain", sys.argv[1], run))
        ours.append(seconds("adaptdl", sys.argv[1], run))
    a, b = statistics.median(plain), statistics.median(ours)
    print("from import torch to the first step: plain %.3f s, with adaptdl %.3f s: %+.3f s" % (a, b, b - a))


if __name__ == "__main__":
    main()
