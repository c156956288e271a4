"""One call trains: progress, metrics, checkpoints and logs come with it.

    python3 one_call.py --data DIR                          on whatever the machine has
    adaptdl run -n 2 --checkpoint ck -- python3 one_call.py      elastically, without a changed line
"""

from torch import nn, optim
from torch.utils.data import DataLoader

from adaptdl import dl
from resnet9 import images, options, resnet9


def loaders(args):
    """PyTorch's own."""
    return {
        "train": DataLoader(images(args.data, True), batch_size=args.batch_size, shuffle=True, num_workers=2),
        "valid": DataLoader(images(args.data, False), batch_size=args.batch_size, num_workers=2),
    }


def train(args, runner, **more):
    """The call."""
    model = resnet9()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    runner.train(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=optim.lr_scheduler.MultiStepLR(optimizer, [5, 8], gamma=0.3),
        logdir=args.logdir,
        num_epochs=args.epochs,
        verbose=True,
        valid_loader="valid",
        valid_metric="loss",
        minimize_valid_metric=True,
        **more,
    )


if __name__ == "__main__":
    args = options(__doc__)
    train(args, dl.SupervisedRunner(), loaders=loaders(args))
