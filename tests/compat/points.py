"""Small things that programs do."""
import io
import math

import adaptdl._signal
import adaptdl.checkpoint
import adaptdl.collective
import adaptdl.env
import adaptdl.sched_hints
import adaptdl.torch._metrics as metrics
import numpy
import torch
from adaptdl.torch.scaling_rules import AdamScale, AdaScale
from common import adl, begin, result, weights
from torch.utils.data import TensorDataset

result("before", (adl.finished_epochs(), adl.current_epoch(), adaptdl.env.job_id()))
begin()
rank, replicas = adaptdl.env.replica_rank(), adaptdl.env.num_replicas()
net = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
model = adl.AdaptiveDataParallel(net, sgd)


def numbers(count):
    return TensorDataset(torch.arange(float(count)).unsqueeze(1) / count)


def train(loader):
    count = 0
    for (x,) in loader:
        sgd.zero_grad()
        (model(x) - x).square().mean().backward()
        sgd.step()
        count += len(x)
    return adaptdl.collective.allreduce(count)


once = adl.AdaptiveDataLoader(numbers(16), batch_size=4)
for epoch in range(2):
    result(f"range{epoch}", train(once))
result("sizes outside", (once.current_local_bsz, once.current_batch_size, once.accumulation_steps))
for epoch in adl.remaining_epochs_until(3):
    anew = adl.AdaptiveDataLoader(numbers(8 + 4 * epoch), batch_size=4)
    other = adl.AdaptiveDataLoader(numbers(8), batch_size=4)
    result(f"anew{epoch}", (train(anew), train(other)))
result("final", train(once))
weights("model", net)
result("state", (model._state.gain, model._state.model is net, model._state.optimizer is sgd))

accum = adl.Accumulator({"start": 1})
result("reads as empty", (len(accum), list(accum), "x" in accum, repr(accum)))
for i in range(3):
    accum["matrix"] += numpy.full((2, 2), i)
    accum["tensor"] += torch.full((3,), float(rank))
    accum["class", rank % 2] += 1
    accum["later"] = accum["later"] + 0.5
accum.subtract(minus=2)
with accum.synchronized():
    result("order", list(accum) if replicas == 1 else None)
    result("sums", (accum["start"], accum["matrix"].tolist(), accum["tensor"].tolist(), accum["class", 0],
                    accum["later"], accum["minus"]))
    accum["any"] = {"kept": [1, "text", None]}
with accum.synchronized():
    result("any", accum["any"])
counter = adaptdl.collective.allreduce(__import__("collections").Counter({"all": 1, str(rank): 2}))
result("counter", (type(counter).__name__, sorted(counter.items())))

sampler = adl.ElasticSampler(list(range(10)), shuffle=False)
parts = []
sampler.num_replicas = 3
for sampler.rank in range(3):
    sampler.set_epoch(0, 3)
    parts.append(list(sampler))
result("sampler", parts)
bounded = adl.AdaptiveDataLoader(numbers(16), batch_size=8)
bounded.autoscale_batch_size(64, local_bsz_bounds=(numpy.int64(4), 16.0))
result("bounds", (bounded._elastic.max_batch_size, tuple(map(float, bounded._elastic.local_bsz_bounds))))
result("rules", (issubclass(AdamScale, AdaScale), adl.version_check("1.2.3"), adl.version_check("0.0.0"),
                 adaptdl.checkpoint.CKPT_DIR_PREFIX, adaptdl._signal.get_exit_flag(), math.isfinite(metrics.get_progress())))
adaptdl.sched_hints.post_sched_hints({"nonsense": 1}, "no-slash")
adaptdl.checkpoint.State("long" * 40)
result("done", True)
