"""Squared norms of gradients, bucket by bucket: by the library's kernels for float32 in memory, by
PyTorch's for everything else. Nothing here waits for a device, and no step makes more than a handful of
calls, whatever the number of parameters.

A :class:`Bucket` knows, for the gradients that lie in one block of DistributedDataParallel, which
parameter group each belongs to. Norms of steps are exact; those that need more than one pass over memory
(pairs of single gradients, gradients divided by Adam's preconditioner) are taken on an eighth of the
values, others each time, and counted for the whole.
"""

import array

import torch
from torch.utils import dlpack

from adaptdl import _core

EVERY = _core.SAMPLE_EVERY  # of a large gradient, one part in so many is looked at
LARGE = _core.SAMPLE_FROM


def _wide(tensor):
    return tensor if tensor.device.type == "mps" else tensor.double()


def _norm(tensor):
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return torch.linalg.vector_norm(tensor, dtype=torch.float32 if half else None)


def flat(tensor):
    """The values in the order of memory, without a copy if they lie densely."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    order = sorted(range(tensor.dim()), key=lambda i: -tensor.stride(i))
    ordered = tensor.permute(order)
    return ordered.view(-1) if ordered.is_contiguous() else None


class Bucket:
    """The gradients in one block, and how to measure them.

    Args:
        block (Tensor): One-dimensional.
        params (list): Whose gradients lie in it, one after the other.
        groups (dict): Parameter to number of its parameter group.
        count (int): How many groups there are.
    """

    def __init__(self, block, params, groups, count):
        self.block, self.params, self.count = block, params, count
        self.key = (block.data_ptr(), block.numel(), len(params))
        self.sizes = [p.numel() for p in params]
        self.groups = [groups.get(p, 0) for p in params]
        self.group_sizes = [0] * count
        for size, group in zip(self.sizes, self.groups):
            self.group_sizes[group] += size
        self.starts, start = [], 0
        for size in self.sizes:
            self.starts.append(start)
            start += size
        self.in_memory = block.device.type == "cpu" and block.dtype == torch.float32
        rows = array.array("q")
        for row in zip(self.starts, self.sizes, self.groups):
            rows.extend(row)
        self.segments = rows.tobytes()
        self.sum = None      # accumulated gradients, and the loss scale that they have
        self.sum_scale = None
        self.before = None   # the first of a pair, likewise
        self.before_scale = None
        self.turn = 0        # which part of large gradients is looked at
        self.moments = None  # Adam's second moments, flat
        self.done = None     # the future that the communication hook returns
        self._shown = self._shown_capsules = None
        self._parts = {}
        self._capsule = dlpack.to_dlpack(block) if self.in_memory else None

    # ---- what is looked at, on devices ----

    def _every(self, sampled):
        """Of each group, one value in so many is looked at: few are not worth saving."""
        return [EVERY if sampled and size >= LARGE else 1 for size in self.group_sizes]

    def parts(self, sampled):
        """For each group, views of the parts of the block that are looked at, and how many times as many
        values they stand for. Blocks stay where they are, so views are made once."""
        key = sampled, self.turn % EVERY
        if key not in self._parts:
            every, views = self._every(sampled), [[] for _ in range(self.count)]
            if self.count == 1:
                views[0].append(self.block[self.turn % every[0]::every[0]])
            else:
                for first, size, group in zip(self.starts, self.sizes, self.groups):
                    step = every[group]
                    views[group].append(
                        self.block[first + (self.turn - first) % step:first + size:step])
            seen = [sum(view.numel() for view in some) for some in views]
            weights = [size / n if n else 0.0 for size, n in zip(self.group_sizes, seen)]
            self._parts[key] = views, weights
        return self._parts[key]

    def divisors(self, moments):
        """For each group, views of Adam's second moments of the same values."""
        every, views = self._every(True), [[] for _ in range(self.count)]
        for value, first, group in zip(moments[0], self.starts, self.groups):
            views[group].append(value[(self.turn - first) % every[group]::every[group]])
        return views

    def _capsules(self, moments):
        """The moments as the library takes them; made anew when there are others."""
        if moments is None:
            return None
        values, corrections, eps = moments
        if self._shown is not values:
            self._shown, self._shown_capsules = values, [dlpack.to_dlpack(v) for v in values]
        return self._shown_capsules, corrections, eps

    # ---- measuring in memory ----

    def norms(self, factor, moments):
        """|g|^2 of each group, a list; afterwards the block is multiplied by factor.

        Args:
            factor (float): 1.0 leaves the block alone.
            moments (tuple or None): Adam's (second moments of each parameter, flat; corrections and eps
                of each group).
        """
        turn = -1 if moments is None else self.turn
        return _core.bucket_norms(self._capsule, self.segments, self.count, factor, turn,
                                  self._capsules(moments))

    def keep(self):
        """The block is the first of a pair of gradients."""
        if self.before is None:
            self.before = torch.zeros_like(self.block)
        _core.bucket_pair(self._capsule, dlpack.to_dlpack(self.before), self.segments, self.count,
                          self.turn, True)

    def compare(self, moments):
        """(|g|^2, |h|^2, |g - h|^2) of each group, g the block and h the kept one, one after the other."""
        return _core.bucket_pair(self._capsule, dlpack.to_dlpack(self.before), self.segments,
                                 self.count, self.turn, False, self._capsules(moments))


# ---- measuring on devices: as few kernels as there can be, for all blocks together where possible ----


def preconditioner(buckets, moments):
    """Adam's sqrt(v / correction) + eps for what the buckets show of each group.

    Args:
        moments (list): Of each bucket: second moments of each parameter, flat; corrections and eps of
            each group.
    """
    shown = [bucket.divisors(some) for bucket, some in zip(buckets, moments)]
    _, corrections, eps = moments[0]
    found = []
    for group in range(buckets[0].count):
        views = [view for some in shown for view in some[group]]
        found.append(torch.cat(views).div_(corrections[group]).sqrt_().add_(eps[group])
                     if views else None)
    return found


def measure(bucket, moments):
    """The norm of each group's gradients in the bucket: tensors without dimensions, and the factors of
    their squares."""
    views, weights = bucket.parts(moments is not None)
    divisors = None if moments is None else preconditioner([bucket], [moments])
    found = []
    for group, some in enumerate(views):
        values = some[0] if len(some) == 1 else torch.cat(some) if some else bucket.block[:0]
        found.append(_norm(values if divisors is None or not some else values / divisors[group]))
    return found, weights


def measure_all(buckets, moments):
    """The same for all buckets; moments: of each bucket, or None."""
    together = getattr(torch, "_foreach_norm", None)
    plain = moments is None and buckets[0].count == 1 and together is not None
    if plain and buckets[0].block.dtype in (torch.float32, torch.float64):
        return [([norm], [1.0]) for norm in together([bucket.block for bucket in buckets])]
    return [measure(bucket, moments and moments[i]) for i, bucket in enumerate(buckets)]


def squares(measured):
    """|g|^2 of each group, from what measure() found of each bucket."""
    norms = [norm for found, _ in measured for norm in found]
    squared = _wide(torch.stack(norms)).square_().view(len(measured), -1)
    weights = [some for _, some in measured]
    if any(weight != 1.0 for some in weights for weight in some):
        squared.mul_(torch.tensor(weights, dtype=squared.dtype).to(squared.device, non_blocking=True))
    return squared.sum(0)


def sample(buckets):
    """What the buckets show of each group's gradients, a copy, and how many times as many values it
    stands for."""
    shown = [bucket.parts(True) for bucket in buckets]
    values, weights = [], []
    for group in range(buckets[0].count):
        views = [view for some, _ in shown for view in some[group]]
        values.append(torch.cat(views) if views else buckets[0].block[:0])
        every = sum(view.numel() * some[group] for views_, some in shown for view in views_[group])
        weights.append(every / values[-1].numel() if values[-1].numel() else 0.0)
    return values, weights


def compare(values, before, weights, divisors):
    """(|g|^2, |h|^2, |g - h|^2) of each group: a tensor [groups, 3]."""
    norms = []
    for group, (g, h) in enumerate(zip(values, before)):
        if divisors is not None and divisors[group] is not None:
            g, h = g / divisors[group], h / divisors[group]
        norms += [_norm(g), _norm(h), _norm(g - h)]
    squared = _wide(torch.stack(norms)).square_().view(len(values), 3)
    for group, weight in enumerate(weights):
        if weight != 1.0:
            squared[group].mul_(weight)
    return squared
