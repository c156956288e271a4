"""Step 5 of the tutorial: the test result is summed over all replicas."""

import torch
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR

import adaptdl.torch

from mnist_common import Net, arguments, train
from mnist_data import mnist


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
    args = arguments(__doc__)

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
