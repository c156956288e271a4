"""Fits a line through noisy points: the smallest program with every part of an elastic one."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import adaptdl.torch

SLOPE, OFFSET = 3.0, -1.0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32, help="over all replicas")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    torch.manual_seed(1)
    x = torch.rand(args.points, 1) * 4 - 2
    points = TensorDataset(x, SLOPE * x + OFFSET + 0.1 * torch.randn_like(x))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    adaptdl.torch.init_process_group("gloo")
    line = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    loader = adaptdl.torch.AdaptiveDataLoader(points, batch_size=args.batch_size, shuffle=True)
    loader.autoscale_batch_size(8 * args.batch_size, local_bsz_bounds=(8, 4 * args.batch_size))
    stats = adaptdl.torch.Accumulator()

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(line(inputs), targets)
            loss.backward()
            optimizer.step()
            stats["loss"] += loss.item() * len(inputs)
            stats["count"] += len(inputs)
        with stats.synchronized():
            print("Epoch {}: loss {:.4f}, y = {:.3f} x + {:.3f}".format(
                epoch, stats["loss"] / stats["count"], model.weight.item(), model.bias.item()), flush=True)
            stats.clear()


if __name__ == "__main__":
    main()
