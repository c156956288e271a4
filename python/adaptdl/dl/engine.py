"""Where a run takes place: devices, processes, precision. An engine moves batches to its device, wraps
models, and makes backward passes and steps in its precision."""

import contextlib
import os

import torch
import torch.distributed
from torch.nn.parallel import DataParallel, DistributedDataParallel

from adaptdl import collective
from adaptdl.dl import spawn
from adaptdl.dl.loaders import distributed_loader

__all__ = [
    "AMPEngine", "CPUEngine", "DataParallelAMPEngine", "DataParallelEngine", "DeviceEngine",
    "DistributedDataParallelAMPEngine", "DistributedDataParallelEngine", "Engine", "GPUAMPEngine", "GPUEngine",
]

_GradScaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
_PRECISIONS = {None: None, False: None, True: torch.float16, "fp16": torch.float16, "float16": torch.float16,
               "bf16": torch.bfloat16, "bfloat16": torch.bfloat16, torch.float16: torch.float16,
               torch.bfloat16: torch.bfloat16}


def precision_of(amp):
    """The type that ``amp`` stands for: True and "fp16" half precision, "bf16" bfloat16, None none."""
    if amp not in _PRECISIONS:
        raise ValueError(f"amp must be True, False, 'fp16' or 'bf16', not {amp!r}")
    return _PRECISIONS[amp]


def to_device(value, device):
    """Tensors, and those in dicts, lists and tuples, on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: to_device(part, device) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(part, device) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(part, device) for part in value)
    return value.to(device) if hasattr(value, "to") else value


class Engine:
    """One device, one process.

    Args:
        device (str): The device; None is the GPU if there is one.
        amp (bool or str): Mixed precision: True or "fp16" for half precision with a loss scaler, "bf16" for
            bfloat16, which needs none. Processors have bfloat16 only.
    """

    def __init__(self, device=None, amp=None):
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._amp = precision_of(amp)
        self._scaler = None
        self._scaled = []  # optimizers whose steps go through the scaler
        self._stepped, self._unscaled = set(), set()  # their numbers, since the scaler's last update
        self.backwards = 0  # how many there were

    def __repr__(self):
        return f"{type(self).__name__}(device={str(self.device)!r}, processes={self.num_processes})"

    # ---- what it is ----

    @property
    def device(self):
        """The device of this process."""
        return self._device

    @property
    def amp(self):
        """The type of mixed precision, None without."""
        return self._amp

    @property
    def is_ddp(self):
        """Are there several processes, each with data of its own?"""
        return False

    @property
    def num_processes(self):
        """How many processes there are."""
        return 1

    @property
    def process_index(self):
        """The number of this process, from 0 on."""
        return 0

    @property
    def local_process_index(self):
        """The number of this process on its machine."""
        return self.process_index

    world_size = property(lambda self: self.num_processes, doc="How many processes there are.")
    rank = property(lambda self: self.process_index, doc="The number of this process.")
    is_main_process = property(lambda self: self.process_index == 0, doc="Is this the process of rank 0?")
    is_master_process = is_main_process
    is_local_main_process = property(lambda self: self.local_process_index == 0,
                                     doc="Is this the first process of its machine?")

    # ---- the run ----

    def spawn(self, runner):
        """Run ``runner._run_local()``, here or in processes of its own."""
        runner._run_local()

    def setup(self):
        """The run begins, in each process."""
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"{type(self).__name__}: there is no GPU that PyTorch can use; CPUEngine needs none")
        if self._amp is torch.float16 and self._device.type != "cuda":
            self._amp = torch.bfloat16  # what processors have
        if self._amp is torch.float16 and self._scaler is None:
            self._scaler = _GradScaler()

    def cleanup(self):
        """The run is over, in each process."""

    def begin_stage(self, stage):
        """A stage's parts are about to be prepared."""

    def epochs(self, first, total):
        """The numbers of the epochs to run, from 1 on; ``first`` of ``total`` are done."""
        return iter(range(first + 1, total + 1))

    def skip(self, loader):
        """A loop over data that was finished before a restart."""

    def wait_for_everyone(self):
        """Return when all processes have called."""

    def join(self):
        """A process that is to join others does so here, and has what they have then."""

    @property
    def is_void(self):
        """Does the present batch count for nothing, for want of a process that died? It comes again."""
        return False

    @contextlib.contextmanager
    def local_main_process_first(self):
        """For ``with``: the first process of a machine goes first, to make files that the others use."""
        if not self.is_local_main_process:
            self.wait_for_everyone()
        yield
        if self.is_local_main_process:
            self.wait_for_everyone()

    # ---- components ----

    def prepare_loader(self, key, loader, seed=0):
        """The loader as the engine needs it."""
        return loader

    def prepare_model(self, model):
        """The model on its device, wrapped if need be."""
        return model.to(self.device)

    def prepare_all(self, model, optimizer, scheduler, criterion):
        """Models, optimizers and criteria ready for training; dicts of them by key."""
        model = each(model, self.prepare_model)
        if isinstance(criterion, torch.nn.Module):
            criterion = criterion.to(self.device)
        each(optimizer, self._state_to_device)
        self._patch_steps(optimizer)
        return model, optimizer, scheduler, criterion

    def _patch_steps(self, optimizer):
        self._scaled = list(optimizer.values()) if isinstance(optimizer, dict) else [optimizer]
        self._stepped, self._unscaled = set(), set()
        each(optimizer, self._patch_step)

    def keep_gradients(self, key, optimizer, waiting):
        """Gradients that wait for a step survive restarts, where there are any; ``waiting()``: are there some now?
        Returns an object whose ``forget()`` ends that, or None."""
        return None

    def _state_to_device(self, optimizer):
        """An optimizer that has been used already has state; it follows the parameters."""
        if self.device.type != "cpu":
            for state in optimizer.state.values():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.dim() > 0:
                        state[key] = value.to(self.device)

    def _patch_step(self, optimizer):
        """With a loss scaler ``optimizer.step()`` goes through it: programs need not know."""
        if self._scaler is None or getattr(optimizer, "_adaptdl_scaler", None) is self._scaler:
            return
        engine, step, inside = self, optimizer.step, False

        def scaled_step(*args, **kwargs):
            nonlocal inside
            if inside:
                return step(*args, **kwargs)
            inside = True
            try:
                engine._scaler.step(optimizer)
                engine._stepped.add(id(optimizer))
                if len(engine._stepped) == len(engine._scaled):
                    engine._update_scaler()
            finally:
                inside = False

        scaled_step._with_counter = True  # what learning-rate schedules look for; step has it
        optimizer.step = scaled_step
        optimizer._adaptdl_scaler = self._scaler

    def _update_scaler(self):
        """Once for all optimizers that make a step of the same backward passes: the factor stays the same between
        their steps."""
        self._scaler.update()
        self._stepped, self._unscaled = set(), set()

    def unwrap_model(self, model):
        """The program's own model."""
        while isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        return model

    def sync_device(self, value):
        """Tensors, also in dicts and lists, on the engine's device."""
        return to_device(value, self.device)

    # ---- steps ----

    def autocast(self):
        """For ``with``: computations are in the engine's precision."""
        if self._amp is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._amp)

    def backward(self, loss):
        """The backward pass of a loss."""
        self.backwards += 1
        if self._stepped:  # by some of the optimizers; these gradients are for another step
            self._update_scaler()
        (self._scaler.scale(loss) if self._scaler is not None else loss).backward()

    def unscale_gradients(self, optimizer):
        """Gradients as they are without the loss scaler's factor, for clipping."""
        if self._scaler is not None and id(optimizer) not in self._unscaled:
            self._scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def optimizer_step(self, optimizer):
        """The optimizer's step."""
        optimizer.step()

    def zero_grad(self, optimizer):
        """No gradients any more."""
        optimizer.zero_grad()

    # ---- values ----

    def mean_reduce_ddp_metrics(self, metrics):
        """The mean of each number over all processes. Metrics of a loader are not made this way but weighted by
        examples, see ``runner.meter``."""
        return {key: float(value) for key, value in metrics.items()}

    sync_metrics = mean_reduce_ddp_metrics

    def save(self, value, path):
        """``torch.save`` on the process of rank 0, as a whole or not at all."""
        if self.is_main_process:
            from adaptdl.dl.loggers import write_whole
            write_whole(path, lambda file: torch.save(value, file), "wb")


def each(value, function):
    """The function of an object, or of each in a dict; None for None."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: function(part) for key, part in value.items()}
    return function(value)


class CPUEngine(Engine):
    """Training on the processor.

    Args:
        amp (bool or str): True or "bf16": mixed precision with bfloat16.
    """

    def __init__(self, amp=None):
        super().__init__("cpu", amp)


class GPUEngine(Engine):
    """Training on one GPU.

    Args:
        device (str): Which: "cuda", "cuda:1" ...
        amp (bool or str): Mixed precision, see :class:`Engine`.
    """

    def __init__(self, device="cuda", amp=None):
        super().__init__(device, amp)


DeviceEngine = Engine


class DataParallelEngine(GPUEngine):
    """One process, all GPUs: each batch is divided among them."""

    def prepare_model(self, model):
        """The model in ``torch.nn.DataParallel``."""
        model = model.to(self.device)
        return model if isinstance(model, DataParallel) else DataParallel(model)


class DistributedDataParallelEngine(Engine):
    """A process for each GPU or, without GPUs, several processes on the processor. It starts them itself;
    the runner goes to each, so that what it holds must be picklable, and classes and functions at the top
    level of modules. ``batch_size`` of a loader is that of each process.

    Args:
        address (str): Address of the machine of rank 0.
        port (int): A free port there; None: found, when all processes are on this machine.
        world_size (int): How many processes in all; None: as many as on this machine.
        workers_dist_rank (int): The rank of this machine's first process.
        num_node_workers (int): How many processes on this machine; None: one for each GPU, or two.
        process_group_kwargs (dict): For ``torch.distributed.init_process_group``; "backend" is NCCL when
            each process has a GPU of its own, else Gloo.
        ddp_kwargs (dict): For ``DistributedDataParallel``.
        sync_bn (bool): Whether batch normalisation goes over all processes.
        amp (bool or str): Mixed precision, see :class:`Engine`.
        cpu (bool): Whether to leave GPUs alone.
    """

    def __init__(self, address="127.0.0.1", port=None, world_size=None, workers_dist_rank=0, num_node_workers=None,
                 process_group_kwargs=None, ddp_kwargs=None, sync_bn=False, amp=None, cpu=False):
        for name, value in (("world_size", world_size), ("num_node_workers", num_node_workers)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an int of at least 1, not {value!r}")
        gpus = 0 if cpu else torch.cuda.device_count()
        super().__init__("cuda" if gpus else "cpu", amp)
        self._gpus = gpus
        self._local_workers = num_node_workers or (world_size if workers_dist_rank == 0 else None) or gpus or 2
        self._world_size = world_size or self._local_workers
        if workers_dist_rank + self._local_workers > self._world_size:
            raise ValueError(f"ranks {workers_dist_rank} to {workers_dist_rank + self._local_workers - 1} on this "
                             f"machine do not fit into world_size {self._world_size}")
        if port is None and self._world_size > self._local_workers:
            raise ValueError("port must be given when there are several machines, the same on each")
        self._address, self._port = address, int(port) if port is not None else None
        self._first_rank, self._local_rank = workers_dist_rank, 0
        self._group_kwargs, self._ddp_kwargs = dict(process_group_kwargs or {}), dict(ddp_kwargs or {})
        self._sync_bn = sync_bn
        self.autoscale = None  # then the processes are replicas of an elastic job

    is_ddp = property(lambda self: True, doc="There are several processes, each with data of its own.")
    num_processes = property(lambda self: self._world_size, doc="How many processes there are.")
    process_index = property(lambda self: self._first_rank + self._local_rank, doc="This process's rank.")
    local_process_index = property(lambda self: self._local_rank, doc="This process's number on its machine.")

    @property
    def backend(self):
        """The backend of torch.distributed."""
        own_gpu = self._gpus and self._local_workers <= self._gpus
        return self._group_kwargs.get("backend", "nccl" if own_gpu else "gloo")

    def spawn(self, runner):
        """Start the processes, and wait for them."""
        if self._port is None:
            self._port = spawn.free_port()
        spawn.run(runner, self._local_workers)

    def enter_process(self, local_rank):
        """Called in each process first; the engine to use there."""
        self._local_rank = local_rank
        if self._gpus:
            self._device = torch.device("cuda", local_rank % self._gpus)
            torch.cuda.set_device(self._device)
        else:
            torch.set_num_threads(max(1, torch.get_num_threads() // self._local_workers))
        if self.autoscale is None:
            return self
        os.environ.update(ADAPTDL_MASTER_ADDR=self._address, ADAPTDL_MASTER_PORT=str(self._port),
                          ADAPTDL_NUM_REPLICAS=str(self._world_size),
                          ADAPTDL_REPLICA_RANK=str(self.process_index))
        from adaptdl.dl.elastic import ElasticEngine
        made = ElasticEngine.like(self)
        made.autoscale = self.autoscale
        return made

    def setup(self):
        """Meet the other processes: ours for numbers, PyTorch's for gradients."""
        super().setup()
        collective.initialize(self._address, self._port, self.process_index, self.num_processes)
        kwargs = {key: value for key, value in self._group_kwargs.items()
                  if key not in ("backend", "rank", "world_size")}
        if "init_method" not in kwargs and "store" not in kwargs:
            kwargs["store"] = _store(self._address, self.process_index, self.num_processes)
        torch.distributed.init_process_group(self.backend, rank=self.process_index, world_size=self.num_processes,
                                             **kwargs)

    def cleanup(self):
        """Leave the other processes."""
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
            collective.teardown()

    def wait_for_everyone(self):
        """A barrier."""
        collective.allreduce(0)

    def prepare_loader(self, key, loader, seed=0):
        """This process's share of the data."""
        return distributed_loader(key, loader, self.process_index, self.num_processes, seed)

    def prepare_model(self, model):
        """The model in ``DistributedDataParallel``; one without parameters to train as it is."""
        model = model.to(self.device)
        if isinstance(model, DistributedDataParallel) or not any(p.requires_grad for p in model.parameters()):
            return model
        if self._sync_bn:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        kwargs = dict(self._ddp_kwargs)
        if self.device.type == "cuda":
            kwargs.setdefault("device_ids", [self.device])
        return DistributedDataParallel(model, **kwargs)

    def mean_reduce_ddp_metrics(self, metrics):
        """The mean of each number over all processes."""
        keys = sorted(metrics)
        sums = collective.allreduce([float(metrics[key]) for key in keys], _add_lists)
        return {key: total / self.num_processes for key, total in zip(keys, sums)}

    sync_metrics = mean_reduce_ddp_metrics


def _add_lists(a, b):
    return [x + y for x, y in zip(a, b)]


def _store(address, rank, count):
    """A store whose port rank 0 picks and tells the others."""
    port = 0
    if rank == 0:
        store = torch.distributed.TCPStore(address, 0, count, True, wait_for_workers=False)
        port = store.port
    port = collective.broadcast(port)
    if rank != 0:
        store = torch.distributed.TCPStore(address, port, count, False, wait_for_workers=False)
    return store


def _with_amp(kind, name, doc):
    """The form of an engine with mixed precision."""
    class Made(kind):
        __doc__ = doc

        def __init__(self, *args, amp=True, **kwargs):
            super().__init__(*args, amp=amp, **kwargs)
    Made.__name__ = Made.__qualname__ = name
    Made.__module__ = __name__
    return Made


AMPEngine = _with_amp(Engine, "AMPEngine", "One device with mixed precision.")
GPUAMPEngine = _with_amp(GPUEngine, "GPUAMPEngine", "One GPU with mixed precision.")
DataParallelAMPEngine = _with_amp(DataParallelEngine, "DataParallelAMPEngine",
                                  "One process, all GPUs, mixed precision.")
DistributedDataParallelAMPEngine = _with_amp(DistributedDataParallelEngine, "DistributedDataParallelAMPEngine",
                                             "A process for each GPU, mixed precision.")


def default_engine(cpu=False, amp=None, ddp=False):
    """The engine for what the machine has: the processor, one GPU, or all of them.

    Args:
        cpu (bool): Whether to leave GPUs alone.
        amp (bool or str): Mixed precision.
        ddp (bool): Whether to use a process for each GPU (two on a processor).
    """
    gpus = 0 if cpu else torch.cuda.device_count()
    if ddp:
        return DistributedDataParallelEngine(amp=amp, cpu=cpu)
    if gpus == 0:
        return CPUEngine(amp)
    return DataParallelEngine(amp=amp) if gpus > 1 else GPUEngine(amp=amp)
