#!/usr/bin/env python3
"""What a step of the runner costs beside the same step in a loop written by hand: ResNet-18 on a processor, blocks of
steps in turns in one process on one model, the median of the ratios of neighbouring blocks and its standard error; by the
clock, and by the time that the processor was at work, which other programs on a busy machine do not change much. Then the
same with a model that does almost nothing, thousands of steps: what is left is the runner's own work, which is the same
for every model, and its share of a step of ResNet-18.

Memory that was freed stays with the process. With --give-back it does not, as glibc has it: then a fifth to a quarter of a
step are page faults, as many as the heap's end happens to be free, in either loop. They are counted, too.

    PYTHONPATH=build/python/lib python3 tests/bench/bench_runner.py [--blocks N] [--steps N] [--batch-size N] [--give-back]
"""

import argparse
import ctypes
import pathlib
import resource
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


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


class Batches:
    """A loader whose batches are there already: only steps are measured."""

    def __init__(self, count, size):
        self.batch_size = size
        self.made = [(torch.randn(size, 3, 32, 32), torch.randint(10, (size,))) for _ in range(count)]

    def __len__(self):
        return len(self.made)

    def __iter__(self):
        return iter(self.made)


def now():
    """The clock, the time that this process has worked, and its page faults."""
    return time.monotonic(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Compare(dl.Callback):
    """Times each loop of the runner, and after it one by hand."""

    def __init__(self, batches):
        super().__init__()
        self.batches, self.runner_s, self.hand_s = batches, [], []

    def on_loader_start(self, runner):
        self.begin = now()

    def on_loader_end(self, runner):
        self.runner_s.append([b - a for a, b in zip(self.begin, now())])
        runner.batch, runner.batch_metrics = None, {}  # each begins without a graph of the other's at the heap's end
        begin = now()
        total = 0.0
        for x, y in self.batches:
            loss = F.cross_entropy(runner.model(x), y)
            loss.backward()
            runner.optimizer.step()
            runner.optimizer.zero_grad()
            total += loss.item()
        self.hand_s.append([b - a for a, b in zip(begin, now())])

    def steps_of(self, which, steps):
        """Seconds a step in each block, with the runner and by hand; which: 0 the clock, 1 the processor; 2: page faults."""
        return ([times[which] / steps for times in block[1:]] for block in (self.runner_s, self.hand_s))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5, help="in a block")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--give-back", action="store_true", help="freed memory, to the system")
    args = parser.parse_args()
    if not args.give_back:
        glibc = ctypes.CDLL(None)
        glibc.mallopt(M_MMAP_MAX, 0)
        glibc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    torch.manual_seed(1)
    compare = measure(Batches(args.steps, args.batch_size), resnet18(), args.blocks)
    for which, name in enumerate(("clock", "processor")):
        ours, theirs = compare.steps_of(which, args.steps)
        ratios = sorted(100 * (a / b - 1) for a, b in zip(ours, theirs))
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        print("{:9} by hand {:.1f} ms a step; with the runner {:+.2f} % +- {:.2f} % (middle half {:+.2f} .. {:+.2f}, {} "
              "blocks)".format(name, 1000 * statistics.median(theirs), statistics.median(ratios),
                               0.93 * (high - low) / len(ratios) ** 0.5, low, high, len(ratios)))
    whole = statistics.median(theirs)
    faults = [statistics.median(counts) for counts in compare.steps_of(2, args.steps)]
    print("page faults a step: {1:.0f} by hand, {0:.0f} with the runner".format(*faults))
    ours, theirs = measure(Batches(100, 1), tiny(), 100).steps_of(1, 100)
    own = sorted(a - b for a, b in zip(ours, theirs))[len(ours) // 2]
    print("the runner's own work: {:.0f} us a step of processor time (median of {} blocks), {:.3f} % of ResNet-18's".format(
        1e6 * own, len(ours), 100 * own / whole))


def measure(batches, model, blocks):
    """Trains with the runner and by hand in turns; the first block warms up."""
    compare = Compare(batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dl.SupervisedRunner().train(model=model, criterion=nn.CrossEntropyLoss(), optimizer=optimizer,
                                loaders={"train": batches}, num_epochs=blocks + 1, callbacks=[compare], cpu=True,
                                loggers={"_console": Quiet()})
    return compare


def tiny():
    """A model whose step is next to nothing."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))


class Quiet(dl.ConsoleLogger):
    """Prints nothing."""

    def log_metrics(self, metrics, scope, runner):
        pass


if __name__ == "__main__":
    main()
