"""A language model that keeps a copy of its best state, and a final test outside the epochs."""
import copy
import math

import torch
from common import adl, begin, result
from torch import nn
from torch.utils.data import TensorDataset

begin()
text = (torch.arange(400) ** 2) % 11
pieces = text[:396].reshape(-1, 9)
train = adl.AdaptiveDataLoader(TensorDataset(pieces[:32]), batch_size=8)
valid = adl.AdaptiveDataLoader(TensorDataset(pieces[32:40]), batch_size=4)
test = adl.AdaptiveDataLoader(TensorDataset(pieces[40:]), batch_size=4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.out = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.full((8, 8), float("-inf")), 1))

    def forward(self, text):
        return self.out(self.layer(self.tokens(text), self.mask))


def loss_of(model, piece):
    return nn.functional.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())


def evaluate(model, loader):
    stats = adl.Accumulator()
    model.eval()
    with torch.no_grad():
        for (piece,) in loader:
            stats["loss"] += loss_of(model, piece).item() * len(piece)
            stats["count"] += len(piece)
    model.train()
    with stats.synchronized():
        return stats["loss"] / stats["count"]


net = Model()
sgd = torch.optim.SGD(net.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.95)
model = adl.AdaptiveDataParallel(net, sgd, schedule)
best, kept = math.inf, None
for epoch in adl.remaining_epochs_until(3):
    for (piece,) in train:
        sgd.zero_grad()
        loss_of(model, piece).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        sgd.step()
    loss = evaluate(model, valid)
    result(f"valid{epoch}", loss)
    if loss < best:
        best, kept = loss, copy.deepcopy(net)
    schedule.step()
result("test", evaluate(model, test))
result("test of the best", evaluate(kept, test))
