"""Linear regression with a learning-rate schedule, a parameter group for each parameter."""
import torch
from common import adl, begin, result, weights
from torch.utils.data import TensorDataset

begin()
x = torch.linspace(-5, 5, 96).unsqueeze(1)
data = TensorDataset(x, 3 + 4 * x + torch.sin(7 * x))
loader = adl.AdaptiveDataLoader(data, batch_size=16)
net = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD([{"params": [p]} for p in (net.bias, net.weight)], lr=0.01)
schedule = torch.optim.lr_scheduler.MultiStepLR(sgd, [2])
model = adl.AdaptiveDataParallel(net, sgd, schedule)
for epoch in adl.remaining_epochs_until(4):
    for inputs, targets in loader:
        sgd.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        sgd.step()
    schedule.step()
    result(f"lr{epoch}", [group["lr"] for group in sgd.param_groups])
weights("model", net)
result("finished", adl.finished_epochs())
result("progress", model.gns.get_progress())
