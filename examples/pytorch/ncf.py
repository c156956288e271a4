"""Neural collaborative filtering: learns from what people have chosen what else they would choose.

Two embeddings of each person and thing: the product of one pair, and a small network over the other, together
give a score. Trained on chosen pairs, each with some that were not; measured by how often the thing that a
person chose last is among the ten best of a hundred (hit rate). The choices are generated: people and things
have hidden tastes, and people choose what fits.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, TensorDataset

import adaptdl.torch


class Scores(nn.Module):
    """A score for each pair of a person and a thing."""

    def __init__(self, people, things, width):
        super().__init__()
        self.person, self.thing = nn.Embedding(people, 2 * width), nn.Embedding(things, 2 * width)
        for table in (self.person, self.thing):
            nn.init.normal_(table.weight, std=0.05)
        self.network = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU())
        self.score = nn.Linear(width + width // 2, 1)

    def forward(self, person, thing):
        p, q = self.person(person).chunk(2, dim=-1), self.thing(thing).chunk(2, dim=-1)
        deep = self.network(torch.cat([p[1], q[1]], dim=-1))
        return self.score(torch.cat([p[0] * q[0], deep], dim=-1)).squeeze(-1)


def choices(people, things, each):
    """[people, each] things that each person has chosen, the last of them to be guessed."""
    generator = torch.Generator().manual_seed(3)
    taste = torch.randn(people, 4, generator=generator) @ torch.randn(4, things, generator=generator)
    noise = -torch.empty(people, things).exponential_(generator=generator).log()
    return (2 * taste + noise).topk(each, dim=1).indices


class Pairs(Dataset):
    """Each chosen pair, with others that the person has not chosen; other ones each time."""

    def __init__(self, chosen, things, others):
        self.chosen, self.things, self.others = chosen, things, others
        self.sets = [set(row.tolist()) for row in chosen]

    def __len__(self):
        return self.chosen.numel()

    def __getitem__(self, number):
        person, place = divmod(number, self.chosen.size(1))
        found = [self.chosen[person, place].item()]
        while len(found) <= self.others:
            thing = torch.randint(self.things, (1,)).item()
            if thing not in self.sets[person]:
                found.append(thing)
        return person, torch.tensor(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=500)
    parser.add_argument("--things", type=int, default=300)
    parser.add_argument("--choices", type=int, default=20, help="of each person")
    parser.add_argument("--others", type=int, default=4, help="things not chosen, for each chosen one")
    parser.add_argument("--batch-size", type=int, default=64, help="chosen pairs, over all replicas")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--width", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choices(args.people, args.things, args.choices)
    train_set = Pairs(chosen[:, :-1], args.things, args.others)
    unseen = torch.randint(args.things, (args.people, 99), generator=torch.Generator().manual_seed(4))
    valid_set = TensorDataset(torch.arange(args.people), torch.cat([chosen[:, -1:], unseen], dim=1))

    model = Scores(args.people, args.things, args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    adaptdl.torch.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    train = adaptdl.torch.AdaptiveDataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train.autoscale_batch_size(16 * args.batch_size, local_bsz_bounds=(16, 8 * args.batch_size))
    valid = adaptdl.torch.AdaptiveDataLoader(valid_set, batch_size=128)
    stats = adaptdl.torch.Accumulator()
    batch_size = args.batch_size

    for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
        model.train()
        for person, things in train:
            person, things = person.to(device).unsqueeze(1).expand_as(things), things.to(device)
            scores = model(person, things)
            wanted = torch.zeros_like(scores)
            wanted[:, 0] = 1  # the chosen one comes first
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(scores, wanted).backward()
            optimizer.step()
            batch_size = train.current_batch_size
        model.eval()
        with torch.no_grad():
            for person, things in valid:
                person, things = person.to(device).unsqueeze(1).expand_as(things), things.to(device)
                scores = model(person, things)
                above = (scores[:, 1:] >= scores[:, :1]).sum(dim=1)
                stats["hits"] += (above < 10).sum().item()
                stats["count"] += len(things)
        with stats.synchronized():
            print("Epoch {}: hit rate {:.3f}, batch size {}".format(
                epoch, stats["hits"] / stats["count"], batch_size), flush=True)
            stats.clear()


if __name__ == "__main__":
    main()
