"""The engine of elastic runs: under a launcher or a scheduler of AdaptDL a run grows, shrinks, is stopped and
killed, and goes on where it was. It stands on ``adaptdl.torch``; what the runner itself has to remember is
one more state: of each checkpoint, and of what a process that joins the others is given."""

import contextlib
import json
import os

import torch
import torch.distributed

import adaptdl.torch as adl
from adaptdl import _core, _original, checkpoint, collective, env
from adaptdl.dl.engine import DistributedDataParallelEngine, Engine, _add_lists, each
from adaptdl.dl.loaders import elastic_loader

__all__ = ["ElasticEngine", "launched"]

_VARIABLES = ("ADAPTDL_CHECKPOINT_PATH", "ADAPTDL_JOB_ID", "ADAPTDL_MASTER_ADDR", "ADAPTDL_NUM_REPLICAS",
              "ADAPTDL_REPLICA_RANK", "ADAPTDL_SUPERVISOR_URL")
_runs = 0  # of this process so far, for their names in checkpoints
_epochs_before = 0  # of earlier runs and stages


def launched():
    """Was this process started by an AdaptDL launcher or scheduler, or by hand as a replica?"""
    return any(os.environ.get(name) for name in _VARIABLES)


def _plain(value):
    """Numbers that callbacks left as tensors or as NumPy's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"what a runner remembers over restarts has a {type(value).__name__} in it, which is no number")


class RunnerState(checkpoint.State):
    """What a runner has to remember over restarts, as JSON."""

    def __init__(self, runner):
        global _runs
        super().__init__(f"runner-{_runs}")
        _runs += 1
        self.runner, self.saved = runner, None

    def save(self, fileobj):
        state = self.runner._state() if self.runner is not None else self.saved
        fileobj.write(json.dumps(state, default=_plain).encode())

    def load(self, fileobj):
        self.saved = json.loads(fileobj.read())
        if self.runner is not None and self.runner.meter is not None:  # in a loop: another is a step ahead
            self.runner._overtaken(self.saved)

    def finish(self):
        """The run is over: later checkpoints hold what it was then."""
        self.saved, self.runner = self.runner._state(), None


class _WaitingGradients(checkpoint.State):
    """Gradients of batches whose step has not come yet. They are the same on all replicas, since each backward pass
    averages them, and count after a restart on any number of replicas."""

    def __init__(self, name, optimizer, waiting):
        super().__init__(name)
        self._optimizer, self._waiting = optimizer, waiting

    def _parameters(self):
        return [param for group in self._optimizer.param_groups for param in group["params"]]

    def save(self, fileobj):
        torch.save([param.grad for param in self._parameters()] if self._waiting() else [], fileobj)

    def load(self, fileobj):
        self._set(_original.read_torch(fileobj))

    def _set(self, grads):
        params = self._parameters()
        for param, grad in zip(params, grads or [None] * len(params)):
            param.grad = None if grad is None else grad.to(param.device)

    def mark(self):
        """What back() takes to undo a batch that comes again; a copy only where that may be."""
        kept = self._waiting() and _core.recovers() and _core.world()[1] > 1
        return [param.grad if param.grad is None else param.grad.clone() for param in self._parameters()] if kept else []

    def back(self, mark):
        """To what mark() gave."""
        self._set(mark)

    def forget(self):
        _core.state_remove(self)


class ElasticEngine(Engine):
    """One replica of an elastic job. ``batch_size`` of a loader is the total over all replicas, whatever
    their number, and may adapt (``max_batch_size=`` of ``runner.train``).

    Args:
        device (str): The device; None: a GPU if there is one, by the replica's rank.
        amp (bool or str): Mixed precision, see :class:`~adaptdl.dl.Engine`.
        backend (str): Of torch.distributed; None: NCCL where each replica has a GPU of its own, else Gloo.
        scaling_rule: How the learning rate follows the batch size, as for
            :class:`adaptdl.torch.AdaptiveDataParallel`.
        ddp_kwargs (dict): For ``AdaptiveDataParallel``.
    """

    def __init__(self, device=None, amp=None, backend=None, scaling_rule=None, ddp_kwargs=None):
        super().__init__(device, amp)
        self._given = device
        self._backend = backend
        self._scaling_rule, self._ddp_kwargs = scaling_rule, dict(ddp_kwargs or {})
        self.autoscale = None  # (max_batch_size, local_bsz_bounds, gradient_accumulation)
        self._name = "model"  # of the model in checkpoints
        self._first = False  # nobody can have joined yet

    @classmethod
    def like(cls, engine):
        """An elastic engine with the device and precision of another."""
        if isinstance(engine, cls):
            return engine
        device = "cpu" if engine.device.type == "cpu" and torch.cuda.is_available() else None
        made = cls(device=device, amp=engine.amp)
        if isinstance(engine, DistributedDataParallelEngine):
            made._ddp_kwargs = dict(engine._ddp_kwargs)
        return made

    is_ddp = property(lambda self: True, doc="Each replica has data of its own.")
    num_processes = property(lambda self: _core.world()[1], doc="How many replicas there are at present.")
    process_index = property(lambda self: _core.world()[0], doc="This replica's rank, at present.")
    is_main_process = property(lambda self: _core.world()[0] == 0 and not _core.joining(),
                               doc="Is this the replica of rank 0, at present?")
    is_master_process = is_main_process
    is_void = property(lambda self: _core.lost(), doc="Does the present batch count for nothing, as a replica died?")

    @property
    def local_process_index(self):
        """This replica's number on its machine, when all machines have equally many."""
        return env.replica_rank() % max(1, env.num_replicas() // env.num_nodes())

    @property
    def backend(self):
        """The backend of torch.distributed."""
        if self._backend is not None:
            return self._backend
        if self.device.type != "cuda":
            return "gloo"
        here = max(1, env.num_replicas() // env.num_nodes())
        own = torch.cuda.device_count() >= here or len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,0").split(",")) == 1
        return "nccl" if own else "gloo"

    # ---- the run ----

    def setup(self):
        """Meet the other replicas, once in a process."""
        super().setup()
        if self._given is None and self.device.type == "cuda":
            self._device = torch.device("cuda", self.local_process_index % torch.cuda.device_count())
            torch.cuda.set_device(self._device)
        if not torch.distributed.is_initialized():
            adl.init_process_group(self.backend)
            self._first = True
        elif _core.context_state() != "started":
            raise RuntimeError("torch.distributed was initialized by the program; an elastic run does it itself")

    def begin_stage(self, stage):
        """Each stage's model has a name of its own."""
        self._name = f"model-{_runs - 1}-{stage}"

    def wait_for_everyone(self):
        """Return when all replicas have called."""
        collective.allreduce(0)

    def join(self):
        """A process that was started while the others train joins them."""
        _core.join()

    @contextlib.contextmanager
    def local_main_process_first(self):
        """As everywhere; but a process that joins later does not wait, so that the others need not wait for it while
        it makes its parts."""
        first, self._first = self._first, False
        if not first:
            with super().local_main_process_first():
                yield
            return
        if not self.is_local_main_process and not _core.joining():
            _core.meet()
        yield
        if self.is_local_main_process and not _core.joining():
            _core.meet()

    def epochs(self, first, total):
        """The epochs that are left."""
        global _epochs_before
        base = _epochs_before
        for number in adl.remaining_epochs_until(base + total - first):
            yield first + number - base + 1

    def used(self, count):
        """A stage is over: so many epochs of this process's count are its own."""
        global _epochs_before
        _epochs_before += count

    def skip(self, loader):
        """The library counts the loop as entered; it yields nothing."""
        for _ in loader:
            raise RuntimeError("a loop over data that had finished before a restart began again")

    # ---- components ----

    def prepare_loader(self, key, loader, seed=0):
        """The loader as an AdaptiveDataLoader."""
        made = elastic_loader(key, loader, seed)
        if self.autoscale is not None and key.startswith("train") and made is not loader:
            made.autoscale_batch_size(*self.autoscale)
        return made

    def prepare_all(self, model, optimizer, scheduler, criterion):
        """Each model with its optimizer in an AdaptiveDataParallel, which restores them after a restart."""
        if isinstance(criterion, torch.nn.Module):
            criterion = criterion.to(self.device)
        each(model, lambda part: part.to(self.device))
        each(optimizer, self._state_to_device)
        if isinstance(model, dict):
            if not isinstance(optimizer, dict) and optimizer is not None or \
                    set(optimizer or {}) - set(model):
                raise ValueError("elastic training of several models needs a dict of optimizers with the models' "
                                 f"keys ({', '.join(model)}), not {_keys(optimizer)}")
            schedules = scheduler if isinstance(scheduler, dict) else {}
            model = {key: self._wrap(part, (optimizer or {}).get(key), schedules.get(key), f"-{key}")
                     for key, part in model.items()}
        elif isinstance(optimizer, dict):
            raise ValueError(f"elastic training of one model needs one optimizer, not {_keys(optimizer)}")
        else:
            model = self._wrap(model, optimizer, scheduler, "")
        self._patch_steps(optimizer)
        return model, optimizer, scheduler, criterion

    def keep_gradients(self, key, optimizer, waiting):
        """They are one more state of each checkpoint."""
        kept = _WaitingGradients(f"gradients-{self._name}-{key or ''}", optimizer, waiting)
        checkpoint.load_state(kept)
        return kept

    def _wrap(self, model, optimizer, scheduler, suffix):
        if optimizer is None:
            return model
        kwargs = dict(self._ddp_kwargs)
        if self.device.type == "cuda":
            kwargs.setdefault("device_ids", [self.device])
        return adl.AdaptiveDataParallel(model, optimizer, scheduler, mp_scaler=self._scaler,
                                        scaling_rule=self._scaling_rule, name=self._name + suffix, **kwargs)

    def mean_reduce_ddp_metrics(self, metrics):
        """The mean of each number over all replicas."""
        keys = sorted(metrics)
        sums = collective.allreduce([float(metrics[key]) for key in keys], _add_lists)
        return {key: total / self.num_processes for key, total in zip(keys, sums)}

    sync_metrics = mean_reduce_ddp_metrics


def _keys(value):
    return "a dict of " + ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
