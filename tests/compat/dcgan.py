"""Two models, two optimizers, one loader: a generator and a discriminator of small pictures."""
import torch
from common import adl, begin, result, weights
from torch import nn
from torch.utils.data import TensorDataset

begin()
pictures = torch.sin(torch.arange(32 * 16.0)).reshape(32, 1, 4, 4)
loader = adl.AdaptiveDataLoader(TensorDataset(pictures), batch_size=8, drop_last=True)
generator = nn.Sequential(nn.ConvTranspose2d(4, 4, 2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 3), nn.Tanh())
critic = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 2), nn.Flatten())
steps = {}
models = {}
for name, net in (("critic", critic), ("generator", generator)):
    steps[name] = torch.optim.Adam(net.parameters(), lr=0.002, betas=(0.5, 0.999))
    models[name] = adl.AdaptiveDataParallel(net, steps[name], name=name)
loss = nn.BCEWithLogitsLoss()
stats = adl.Accumulator()
for epoch in adl.remaining_epochs_until(2):
    for i, (real,) in enumerate(loader):
        size = len(real)
        noise = torch.cos(torch.arange(size * 4.0) + i).reshape(size, 4, 1, 1)
        steps["critic"].zero_grad()
        wrong = loss(models["critic"](real), torch.ones(size, 1))
        fake = models["generator"](noise)
        (wrong + loss(models["critic"](fake.detach()), torch.zeros(size, 1))).backward()
        steps["critic"].step()
        steps["generator"].zero_grad()
        fooled = loss(models["critic"](fake), torch.ones(size, 1))
        fooled.backward()
        steps["generator"].step()
        stats["critic"] += wrong.item() * size
        stats.update(generator=fooled.item() * size, count=size)
    with stats.synchronized():
        result(f"epoch{epoch}", (stats["critic"] / stats["count"], stats["generator"] / stats["count"]))
        stats.clear()
weights("critic", critic)
weights("generator", generator)
