"""A search for the learning rate, momentum and batch size of a small network, with trials that grow and shrink:

    python3 hyperopt_example.py [--data DIR] [--epochs N] [--samples N]

Reads MNIST from DIR (tools/get-mnist fetches it, make_digits generates digits that look like it); without --data it
makes up digits of its own. Joins the Ray cluster that there is, or starts one on this machine."""

import argparse
import os
import sys

import adaptdl.torch as adl
import ray
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from hyperopt import hp
from ray import tune
from ray.tune.search.hyperopt import HyperOptSearch

from adaptdl_ray.tune import AdaptDLScheduler, DistributedTrainableCreator

# How much of the data is used in an epoch: smaller is quicker.
EPOCH_SIZE = 512
TEST_SIZE = 256


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, kernel_size=3)
        self.fc = nn.Linear(192, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 3))
        return F.log_softmax(self.fc(x.view(-1, 192)), dim=1)


def train(model, optimizer, loader):
    model.train()
    for index, (data, target) in enumerate(loader):
        if index * len(data) > EPOCH_SIZE:
            return  # in the middle of a pass: the next call goes on with the next epoch
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for index, (data, target) in enumerate(loader):
            if index * len(data) > TEST_SIZE:
                break
            correct += (model(data).argmax(dim=1) == target).sum().item()
            total += len(target)
    return correct / total


def made_up_digits(count, seed):
    """Ten patterns with noise: as learnable as digits, and no file is needed."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=noise)
    images = patterns[labels] + 0.7 * torch.randn(count, 1, 28, 28, generator=noise)
    return torch.utils.data.TensorDataset(images, labels)


def digits(directory, training):
    if directory is None:
        return made_up_digits(4096 if training else 1024, seed=1 + training)
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "pytorch"))
    from mnist_data import mnist
    return mnist(directory, training)


def train_mnist(config, checkpoint_dir=None):
    """What every replica of a trial runs."""
    train_loader = adl.AdaptiveDataLoader(digits(config["data"], True), batch_size=config["bs"], shuffle=True)
    train_loader.autoscale_batch_size(4096, local_bsz_bounds=(16, 1024))
    test_loader = adl.AdaptiveDataLoader(digits(config["data"], False), batch_size=64, shuffle=True)
    model = ConvNet()
    optimizer = optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    model = adl.AdaptiveDataParallel(model, optimizer)
    for _ in adl.remaining_epochs_until(config["epochs"]):
        train(model, optimizer, train_loader)
        tune.report(mean_accuracy=test(model, test_loader))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory with the files of MNIST")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--cpus", type=int, help="start a cluster of that many CPUs instead of joining one")
    args = parser.parse_args()
    if args.cpus:
        ray.init(address="local", num_cpus=args.cpus, include_dashboard=False, object_store_memory=200 << 20)
    else:
        ray.init()

    space = {
        "bs": hp.choice("bs", range(64, 1024, 64)),
        "lr": hp.uniform("lr", 0.01, 0.1),
        "momentum": hp.uniform("momentum", 0.1, 0.9),
        "epochs": args.epochs,
        "data": args.data and os.path.abspath(args.data),
    }
    analysis = tune.run(
        DistributedTrainableCreator(train_mnist),
        num_samples=args.samples,
        scheduler=AdaptDLScheduler(),
        search_alg=HyperOptSearch(space, metric="mean_accuracy", mode="max"),
        verbose=1)

    best = analysis.get_best_trial("mean_accuracy", "max", "last")
    print(f"Best trial config: {best.config}")
    print(f"Best trial mean_accuracy: {best.last_result['mean_accuracy']}")
    ray.shutdown()


if __name__ == "__main__":
    main()
