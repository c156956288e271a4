"""A program that is stopped in its second epoch (ADL_COMPAT_STOP: at which step), and goes on from its checkpoint."""
import os
import signal

import adaptdl.checkpoint
import adaptdl.env
import torch
from common import adl, begin, result, weights
from torch.utils.data import TensorDataset


class Steps(adaptdl.checkpoint.State):
    count = 0

    def save(self, fileobj):
        fileobj.write(str(self.count).encode())

    def load(self, fileobj):
        self.count = int(fileobj.read())


begin()
steps = Steps("steps")
result("restored", adaptdl.checkpoint.load_state(steps))
x = torch.arange(40.0).unsqueeze(1) / 40
net = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
model = adl.AdaptiveDataParallel(net, sgd, schedule)
train = adl.AdaptiveDataLoader(TensorDataset(x), batch_size=4)
valid = adl.AdaptiveDataLoader(TensorDataset(x), batch_size=8)
stats = adl.Accumulator()
for epoch in adl.remaining_epochs_until(3):
    for (batch,) in train:
        sgd.zero_grad()
        (model(batch) - 3 * batch).square().mean().backward()
        sgd.step()
        steps.count += 1
        stats["seen"] += len(batch)
        if os.environ.get("ADL_COMPAT_STOP") == str(steps.count) and adaptdl.env.replica_rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
    with torch.no_grad():
        for (batch,) in valid:
            stats["loss"] += (model(batch) - 3 * batch).square().sum().item()
    with stats.synchronized():
        result(f"epoch{epoch}", (stats["seen"], stats["loss"], sgd.param_groups[0]["lr"], steps.count))
        stats.clear()
    schedule.step()
weights("model", net)
