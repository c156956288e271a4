"""Trains a ResNet-18 on CIFAR-10, with flips and shifts of the images, and batch sizes that adapt.

--data has the binary files of CIFAR-10 (cifar-10-batches-bin); --generate N writes N generated images in
their format first, to try the program without them.
"""

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset

import adaptdl.torch
from adaptdl.contrib import CIFAR10, Compose, ImageToTensor, NormalizeImage, make_cifar10

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Block(nn.Module):
    """Two convolutions, and the input added to their output."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet18(width=64):
    """For images of 32 x 32 pixels: no pooling at the start."""
    layers, channels = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()], width
    for stage, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
        layers += [Block(channels, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Varied(Dataset):
    """Images flipped at random and shifted by up to four pixels."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        image, target = self.images[number]
        if torch.rand(1).item() < 0.5:
            image = image.flip(2)
        down, right = torch.randint(9, (2,)).tolist()
        return F.pad(image, (4, 4, 4, 4))[:, down:down + 32, right:right + 32], target


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data")
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=128, help="over all replicas")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=64, help="channels of the first layers")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(1)
    if args.generate:
        make_cifar10(args.data, args.generate, args.generate // 4)
    transform = Compose([ImageToTensor(), NormalizeImage(MEAN, DEVIATION)])
    try:
        train_set = Varied(CIFAR10(args.data, train=True, transform=transform))
        valid_set = CIFAR10(args.data, train=False, transform=transform)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = resnet18(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, schedule)
    train = adaptdl.torch.AdaptiveDataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True,
                                             num_workers=args.workers)
    train.autoscale_batch_size(8 * args.batch_size, local_bsz_bounds=(min(32, args.batch_size), 4 * args.batch_size),
                               gradient_accumulation=True)
    valid = adaptdl.torch.AdaptiveDataLoader(valid_set, batch_size=args.batch_size, num_workers=args.workers)
    stats = adaptdl.torch.Accumulator()
    batch_size = args.batch_size

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        model.train()
        for images, targets in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            batch_size = train.current_batch_size
            stats["loss"] += loss.item() * len(targets)
            stats["trained"] += len(targets)
        model.eval()
        with torch.no_grad():
            for images, targets in valid:
                answers = model(images.to(device)).argmax(dim=1).cpu()
                stats["right"] += (answers == targets).sum().item()
                stats["count"] += len(targets)
        with stats.synchronized():
            print("Epoch {}: loss {:.3f}, {:.1f} % right, batch size {}".format(
                epoch, stats["loss"] / stats["trained"], 100 * stats["right"] / stats["count"], batch_size), flush=True)
            stats.clear()
        schedule.step()


if __name__ == "__main__":
    main()
