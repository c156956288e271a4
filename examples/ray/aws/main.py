"""The tutorial's job, as it runs anywhere: it knows nothing of Ray. See README.md for how to start it on EC2."""

import argparse

import adaptdl.torch
import torch
import torch.nn.functional as F
import torchvision
from torchvision import transforms


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--data", default="/tmp/cifar10", help="where CIFAR-10 is downloaded to, on every machine")
    parser.add_argument("--autoscale-bsz", action="store_true", help="let the batch size grow up to 4096")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    images = transforms.Compose([
        transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))])
    dataset = torchvision.datasets.CIFAR10(args.data, train=True, download=True, transform=images)
    loader = adaptdl.torch.AdaptiveDataLoader(dataset, batch_size=128, shuffle=True, num_workers=2, drop_last=True)
    if args.autoscale_bsz:
        loader.autoscale_batch_size(4096, local_bsz_bounds=(32, 1024), gradient_accumulation=True)
    model = torchvision.models.resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [15, 25], 0.1)
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, schedule)

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        stats = adaptdl.torch.Accumulator()
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets)
            loss.backward()
            optimizer.step()
            stats["loss"] += loss.item() * len(targets)
            stats["correct"] += (outputs.argmax(dim=1) == targets).sum().item()
            stats["total"] += len(targets)
        schedule.step()
        with stats.synchronized():
            print("epoch {}: loss {:.4f}, accuracy {:.1f} %".format(
                epoch, stats["loss"] / stats["total"], 100 * stats["correct"] / stats["total"]), flush=True)


if __name__ == "__main__":
    main()
