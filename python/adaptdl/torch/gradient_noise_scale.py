"""How noisy the gradient is: what decides how much a larger batch is worth.

The statistics are the library's (include/adaptdl/noise.h has the formulas). What is here brings the
gradients of PyTorch to them: a communication hook of DistributedDataParallel, called once per bucket,
takes the norm of this replica's gradient, starts the averaging, and after the last bucket takes the norm
of the mean. Nothing waits for a GPU: its norms are read one step later.
"""

import time

import torch
import torch.distributed as dist

from adaptdl import _core
from adaptdl.torch import _norms, _world, data
from adaptdl.torch._norms import Bucket, flat

__all__ = ["GradientNoiseScale", "AdamGradientNoiseScale"]


def _done(bucket):
    """A future that is done, with the bucket's block. Making one is slow, so there is one per bucket: what
    the block holds is ordered by the stream, not by the future."""
    if bucket.done is None:
        block = bucket.block
        devices = [block.device] if block.is_cuda else None
        bucket.done = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        bucket.done.set_result(block)
    return bucket.done


def _plus(a, b):
    """The sum of norms, lists or tensors; a may be None."""
    if a is None:
        return b
    return [x + y for x, y in zip(a, b)] if isinstance(b, list) else a + b


def _over(norms, scale):
    """Squared norms of gradients that are multiplied by scale, without it."""
    if isinstance(norms, list):
        square = float(scale) ** 2
        return [norm / square for norm in norms]
    return norms / scale.to(norms.dtype).square()


class _Report:
    """Numbers on their way from a device: one copy, looked at later."""

    def __init__(self, values, kind, events):
        values = values.reshape(-1)
        self.kind, self.times, self.event = kind, events, None
        if values.is_cuda:
            self.host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.host.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.host = values

    def read(self):
        """The numbers, and how long the step waited for gradients."""
        if self.event is not None:
            self.event.synchronize()
        waited = self.times[0].elapsed_time(self.times[1]) / 1e3 if self.times else 0.0
        return self.host.tolist(), waited


class GradientNoiseScale:
    """Gradient statistics of one :class:`~adaptdl.torch.AdaptiveDataParallel`, which makes one as its
    attribute ``gns``. It also accumulates gradients where a step has several batches.

    Args:
        adp (AdaptiveDataParallel): The wrapper whose gradients are measured.
        optimizer (torch.optim.Optimizer): The wrapper's optimizer; statistics are kept for each of its
            parameter groups.
        mp_scaler (torch.cuda.amp.GradScaler): The loss scaler, whose factor is taken out.
        num_replicas (int): How many replicas there are; None: as the environment says.
        accum_scale (float): Size of a batch over all replicas, in units of the initial batch size; None: as
            the data loader has it.
    """

    def __init__(self, adp, optimizer, mp_scaler=None, num_replicas=None, accum_scale=None):
        self._adp, self._optimizer, self._scaler = adp, optimizer, mp_scaler
        self._given_replicas = num_replicas
        self._groups = len(optimizer.param_groups)
        self._group_of = {p: i for i, group in enumerate(optimizer.param_groups)
                          for p in group["params"]}
        name = adp.name
        self._meter = _core.Meter(name, self._groups)
        if accum_scale is not None:
            self._meter.accum_scale = accum_scale
        self._buckets = {}     # by number
        self._old = {}         # those before DDP made new ones
        self._ones = {}        # by device, for the loss scale
        self._works = []       # (bucket, work or future) of this pass
        self._found = []       # norms of this pass that are on a device
        self._before = None    # on a device: the first of a pair, its loss scale
        self._optim = self._single = False
        self._micro = 0        # batches accumulated before this one
        self._weight = 1.0     # of this replica's gradient, when the batch is dealt out unevenly
        self._passes = 0       # backward passes since gradients were zeroed, in this batch
        self._local = self._total = self._sums = self._pair = None
        self._have_before = False
        self._times = None     # events around waiting for gradients
        self._late = []        # reports of steps before
        self.user_hook = None  # a communication hook of the program's own, and its state

    # ---- what is known ----

    @property
    def _replicas(self):
        """How many replicas there are, as they are now."""
        return _core.world()[1] if self._given_replicas is None else self._given_replicas

    @property
    def accum_scale(self):
        """Size of a batch over all replicas, in units of the initial batch size."""
        return self._meter.accum_scale

    def set_accum_scale(self, accum_scale):
        """Set :attr:`accum_scale`, in place of what the data loader says."""
        self._meter.accum_scale = accum_scale

    @property
    def accum_count(self):
        """How many batches the last optimizer step had on each replica."""
        return self._meter.accum_count

    @property
    def should_zero_grad(self):
        """False while gradients of several batches are being accumulated."""
        return self._optim or self._passes == 0

    @property
    def raw_sqr_avg(self):
        """Squared norm of the gradient, a NumPy array with one number for each parameter group."""
        return _array(self._meter.sqrs)

    @property
    def raw_var_avg(self):
        """Variance of the gradient at the initial batch size, likewise."""
        return _array(self._meter.vars)

    def sqr_avg(self):
        """The squared norm of the true gradient, as it is known at present.

        Returns:
            float: Sum over the parameter groups.
        """
        return self._meter.sqr

    def var_avg(self):
        """The trace of the gradient's covariance at the initial batch size, as it is known at present.

        Returns:
            float: Sum over the parameter groups.
        """
        return self._meter.var

    def gain(self, scale):
        """How many steps at the initial batch size one step at ``scale`` times it is worth.

        Args:
            scale (float): Total batch size by initial batch size.

        Returns:
            float: From 1 to scale.
        """
        return self._meter.gain(scale)

    def get_progress(self):
        """How many steps at the initial batch size the training so far is worth."""
        return self._meter.progress

    def set_progress(self, progress):
        """Set what :meth:`get_progress` returns."""
        self._meter.progress = progress

    def reset_accumulation(self):
        """Throw away gradients that were accumulated for the next step, and their statistics."""
        for bucket in self._buckets.values():
            bucket.sum = None
        self._works.clear()
        self._found.clear()
        self._have_before = False
        self._passes = 0
        self._local = self._total = self._sums = self._pair = None
        for param in self._group_of:
            param.grad = None

    def leave_world(self):
        """The reducer goes, and its buckets; other replicas come. Gradients that wait for a step of the program's stay."""
        grads = [(param, param.grad) for param in self._group_of]
        self.reset_accumulation()
        for param, grad in grads:
            param.grad = grad
        self._buckets, self._old, self._before = {}, {}, None

    # ---- backward ----

    def hook(self, _state, bucket):
        """The communication hook: one bucket's gradients of this replica are complete. DDP copies what it
        finds in the block after the last bucket's call, so the mean need not be there earlier."""
        if bucket.index() == 0:
            self._begin()
        if bucket.buffer().is_sparse:
            future = self._average_sparse(bucket.buffer())
        else:
            known = self._bucket(bucket)
            if _core.lost():  # the step is void; whatever the block holds will do
                pass
            elif not self._optim:
                self._accumulate(known)
            elif self._single:
                self._see_single(known)
            else:
                self._average(known, bucket)
            future = None
        if bucket.is_last():
            self._old = {}
            self._finish()
        return _done(known) if future is None else future

    def _begin(self):
        self._works.clear()
        self._found.clear()
        self._optim, self._micro, self._single, new_batch, self._weight = self._meter.begin()
        if new_batch:
            self._passes = 0
        if self._micro == 0 and self._passes == 0:
            self._local = self._total = self._sums = None
        self._pair = None
        self._passes += 1

    def _bucket(self, grad_bucket):
        """What is known of the bucket. DDP makes new ones after the first pass."""
        index, block = grad_bucket.index(), grad_bucket.buffer()
        bucket = self._buckets.get(index)
        if bucket is None or bucket.key[:2] != (block.data_ptr(), block.numel()):
            params = grad_bucket.parameters()
            self._have_before = False
            if index == 0:
                self._old, self._buckets = self._buckets, {}
            bucket = Bucket(block, params, self._group_of, self._groups)
            self._take_over(bucket)
            self._buckets[index] = bucket
        return bucket

    def _take_over(self, bucket):
        """Accumulated gradients move along when buckets change."""
        found = {}
        for old in self._old.values():
            if old.sum is not None:
                found.update(zip(old.params, torch.split(old.sum, old.sizes)))
                bucket.sum_scale = old.sum_scale  # all of one batch: the same
        if found and self._micro > 0:
            zeros = torch.zeros_like(bucket.block)
            parts = torch.split(zeros, bucket.sizes)
            for param, part in zip(bucket.params, parts):
                if param in found:
                    part.copy_(found[param])
            bucket.sum = zeros

    def _see(self, bucket, factor):
        """Measures this replica's gradient in the bucket, and then multiplies it by factor."""
        moments = self._moments(bucket)
        if bucket.in_memory:
            norms = self._without_scale(bucket.norms(factor, moments), bucket.block)
            self._local = _plus(self._local, norms)
            return
        self._found.append(_norms.measure(bucket, moments))
        if factor != 1.0:
            bucket.block.mul_(factor)

    def _without_scale(self, norms, block):
        scale = self._loss_scale(block)
        return norms if scale is None else _over(norms, scale)

    def _all_moments(self, buckets):
        """Of each bucket; None when one has none."""
        moments = [self._moments(bucket) for bucket in buckets]
        return None if any(some is None for some in moments) else moments

    def _accumulate(self, bucket):
        """A batch that does not end in a step: its gradient goes into the sum, and a zero stays behind, so
        that clipping and unscaling between backward and step see nothing to do."""
        self._see(bucket, 1.0)
        if bucket.sum is None or (self._micro == 0 and self._passes == 1):
            if bucket.sum is None:
                bucket.sum = torch.empty_like(bucket.block)
            bucket.sum.copy_(bucket.block)
            bucket.sum_scale = self._loss_scale(bucket.block)
        else:
            self._rescale(bucket)
            bucket.sum.add_(bucket.block)
        bucket.block.zero_()

    def _rescale(self, bucket):
        """The loss scale may have changed since the sum was begun."""
        scale = self._loss_scale(bucket.block)
        if scale is not None:
            bucket.sum.mul_(scale / bucket.sum_scale)
            bucket.sum_scale = scale

    def _loss_scale(self, like):
        """The loss scale as a tensor; None without a scaler."""
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        one = self._ones.get(like.device)
        if one is None:
            one = self._ones[like.device] = torch.ones((), dtype=torch.float32, device=like.device)
        return self._scaler.scale(one)

    def _average(self, bucket, grad_bucket):
        """The last batch of a step: the mean over replicas and batches is under way when this returns."""
        micro = self._micro + 1
        own = self.user_hook is not None  # which divides by the number of replicas itself
        factor = self._weight * (1.0 if own else 1.0 / self._replicas)
        if micro == 1:
            bucket.sum = None
            self._see(bucket, factor)
        else:
            self._see(bucket, 1.0)
            if self._passes == 1:
                self._rescale(bucket)
                bucket.block.add_(bucket.sum).mul_(factor / micro)
            else:  # the mean of the pass before lies in the sum, and is part of the block
                bucket.block.sub_(bucket.sum).div_(micro).add_(bucket.sum).mul_(factor)
        if own:
            state, hook = self.user_hook
            self._works.append((bucket, _world.attempt(lambda: hook(state, grad_bucket))))
        elif self._replicas > 1:
            self._works.append((bucket, _world.attempt(lambda: self._all_reduce(bucket.block))))
        else:
            self._works.append((bucket, None))

    def _all_reduce(self, block):
        return dist.all_reduce(block, group=self._adp.process_group, async_op=True)

    def _average_sparse(self, block):
        """Gradients of sparse embeddings are averaged, and left out of the statistics."""
        if not self._optim or self._micro > 0:
            raise RuntimeError("sparse gradients cannot be accumulated: leave out gradient_accumulation")
        if self._replicas > 1:
            mean = block * (self._weight / self._replicas)
            work = _world.attempt(lambda: self._all_reduce(mean))
            if work is not None and not _world.watched():
                return work.get_future().then(lambda done: done.value()[0])
            if work is not None and _world.waited(work):
                block = work.result()[0]
        future = torch.futures.Future(devices=[block.device]) if block.is_cuda else torch.futures.Future()
        future.set_result(block)
        return future

    def _finish(self):
        """After the last bucket: waits for the means and takes their norms."""
        buckets = [self._buckets[index] for index in sorted(self._buckets)]
        if not buckets:  # all gradients are sparse
            return
        if self._found:
            local = self._without_scale(_norms.squares(self._found), buckets[0].block)
            self._local = _plus(self._local, local)
            self._found.clear()
        if self._optim and self._single and not buckets[0].in_memory:
            self._see_pair(buckets)
        if not self._works:
            return
        cuda = self._works[0][0].block.is_cuda
        begin = time.perf_counter()
        if cuda:
            self._times = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._times[0].record()
        for bucket, work in self._works:
            if work is not None and _world.waited(work) and self.user_hook is not None:
                result = work.value() if isinstance(work, torch._C.Future) else work.result()
                result = result[0] if isinstance(result, (list, tuple)) else result
                if result.data_ptr() != bucket.block.data_ptr():
                    bucket.block.copy_(result)
        waited = time.perf_counter() - begin
        if cuda:
            self._times[1].record()
        else:
            loader = data.current_dataloader()
            if loader is not None:
                loader._bound().add_sync(waited)
        if _core.lost():
            self.reset_accumulation()
            return
        self._adp._averaged()
        total = None
        if buckets[0].in_memory:
            for bucket in buckets:
                total = _plus(total, bucket.norms(1.0, self._moments(bucket)))
        else:
            total = _norms.squares(_norms.measure_all(buckets, self._all_moments(buckets)))
        total = self._without_scale(total, buckets[0].block)
        for bucket in buckets:
            if self._micro > 0:
                bucket.sum.copy_(bucket.block)
            bucket.turn += 1
        self._total, self._sums = total, _plus(self._sums, total)
        self._works.clear()

    def _see_single(self, bucket):
        """The only gradient of a step, on the only replica: compared with the one before, in pairs. On a
        device all buckets together, after the last."""
        if not bucket.in_memory:
            return
        scale = self._loss_scale(bucket.block)
        if not self._have_before:
            bucket.turn += 1
            bucket.keep()
            bucket.before_scale = scale
            return
        if scale is not None:
            bucket.before.mul_(scale / bucket.before_scale)
            bucket.before_scale = scale
        pair = self._without_scale(bucket.compare(self._moments(bucket)), bucket.block)
        self._pair = _plus(self._pair, pair)

    def _see_pair(self, buckets):
        scale = self._loss_scale(buckets[0].block)
        if not self._have_before:
            for bucket in buckets:
                bucket.turn += 1
            self._before = _norms.sample(buckets)[0], scale
            return
        values, weights = _norms.sample(buckets)
        before, before_scale = self._before
        if scale is not None:
            before = [some * (scale / before_scale) for some in before]
        moments = self._all_moments(buckets)
        divisors = None if moments is None else _norms.preconditioner(buckets, moments)
        pair = _norms.compare(values, before, weights, divisors)
        self._pair = self._without_scale(pair, buckets[0].block)

    def _moments(self, bucket):
        """Adam's second moments and so on; None: gradients are measured as they are."""
        return None

    # ---- step ----

    def accumulating(self):
        """Is the present batch's gradient only accumulated?"""
        loader = data.current_dataloader()
        return loader is not None and not loader.is_optim_step()

    def begin_step(self):
        """Before the optimizer's step: hands in what was measured.

        Returns:
            float: The step's scale, its batch size by the initial one. None: a replica was lost, and the step is
            not to be taken.
        """
        shape = _world.step_begins(self._meter)
        if shape is None:
            return None
        scale, measured, restart = shape
        if restart:
            self._restart()
        report = None
        single = self._single
        if measured:
            if single and self._pair is not None:
                report = self._report(self._pair, "pair")
            elif single:
                report = "first"
            elif self._local is not None:
                report = self._report((self._local, self._total, self._sums), "norms")
            else:
                report = "first"
        self._have_before = bool(single and measured and self._pair is None)
        self._local = self._total = self._sums = self._pair = None
        self._passes = 0
        if report is not None:
            self._late.append(report)
        # What was measured in memory is known now; what comes from a device, one step later.
        while self._late and (not isinstance(self._late[0], _Report) or self._late[0].event is None
                              or len(self._late) > 1):
            self._hand_in(self._late.pop(0))
        return scale

    def end_step(self):
        """After the optimizer's step."""
        self._meter.advance()

    def zeroed(self):
        """Gradients were zeroed: passes so far in this batch do not count."""
        if self._optim:
            self._passes = 0
            self._local = self._total = self._sums = self._pair = None

    def _report(self, values, kind):
        first = values[0] if kind == "norms" else values
        if isinstance(first, list):
            return kind, values
        times, self._times = self._times, None
        return _Report(torch.stack(list(values)) if kind == "norms" else values, kind, times)

    def _hand_in(self, report):
        if report == "first":
            self._meter.pair(None, 1.0)
            return
        if isinstance(report, _Report):
            numbers, waited = report.read()
            kind, count = report.kind, self._groups
            values = numbers
            if kind == "norms":
                values = numbers[:count], numbers[count:2 * count], numbers[2 * count:]
            loader = data.current_dataloader()
            if waited and loader is not None:
                loader._bound().add_sync(waited)
        else:
            kind, values = report
        if kind == "pair":
            self._meter.pair(values, 1.0)
        else:
            self._meter.norms(*values, 1.0)

    def _restart(self):
        """The batch size has changed."""


def _array(values):
    import numpy
    return numpy.array(values)


class AdamGradientNoiseScale(GradientNoiseScale):
    """The same for Adam and AdamW, whose steps are of gradients divided by ``sqrt(v) + eps``: so that is
    what is measured, once five steps were taken. When the batch size changes, the moments, which are of
    gradients of another noise, are restarted."""

    def _moments(self, bucket):
        steps = self._meter.steps
        if steps < _core.PRECONDITION_AFTER:
            return None
        state = self._optimizer.state
        # Tensors of the optimizer's state change when a state is loaded, all of them.
        first = state.get(bucket.params[0], {}).get("exp_avg_sq")
        if bucket.moments is None or bucket.moments[0] is not first:
            values = self._flat_moments(bucket)
            bucket.moments = None if values is None else (first, values)
            if values is None:
                return None
        values = bucket.moments[1]
        groups = self._optimizer.param_groups
        corrections = [1 - group["betas"][1] ** steps for group in groups]
        return values, corrections, [group["eps"] for group in groups]

    def _flat_moments(self, bucket):
        """The second moments in the order of memory, which is that of the gradients; None if one is
        missing, or is of another kind."""
        values = []
        for param in bucket.params:
            moment = self._optimizer.state.get(param, {}).get("exp_avg_sq")
            if moment is None or moment.stride() != param.stride() \
                    or moment.dtype != bucket.block.dtype or moment.device != bucket.block.device:
                return None
            values.append(flat(moment))
        return None if any(value is None for value in values) else values

    def _restart(self):
        for state in self._optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
                if name in state:
                    state[name].zero_()
            if isinstance(state.get("step"), torch.Tensor):
                state["step"].zero_()
            elif "step" in state:
                state["step"] = 0
