#!/usr/bin/python3
"""Training speed of the tutorial's network in PyTorch, on the files that bench_mnist reads:
bench_mnist_torch.py DIR THREADS STEPS. Prints the same line as bench_mnist."""
import os
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, WARMUP = 64, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def read(directory, part):
    images = np.fromfile(os.path.join(directory, part + "-images-idx3-ubyte"), np.uint8)[16:]
    labels = np.fromfile(os.path.join(directory, part + "-labels-idx1-ubyte"), np.uint8)[8:]
    x = torch.from_numpy(images.reshape(-1, 1, 28, 28)).float().div_(255)
    return (x - 0.1307) / 0.3081, torch.from_numpy(labels.astype(np.int64))


def main():
    directory, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    x, y = read(directory, "train")  # normalised beforehand: PyTorch's step is timed without it
    net = Net()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    times = [0.0, 0.0, 0.0]
    for step in range(WARMUP + steps):
        if step == WARMUP:
            times, cpu = [0.0, 0.0, 0.0], time.process_time()
        at = step * BATCH % len(x)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.nll_loss(net(x[at:at + BATCH]), y[at:at + BATCH])
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        optimizer.step()
        end = time.perf_counter()
        times = [a + b for a, b in zip(times, (forward - start, backward - forward, end - backward))]
    cpu = time.process_time() - cpu
    net.eval()
    tx, ty = read(directory, "t10k")
    with torch.no_grad():
        correct = sum(int((net(tx[i:i + 500]).argmax(1) == ty[i:i + 500]).sum())
                      for i in range(0, len(tx), 500))
    ms = [1e3 * t / steps for t in times]
    print("ms_per_step %.3f cpu %.3f forward %.3f backward %.3f optimizer %.3f loss %.4f accuracy %.2f" %
          (sum(ms), 1e3 * cpu / steps, *ms, float(loss), 100.0 * correct / len(tx)))


if __name__ == "__main__":
    sys.exit(main())
