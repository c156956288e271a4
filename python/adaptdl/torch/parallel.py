"""Data parallelism that adapts: PyTorch's DistributedDataParallel with gradient statistics, learning rates
that follow the batch size, and states that survive restarts."""

import copy
import inspect

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from adaptdl import _core, _original, checkpoint
from adaptdl.torch import _world
from adaptdl.torch.data import tag_prefix_of
from adaptdl.torch.gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from adaptdl.torch.scaling_rules import AdamScale, AdaScale, ScalingRuleBase

__all__ = ["AdaptiveDataParallel"]

def _load(file):
    """torch.load on the CPU, of a file that may execute what it likes."""
    kwargs = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(file, map_location="cpu", **kwargs)


def state_of(part):
    """Its state_dict; of schedules without functions, which the program gives again and a file should not."""
    state = part.state_dict()
    if isinstance(part, (torch.optim.Optimizer, torch.nn.Module)) or not isinstance(state, dict):
        return state
    return {key: value for key, value in state.items() if not callable(value)}


class _State(checkpoint.State):
    """Everything that a wrapper trains, in one state of the checkpoint."""

    def __init__(self, name, model, optimizer, lr_scheduler=None, mp_scaler=None, trusted=False):
        super().__init__(name)
        self.trusted = trusted
        self.name, self.progress = name, None
        self.model, self.optimizer = model, optimizer
        self.lr_scheduler, self.mp_scaler = lr_scheduler, mp_scaler
        self.adp = None  # whose gain and learning-rate factor are those of the last step

    @property
    def parts(self):
        """{name: object with state_dict}"""
        parts = {"model": self.model, "optimizer": self.optimizer, "lr_scheduler": self.lr_scheduler,
                 "mp_scaler": self.mp_scaler}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def gain(self):
        return 1.0 if self.adp is None else self.adp.gain

    @property
    def lr_factor(self):
        return 1.0 if self.adp is None else self.adp.scaling_rule.lr_factor

    def save(self, fileobj):
        torch.save({name: state_of(part) for name, part in self.parts.items()}, fileobj)

    def load(self, fileobj):
        saved = _original.read_wrapper(self.name, fileobj)
        if saved is None:
            saved = _load(fileobj) if self.trusted else self._read(fileobj)
        else:  # the original keeps its statistics with the optimizer's state
            statistics = saved["optimizer"]["state"].pop("gns", {})
            self.progress = float(statistics.get("progress", 0.0))
        missing = [name for name in self.parts if name not in saved]
        if missing:
            raise ValueError("the checkpoint is without {}: the program was run without".format(
                ", ".join(missing)))
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])

    def _read(self, fileobj):
        try:
            return _original.read_torch(fileobj)
        except ValueError as error:
            raise ValueError(f"the checkpoint's {self.name}: {error}; AdaptiveDataParallel(..., trusted=True) "
                             "executes what it names") from error


def _spread(block, tensors):
    """Copies a block into the tensors that it was made of."""
    for tensor, part in zip(tensors, torch.split(block, [tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))


class AdaptiveDataParallel(DistributedDataParallel):
    """``DistributedDataParallel`` for jobs that change their size and batch size. It saves the model, the
    optimizer, the learning-rate schedule and the loss scaler in every checkpoint, and restores them when
    made after a restart; it measures the noise of the gradients, and scales the learning rate with the
    batch size by patching the optimizer's ``step`` and ``zero_grad``.

    Gradients may be clipped or otherwise changed between ``backward()`` and ``step()``. Where a step has
    several batches (gradient accumulation), the gradient is there after the backward pass of the last
    one, and zero after the others, whose ``step()`` does nothing.

    Args:
        model (torch.nn.Module): What is trained. It is on its device.
        optimizer (torch.optim.Optimizer): The optimizer of the model's parameters.
        lr_scheduler: The learning-rate schedule of the optimizer, if any.
        mp_scaler (torch.cuda.amp.GradScaler): The loss scaler of mixed precision, if any.
        scaling_rule (ScalingRuleBase): How the learning rate follows the batch size; None means
            ``AdamScale`` for Adam and AdamW, ``AdaScale`` for other optimizers.
        name (str): Its name in checkpoints. Programs with several wrappers give each another.
        **kwargs: As for ``DistributedDataParallel``; and ``trusted=True`` where a checkpoint may hold objects of
            the program's own classes, in a schedule's state say: reading it executes what it names.

    Raises:
        RuntimeError: If the process group was not initialized.
        ValueError: If the name is taken.
    """

    def __init__(self, model, optimizer, lr_scheduler=None, mp_scaler=None, scaling_rule=None,
                 name="adaptdl-dataparallel", **kwargs):
        trusted = kwargs.pop("trusted", False)  # not in the signature, which is the original's
        if scaling_rule is not None and not isinstance(scaling_rule, ScalingRuleBase):
            raise TypeError("scaling_rule must be a ScalingRuleBase, not "
                            f"{type(scaling_rule).__name__}")
        if _core.context_state() != "started":
            raise RuntimeError("call adaptdl.torch.init_process_group() before AdaptiveDataParallel()")
        _world.outside_ends()
        super().__init__(model, **kwargs)
        _world.outside_begins()
        adam = isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))
        self.name = name
        self._state = _State(name, model, optimizer, lr_scheduler, mp_scaler, trusted)
        checkpoint.load_state(self._state)
        self.gns = (AdamGradientNoiseScale if adam else GradientNoiseScale)(self, optimizer, mp_scaler)
        self.scaling_rule = scaling_rule or (AdamScale() if adam else AdaScale())
        self.scaling_rule.initialize(self, optimizer, patch_optimizer=True)
        self._state.adp = self
        if self._state.progress is not None:
            self.gns.set_progress(self._state.progress)
        super().register_comm_hook(None, self.gns.hook)
        self._kept = None  # what the program may change in a void step
        self._unsure = None  # buffers and blocks of what they held before a broadcast that may be ended; its event
        _world.add(self)

    # ---- other replicas ----

    def _leave_world(self):
        """What is bound to the process group goes; the parameters, the optimizer, the statistics stay."""
        if _world.aborted():
            self._restore_buffers()
        self._unsure = None
        for name in ("reducer", "logger", "process_group"):
            self.__dict__.pop(name, None)
        self.gns.leave_world()

    def _enter_world(self):
        """As DistributedDataParallel comes out of a pickle: with a new reducer, on the default group."""
        self.__dict__["_comm_hooks"] = []
        DistributedDataParallel.__setstate__(self, dict(self.__dict__))
        super().register_comm_hook(None, self.gns.hook)

    def _keep(self):
        if self._kept is None:
            state = self._state
            rates = [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                     for group in state.optimizer.param_groups]
            self._kept = rates, [(part, copy.deepcopy(part.state_dict()))
                                 for part in (state.lr_scheduler, state.mp_scaler) if part is not None]

    def _take_back(self):
        """The step was void: schedules and loss scales are as before it."""
        self.gns.reset_accumulation()
        if self._kept is None:
            return
        (rates, parts), self._kept = self._kept, None
        for part, kept in parts:
            part.load_state_dict(kept)
        for group, kept in zip(self._state.optimizer.param_groups, rates):
            for key, value in kept.items():
                if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value

    def _sync_buffers(self):
        """As DistributedDataParallel's, but a replica that does not answer is not waited for."""
        if self.gns is None or hasattr(self, "buffer_hook") or not (_world.watched() or _world.streams()):
            super()._sync_buffers()
        elif _world.streams():
            self._keep_buffers()
            super()._sync_buffers()
            self._note_broadcast()
        else:
            with torch.no_grad():
                for buffers, block in self._blocks():
                    self._sync_some(buffers, block)

    def _blocks(self):
        """Of each kind the buffers, and a copy of what they hold."""
        groups = {}
        for name, buffer in self.module.named_buffers():
            if name not in self.parameters_to_ignore:
                groups.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        return [(buffers, torch.cat([buffer.reshape(-1) for buffer in buffers])) for buffers in groups.values()]

    def _sync_some(self, buffers, block):
        work = _world.attempt(lambda: dist.broadcast(block, 0, group=self.process_group, async_op=True))
        if work is not None and _world.waited(work):
            _spread(block, buffers)

    def _keep_buffers(self):
        """What a broadcast of NCCL receives while it is ended is worth nothing: so what was there is kept until it has
        come to its end by itself. Where the program runs ahead of it, that is what was there before the first."""
        if self._unsure is None or _world.arrived(self._unsure[1]):
            with torch.no_grad():
                self._unsure = self._blocks(), None

    def _note_broadcast(self):
        blocks = self._unsure[0]
        self._unsure = blocks, _world.mark(any(block.is_cuda for _, block in blocks))

    def _restore_buffers(self):
        if self._unsure is not None:
            with torch.no_grad():
                for buffers, block in self._unsure[0]:
                    _spread(block, buffers)

    def _averaged(self):
        """Gradients have come, and what the stream did before them is done, too."""
        self._unsure = None

    def __getstate__(self):
        """What copies and pickles have: the model, wrapped, to be evaluated or kept. What is measured and
        saved, and the optimizer, stay with the original."""
        state = super().__getstate__()
        for name in ("gns", "scaling_rule", "_state", "_kept", "_unsure"):
            state.pop(name, None)
        # Communication hooks hold the statistics.
        return {key: value for key, value in state.items() if key != "_comm_hooks"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.__dict__.setdefault("_comm_hooks", [])
        self.gns = self.scaling_rule = self._state = self._kept = self._unsure = None

    def register_comm_hook(self, state, hook):
        """Have gradients averaged by a communication hook of your own, as with DistributedDataParallel.

        Args:
            state (object): Passed to the hook.
            hook (Callable): ``hook(state, bucket)`` returns a future of the averaged gradients.
        """
        if self.gns.user_hook is not None:
            raise RuntimeError("register_comm_hook can be called once")
        self.gns.user_hook = state, hook

    def forward(self, *args, **kwargs):
        """The model's forward pass. Its backward pass belongs inside a loop over an AdaptiveDataLoader."""
        if self.gns is None:
            return super().forward(*args, **kwargs)
        done = _world.attempt(lambda: (super(AdaptiveDataParallel, self).forward(*args, **kwargs),), 1.0)
        return self.module(*args, **kwargs) if done is None else done[0]

    def zero_grad(self, *args, **kwargs):
        """Zero the gradients of all parameters.

        Args:
            *args, **kwargs: As for ``torch.nn.Module.zero_grad``.
        """
        if self.gns is not None:
            self.gns.zeroed()
        return super().zero_grad(*args, **kwargs)

    @property
    def gain(self):
        """How many steps at the initial batch size a step is worth at present; 1 for a copy."""
        gns = self.gns
        return 1.0 if gns is None else gns.gain(gns.accum_scale * gns.accum_count)

    def to_tensorboard(self, writer, global_step, tag_prefix=""):
        """Write gradient statistics, gain, learning-rate factor and progress to TensorBoard.

        Args:
            writer (torch.utils.tensorboard.SummaryWriter): Where to.
            global_step (int): The step they belong to.
            tag_prefix (str): Put before each tag.
        """
        prefix = tag_prefix_of(tag_prefix)
        gns = self.gns
        for tag, value in (("Gradient_Norm_Sqr", gns.sqr_avg()), ("Gradient_Variance", gns.var_avg()),
                           ("Gain", self.gain), ("Learning_Rate_Factor", self.scaling_rule.lr_factor),
                           ("Accum_Scale", gns.accum_scale), ("Accum_Count", gns.accum_count),
                           ("Progress", gns.get_progress())):
            writer.add_scalar(prefix + tag, value, global_step)
