#!/usr/bin/env python3
"""What a step of the runner costs beside the same step in a loop written by hand: ResNet-18 on a processor, blocks of
steps in turns in one process, the median of the ratios of neighbouring blocks.

    PYTHONPATH=build/python/lib python3 tests/bench/bench_runner.py [--blocks N] [--steps N] [--batch-size N]
"""

import argparse
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from adaptdl import dl

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "pytorch"))
from cifar10 import resnet18  # noqa: E402


class Batches:
    """A loader whose batches are there already: only steps are measured."""

    def __init__(self, count, size):
        self.batch_size = size
        self.made = [(torch.randn(size, 3, 32, 32), torch.randint(10, (size,))) for _ in range(count)]

    def __len__(self):
        return len(self.made)

    def __iter__(self):
        return iter(self.made)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Compare(dl.Callback):
    """Times each loop of the runner, and after it one by hand."""

    def __init__(self, batches):
        super().__init__()
        self.batches, self.model = batches, resnet18()
        self.optimizer, self.runner_s, self.hand_s = optimizer_of(self.model), [], []

    def on_loader_start(self, runner):
        self.begin = time.monotonic()

    def on_loader_end(self, runner):
        self.runner_s.append(time.monotonic() - self.begin)
        begin = time.monotonic()
        total = 0.0
        for x, y in self.batches:
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.item()
        self.hand_s.append(time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5, help="in a block")
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(1)
    batches = Batches(args.steps, args.batch_size)
    compare, model = Compare(batches), resnet18()
    dl.SupervisedRunner().train(model=model, criterion=nn.CrossEntropyLoss(), optimizer=optimizer_of(model),
                                loaders={"train": batches}, num_epochs=args.blocks + 1, callbacks=[compare], cpu=True,
                                loggers={"_console": Quiet()})
    ratios = sorted(100 * (a / b - 1) for a, b in zip(compare.runner_s[1:], compare.hand_s[1:]))
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    print("by hand {:.1f} ms a step; with the runner {:+.2f} % (middle half {:+.2f} .. {:+.2f}, {} blocks)".format(
        1000 * statistics.median(compare.hand_s[1:]) / args.steps, statistics.median(ratios), low, high, len(ratios)))


class Quiet(dl.ConsoleLogger):
    """Prints nothing."""

    def log_metrics(self, metrics, scope, runner):
        pass


if __name__ == "__main__":
    main()
