"""The older interface, for programs that go over their data themselves and only ask how large their
batches should be. New programs use the other modules."""

import types

import torch
import torch.distributed as dist

from adaptdl import checkpoint, env
from adaptdl.torch import data, epoch as epochs
from adaptdl.torch.gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from adaptdl.torch.parallel import _State
from adaptdl.torch.scaling_rules import AdamScale, AdaScale

__all__ = ["AdaptDLTorchTrainer"]


class _Block:
    """All gradients in one block, with the methods of a bucket of DistributedDataParallel."""

    def __init__(self, params):
        self._params = params
        self._buffer = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype,
                                   device=params[0].device)
        self._views = [part.view(p.shape) for p, part in
                       zip(params, torch.split(self._buffer, [p.numel() for p in params]))]

    def fill(self):
        for param, view in zip(self._params, self._views):
            if param.grad is None:
                view.zero_()
            else:
                view.copy_(param.grad)

    def hand_back(self):
        for param, view in zip(self._params, self._views):
            if param.grad is None:
                param.grad = view.clone()
            else:
                param.grad.copy_(view)

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._params


class AdaptDLTorchTrainer:
    """Chooses batch sizes, averages gradients and scales the learning rate::

        trainer = AdaptDLTorchTrainer(128, max_batch_size=4096, local_bsz_bounds=(32, 512))
        state = trainer.program_reentry(model, optimizer, lr_scheduler)
        for epoch in range(state.epoch, 60):
            batch_size = trainer.get_local_bsz()
            ...  # one epoch in batches of this size: forward, backward, optimizer.step()
            trainer.step(epoch)

    The gradients of all replicas are averaged in ``optimizer.step()``, where the job may also be stopped.
    An interrupted epoch is run again from its start.

    Args:
        batch_size (int): The initial batch size, over all replicas.
        max_batch_size (int): The largest total batch size; None: bounded by the local one only.
        local_bsz_bounds (tuple): The smallest and largest size on each replica. With both arguments None
            the batch size stays as it is.

    Raises:
        ValueError: If a bound makes no sense.
    """

    def __init__(self, batch_size, max_batch_size=None, local_bsz_bounds=None):
        self._helper = data.AdaptiveDataLoaderHelper(batch_size)
        self._helper._name = "trainer"
        if max_batch_size is None and local_bsz_bounds is not None and local_bsz_bounds[1]:
            max_batch_size = max(batch_size, local_bsz_bounds[1] * env.num_replicas())
        if max_batch_size is not None:
            self._helper.autoscale_batch_size(max_batch_size, local_bsz_bounds)
        self.process_group = None
        self.name = "trainer"
        self._epochs = None
        self._context = None

    def program_reentry(self, model, optimizer, lr_scheduler=None):
        """Register what is trained, and restore what was saved. The optimizer gains ``predict_gain(scale)``,
        how many steps at the initial batch size one at ``scale`` times it is worth, and
        ``update_scale(scale, replicas)``, which says that steps are of that size from now on.

        Args:
            model (torch.nn.Module): The model.
            optimizer (torch.optim.Optimizer): Its optimizer; ``step`` is patched.
            lr_scheduler: The learning-rate schedule, if any.

        Returns:
            An object with the attribute ``epoch``: the epoch to run next.
        """
        if not dist.is_initialized():
            raise RuntimeError("call adaptdl.torch.init_process_group() first")
        adam = isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))
        self.gns = (AdamGradientNoiseScale if adam else GradientNoiseScale)(self, optimizer)
        self._saved = _State("adaptdl-trainer", model, optimizer, lr_scheduler)
        if not checkpoint.load_state(self._saved) and env.num_replicas() > 1:
            for tensor in list(model.parameters()) + list(model.buffers()):
                dist.broadcast(tensor.detach(), 0)
        rule = AdamScale() if adam else AdaScale()
        rule.initialize(self, optimizer, patch_optimizer=False)
        params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._block, self._rule = _Block(params), rule
        rule._patch(optimizer, "step", self._optimize)
        rule._patch(optimizer, "zero_grad", rule.zero_grad)
        optimizer.predict_gain = self.gns.gain
        optimizer.update_scale = self._update_scale
        return types.SimpleNamespace(epoch=epochs.finished_epochs(), model=model)

    def get_local_bsz(self):
        """The batch size of this replica for the present epoch, which begins with the first call.

        Returns:
            int: The local batch size.
        """
        if self._epochs is None:
            self._epochs = epochs.remaining_epochs_until(2**31 - 1)
            next(self._epochs)
            self._context = self._helper.context()
            self._context.__enter__()
            self._helper.current_index = 0
            self._helper.sync_local_bsz()
            self._helper._step(self._helper.current_local_bsz, False)
        return self._helper.current_local_bsz

    def _optimize(self, *args, **kwargs):
        """The patched optimizer.step: averages, steps, and ends the batch."""
        self._block.fill()
        self.gns.hook(None, self._block)
        self._block.hand_back()
        result = self._rule.step(*args, **kwargs)
        loop = self._helper._bound()
        loop.commit()
        self._helper._step(loop.local_bsz, False)
        return result

    def _averaged(self):
        """As AdaptiveDataParallel's, which keeps its buffers until gradients have come: here none are sent."""

    def _update_scale(self, scale, replicas):
        if replicas != env.num_replicas():
            raise ValueError(f"update_scale: {replicas} replicas, there are {env.num_replicas()}")
        self._helper._bound().set_sizes(round(scale * self._helper.batch_size / replicas), 0)

    def step(self, epoch, *args, **kwargs):
        """The epoch is over.

        Args:
            epoch (int): Its number.
            *args, **kwargs: Ignored.

        Raises:
            ValueError: If it is not the present epoch.
        """
        if self._epochs is None or epoch != epochs.current_epoch():
            raise ValueError(f"epoch {epoch} is not the present one ({epochs.current_epoch()})")
        self._context.__exit__(None, None, None)
        self._epochs.close()
        self._epochs = self._context = None
