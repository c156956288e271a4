"""Trains a small transformer to continue text, character by character, on adaptive batches.

The text is cut into as many parallel streams as the batch has rows; AdaptiveBPTTIterator hands out
pieces of them, on any number of replicas. Any text file will do: by default this project's README.
"""

import argparse
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import adaptdl.torch
from adaptdl.torch.iterator import AdaptiveBPTTIterator


class LanguageModel(nn.Module):
    """Embedding, a stack of causal self-attention layers, and a linear layer back to characters."""

    def __init__(self, tokens, width, heads, layers, longest):
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.place = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, tokens)

    def forward(self, text):  # text: [length, rows]
        length = text.shape[0]
        places = torch.arange(length, device=text.device).unsqueeze(1)
        future = torch.triu(torch.full((length, length), -math.inf, device=text.device), 1)
        return self.head(self.body(self.token(text) + self.place(places), future))


def read_text(path):
    """The file's characters as numbers, and how many different ones there are."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        sys.exit("{}: {}".format(path, error.strerror))
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="README.md")
    parser.add_argument("--batch-size", type=int, default=16, help="streams, over all replicas")
    parser.add_argument("--max-batch-size", type=int, help="default: 8 times as many")
    parser.add_argument("--length", type=int, default=32, help="characters in a piece")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    largest = args.max_batch_size or 8 * args.batch_size

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text, tokens = read_text(args.text)
    cut = len(text) * 9 // 10
    train = AdaptiveBPTTIterator(text[:cut], args.batch_size, args.length)
    train.autoscale_batch_size(largest, local_bsz_bounds=(4, min(largest, 4 * args.batch_size)))
    valid = AdaptiveBPTTIterator(text[cut:], args.batch_size, args.length)

    model = LanguageModel(tokens, args.width, 4, 2, args.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    stats = adaptdl.torch.Accumulator()
    batch_size = args.batch_size

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        model.train()
        for piece in train:
            optimizer.zero_grad()
            output = model(piece.text.to(device))
            F.cross_entropy(output.flatten(0, 1), piece.target.to(device).flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            batch_size = train.current_batch_size
        model.eval()
        with torch.no_grad():
            for piece in valid:
                output = model(piece.text.to(device))
                target = piece.target.to(device).flatten()
                loss = F.cross_entropy(output.flatten(0, 1), target, reduction="sum")
                stats["loss"] += loss.item()
                stats["count"] += target.numel()
        with stats.synchronized():
            print("Epoch {}: {:.3f} bits per character, batch size {}".format(
                epoch, stats["loss"] / stats["count"] / math.log(2), batch_size),
                flush=True)
            stats.clear()


if __name__ == "__main__":
    main()
