"""What bench_elastic runs for PyTorch: ResNet-18 (11.2 million parameters) on random images of 32 x 32, batches of 32 in
all, Gloo on the CPU. A line for each step's beginning and end, as bench_elastic.c says.

    bench_elastic build/release 3 python3 tests/bench/bench_elastic_torch.py     with build/python/lib on PYTHONPATH"""
import os
import time

if os.environ.get("BENCH_RESTART"):
    os.environ.pop("ADAPTDL_WORLD_SOCKET", None)  # then it can't be resized in place

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import adaptdl.env
import adaptdl.torch as adl


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.short = nn.Sequential()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def resnet18():
    blocks, inner = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(inner, outer, stride), Block(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def main():
    torch.set_num_threads(1)
    steps = os.open(os.path.join(os.environ["BENCH_STEPS"], str(os.getpid())),
                    os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what):
        os.write(steps, b"%c %.6f %d %d %d\n" % (what, time.time(), dist.get_rank(), dist.get_world_size(),
                                                 adaptdl.env.num_restarts()))

    adl.init_process_group("gloo")
    torch.manual_seed(1)
    images, labels = torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,))
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model = adl.AdaptiveDataParallel(model, optimizer)
    loader = adl.AdaptiveDataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32,
                                    shuffle=True, drop_last=True)
    for _ in adl.remaining_epochs_until(100000):
        for x, y in loader:
            note(ord("B"))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            note(ord("E"))


if __name__ == "__main__":
    main()
