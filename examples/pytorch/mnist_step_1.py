"""Step 1 of the tutorial: the model, its optimizer and its schedule are made elastic.

Steps 1 to 3 are stations on the way: a program runs again from step 4 on, where batches are taken
inside an elastic loop over epochs.
"""

import torch
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR

import adaptdl.torch

from mnist_common import Net, arguments, train
from mnist_data import mnist


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(dim=1) == target).sum().item()
    total = len(test_loader.dataset)
    print("Test set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)".format(
        test_loss / total, correct, total, 100 * correct / total), flush=True)


def main():
    args = arguments(__doc__)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = torch.utils.data.DataLoader(
        mnist(args.data, True), batch_size=args.batch_size,
        num_workers=args.workers, shuffle=True)
    test_loader = torch.utils.data.DataLoader(
        mnist(args.data, False), batch_size=args.batch_size,
        num_workers=args.workers)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)

    for epoch in range(args.epochs):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
