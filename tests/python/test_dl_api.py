#!/usr/bin/python3
"""The runner in one process: what it computes and calls, events and stages, each engine that needs no GPU."""

import io
import weakref

import harness

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from adaptdl import dl  # noqa: E402
from adaptdl.dl.elastic import ElasticEngine  # noqa: E402
from dl_common import data, loaders, losses, near, network, parts, train  # noqa: E402


# ---- what it computes ----

def by_hand(epochs, clip=None, accumulate=1):
    """The same training as a loop: per epoch the mean losses of train and valid, weighted by examples."""
    made, found = parts(), []
    model, criterion, optimizer = made["model"], made["criterion"], made["optimizer"]
    for epoch in range(epochs):
        sums = {}
        for key, loader in loaders().items():
            total = count = 0
            for number, (x, y) in enumerate(loader):
                with torch.set_grad_enabled(key == "train"):
                    loss = criterion(model(x), y)
                if key == "train":
                    loss.backward()
                    if (number + 1) % accumulate == 0:
                        if clip:
                            nn.utils.clip_grad_norm_(model.parameters(), clip)
                        optimizer.step()
                        optimizer.zero_grad()
                total, count = total + loss.item() * len(x), count + len(x)
            sums[key] = total / count
        found.append(sums)
    return found


def test_it_is_the_loop_that_one_writes_by_hand():
    runner = train(num_epochs=3)
    near(losses(runner), by_hand(3))
    assert runner.epoch_step == 3 and runner.batch_step == 3 * 9 and runner.sample_step == 3 * 136
    deviation = runner.experiment_metrics[3]["valid"]["loss/std"]
    values = [nn.functional.cross_entropy(runner.model(x), y) for x, y in loaders()["valid"]]
    weights = [16, 16, 8]
    mean = sum(w * v.item() for w, v in zip(weights, values)) / 40
    assert deviation == pytest.approx((sum(w * (v.item() - mean) ** 2 for w, v in zip(weights, values)) / 39) ** 0.5,
                                      rel=1e-4)


@pytest.mark.parametrize("callbacks", [
    lambda: [dl.BackwardCallback("loss", grad_clip_fn=nn.utils.clip_grad_norm_, grad_clip_params={"max_norm": 0.5})],
    lambda: [dl.OptimizerCallback("loss", grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.5})],
])
def test_gradients_are_clipped(callbacks):
    near(losses(train(callbacks=callbacks())), by_hand(2, clip=0.5))
    assert losses(train())[1]["train"] != pytest.approx(by_hand(2, clip=0.5)[1]["train"], abs=1e-6)


def test_gradients_are_accumulated_and_clipped_once():
    callbacks = [dl.BackwardCallback("loss", grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.5},
                                     log_gradient=True),
                 dl.OptimizerCallback("loss", accumulation_steps=3)]
    runner = train(callbacks=callbacks)
    near(losses(runner), by_hand(2, clip=0.5, accumulate=3))


def test_the_optimizer_makes_the_backward_pass_where_nobody_does():
    class Older(dl.Runner):
        def handle_batch(self, batch):
            x, y = batch
            self.batch = {"logits": self.model(x), "targets": y}

    callbacks = {"criterion": dl.CriterionCallback("logits", "targets", "loss"),
                 "optimizer": dl.OptimizerCallback("loss")}
    near(losses(train(Older(), callbacks=callbacks)), by_hand(2))


def test_a_program_that_does_it_all_itself():
    class Own(dl.Runner):
        def predict_batch(self, batch):
            return self.model(batch[0])

        def handle_batch(self, batch):
            x, y = batch
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.batch_metrics["loss"] = loss
            self.meter.add("loss", loss.item(), self.batch_size)
            if self.is_train_loader:
                self.engine.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()

        def on_loader_end(self, runner):
            self.loader_metrics["loss"] = self.loader_moments("loss")[0]
            super().on_loader_end(runner)

    runner = train(Own())
    near(losses(runner), by_hand(2))
    answers = list(runner.predict_loader(loader=loaders()["valid"]))
    assert [tuple(answer.shape) for answer in answers] == [(16, 4), (16, 4), (8, 4)]
    assert not answers[0].requires_grad


def test_no_gradients_outside_training():
    class Watch(dl.Callback):
        seen = []

        def on_batch_end(self, runner):
            self.seen.append((runner.loader_key, runner.batch["logits"].requires_grad, runner.model.training))

    train(callbacks=[Watch()], num_epochs=1)
    assert set(Watch.seen) == {("train", True, True), ("valid", False, False)}


def test_the_last_loss_stays_until_the_next_forward_pass_and_no_longer():
    """As in a loop by hand: what of its graph is left at the heap's end spares the forward pass page faults."""
    made, ends, stayed = parts(), [], []

    class Watch(dl.Callback):
        def on_batch_end(self, runner):
            assert all(end() is None for end in ends)
            ends.append(weakref.ref(runner.batch_metrics["loss"]))

    made["model"].register_forward_pre_hook(lambda *_: stayed.append(bool(ends) and ends[-1]() is not None))
    dl.SupervisedRunner().train(**made, loaders={"train": loaders()["train"]}, callbacks=[Watch()])
    assert stayed == [False] + [True] * 5


def test_seeds():
    """seed + epoch at each loader: what is random in a run does not depend on what was before."""
    class Draw(dl.Callback):
        def __init__(self):
            super().__init__()
            self.drawn = []

        def on_loader_start(self, runner):
            self.drawn.append(torch.rand(1).item())

    first, second = Draw(), Draw()
    train(callbacks=[first], seed=7)
    torch.rand(100)
    train(callbacks=[second], seed=7)
    assert first.drawn == second.drawn
    wanted = []
    for epoch in (1, 2):
        torch.manual_seed(7 + epoch)
        wanted += [torch.rand(1).item()] * 2
    assert first.drawn == wanted


class Second(dl.CPUEngine):
    """As if it were the second of two processes."""

    process_index = property(lambda self: 1)


def test_seeds_of_parts_epochs_and_processes():
    """seed + process + epoch, also when parts are made and when an epoch begins."""
    drawn = {}

    class Draw(dl.SupervisedRunner):
        def draw(self, key, result=None):
            drawn[key] = torch.rand(1).item()
            return result

        def get_loaders(self):
            return self.draw("loaders", loaders())

        def get_model(self):
            return self.draw("model", super().get_model())

        def get_callbacks(self):
            return self.draw("callbacks", super().get_callbacks())

        def on_epoch_start(self, runner):
            super().on_epoch_start(runner)
            self.draw(self.epoch_step)

    train(Draw(), engine=Second(), seed=7, loaders=None)
    for key, seed in (("loaders", 8), ("model", 8), ("callbacks", 8), (1, 9), (2, 10)):
        torch.manual_seed(seed)
        assert drawn[key] == torch.rand(1).item(), key


def test_distributed_samplers_are_told_the_epoch():
    class See(dl.Callback):
        seen = []

        def on_loader_start(self, runner):
            self.seen.append((runner.loader_key, runner.loader.sampler.epoch, list(runner.loader.sampler)[:4]))

    examples = data()
    sampler = torch.utils.data.distributed.DistributedSampler(examples, num_replicas=1, rank=0)
    train(loaders={"train": DataLoader(examples, batch_size=16, sampler=sampler)}, callbacks=[See()])
    assert [place[:2] for place in See.seen] == [("train", 1), ("train", 2)] and See.seen[0][2] != See.seen[1][2]


# ---- events, stages ----

def recorder(log, order):
    class Record(dl.Callback):
        def __init__(self):
            super().__init__(order=order)
    for event in dl.callback.EVENTS:
        setattr(Record, event, lambda self, runner, event=event: log.append((event, order)))
    return Record()


def test_events_and_their_order():
    log = []
    train(loaders={"train": DataLoader(data(16), batch_size=16)}, num_epochs=1,
          callbacks=[recorder(log, 100), recorder(log, 5)])
    nested = ["on_experiment_start", "on_stage_start", "on_epoch_start", "on_loader_start", "on_batch_start",
              "on_batch_end", "on_loader_end", "on_epoch_end", "on_stage_end", "on_experiment_end"]
    assert log == [(event, order) for event in nested for order in (5, 100)]


def test_callbacks_are_called_by_their_numbers():
    names = {"Internal": 0, "Metric": 10, "MetricAggregation": 20, "Backward": 30, "Optimizer": 40, "Scheduler": 50,
             "Checkpoint": 50, "External": 100}
    assert {name: int(getattr(dl.CallbackOrder, name)) for name in names} == names
    kinds = [dl.TqdmCallback(), dl.CheckpointCallback("x"), dl.OptimizerCallback("loss"), dl.BackwardCallback("loss"),
             dl.MetricAggregationCallback("m"), dl.CriterionCallback("a", "b", "loss"), dl.BatchOverfitCallback()]
    assert [callback.order for callback in dl.callback.sort_callbacks(kinds).values()] == [0, 10, 20, 30, 40, 50, 100]


def test_a_callback_can_be_switched_off():
    log = []
    train(callbacks=[dl.CallbackWrapper(recorder(log, 1), enable_callback=False)], num_epochs=1)
    assert log == []
    train(callbacks=[dl.CallbackWrapper(recorder(log, 1))], num_epochs=1)
    assert log


def test_an_exception_goes_through_the_callbacks():
    class Bad(dl.Callback):
        told = None

        def on_batch_end(self, runner):
            raise ZeroDivisionError("of the callback")

        def on_exception(self, runner):
            Bad.told = runner.exception

    with pytest.raises(ZeroDivisionError, match="of the callback"):
        train(callbacks=[Bad()])
    assert isinstance(Bad.told, ZeroDivisionError)


class Staged(dl.IRunner):
    """Everything said by methods, with stages."""

    stages = ["train_first", "train_second"]

    def __init__(self):
        super().__init__()
        self.log = []

    def get_engine(self):
        return dl.CPUEngine()

    def get_stage_len(self, stage):
        return {"train_first": 2, "train_second": 1}[stage]

    def get_loaders(self, stage):
        self.log.append(stage)
        return loaders()

    def get_model(self, stage):
        return self.model if self.model is not None else network()

    def get_criterion(self):
        return nn.CrossEntropyLoss()

    def get_optimizer(self, stage, model):
        return torch.optim.SGD(model.parameters(), lr=0.1 if stage == "train_first" else 0.01)

    def get_callbacks(self, stage):
        return {"criterion": dl.CriterionCallback("logits", "targets", "loss"),
                "backward": dl.BackwardCallback("loss"), "optimizer": dl.OptimizerCallback("loss")}

    def handle_batch(self, batch):
        x, y = batch
        self.batch = {"logits": self.model(x), "targets": y}

    def on_loader_end(self, runner):
        super().on_loader_end(runner)
        self.log.append((self.stage_key, self.epoch_step, self.num_epochs, self.loader_key,
                         self.loader_metrics["lr"]))


def test_stages_with_and_without_the_argument():
    runner = Staged().run()
    assert [item for item in runner.log if item[-2:] != "" and "valid" not in item] == [
        "train_first", ("train_first", 1, 2, "train", 0.1), ("train_first", 2, 2, "train", 0.1),
        "train_second", ("train_second", 1, 1, "train", 0.01)]


def test_the_engine_of_the_constructor_is_kept_and_others_are_not():
    mine = dl.CPUEngine()
    runner = dl.SupervisedRunner(engine=mine)
    train(runner)
    assert runner.engine is mine
    runner = dl.SupervisedRunner()
    train(runner, cpu=True)
    train(runner, cpu=True, amp="bf16")
    assert runner.engine.amp is torch.bfloat16
    elastic = ElasticEngine(device="cpu")
    runner = dl.SupervisedRunner(engine=elastic)
    runner.run = lambda: None
    train(runner)
    assert runner.get_engine() is elastic


def test_a_runner_remembers_numbers_of_any_kind():
    from adaptdl.dl.elastic import RunnerState
    numpy = pytest.importorskip("numpy")
    metrics = {"a": torch.tensor(1.5), "b": numpy.float32(2.5), "c": numpy.arange(2), "d": torch.tensor(3)}

    class Fake:
        meter = None  # in no loop

        def _state(self):
            return metrics

    state, file = RunnerState(Fake()), io.BytesIO()
    state.save(file)
    state.load(io.BytesIO(file.getvalue()))
    assert state.saved == {"a": 1.5, "b": 2.5, "c": [0, 1], "d": 3}
    metrics["e"] = object()
    with pytest.raises(TypeError, match="has a object in it"):
        state.save(io.BytesIO())


def test_several_models_and_optimizers():
    class Pair(dl.Runner):
        def handle_batch(self, batch):
            x, y = batch
            for key in ("a", "b"):
                self.batch_metrics[key] = nn.functional.cross_entropy(self.model[key](x), y)

    models = {"a": network(1), "b": network(2)}
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=0.1 if key == "a" else 0.0)
                  for key, model in models.items()}
    before = {key: [p.clone() for p in model.parameters()] for key, model in models.items()}
    callbacks = [dl.BackwardCallback("a"), dl.OptimizerCallback("a", optimizer_key="a"),
                 dl.BackwardCallback("b"), dl.OptimizerCallback("b", optimizer_key="b")]
    runner = Pair()
    runner.train(model=models, optimizer=optimizers, loaders=loaders(), callbacks=callbacks)
    moved = {key: not all(torch.equal(p, q) for p, q in zip(before[key], model.parameters()))
             for key, model in models.items()}
    assert moved == {"a": True, "b": False}
    assert runner.loader_metrics["lr/a"] == 0.1 and runner.loader_metrics["lr/b"] == 0.0


# ---- engines ----

def test_the_default_engine():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU; gpu_runner_check.py looks at it")
    assert type(train(num_epochs=1).engine) is dl.CPUEngine
    from adaptdl.dl.utils import get_available_engine
    engine = get_available_engine(ddp=True)
    assert type(engine) is dl.DistributedDataParallelEngine and engine.num_processes == 2 and engine.backend == "gloo"


@pytest.mark.parametrize("gpus, kind", [(0, "CPUEngine"), (1, "GPUEngine"), (3, "DataParallelEngine")])
def test_the_engine_for_what_there_is(gpus, kind, monkeypatch):
    from adaptdl.dl.utils import get_available_engine
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for engine, wanted in ((get_available_engine(), kind), (get_available_engine(cpu=True), "CPUEngine")):
        assert type(engine) is getattr(dl, wanted) and engine.device.type == ("cpu" if wanted == "CPUEngine" else "cuda")
    spread = get_available_engine(ddp=True)
    assert type(spread) is dl.DistributedDataParallelEngine and spread.num_processes == (gpus or 2)
    assert get_available_engine(ddp=True, cpu=True).num_processes == 2
    for name in ("amp", "fp16", "apex"):
        assert get_available_engine(**{name: True}).amp is torch.float16
    assert get_available_engine(amp="bf16").amp is torch.bfloat16


def test_train_takes_every_argument_by_name():
    import inspect
    parameters = inspect.signature(dl.Runner.train).parameters
    wanted = ("loaders model engine criterion optimizer scheduler callbacks loggers seed hparams num_epochs logdir resume "
              "valid_loader valid_metric minimize_valid_metric verbose timeit check overfit profile load_best_on_end cpu "
              "fp16 ddp amp apex trial max_batch_size local_bsz_bounds")
    assert set(wanted.split()) <= set(parameters) and parameters["seed"].default == 42
    assert {p.kind for name, p in parameters.items() if name != "self"} == {inspect.Parameter.KEYWORD_ONLY}
    runner = train(trial="this one", hparams={"a": 1}, num_epochs=0)
    assert runner.trial == "this one" and runner.hparams == {"a": 1}
    keys = inspect.signature(dl.SupervisedRunner).parameters
    assert {name: p.default for name, p in keys.items()} == {
        "model": None, "engine": None, "input_key": "features", "output_key": "logits", "target_key": "targets",
        "loss_key": "loss"}


def test_bfloat16_on_the_processor():
    class See(dl.Callback):
        seen = set()

        def on_batch_end(self, runner):
            self.seen.add(runner.batch["logits"].dtype)

    runner = train(amp=True, callbacks=[See()], cpu=True)
    assert See.seen == {torch.bfloat16} and runner.engine.amp is torch.bfloat16
    near_to = by_hand(2)
    assert losses(runner)[1]["train"] == pytest.approx(near_to[1]["train"], rel=0.05)
    with pytest.raises(ValueError, match="amp must be True, False, 'fp16' or 'bf16', not 'int8'"):
        train(amp="int8")


def test_the_engine_with_mixed_precision():
    class See(dl.Callback):
        seen = set()

        def on_batch_end(self, runner):
            self.seen.add((type(runner.engine), runner.engine.device.type, runner.batch["logits"].dtype))

    train(engine=dl.AMPEngine("cpu"), callbacks=[See()])
    train(engine=dl.DeviceEngine("cpu"), callbacks=[See()])
    assert See.seen == {(dl.AMPEngine, "cpu", torch.bfloat16), (dl.Engine, "cpu", torch.float32)}


def test_engines_that_need_a_gpu_say_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for kind in (dl.GPUEngine, dl.DataParallelEngine, dl.GPUAMPEngine, dl.DataParallelAMPEngine):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: there is no GPU"):
            train(engine=kind())


def test_sizes_of_distributed_engines():
    engine = dl.DistributedDataParallelEngine(world_size=4, num_node_workers=2, workers_dist_rank=2, port=1234)
    assert (engine.world_size, engine.process_index, engine.is_ddp, engine.is_main_process) == (4, 2, True, False)
    for kwargs, text in (({"world_size": 0}, "must be an int of at least 1"), ({"world_size": "2"}, "not '2'"),
                         ({"world_size": 2, "workers_dist_rank": 1, "num_node_workers": 2}, "do not fit"),
                         ({"world_size": 4, "num_node_workers": 2}, "port must be given")):
        with pytest.raises(ValueError, match=text):
            dl.DistributedDataParallelEngine(**kwargs)


if __name__ == "__main__":
    harness.main(__file__)
