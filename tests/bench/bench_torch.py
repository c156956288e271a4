"""What AdaptiveDataParallel costs a training step, beside plain DistributedDataParallel.

One process of one replica: `tools/bench-torch` starts as many as are wanted, with the variables
ADAPTDL_REPLICA_RANK and so on set. Blocks of steps of both are run in turns in the same processes, on
the same batches, so that whatever else the machine does hits both; what is reported is the median of
the ratios of neighbouring blocks. Samplers and loaders, zeroing gradients and stepping the optimizer are
all part of a step.

Whichever package is found as `adaptdl` is measured: ours or the original.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 when `deep`."""

    def __init__(self, inputs, width, stride, deep):
        super().__init__()
        outputs = 4 * width if deep else width
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if not deep:
            sizes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        layers = []
        for before, after, kernel, step in sizes:
            layers += [nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False),
                       nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        self.short = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet(depths, deep, large):
    """ResNet-18 is [2, 2, 2, 2] of plain blocks, ResNet-50 [3, 4, 6, 3] of deep ones."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1)]
    if not large:
        stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers, inputs = stem, 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for index in range(depth):
            layers.append(Block(inputs, width, 2 if stage and not index else 1, deep))
            inputs = 4 * width if deep else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Gpt(nn.Module):
    """A decoder of GPT-2's small size."""

    def __init__(self, tokens=50257, width=768, heads=12, layers=12, longest=512):
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.place = nn.Parameter(torch.zeros(longest, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True,
                                           norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(longest)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        n = x.shape[1]
        return self.head(self.body(self.token(x) + self.place[:n], self.mask[:n, :n]))


def workload(name, batch, device):
    """The model, a batch for it, and its loss."""
    loss = F.cross_entropy
    if name == "resnet18":
        model, x = resnet([2, 2, 2, 2], deep=False, large=False), torch.randn(batch, 3, 32, 32)
    elif name == "resnet50":
        model, x = resnet([3, 4, 6, 3], deep=True, large=True), torch.randn(batch, 3, 224, 224)
    elif name == "gpt2":
        model, text = Gpt(), torch.randint(50257, (batch, 513), device=device)
        loss = lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten())
        return model.to(device), (text[:, :-1].clone(), text[:, 1:].clone()), loss
    else:
        sys.exit("bench_torch: no workload {}".format(name))
    return model.to(device), (x.to(device), torch.randint(1000, (batch,), device=device)), loss


def forever(loader):
    while True:
        yield from loader


class Side:
    """One of the two contestants: steps it and times blocks of steps."""

    def __init__(self, model, optimizer, batches, pool, loss, device, amp):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.batches, self.pool, self.device, self.amp = batches, pool, device, amp

    def step(self):
        (order,) = next(self.batches)
        order = order.to(self.device, non_blocking=True) % len(self.pool[0])
        x, y = self.pool[0][order], self.pool[1][order]
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.amp):
            loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def block(self, steps):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps


def compare(args, adl, device, replicas, rank):
    batch = args.batch_size * replicas
    steps = args.blocks * args.steps + args.warm_up
    # Examples are numbers, which the device turns into a batch: a real loader's work would be the same
    # for both sides, and hide the difference.
    data = torch.utils.data.TensorDataset(torch.arange(batch * 64))
    torch.manual_seed(1)
    plain_model, pool, loss = workload(args.model, args.batch_size, device)
    sampler = torch.utils.data.DistributedSampler(data, replicas, rank)
    plain_loader = torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler,
                                               drop_last=True)
    plain_model = nn.parallel.DistributedDataParallel(plain_model)
    plain_optimizer = torch.optim.SGD(plain_model.parameters(), 1e-3, momentum=0.9)
    plain = Side(plain_model, plain_optimizer, forever(plain_loader), pool, loss, device, args.amp)

    torch.manual_seed(1)
    model, _, _ = workload(args.model, 1, device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    model = adl.AdaptiveDataParallel(model, optimizer)
    loader = adl.AdaptiveDataLoader(data, batch, shuffle=True, drop_last=True)

    def batches():
        for _ in adl.remaining_epochs_until(steps):
            yield from loader

    ours = Side(model, optimizer, batches(), pool, loss, device, args.amp)
    plain.block(args.warm_up)
    ours.block(args.warm_up)
    times = []
    for block in range(args.blocks):
        first, second = (plain, ours) if block % 2 else (ours, plain)
        a, b = first.block(args.steps), second.block(args.steps)
        times.append((b, a) if first is ours else (a, b))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="resnet18, resnet50 or gpt2")
    parser.add_argument("--batch-size", type=int, default=8, help="of one replica")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="in a block")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first block")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--amp", action="store_true", help="bfloat16 where PyTorch would use it")
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--label", default="adaptdl")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.perf_counter()
    import adaptdl.torch as adl
    imported = time.perf_counter()
    adl.init_process_group(args.backend)
    rank, replicas = dist.get_rank(), dist.get_world_size()
    times = compare(args, adl, device, replicas, rank)
    if rank == 0:
        ratios = [ours / plain for plain, ours in times]
        result = {"label": args.label, "model": args.model, "replicas": replicas,
                  "device": device.type, "torch": torch.__version__, "blocks": args.blocks,
                  "import_s": imported - begin,
                  "plain_ms": 1e3 * statistics.median(plain for plain, _ in times),
                  "ours_ms": 1e3 * statistics.median(ours for _, ours in times),
                  "ratio": statistics.median(ratios),
                  "ratio_low": sorted(ratios)[len(ratios) // 4],
                  "ratio_high": sorted(ratios)[-1 - len(ratios) // 4]}
        print(json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0)  # in the middle of an epoch, on purpose: nothing is worth saving


if __name__ == "__main__":
    main()
