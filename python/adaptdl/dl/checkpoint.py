"""Models on disk: the best, the last, and those of the best epochs."""

import inspect
import json
import math
import os
import shutil

import torch

from adaptdl import _core, _original
from adaptdl.dl.callback import ICheckpointCallback
from adaptdl.dl.callbacks import epoch_metric
from adaptdl.dl.loggers import write_whole
from adaptdl.torch.parallel import state_of

__all__ = ["CheckpointCallback", "load_checkpoint", "pack_checkpoint", "unpack_checkpoint"]

_WEIGHTS_ONLY = "weights_only" in inspect.signature(torch.load).parameters
_PARTS = ("model", "criterion", "optimizer", "scheduler")


def load_checkpoint(path, trusted=False):
    """What a checkpoint's file holds, on the processor. Nothing in it is executed unless it is trusted.

    Args:
        path (str): The file.
        trusted (bool): Whether it may execute what it names. Only files of one's own are to be trusted.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it holds more than tensors, numbers and containers, and is not trusted.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"checkpoint {path}: there is no such file")
    if trusted:
        return torch.load(path, map_location="cpu", **({"weights_only": False} if _WEIGHTS_ONLY else {}))
    try:
        with open(path, "rb") as file:
            return _original.read_torch(file)
    except ValueError as error:
        raise ValueError(f"checkpoint {path}: {error}; if you wrote it yourself, load_checkpoint(path, trusted=True) "
                         "reads it, executes what it names, and resume= takes what it gives") from error


def resumed(resume):
    """What ``resume=`` stands for: a file, or what :func:`load_checkpoint` gave."""
    return resume if isinstance(resume, dict) else load_checkpoint(resume)


def _states(value, unwrap):
    if isinstance(value, dict):
        return {key: _states(part, unwrap) for key, part in value.items()}
    return state_of(unwrap(value))


def pack_checkpoint(runner):
    """Everything of a runner that can be loaded again, as a dict."""
    packed = {}
    for part in _PARTS:
        value = getattr(runner, part)
        if value is not None and (isinstance(value, dict) or hasattr(value, "state_dict")):
            packed[f"{part}_state_dict"] = _states(value, runner.engine.unwrap_model)
    for counter in ("epoch_step", "batch_step", "sample_step"):
        packed[counter] = getattr(runner, counter)
    return packed


def _put(value, state, unwrap, what):
    if isinstance(value, dict):
        if set(value) != set(state):
            raise ValueError(f"{what}: the checkpoint has {', '.join(sorted(state))}, the runner "
                             f"{', '.join(sorted(value))}")
        for key, part in value.items():
            _put(part, state[key], unwrap, what)
    else:
        unwrap(value).load_state_dict(state)


def unpack_checkpoint(runner, checkpoint, path, parts=_PARTS):
    """Gives a runner's parts what a checkpoint of either kind has: a model's parameters, or everything.

    Args:
        runner (IRunner): The runner.
        checkpoint (dict): What :func:`load_checkpoint` gave.
        path (str): Where it is from, for errors.
        parts (tuple): Which parts.

    Returns:
        bool: Was it a checkpoint of everything?
    """
    unwrap = runner.engine.unwrap_model
    path = "given" if isinstance(path, dict) else path
    if not isinstance(checkpoint, dict) or "model_state_dict" not in checkpoint:
        _put(runner.model, checkpoint, unwrap, f"checkpoint {path}: models")
        return False
    for part in parts:
        value, state = getattr(runner, part), checkpoint.get(f"{part}_state_dict")
        if value is not None and state is not None:
            _put(value, state, unwrap, f"checkpoint {path}: {part}")
    return True


class CheckpointCallback(ICheckpointCallback):
    """Saves the model after each epoch: ``model.last.pth``, ``model.best.pth``, and ``model.0007.pth`` for
    each of the best epochs; ``model.storage.json`` lists them. Each file is there as a whole or not at all,
    and the best is a copy of the epoch's own file. At the end the best ones are printed.

    Args:
        logdir (str): Where.
        loader_key, metric_key (str): The metric by which epochs are compared.
        minimize (bool): Whether less is better; None: later is better.
        topk (int): How many epochs to keep.
        mode (str): "model": its parameters; "runner": everything, to go on from (``resume=``).
        save_last, save_best (bool): Whether there are ``model.last.pth`` and ``model.best.pth``.
        resume_model, resume_runner (str): A checkpoint to start with: the model's parameters from it, or
            everything.
        load_best_on_end (bool): Whether the model has the best epoch's parameters at the end.
    """

    def __init__(self, logdir, loader_key=None, metric_key=None, minimize=None, topk=1, mode="model", save_last=True,
                 save_best=True, resume_model=None, resume_runner=None, load_best_on_end=False):
        super().__init__()
        if isinstance(topk, bool) or not isinstance(topk, int) or topk < 1:
            raise ValueError(f"topk must be an int of at least 1, not {topk!r}")
        if mode not in ("model", "runner"):
            raise ValueError(f"mode must be 'model' or 'runner', not {mode!r}")
        if minimize is not None and metric_key is None:
            raise ValueError("CheckpointCallback: minimize needs metric_key, the metric to compare epochs by")
        self.logdir, self.loader_key, self.metric_key = str(logdir), loader_key, metric_key
        self.minimize, self.topk, self.mode = minimize, topk, mode
        self.save_last, self.save_best, self.load_best_on_end = save_last, save_best, load_best_on_end
        self.resume_model, self.resume_runner = resume_model, resume_runner
        self._storage = []  # (path, metric), the best first
        self._dropped = []  # files to delete: now, or once no checkpoint of the job knows them

    # ---- over restarts ----

    def state_dict(self):
        """What is to survive restarts. Files that the checkpoint before this one may still need are deleted
        one checkpoint later."""
        if not _core.states_sending():
            self._delete([path for path, old in self._dropped if old])
            self._dropped = [(path, True) for path, old in self._dropped if not old]
        return {"storage": self._storage, "dropped": [path for path, _ in self._dropped]}

    def load_state_dict(self, state):
        """After a restart: the epochs that were run since are run again."""
        self._storage = [(path, metric) for path, metric in state["storage"] if os.path.exists(path)]
        self._dropped = [(path, False) for path in state["dropped"]]

    def _delete(self, paths):
        kept = {path for path, _ in self._storage}
        for path in paths:
            if path not in kept and os.path.exists(path):
                os.unlink(path)

    # ---- events ----

    def on_stage_start(self, runner):
        """Makes the directory."""
        self._storage, self._dropped = [], []
        if runner.engine.is_main_process:
            os.makedirs(self.logdir, exist_ok=True)

    def _path(self, name):
        return os.path.join(self.logdir, f"{self.mode}.{name}.pth")

    def on_epoch_end(self, runner):
        """Saves the epoch's model."""
        score = runner.epoch_step
        if self.minimize is not None:
            score = float(epoch_metric(runner, self.loader_key, self.metric_key, type(self).__name__))
        path = self._path(f"{runner.epoch_step:04d}")
        self._storage = [item for item in self._storage if item[0] != path] + [(path, score)]
        sign = 1 if self.minimize else -1
        self._storage.sort(key=lambda item: (math.isnan(item[1]), sign * item[1]))  # what is no number comes last
        gone, self._storage = [item[0] for item in self._storage[self.topk:]], self._storage[:self.topk]
        self._dropped += [(old, False) for old in gone if old != path]  # on all: any of them may be rank 0 later
        if runner.engine.is_main_process:
            self._write(runner, path, gone)

    def _write(self, runner, path, gone):
        os.makedirs(self.logdir, exist_ok=True)
        if self.mode == "runner":
            saved = pack_checkpoint(runner)
        elif isinstance(runner.model, dict):
            saved = {"model_state_dict": _states(runner.model, runner.engine.unwrap_model)}
        else:
            saved = _states(runner.model, runner.engine.unwrap_model)
        if self.save_last:
            runner.engine.save(saved, self._path("last"))
        if path not in gone:
            runner.engine.save(saved, path)
        if self.save_best and self.minimize is not None:
            best = self._storage[0][0]
            write_whole(self._path("best"), lambda file: _copy(best, file), "wb")
        if not runner.is_elastic:
            self._delete([old for old, _ in self._dropped])
            self._dropped = []
        listed = {"logdir": self.logdir, "topk": self.topk, "loader_key": self.loader_key,
                  "metric_key": self.metric_key, "minimize": bool(self.minimize),
                  "storage": [{"logpath": item, "metric": None if math.isnan(metric) else metric} for item, metric in self._storage]}
        write_whole(os.path.join(self.logdir, f"{self.mode}.storage.json"),
                    lambda file: json.dump(listed, file, indent=2, ensure_ascii=False))

    def on_experiment_end(self, runner):
        """Prints the best, and loads the best of all."""
        if runner.engine.is_main_process:
            self._delete([path for path, _ in self._dropped])
            print("Top models:", *(f"{path}\t{metric:3.4f}" for path, metric in self._storage), sep="\n", flush=True)
        if self.load_best_on_end and self._storage:
            runner.engine.wait_for_everyone()
            path = self._storage[0][0]
            unpack_checkpoint(runner, load_checkpoint(path, trusted=True), path, ("model",))  # ours


def _copy(path, file):
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file)
