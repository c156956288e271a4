"""Models, rules and metrics as programs use them, and data of which there is more in each epoch."""
import io

import adaptdl.checkpoint
import adaptdl.collective
import adaptdl.env
import adaptdl.torch._metrics as metrics
import torch
from adaptdl.torch.scaling_rules import AdamScale, AdaScale
from common import adl, begin, result, weights
from torch.utils.data import Dataset

early = adaptdl.checkpoint.State("early")
result("loaded early", adaptdl.checkpoint.load_state(early))
result("progress early", metrics.get_progress())
result("goodput early", metrics.get_goodput_fn())
begin()
net, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
sgd, sgd2 = (torch.optim.SGD(each.parameters(), lr=0.05) for each in (net, other))
rule = AdaScale()
# The original's rule steps the optimizer of the model that was given to it last, whichever is asked: so only that one
# is trained here.
unused = adl.AdaptiveDataParallel(net, sgd, scaling_rule=rule, name="first")
model = adl.AdaptiveDataParallel(other, sgd2, scaling_rule=rule, name="second")


class Growing(Dataset):
    length = 8

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([index / 32]),


data = Growing()
loader = adl.AdaptiveDataLoader(data, batch_size=4)
for epoch in adl.remaining_epochs_until(3):
    data.length = (8, 32, 16)[epoch]
    count = 0
    for (x,) in loader:
        sgd2.zero_grad()
        (model(x) - 2 * x).square().mean().backward()
        sgd2.step()
        count += len(x)
    result(f"grown{epoch}", (len(loader), adaptdl.collective.allreduce(count)))
weights("first", net)
weights("second", other)
result("progress", model.gns.get_progress())


# Metrics by the names that programs import
def steps():
    return sum(value["optim_count"] for value in metrics._metrics_state().profile.values())


before = steps()
metrics.profile_step_start(4)
metrics.profile_sync_time(0.0)
metrics.profile_step_commit()
metrics.set_batch_size(4, 32, (2, 8), False)
result("profile", (steps() - before, {key[:2] for key in metrics._metrics_state().profile} == {(1, adaptdl.env.num_replicas())}))
metrics.update_grad_params("key", 1.0, 2.0)
metrics.update_progress(12.5)
result("updated", metrics.get_progress())
metrics._fit_perf_params()
goodput = metrics.get_goodput_fn()
result("goodput", (type(goodput).__name__, goodput.efficiency(4), goodput.efficiency(8) < 1))

# Adam's rule is an AdaScale whose power may be given
adam = AdamScale()
third = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(third.parameters(), lr=0.01)
adl.AdaptiveDataParallel(third, optimizer, scaling_rule=adam, name="third")
result("adam", (isinstance(adam, AdaScale), *(list(map(float, factors)) for factors in (
    adam.scale_lr(4.0), adam.scale_lr(4.0, 0.5), adam.scale_lr(4.0, power=1.0), AdaScale.scale_lr(adam, 4.0)))))


def saved(what):
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file)


# The network alone: of the wrapped model torch.save fails in the original (its optimizer is restored half).
result("saved", [value.tolist() for value in saved(other).state_dict().values()])
