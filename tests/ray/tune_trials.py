"""Training functions for the Tune tests, and what watches them. Without PyTorch where that is not the point: it
takes long to start."""

import json
import os
import signal
import time

import adaptdl.checkpoint
import adaptdl.collective
from adaptdl import _signal, env, sched_hints
from ray import tune
from ray.tune import Callback
from ray.tune.search import Searcher


class Ledger(adaptdl.checkpoint.State):
    """Every step that counts, and how many results there were."""
    steps, reports = [], 0

    def save(self, fileobj):
        fileobj.write(json.dumps([self.steps, self.reports]).encode())

    def load(self, fileobj):
        self.steps, self.reports = json.loads(fileobj.read())


def send_hints():
    """As if replicas were nearly for free: the policy wants as many as it may."""
    sched_hints.post_sched_hints({
        "initBatchSize": 64, "maxBatchSize": 6400, "localBszBounds": [32, 64], "gradientAccumulation": False,
        "maxProfiledReplicas": 8, "gradParams": {"norm": 1.0, "var": 1000.0}, "progress": 1.0,
        "perfParams": {"alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 1e-4, "beta_n": 1e-5, "alpha_r": 1e-4,
                       "beta_r": 1e-5, "gamma": 1.5}}, env.job_id())


def ledger_trial(config, checkpoint_dir=None):
    """Counts steps; config: steps, and optionally until (a file that must be there before the end)."""
    ledger = Ledger("ledger")
    adaptdl.checkpoint.load_state(ledger)
    ledger.steps, ledger.reports = adaptdl.collective.broadcast([ledger.steps, ledger.reports])
    if env.replica_rank() == 0:
        send_hints()
    started = len(ledger.steps)
    while len(ledger.steps) < config["steps"] or (config.get("until") and not os.path.exists(config["until"])):
        time.sleep(0.05)
        if adaptdl.collective.allreduce(int(_signal.get_exit_flag())):
            adaptdl.checkpoint.save_all_states()
            raise SystemExit(143)
        ledger.steps.append(len(ledger.steps))
        if len(ledger.steps) % 20 == 0:
            ledger.reports += 1
            tune.report(whole=ledger.steps == list(range(len(ledger.steps))), steps=len(ledger.steps), started=started,
                        reports=ledger.reports, replicas=env.num_replicas(), worker=os.getpid(),
                        device=os.environ["ADAPTDL_DEVICE_TYPE"])
            adaptdl.checkpoint.save_all_states()


def loop_trial(config):
    """Counts batches of the library's own loops, which go on with other replicas; config: until, a file that must be
    there before the end."""
    import loops
    from adaptdl import _core
    ledger, loop = Ledger("ledger"), _core.Loop("work", 12)
    adaptdl.checkpoint.load_state(ledger)
    for epoch in loops.epochs(100000):
        for _ in loops.batches(loop, 48):
            ledger.steps = ledger.steps + [[epoch, loop.index]]
            time.sleep(0.05)
        if env.replica_rank() == 0:
            send_hints()
        wanted = [[number, index] for number in range(epoch + 1) for index in range(0, 48, 12)]
        ledger.reports += 1
        tune.report(whole=ledger.steps == wanted, reports=ledger.reports, replicas=env.num_replicas(),
                    restarts=env.num_restarts(), worker=os.getpid())
        if adaptdl.collective.broadcast(os.path.exists(config["until"])):
            return


def ends_first_trial(config):
    """A newcomer that never gets to its loops; the others end as soon as it is there."""
    from adaptdl import _core
    if _core.joining():
        open(config["until"], "w").close()
        time.sleep(86400)
    loop_trial(config)


def die(path):
    """The replica whose rank the file has dies, and the file goes."""
    try:
        with open(path) as file:
            rank = int(file.read())
        if rank != env.replica_rank():
            return
        os.unlink(path)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def torch_trial(config):
    """The same with PyTorch. Its model is its ledger: each example of a batch adds 1 to an element of its own, so that
    after an epoch every element is the number of epochs."""
    import adaptdl.torch as adl
    import torch
    torch.set_num_threads(1)

    class Seen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = torch.nn.Parameter(torch.zeros(48))

        def forward(self, numbers):
            return -self.seen[numbers].mean()

    module = Seen()
    optimizer = torch.optim.SGD(module.parameters(), lr=12.0)
    model = adl.AdaptiveDataParallel(module, optimizer)
    loader = adl.AdaptiveDataLoader(torch.utils.data.TensorDataset(torch.arange(48)), batch_size=12, shuffle=True)
    ledger = Ledger("reports")
    adaptdl.checkpoint.load_state(ledger)
    for epoch in adl.remaining_epochs_until(100000):
        if env.replica_rank() == 0:
            send_hints()
        for (numbers,) in loader:
            optimizer.zero_grad()
            model(numbers).backward()
            optimizer.step()
            time.sleep(0.1)
            die(config["until"] + ".die")
        ledger.reports += 1
        wrong = sum(abs(value - epoch - 1) > 1e-3 for value in module.seen.detach().tolist())
        tune.report(whole=wrong == 0, reports=ledger.reports, replicas=env.num_replicas(), restarts=env.num_restarts(),
                    worker=os.getpid())
        if adaptdl.collective.broadcast(os.path.exists(config["until"])):
            return


class Examples(adaptdl.checkpoint.State):
    """Every example that was trained on, by epoch."""
    seen = []

    def save(self, fileobj):
        fileobj.write(json.dumps(self.seen).encode())

    def load(self, fileobj):
        self.seen = json.loads(fileobj.read())


def early_trial(config, checkpoint_dir=None):
    """Passes that end early by a return, as in the tutorial; config: epochs."""
    import adaptdl.torch as adl
    import torch
    data = torch.utils.data.TensorDataset(torch.arange(64.0).unsqueeze(1))
    loader = adl.AdaptiveDataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model = adl.AdaptiveDataParallel(model, optimizer)
    examples = Examples("examples")
    adaptdl.checkpoint.load_state(examples)
    restarts = env.num_restarts()

    def one_pass(epoch):
        for index, (inputs,) in enumerate(loader):
            if index * len(inputs) > 32:
                return
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            examples.seen += [[epoch, int(value)] for value in inputs]
            time.sleep(0.1)

    for epoch in adl.remaining_epochs_until(config["epochs"]):
        one_pass(epoch)
        tune.report(epoch=epoch, seen=list(examples.seen), restarts=restarts, worker=os.getpid())


def own_checkpoint_trial(config, checkpoint_dir=None):
    """Saves something of its own, dies, and finds it again, in both ways that Ray has had."""
    import tempfile

    import ray
    if checkpoint_dir is None:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "word"), "w") as file:
                file.write("kept")
            tune.report({"word": ""}, checkpoint=tune.Checkpoint.from_directory(folder))
        tune.report({"word": ""})  # waits until the first was taken
        os.kill(os.getpid(), signal.SIGKILL)
    found = (tune.get_checkpoint if hasattr(tune, "get_checkpoint") else ray.train.get_checkpoint)()
    with open(os.path.join(checkpoint_dir, "word")) as file, found.as_directory() as folder:
        tune.report(word=file.read(), same=os.path.samefile(checkpoint_dir, folder))


def runner_trial(config):
    """The runner of adaptdl.dl, whose epochs are the trial's results."""
    import torch
    from adaptdl import dl
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 2)
    started = env.num_restarts()
    dl.SupervisedRunner().train(
        model=model, criterion=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loaders={"train": loader}, num_epochs=config["epochs"],
        loggers={"tune": dl.ReportLogger(lambda metrics, step: tune.report(
            {**metrics, "epoch": step, "replicas": env.num_replicas(), "restarts": started, "worker": os.getpid()}))})


def failing_trial(config):
    tune.report({"mean_accuracy": 0.5})
    raise ValueError("this function fails on purpose")


def silent_trial(config):
    pass


class Watch(Callback):
    """Calls a function with every result, on Tune's side."""

    def __init__(self, function):
        self.function = function

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.function(trial, result)


class Late(Searcher):
    """A second trial once the first has that many replicas, and ready() says so; both end when the second has had a
    result, and the first one with fewer replicas."""

    def __init__(self, replicas, end, ready=lambda: True):
        super().__init__(metric="reports", mode="max")
        self.replicas, self.end, self.ready = replicas, end, ready
        self.first = self.wanted = False
        self.seen = {}

    def suggest(self, trial_id):
        if not self.first:
            self.first = True
            return {"steps": 40, "until": self.end}
        if self.wanted:
            self.wanted = None
            return {"steps": 40, "until": self.end}
        return Searcher.FINISHED if self.wanted is None else None

    def on_trial_result(self, trial_id, result):
        seen = self.seen.setdefault(trial_id, [])
        seen.append(result["replicas"])
        if self.wanted is False and result["replicas"] >= self.replicas and self.ready():
            self.wanted = True
        if len(self.seen) == 2 and self.shrunk():
            open(self.end, "w").close()

    def shrunk(self):
        """Has the first been smaller again?"""
        sizes = next(iter(self.seen.values()))
        return self.replicas in sizes and min(sizes[sizes.index(self.replicas):]) < self.replicas

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.first, self.wanted = True, None  # whatever became of it, it is not waited for

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass
