"""What stays the same in all steps of the tutorial: the network, the options, an epoch of training."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


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


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", default="data/mnist", help="directory with the files of MNIST")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="rate factor after each epoch")
    parser.add_argument("--workers", type=int, default=1, help="processes that load data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    return parser.parse_args()


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
