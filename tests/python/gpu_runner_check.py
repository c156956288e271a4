#!/usr/bin/env python3
"""Checks adaptdl.dl on a GPU, with the PyTorch that is installed there: python3 tests/python/gpu_runner_check.py.
Needs the built package (ADL_PYTHON_LIB, or build/python/lib: tools/build-python) and one GPU; no pytest, no network.
Each check is a process of its own; names given as arguments run only those. A line for each, and exit status 0
when all pass."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("ADL_PYTHON_LIB", str(ROOT / "build" / "python" / "lib"))
sys.path.insert(0, LIBRARY)

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adaptdl import dl

GRADSCALER = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
LIMIT_S = 180


# ---- small parts ----

def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 8, 8, generator=generator)
    return TensorDataset(images, (images[:, 0].mean((1, 2)) > 0).long() + 2 * (images[:, 1].mean((1, 2)) > 0).long())


def loaders():
    return {"train": DataLoader(data(512, 1), batch_size=32), "valid": DataLoader(data(200, 2), batch_size=64)}


def parts():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 64),
                          nn.ReLU(), nn.Linear(64, 4))
    return {"model": model, "criterion": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)}


def deterministic():
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def train(**kwargs):
    runner = dl.SupervisedRunner()
    runner.train(**{**parts(), "loaders": loaders(), "num_epochs": 3, **kwargs})
    return runner


def losses(runner, key="valid"):
    return [metrics[key]["loss"] for _, metrics in sorted(runner.experiment_metrics.items())]


def near(a, b, tolerance):
    assert len(a) == len(b) and all(abs(x - y) <= tolerance * max(abs(x), abs(y)) for x, y in zip(a, b)), (a, b)


class See(dl.Callback):
    """What kind the model's outputs are, and where."""

    def __init__(self):
        super().__init__()
        self.kinds, self.devices = set(), set()

    def on_batch_end(self, runner):
        self.kinds.add(runner.batch["logits"].dtype)
        self.devices.add(runner.batch["logits"].device.type)


def by_hand(precision=None, clip=None, accumulate=1, epochs=3):
    """The same training as a loop of plain PyTorch; losses on the valid data."""
    made = {key: value.cuda() if key != "optimizer" else value for key, value in parts().items()}
    model, criterion = made["model"], made["criterion"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler = GRADSCALER(enabled=precision is torch.float16)
    found, count = [], 0

    def loss_of(x, y):
        with torch.autocast("cuda", dtype=precision or torch.float16, enabled=precision is not None):
            return criterion(model(x.cuda()), y.cuda())

    for _ in range(epochs):
        model.train()
        for x, y in loaders()["train"]:
            scaler.scale(loss_of(x, y)).backward()
            count += 1
            if count % accumulate == 0:
                if clip:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            pairs = [(loss_of(x, y).item(), len(x)) for x, y in loaders()["valid"]]
        found.append(sum(loss * n for loss, n in pairs) / sum(n for _, n in pairs))
    return found


# ---- checks ----

def default_engine():
    """The GPU is taken when there is one, or all when there are several; cpu=True leaves them alone."""
    see = See()
    runner = train(num_epochs=1, callbacks=[see])
    several = torch.cuda.device_count() > 1
    assert type(runner.engine) is (dl.DataParallelEngine if several else dl.GPUEngine), runner.engine
    assert see.devices == {"cuda"}
    assert type(train(num_epochs=1, cpu=True).engine) is dl.CPUEngine


def exact(precision, tolerance):
    """The runner equals the loop written by hand."""
    deterministic()
    see = See()
    amp = {None: False, torch.float16: True, torch.bfloat16: "bf16"}[precision]
    runner = train(engine=dl.GPUEngine(amp=amp), callbacks=[see])
    assert see.kinds == {precision or torch.float32}, see.kinds
    near(losses(runner), by_hand(precision), tolerance)
    print("note: valid loss {:.4f} to {:.4f}".format(losses(runner)[0], losses(runner)[-1]))


def fp16_argument():
    """fp16=True and amp=True are the same; the loss scaler is there, and bfloat16 has none."""
    for kwargs, kind in (({"fp16": True}, torch.float16), ({"amp": True}, torch.float16), ({"amp": "bf16"}, torch.bfloat16)):
        see = See()
        runner = train(num_epochs=1, callbacks=[see], **kwargs)
        assert see.kinds == {kind} and (runner.engine._scaler is not None) == (kind is torch.float16), (kwargs, see.kinds)


def clipped(accumulate):
    """Clipping sees unscaled gradients, once for each step."""
    deterministic()
    callbacks = [dl.BackwardCallback("loss", grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.3}),
                 dl.OptimizerCallback("loss", accumulation_steps=accumulate)]
    runner = train(engine=dl.GPUEngine(amp=True), callbacks=callbacks)
    near(losses(runner), by_hand(torch.float16, clip=0.3, accumulate=accumulate), 2e-3)


class Sum(nn.Module):
    """What two models say together."""

    def __init__(self, models):
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x):
        return sum(model(x) for model in self.models)


def two_optimizers():
    """One loss scaler for two optimizers, clipped: the losses of plain PyTorch, which updates it once for both."""
    deterministic()
    made = [parts()["model"].cuda() for _ in range(2)]
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=0.02) for key, model in zip("ab", made)}

    class Two(dl.Runner):
        def handle_batch(self, batch):
            x, y = batch
            logits = self.model["a"](x) + self.model["b"](x)
            self.batch_metrics["loss"] = nn.functional.cross_entropy(logits, y)
            seen.append(self.batch_metrics["loss"].item())

    clip = dict(grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.3})
    seen = []
    Two().train(model=dict(zip("ab", made)), optimizer=optimizers, engine=dl.GPUEngine(amp=True), num_epochs=2,
                loaders={"train": loaders()["train"]}, callbacks=[
                    dl.BackwardCallback("loss", **clip), dl.OptimizerCallback("loss", optimizer_key="a"),
                    dl.OptimizerCallback("loss", optimizer_key="b")])
    made = [parts()["model"].cuda() for _ in range(2)]
    both, pair, scaler, wanted = Sum(made), [torch.optim.SGD(m.parameters(), lr=0.02) for m in made], GRADSCALER(), []
    for _ in range(2):
        for x, y in loaders()["train"]:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(both(x.cuda()), y.cuda())
            wanted.append(loss.item())
            scaler.scale(loss).backward()
            for optimizer in pair:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(both.parameters(), 0.3)
            for optimizer in pair:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in pair:
                optimizer.zero_grad()
    near(seen, wanted, 5e-3)


def data_parallel(amp):
    """One process over all GPUs."""
    deterministic()
    see = See()
    runner = train(engine=dl.DataParallelEngine(amp=amp), callbacks=[see])
    assert see.devices == {"cuda"} and losses(runner)[-1] < losses(runner)[0]
    if torch.cuda.device_count() == 1 and not amp:
        near(losses(runner), by_hand(), 1e-3)
    assert not isinstance(runner.model, nn.DataParallel)


def by_name():
    """Each engine that needs a GPU, by its own name: where it computes, in which precision, with or without a scaler."""
    for kind, dtype in ((dl.GPUEngine, torch.float32), (dl.DataParallelEngine, torch.float32),
                        (dl.GPUAMPEngine, torch.float16), (dl.DataParallelAMPEngine, torch.float16)):
        see = See()
        runner = train(engine=kind(), callbacks=[see])
        assert type(runner.engine) is kind and see.devices == {"cuda"} and see.kinds == {dtype}, (kind, see.kinds)
        assert (runner.engine._scaler is not None) == (dtype is torch.float16), kind
        assert losses(runner)[-1] < losses(runner)[0], (kind, losses(runner))


def ddp(count, amp):
    """Processes of the runner's own: one for each GPU over NCCL; two on one GPU over Gloo."""
    engine = dl.DistributedDataParallelEngine(world_size=count, amp=amp) if count else \
        dl.DistributedDataParallelEngine(amp=amp)
    made = parts()
    before = [p.clone() for p in made["model"].parameters()]
    runner = dl.SupervisedRunner()
    runner.train(**made, loaders=loaders(), num_epochs=3, engine=engine)
    assert losses(runner)[-1] < losses(runner)[0], losses(runner)
    assert any(not torch.equal(a, b.cpu()) for a, b in zip(before, made["model"].parameters()))
    print("note: {} processes over {}, valid loss {:.4f} to {:.4f}".format(
        engine.num_processes, engine.backend, losses(runner)[0], losses(runner)[-1]))


def flags():
    """check, overfit, profile, timeit, load_best_on_end and resume."""
    with tempfile.TemporaryDirectory() as folder:
        right = dict(valid_loader="valid", valid_metric="loss", minimize_valid_metric=True)
        assert sorted(train(num_epochs=9, check=True).experiment_metrics) == [1, 2, 3]
        first = train(num_epochs=30, overfit=True)
        assert losses(first, "train")[-1] < 0.5 * losses(first, "train")[0]
        runner = train(num_epochs=1, timeit=True, profile=True, logdir=folder + "/profiled")
        assert runner.experiment_metrics[1]["train"]["_timer/_fps"] > 0
        assert os.listdir(folder + "/profiled/tb_profile")
        deterministic()
        whole = train(num_epochs=4, amp=True)
        train(num_epochs=2, amp=True, logdir=folder + "/half", load_best_on_end=True,
              callbacks=[dl.CheckpointCallback(folder, mode="runner")])
        second = train(num_epochs=4, amp=True, resume=folder + "/runner.last.pth")
        assert sorted(second.experiment_metrics) == [3, 4]
        near(losses(second), losses(whole)[2:], 5e-3)  # the loss scale starts anew
        best = train(num_epochs=3, logdir=folder + "/best", load_best_on_end=True, **right)
        saved = torch.load(folder + "/best/checkpoints/model.best.pth", map_location="cpu")
        assert all(torch.equal(saved[key], value.cpu()) for key, value in best.model.state_dict().items())


def predictions():
    runner = train(num_epochs=2)
    answers = list(runner.predict_loader(loader=loaders()["valid"]))
    assert answers[0]["logits"].device.type == "cuda" and not answers[0]["logits"].requires_grad
    metrics = runner.evaluate_loader(loaders()["valid"], callbacks=[dl.AccuracyCallback("logits", "targets", topk=(1, 2))])
    right = sum((a["logits"].argmax(1).cpu() == y).sum().item() for a, (_, y) in zip(answers, loaders()["valid"])) / 200
    assert abs(metrics["accuracy01"] - right) < 1e-6


def elastic(stop):
    """One replica of an elastic run in half precision; the parent starts it several times."""
    deterministic()

    class Stop(dl.Callback):
        def on_batch_end(self, runner):
            if f"{runner.epoch_step}.{runner.loader_key}.{runner.loader_batch_step}" == stop:
                os.kill(os.getpid(), signal.SIGTERM)

    made = parts()
    runner = dl.SupervisedRunner()
    backend = os.environ.get("CHECK_BACKEND")
    how = {"engine": dl.ElasticEngine(amp=True, backend=backend)} if backend else {"amp": True}
    runner.train(**made, loaders=loaders(), num_epochs=4, callbacks=[Stop()], **how)
    assert isinstance(runner.engine, dl.ElasticEngine)
    with open(os.environ["CHECK_RESULT"], "w") as file:
        json.dump([losses(runner), [p.double().sum().item() for p in made["model"].parameters()]], file)


def elastic_resume():
    """Interrupted in training and in validation, it ends as it does without."""
    with tempfile.TemporaryDirectory() as folder:
        results = [os.path.join(folder, name) for name in ("whole", "parts")]
        run("elastic:", CHECK_RESULT=results[0], ADAPTDL_CHECKPOINT_PATH=folder + "/whole-ck")
        for stop, status in (("2.train.7", 143), ("3.valid.2", 143), ("", 0)):
            run("elastic:" + stop, status=status, CHECK_RESULT=results[1], ADAPTDL_CHECKPOINT_PATH=folder + "/ck")
        (a, x), (b, y) = (json.loads(pathlib.Path(path).read_text()) for path in results)
        near(a, b, 1e-9)
        assert x == y, (x, y)


def elastic_two():
    """Two replicas on the GPU over Gloo, or over NCCL where each has its own."""
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
        processes = [start("elastic:", CHECK_BACKEND=backend, CHECK_RESULT=os.path.join(folder, str(rank)), ADAPTDL_NUM_NODES="1",
                           ADAPTDL_NUM_REPLICAS="2", ADAPTDL_REPLICA_RANK=str(rank), ADAPTDL_MASTER_ADDR="127.0.0.1",
                           ADAPTDL_MASTER_PORT=str(port)) for rank in range(2)]
        texts = [ended(process) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], "\n".join(texts)
        (a, x), (b, y) = (json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(2))
        assert a == b and x == y and a[-1] < a[0], (a, b)
        return ["note: valid loss {:.4f} to {:.4f} on two replicas\n".format(a[0], a[-1])]


def autoscaled():
    """Batch sizes adapt, by arguments alone."""
    class Sizes(dl.Callback):
        seen = set()

        def on_batch_end(self, runner):
            self.seen.add(runner.loader.current_batch_size)

    made = {"train": DataLoader(data(8192, 1), batch_size=32, shuffle=True, drop_last=True)}
    train(loaders=made, num_epochs=5, max_batch_size=1024, local_bsz_bounds=(32, 256), gradient_accumulation=True,
          callbacks=[Sizes()])
    assert max(Sizes.seen) <= 1024
    print("note: batch sizes", sorted(Sizes.seen))


def cost():
    """A runner step beside the same step by hand: ResNet-like, bfloat16, blocks in turns."""
    from torch.nn import functional as F
    torch.manual_seed(1)

    def network():
        layers, channels = [], 3
        for outputs in (128, 256, 512, 512):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
            channels = outputs
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 4, 10))

    count, size = 20, 1024
    images = [(torch.randn(size, 3, 32, 32).cuda(), torch.randint(10, (size,)).cuda()) for _ in range(count)]

    class Batches:
        batch_size = size

        def __len__(self):
            return count

        def __iter__(self):
            return iter(images)

    class Clock(dl.Callback):
        def on_loader_start(self, runner):
            torch.cuda.synchronize()
            self.begin = time.monotonic()

        def on_loader_end(self, runner):
            torch.cuda.synchronize()
            times.append(time.monotonic() - self.begin)
            hand()

    times, hands = [], []
    plain = network().cuda()
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)

    def hand():
        torch.cuda.synchronize()
        begin = time.monotonic()
        with torch.enable_grad():
            for x, y in images:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.cross_entropy(plain(x), y)
                loss.backward()
                plain_optimizer.step()
                plain_optimizer.zero_grad()
        torch.cuda.synchronize()
        hands.append(time.monotonic() - begin)

    model = network()
    dl.SupervisedRunner().train(model=model, criterion=nn.CrossEntropyLoss(), loaders={"train": Batches()}, num_epochs=8,
                                optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), amp="bf16",
                                callbacks=[Clock()])
    ratios = sorted(a / b for a, b in zip(times[2:], hands[2:]))
    print("note: {:.2f} ms a step by hand, {:+.1f} % with the runner (median of {})".format(
        1000 * sorted(hands)[len(hands) // 2] / count, 100 * (ratios[len(ratios) // 2] - 1), len(ratios)))


CHECKS = {
    "default-engine": default_engine,
    "exact-fp32": lambda: exact(None, 1e-4),
    "exact-fp16": lambda: exact(torch.float16, 2e-3),
    "exact-bf16": lambda: exact(torch.bfloat16, 2e-3),
    "arguments": fp16_argument,
    "clipped-fp16": lambda: clipped(1),
    "clipped-fp16-accumulated": lambda: clipped(3),
    "two-optimizers-fp16": two_optimizers,
    "data-parallel": lambda: data_parallel(None),
    "data-parallel-fp16": lambda: data_parallel(True),
    "engines-by-name": by_name,
    "ddp": lambda: ddp(None, None),
    "ddp-2-fp16": lambda: ddp(2, True),
    "flags": flags,
    "predictions": predictions,
    "autoscaled": autoscaled,
    "cost": cost,
}


def start(name, **variables):
    env = {key: value for key, value in os.environ.items() if not key.startswith("ADAPTDL_")}
    env.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", PYTHONPATH=LIBRARY, **variables)
    return subprocess.Popen([sys.executable, __file__, name], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def ended(process):
    try:
        return process.communicate(timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0] + f"\nstill running after {LIMIT_S} s"


def run(name, status=0, **variables):
    """Output of a check's process; AssertionError when it failed."""
    process = start(name, **variables)
    text = ended(process)
    assert process.returncode == status, f"exit status {process.returncode}\n{text}"
    return [text]


def main(names):
    if not torch.cuda.is_available():
        sys.exit("gpu_runner_check: there is no GPU")
    print("torch {}, {} x {}".format(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_name()),
          flush=True)
    checks = [(name, lambda name=name: run(name)) for name in CHECKS]
    checks += [("elastic-resume-fp16", elastic_resume), ("elastic-2-fp16", elastic_two)]
    failed = 0
    for name, check in checks:
        if names and name not in names:
            continue
        begin = time.monotonic()
        try:
            outputs = check() or []
            print("ok - {} ({:.1f} s)".format(name, time.monotonic() - begin), flush=True)
            for line in "".join(outputs).splitlines():
                if line.startswith("note: "):
                    print("   " + line[len("note: "):])
        except AssertionError as error:
            failed += 1
            print("not ok - {}: {}".format(name, error), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("elastic:"):
        elastic(sys.argv[1].partition(":")[2])
    elif len(sys.argv) == 2 and sys.argv[1] in CHECKS and os.environ.get("CUBLAS_WORKSPACE_CONFIG"):
        CHECKS[sys.argv[1]]()
    else:
        main(sys.argv[1:])
