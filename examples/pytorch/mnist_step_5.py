"""Step 5 of the tutorial: the test result is summed over all replicas."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR

import adaptdl.torch

from mnist_data import mnist


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(x, 0.25, self.training)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        x = F.dropout(x, 0.5, self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch % args.log_interval == 0:
            print("Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}".format(
                epoch, batch * len(data), len(train_loader.dataset),
                100 * batch / len(train_loader), loss.item()), flush=True)


def test(model, device, test_loader):
    model.eval()
    stats = adaptdl.torch.Accumulator()
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            stats["test_loss"] += F.nll_loss(output, target, reduction="sum").item()
            stats["correct"] += (output.argmax(dim=1) == target).sum().item()
            stats["total"] += len(target)
    with stats.synchronized():
        loss = stats["test_loss"] / stats["total"]
        print("Test set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)".format(
            loss, stats["correct"], stats["total"], 100 * stats["correct"] / stats["total"]),
            flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data/mnist", help="directory with the files of MNIST")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="rate factor after each epoch")
    parser.add_argument("--workers", type=int, default=1, help="processes that load data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = adaptdl.torch.AdaptiveDataLoader(
        mnist(args.data, True), drop_last=True, batch_size=args.batch_size,
        num_workers=args.workers, shuffle=True)
    test_loader = adaptdl.torch.AdaptiveDataLoader(
        mnist(args.data, False), batch_size=args.batch_size,
        num_workers=args.workers)
    train_loader.autoscale_batch_size(1024, local_bsz_bounds=(32, 128))

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
