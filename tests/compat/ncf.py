"""Collaborative filtering: negatives are drawn anew in each epoch, so that the data set and its length change; a test
in each epoch, with an accumulator."""
import torch
from common import adl, begin, result, weights
from torch import nn
from torch.utils.data import Dataset

USERS, ITEMS = 8, 16


class Ratings(Dataset):
    def __init__(self, training):
        self.positive = [(u, (3 * u + k) % ITEMS) for u in range(USERS) for k in range(4)]
        self.training, self.rows = training, [(u, i, 1.0) for u, i in self.positive]

    def sample(self, epoch):
        random = torch.Generator().manual_seed(epoch)
        picks = torch.randint(ITEMS, (len(self.positive) * (1 + epoch % 2),), generator=random).tolist()
        self.rows = [(u, i, 1.0) for u, i in self.positive] + \
            [(n % USERS, item, 0.0) for n, item in enumerate(picks)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class NCF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        self.layers = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, user, item):
        return self.layers(torch.cat([self.user(user), self.item(item)], 1)).squeeze(1)


begin()
train, test = Ratings(True), Ratings(False)
loader = adl.AdaptiveDataLoader(train, batch_size=16, drop_last=True)
test_loader = adl.AdaptiveDataLoader(test, batch_size=8)
net = NCF()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
model = adl.AdaptiveDataParallel(net, sgd)
stats = adl.Accumulator()
for epoch in adl.remaining_epochs_until(3):
    train.sample(epoch)
    for user, item, label in loader:
        sgd.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(user, item), label.float()).backward()
        sgd.step()
    with torch.no_grad():
        for user, item, label in test_loader:
            stats["hits"] += (model(user, item) > 0).sum().item()
            stats["total"] += len(user)
            stats["scores"] += torch.bincount(item, minlength=ITEMS).numpy()
    with stats.synchronized():
        result(f"epoch{epoch}", (stats["hits"], stats["total"], stats["scores"].tolist()))
        stats.clear()
weights("model", net)
