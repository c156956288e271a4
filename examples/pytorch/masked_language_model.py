"""A small model like BERT: guesses words that were masked, from those on both sides of them.

Of each piece of text 15 of 100 characters are to be guessed; of these, 80 are masked, 10 are others, and 10 are
as they were. Any text file will do: by default this project's README.
"""

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset

import adaptdl.torch

MASK = 0  # characters are numbered from 1 on
NOT_ASKED = -100  # what cross_entropy leaves out


class Encoder(nn.Module):
    """Embeddings of characters and places, a stack of self-attention layers, and a guess for each place."""

    def __init__(self, tokens, width, heads, layers, longest):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, tokens))

    def forward(self, text):  # text: [rows, length]
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.body(self.token(text) + self.place(places)))


class Masked(Dataset):
    """Pieces of a text with masks, and what is under them. With a seed the masks are the same each time."""

    def __init__(self, text, length, tokens, seed=None):
        count = len(text) // length
        self.pieces = text[:count * length].view(count, length)
        self.tokens, self.seed = tokens, seed

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(torch.randint(2**31, (1,)).item() if self.seed is None
                                                  else self.seed + number)
        piece = self.pieces[number].clone()
        chance, how = torch.rand(2, len(piece), generator=generator)
        asked = chance < 0.15
        target = torch.where(asked, piece, torch.full_like(piece, NOT_ASKED))
        other = torch.randint(1, self.tokens, piece.shape, generator=generator)
        piece[asked & (how < 0.8)] = MASK
        changed = asked & (how >= 0.8) & (how < 0.9)
        piece[changed] = other[changed]
        return piece, target


def read_text(path):
    """The file's characters as numbers from 1 on, and how many numbers there are."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        sys.exit("{}: {}".format(path, error.strerror))
    alphabet = {character: index for index, character in enumerate(sorted(set(text)), 1)}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet) + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="README.md")
    parser.add_argument("--length", type=int, default=64, help="characters in a piece")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces, over all replicas")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text, tokens = read_text(args.text)
    cut = len(text) * 9 // 10
    train_set, valid_set = Masked(text[:cut], args.length, tokens), Masked(text[cut:], args.length, tokens, seed=5)
    if not len(valid_set):
        sys.exit("{}: {} characters are too few for pieces of {}".format(args.text, len(text), args.length))

    model = Encoder(tokens, args.width, 4, args.layers, args.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 2))  # warm-up
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, schedule)
    train = adaptdl.torch.AdaptiveDataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train.autoscale_batch_size(8 * args.batch_size, local_bsz_bounds=(4, 4 * args.batch_size))
    valid = adaptdl.torch.AdaptiveDataLoader(valid_set, batch_size=32)
    stats = adaptdl.torch.Accumulator()
    batch_size = args.batch_size

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        model.train()
        for pieces, targets in train:
            optimizer.zero_grad()
            F.cross_entropy(model(pieces.to(device)).flatten(0, 1), targets.to(device).flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            batch_size = train.current_batch_size
        model.eval()
        with torch.no_grad():
            for pieces, targets in valid:
                guesses = model(pieces.to(device)).argmax(dim=-1).cpu()
                asked = targets != NOT_ASKED
                stats["right"] += (guesses == targets)[asked].sum().item()
                stats["count"] += asked.sum().item()
        with stats.synchronized():
            print("Epoch {}: {:.1f} % of the masked characters right, batch size {}".format(
                epoch, 100 * stats["right"] / stats["count"], batch_size), flush=True)
            stats.clear()
        schedule.step()


if __name__ == "__main__":
    main()
