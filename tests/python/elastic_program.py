"""What tests/python/test_torch_elastic.py resizes, kills and stops: two models, whose end tells what they were trained on.
The first is its ledger: each example of a batch adds 1 to its own element, so that at the end every element is the number
of epochs. The second learns a line with momentum, a schedule that steps at each batch, a buffer, and, where PyTorch has
them for the CPU, bfloat16 and a loss scaler (with cuda=1 on a GPU, over NCCL with nccl=1; there float16). It does not depend on how many replicas have a batch between them.

    elastic_program.py DIRECTORY [name=value...]     writes DIRECTORY/starts, and on rank 0 DIRECTORY/result at the end

SIGUSR1 has it print where all its threads are."""

import faulthandler
import json
import os
import signal
import sys
import time

import torch
import torch.nn.functional as F

import adaptdl.checkpoint
import adaptdl.collective
import adaptdl.torch as adl
from adaptdl.torch import data

BATCH = 12
directory = sys.argv[1]
options = dict(epochs=3, examples=240, step_ms=5, workers=0, persistent=0, accumulate=0, amp=0, calls=0, own=0, cuda=0,
               nccl=0)
options.update((name, int(value)) for name, value in (word.split("=") for word in sys.argv[2:]))
o = type("Options", (), options)
DEVICE = torch.device("cuda" if o.cuda else "cpu")
if o.nccl:  # which takes processes on one GPU for a mistake, unless they seem to be on several hosts
    os.environ["NCCL_HOSTID"] = os.environ.get("ADAPTDL_MEMBER", "0")


class Numbers(torch.utils.data.Dataset):
    """(number, x, y)"""

    def __init__(self, count):
        self.x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
        self.y = self.x @ torch.arange(1.0, 9.0) / 10

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


class Ledger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(o.examples))

    def forward(self, numbers):
        return -self.seen[numbers].mean()


class History(adaptdl.checkpoint.State):
    epochs = []

    def save(self, fileobj):
        fileobj.write(json.dumps(self.epochs).encode())

    def load(self, fileobj):
        self.epochs = json.loads(fileobj.read())


class Shift(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.full((16,), 0.25))

    def forward(self, x):
        return x + self.by


def line():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), Shift(), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def halve():
    """Every batch in two, accumulated."""
    choose = data.AdaptiveDataLoaderHelper.sync_local_bsz

    def sync_local_bsz(self):
        size = choose(self)
        if self.batch_size != BATCH or size % 2:
            return size
        self._loop.set_sizes(size // 2, 1)
        return size // 2
    data.AdaptiveDataLoaderHelper.sync_local_bsz = sync_local_bsz


def open_files():
    return len(os.listdir("/proc/self/fd"))


def mark(name):
    with open(os.path.join(directory, name), "w"):
        pass


def pause():
    """Until there is a reason to hurry."""
    if not os.path.exists(os.path.join(directory, "hurry")):
        time.sleep(o.step_ms / 1000)


def held(name="hold"):
    """Until a test has done something meanwhile: it makes the file before, and removes it."""
    while os.path.exists(os.path.join(directory, name)):
        mark("waits")
        time.sleep(0.02)


def main():
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    with open(os.path.join(directory, "starts"), "a") as starts:
        starts.write(f"{os.environ.get('ADAPTDL_MEMBER', 0)} {os.getpid()} {os.environ.get('ADAPTDL_JOIN', 0)}\n")
    if int(os.environ.get("ADAPTDL_JOIN", 0)):
        held("hold-new")
    adl.init_process_group("nccl" if o.nccl else "gloo")
    if o.accumulate:
        halve()
    for _ in range(o.calls):  # a new process is answered from the others' log
        assert adaptdl.collective.allreduce(1) >= 1
    if o.own == 1:
        torch.distributed.barrier()
    grows = dict(init_scale=64.0, growth_interval=100) if o.cuda else dict(growth_interval=7)  # float16 ends at 65504
    scaler = torch.amp.GradScaler(DEVICE.type, **grows) if o.amp and hasattr(torch, "amp") \
        and hasattr(torch.amp, "GradScaler") else None
    ledger, model = Ledger().to(DEVICE), line().to(DEVICE)
    optimizers = torch.optim.SGD(ledger.parameters(), lr=float(BATCH)), \
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[1], lambda step: 0.999 ** step)
    ledger = adl.AdaptiveDataParallel(ledger, optimizers[0], name="ledger")
    model = adl.AdaptiveDataParallel(model, optimizers[1], schedule, scaler, name="line")
    workers = dict(num_workers=o.workers, persistent_workers=bool(o.persistent)) if o.workers else {}
    train = adl.AdaptiveDataLoader(Numbers(o.examples), batch_size=BATCH, shuffle=True, **workers)
    valid = adl.AdaptiveDataLoader(Numbers(60), batch_size=30)
    history, sums = History("history"), adl.Accumulator()
    adaptdl.checkpoint.load_state(history)
    counted, files = [], open_files()
    replicas = [set() for _ in range(o.epochs)]  # that trained, in each epoch
    for epoch in adl.remaining_epochs_until(o.epochs):
        if o.own == 2 and epoch == 0:
            torch.distributed.barrier()
        model.train()
        for i, (numbers, x, y) in enumerate(train):
            assert i < len(train), (i, len(train))
            if i + 3 < len(train):
                mark("trains")
            if epoch == 0 and i == 3:
                held()
            replicas[epoch].add(adaptdl.env.num_replicas())
            numbers, x, y = numbers.to(DEVICE), x.to(DEVICE), y.to(DEVICE)
            optimizers[0].zero_grad()
            optimizers[1].zero_grad()
            with torch.autocast(DEVICE.type, torch.float16 if o.cuda else torch.bfloat16, enabled=bool(o.amp)):
                loss = F.mse_loss(model(x).squeeze(1).float(), y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            ledger(numbers).backward()
            if scaler is None:
                optimizers[1].step()
            else:
                scaler.step(optimizers[1])
                scaler.update()
            optimizers[0].step()
            if data.current_dataloader().is_optim_step():
                schedule.step()
            pause()
        model.eval()
        with torch.no_grad():
            for numbers, x, y in valid:
                x, y = x.to(DEVICE), y.to(DEVICE)
                sums["seen"] += len(numbers) - data.current_dataloader().extra
                sums["loss"] += F.mse_loss(model(x).squeeze(1), y, reduction="sum").item()
                pause()
        with sums.synchronized():
            counted.append((epoch, sums["seen"], sums["loss"] / sums["seen"]))
            sums.clear()
        history.epochs = history.epochs + [epoch]
    if adaptdl.env.replica_rank() == 0:
        seen = ledger.module.seen.detach().cpu()
        result = dict(wrong=[(i, seen[i].item()) for i in range(o.examples) if not abs(seen[i].item() - o.epochs) < 1e-3],
                      steps=schedule.last_epoch, files=open_files() - files, history=history.epochs, counted=counted,
                      replicas=[sorted(counts) for counts in replicas],
                      weights=[p.detach().flatten().tolist() for p in model.module.parameters()],
                      buffers=[b.flatten().tolist() for b in model.module.buffers()])
        with open(os.path.join(directory, "result"), "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
