"""Trains two networks against each other: one draws digits, the other tells drawn from given ones.

Two models, two optimizers, two wrappers: each needs a name of its own, and each has its own
gradient statistics. The discriminator is wrapped first, so its statistics choose batch sizes.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import adaptdl.torch
from mnist_data import mnist

NOISE = 32


def generator():
    return nn.Sequential(
        nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, 28 * 28), nn.Tanh(),
        nn.Unflatten(1, (1, 28, 28)))


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, stride=2),
        nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 6 * 6, 1))


def judged(net, images, real):
    """The loss of saying whether images are given ones."""
    verdict = net(images)
    wanted = torch.full_like(verdict, 1.0 if real else 0.0)
    return F.binary_cross_entropy_with_logits(verdict, wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data/mnist", help="directory with the files of MNIST")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = adaptdl.torch.AdaptiveDataLoader(
        mnist(args.data, True), drop_last=True, batch_size=args.batch_size, shuffle=True)
    critic, artist = discriminator().to(device), generator().to(device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.5, 0.999))
    artist_optimizer = torch.optim.Adam(artist.parameters(), lr=args.lr, betas=(0.5, 0.999))
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    critic = adaptdl.torch.AdaptiveDataParallel(critic, critic_optimizer, name="critic")
    artist = adaptdl.torch.AdaptiveDataParallel(artist, artist_optimizer, name="artist")
    stats = adaptdl.torch.Accumulator()

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        for images, _ in loader:
            images = images.to(device)
            drawn = artist(torch.randn(len(images), NOISE, device=device))

            critic_optimizer.zero_grad()
            both = torch.cat([images, drawn.detach()])
            verdict = critic(both).flatten()
            truth = torch.cat([torch.ones(len(images)), torch.zeros(len(images))]).to(device)
            critic_loss = F.binary_cross_entropy_with_logits(verdict, truth)
            critic_loss.backward()
            critic_optimizer.step()

            # The critic only judges here: its own module is called, so that no gradient of it is
            # averaged over the replicas.
            artist_optimizer.zero_grad()
            artist_loss = judged(critic.module, drawn, True)
            artist_loss.backward()
            artist_optimizer.step()

            stats["critic"] += critic_loss.item()
            stats["artist"] += artist_loss.item()
            stats["steps"] += 1
        with stats.synchronized():
            print("Epoch {}: critic {:.4f}, artist {:.4f}".format(
                epoch, stats["critic"] / stats["steps"], stats["artist"] / stats["steps"]),
                flush=True)
            stats.clear()


if __name__ == "__main__":
    main()
