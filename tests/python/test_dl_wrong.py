#!/usr/bin/python3
"""What the runner says about wrong input, and what becomes of loaders that engines divide."""

import random

import harness

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, RandomSampler, TensorDataset  # noqa: E402

from adaptdl import dl  # noqa: E402
from dl_common import data, loaders, network, train  # noqa: E402


# ---- wrong input ----

class Triples(TensorDataset):
    def __getitem__(self, index):
        return (*super().__getitem__(index), 0)


WRONG = {
    "key": (dict(loaders={"test": loaders()["valid"]}), ValueError,
            "loader key 'test': keys start with 'train', 'valid' or 'infer'; there are 'test'"),
    "no dict": (dict(loaders=[1]), TypeError, "loaders must be a dict of DataLoaders, not list"),
    "none": (dict(loaders=None), ValueError, "loaders is None"),
    "empty dict": (dict(loaders={}), ValueError, "loaders is empty"),
    "no loader": (dict(loaders={"train": 3}), TypeError, "loader 'train' must be a DataLoader .* not int"),
    "empty": (dict(loaders={"train": DataLoader(data(8), batch_size=16, drop_last=True)}), dl.RunnerError,
              "loader 'train' is empty"),
    "valid loader": (dict(valid_loader="dev", valid_metric="loss"), ValueError,
                     "valid_loader 'dev' is none of the loaders: 'train', 'valid'"),
    "metric": (dict(callbacks=[dl.CheckpointCallback("nowhere", "valid", "f1", minimize=False)]), KeyError,
               "nobody computes the metric 'f1' of loader 'valid'; there are: loss, loss/mean, loss/std, lr, momentum"),
    "metric of no loader": (dict(callbacks=[dl.EarlyStoppingCallback(1, "dev", "loss", True)]), KeyError,
                            "there is no loader 'dev' in this epoch; there are: train, valid"),
    "callback": (dict(callbacks=[print]), TypeError, "callback 0 must be a Callback, not builtin_function_or_method"),
    "callback class": (dict(callbacks={"tqdm": dl.TqdmCallback}), TypeError,
                       "callback 'tqdm' is the class TqdmCallback; it must be an object"),
    "callbacks": (dict(callbacks=dl.TimerCallback()), TypeError, "callbacks must be a list or a dict"),
    "logger": (dict(loggers={"csv": "here"}), TypeError, "logger 'csv' must be an ILogger, not str"),
    "triple": (dict(loaders={"train": DataLoader(Triples(*data().tensors), batch_size=16)}), dl.RunnerError,
               r"loader 'train': a batch must be a pair \(input, target\) or a dict, and is 3 things"),
    "single": (dict(loaders={"train": DataLoader(torch.zeros(8, 8), batch_size=4)}), dl.RunnerError,
               "a batch must be a pair .* and is a Tensor"),
    "accuracy key": (dict(callbacks=[dl.AccuracyCallback("scores", "targets")]), KeyError,
                     "AccuracyCallback: the batch has no 'scores'; there are: features, logits, targets"),
    "topk": (dict(callbacks=[dl.AccuracyCallback("logits", "targets", topk=(1, 9))]), ValueError,
             "topk has 9, and there are 4 classes"),
    "optimizer key": (dict(callbacks=[dl.OptimizerCallback("loss", optimizer_key="b")]), KeyError,
                      "the runner has one optimizer, not several by key; 'b' was asked for"),
    "no criterion": (dict(criterion=None), KeyError, "BackwardCallback: nobody computes the metric 'loss' of the batch; "
                                                     "there are: none"),
    "model": (dict(model=lambda x: x), TypeError, "model must be a torch.nn.Module, or a dict of them, not function"),
    "engine": (dict(engine="cpu"), TypeError, "engine must be an Engine of adaptdl.dl, not str"),
    "epochs": (dict(num_epochs=-1), ValueError, "num_epochs must be an int of at least 0, not -1"),
    "bounds": (dict(local_bsz_bounds=(1, 2)), ValueError, "need max_batch_size"),
    "best": (dict(load_best_on_end=True), ValueError, "load_best_on_end needs logdir"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kwargs, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        train(**kwargs)


def test_wrong_keys_of_dicts():
    class Named(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"image": torch.zeros(8), "targets": 1}

    batches = {"train": DataLoader(Named(), batch_size=4)}
    with pytest.raises(dl.RunnerError, match=r"the batch has no 'features' \(input_key\); there are: image, targets"):
        train(loaders=batches)
    train(dl.SupervisedRunner(input_key="image"), loaders=batches)
    with pytest.raises(KeyError, match="CriterionCallback: the batch has no 'labels'; there are: image, logits, targets"):
        train(dl.SupervisedRunner(input_key="image", target_key="labels"), loaders=batches)
    with pytest.raises(dl.RunnerError, match="the model gives 4 outputs, and output_key has 2: a, b"):
        train(dl.SupervisedRunner(input_key="image", output_key=["a", "b"]), loaders=batches, criterion=None)
    with pytest.raises(TypeError, match="input_key must be a str, a list of them, or None, not 3"):
        dl.SupervisedRunner(input_key=3)


@pytest.mark.parametrize("make, text", [
    (lambda: dl.OptimizerCallback("loss", accumulation_steps=0), "accumulation_steps must be an int of at least 1, not 0"),
    (lambda: dl.BackwardCallback("loss", grad_clip_fn="clip_all"), "torch.nn.utils has no 'clip_all'"),
    (lambda: dl.BackwardCallback("loss", grad_clip_params={"a": 1}), "grad_clip_params without grad_clip_fn"),
    (lambda: dl.SchedulerCallback(loader_key="valid"), "loader_key and metric_key go together"),
    (lambda: dl.SchedulerCallback(mode="step"), "mode must be 'batch' or 'epoch', not 'step'"),
    (lambda: dl.CheckpointCallback("x", topk=0), "topk must be an int of at least 1, not 0"),
    (lambda: dl.CheckpointCallback("x", mode="all"), "mode must be 'model' or 'runner', not 'all'"),
    (lambda: dl.CheckpointCallback("x", minimize=True), "minimize needs metric_key"),
    (lambda: dl.AccuracyCallback("a", "b", topk=()), "topk must be numbers of at least 1"),
])
def test_wrong_arguments_of_callbacks(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_the_training_sampler_in_the_validation_loader():
    """Its numbers would be out of range."""
    train_set, valid_set = data(96), data(40, 1)
    sampler = RandomSampler(train_set)
    both = {"train": DataLoader(train_set, batch_size=16, sampler=sampler),
            "valid": DataLoader(valid_set, batch_size=16, sampler=sampler)}
    with pytest.warns(UserWarning, match="loader 'valid': its RandomSampler belongs to another data set"):
        runner = train(loaders=both, num_epochs=1)
    assert runner.loader_sample_step == 40


# ---- loaders of elastic runs and of several processes ----

def test_loaders_become_elastic():
    from adaptdl.dl.loaders import elastic_loader
    from adaptdl.torch import AdaptiveDataLoader
    from torch.utils.data.distributed import DistributedSampler
    whole = data(50)
    for kwargs, shuffle in (({"shuffle": True}, True), ({}, False),
                            ({"sampler": DistributedSampler(whole, 2, 0, shuffle=False)}, False),
                            ({"sampler": DistributedSampler(whole, 2, 0, shuffle=True)}, True)):
        made = elastic_loader("train", DataLoader(whole, batch_size=8, drop_last=True, **kwargs), 1)
        assert type(made) is AdaptiveDataLoader and made.sampler.shuffle is shuffle
        assert made._elastic.batch_size == 8 and made.drop_last
        assert elastic_loader("train", made, 1) is made


def test_samplers_of_other_kinds_are_drawn_from():
    from adaptdl.dl.loaders import elastic_loader
    weights = [1.0] * 25 + [0.0] * 25
    sampler = torch.utils.data.WeightedRandomSampler(weights, 50)
    drawn = [elastic_loader("train", DataLoader(data(50), batch_size=8, sampler=sampler), 1).dataset for _ in range(2)]
    places = []
    for epoch in (0, 0, 1):
        for dataset in drawn:
            torch.rand(epoch + 1)
            dataset.draw(epoch)
            places.append(tuple(dataset.places))
    assert len(set(places)) == 2 and places[0] == places[3] and places[4] == places[5]  # by the epoch alone
    assert len(drawn[0]) == 50 and max(places[0]) < 25
    assert torch.equal(drawn[0][3][0], data(50)[places[4][3]][0])


def test_workers_do_not_keep_the_first_draw():
    from adaptdl.dl.loaders import elastic_loader
    loader = DataLoader(torch.arange(9), batch_size=4, sampler=Shuffled("random"), num_workers=1, persistent_workers=True)
    assert not elastic_loader("train", loader, 1).persistent_workers


class Shuffled(torch.utils.data.Sampler):
    """A sampler whose random numbers are not PyTorch's."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 9

    def __iter__(self):
        places = list(range(9))
        if self.how == "random":
            random.shuffle(places)
        else:
            pytest.importorskip("numpy").random.shuffle(places)
        return iter(places)


@pytest.mark.parametrize("how", ["random", "numpy"])
def test_all_processes_draw_the_same(how):
    from adaptdl.dl.loaders import distributed_loader, elastic_loader
    pytest.importorskip("numpy")
    made, shares = [], []
    for rank in range(2):
        random.seed(rank)
        before = random.getstate()
        loader = DataLoader(torch.arange(9), batch_size=4, sampler=Shuffled(how))
        drawn = elastic_loader("train", loader, 1).dataset
        drawn.draw(3)
        made.append(drawn.places)
        share = distributed_loader("train", loader, rank, 2, 1)
        share.sampler.set_epoch(3)
        shares += torch.cat(list(share)).tolist()
        assert random.getstate() == before
        share.sampler.set_epoch(4)
        assert torch.cat(list(share)).tolist() != shares[-5:]
    assert made[0] == made[1] and sorted(set(shares)) == list(range(9)) and len(shares) == 10


def test_processes_share_what_a_sampler_draws():
    """A part of the data stays a part, weights stay weights, and a number of examples stays that."""
    from adaptdl.dl.loaders import _Drawn, distributed_loader, elastic_loader
    kinds = torch.utils.data
    for sampler, count in ((kinds.SubsetRandomSampler(range(10, 20)), 10),
                           (kinds.WeightedRandomSampler([0.0] * 10 + [1.0] * 10 + [0.0] * 10, 30), 30),
                           (kinds.RandomSampler(range(10, 20), num_samples=4), 4),
                           (type("Mine", (kinds.SequentialSampler,), {})(range(6)), 6)):
        loader = DataLoader(torch.arange(30), batch_size=4, sampler=sampler)
        seen = [torch.cat(list(distributed_loader("valid", loader, rank, 2))).tolist() for rank in range(2)]
        assert len(seen[0]) == len(seen[1]) == count // 2
        assert {place // 10 for share in seen for place in share} == {0 if count < 10 else 1}
        assert isinstance(elastic_loader("valid", loader, 1).dataset, _Drawn)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])

    def __len__(self):
        return 8


def test_loaders_that_cannot_be_divided_are_named():
    from adaptdl.dl.loaders import distributed_loader, elastic_loader

    class Own(torch.utils.data.BatchSampler):
        pass

    batches = DataLoader(data(8), batch_sampler=Own(RandomSampler(data(8)), 4, False))
    for make, what in ((lambda loader: elastic_loader("train", loader, 1), "elastic training"),
                       (lambda loader: distributed_loader("train", loader, 0, 2), "2 processes")):
        for loader in (DataLoader(Stream(), batch_size=4), batches):
            with pytest.raises(ValueError, match="loader 'train': .*" + what):
                make(loader)
    with pytest.raises(TypeError, match="loader 'train' must be a DataLoader or an AdaptiveDataLoader"):
        elastic_loader("train", [1, 2], 1)


def test_keys_of_models_and_optimizers_that_do_not_fit():
    models = {"a": network(1), "b": network(2)}
    one = torch.optim.SGD(models["a"].parameters(), lr=0.1)
    for model, optimizer, text in ((models, one, r"the models' keys \(a, b\), not SGD"),
                                   (models, {"c": one}, r"the models' keys \(a, b\), not a dict of c"),
                                   (models["a"], {"a": one}, "one model needs one optimizer, not a dict of a")):
        with pytest.raises(ValueError, match=text):
            dl.ElasticEngine("cpu").prepare_all(model, optimizer, None, None)


if __name__ == "__main__":
    harness.main(__file__)
