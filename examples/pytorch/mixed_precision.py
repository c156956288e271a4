"""Mixed precision: the loss scaler is handed to AdaptiveDataParallel.

It saves and restores the scaler and takes its factor out of the gradient statistics. On a GPU the
forward pass runs in half precision; without one the same program runs in single precision.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import adaptdl.torch
from mnist_data import mnist


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data/mnist", help="directory with the files of MNIST")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    torch.manual_seed(1)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    loader = adaptdl.torch.AdaptiveDataLoader(
        mnist(args.data, True), drop_last=True, batch_size=args.batch_size, shuffle=True)
    loader.autoscale_batch_size(1024, local_bsz_bounds=(32, 512), gradient_accumulation=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 6 * 6, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    # PyTorch 2.3 and later have it for every kind of device; before, it was CUDA's.
    scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)(enabled=cuda)
    adaptdl.torch.init_process_group("nccl" if cuda else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler)
    stats = adaptdl.torch.Accumulator()
    batch_size = args.batch_size

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.float16 if cuda else torch.bfloat16,
                                enabled=cuda):
                output = model(images)
                loss = F.cross_entropy(output, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            stats["correct"] += (output.argmax(1) == labels).sum().item()
            stats["total"] += len(labels)
            batch_size = loader.current_batch_size
        with stats.synchronized():
            print("Epoch {}: {:.1f} % right, loss scale {:g}, batch size {}, gain {:.2f}".format(
                epoch, 100 * stats["correct"] / stats["total"], scaler.get_scale(),
                batch_size, model.gain), flush=True)
            stats.clear()


if __name__ == "__main__":
    main()
