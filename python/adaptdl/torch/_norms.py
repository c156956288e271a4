"""Squared norms of gradients, bucket by bucket: by the library's kernels for float32 in memory, by
PyTorch's for everything else. Nothing here waits for a device, and no step makes more than a handful of
calls, whatever the number of parameters.

A :class:`Bucket` knows, for the gradients that lie in one block of DistributedDataParallel, which
parameter group each belongs to. Norms of steps are exact; those that need more than one pass over memory
(pairs of single gradients, gradients divided by Adam's preconditioner) are taken on an eighth of each
large gradient, another one each time, and counted for the whole.
"""

import array

import torch
from torch.utils import dlpack

from adaptdl import _core

EVERY = 8  # of a large gradient, one part in so many is looked at
LARGE = 16 * 1024


def _norm_each(tensors):
    """A tensor of the norms of tensors, in double precision where the device has it."""
    norms = getattr(torch, "_foreach_norm", None)
    half = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors[:1])
    if norms is None or half:
        kind = torch.float32 if half else None
        found = [torch.linalg.vector_norm(t, dtype=kind) for t in tensors]
    else:
        found = norms(tensors)
    return _wide(torch.stack(list(found)))


def _wide(tensor):
    return tensor if tensor.device.type == "mps" else tensor.double()


def _each(name, tensors, *args):
    """torch._foreach_<name> where there is one, else one call per tensor."""
    together = getattr(torch, "_foreach_" + name, None)
    if together is not None:
        return together(tensors, *args)
    one = getattr(torch, name)
    spread = [[a[i] if isinstance(a, (list, tuple)) else a for a in args] for i in range(len(tensors))]
    return [one(t, *rest) for t, rest in zip(tensors, spread)]


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
        self.starts, start = [], 0
        for size in self.sizes:
            self.starts.append(start)
            start += size
        self.in_memory = block.device.type == "cpu" and block.dtype == torch.float32
        rows = array.array("q")
        for row in zip(self.starts, self.sizes, self.groups):
            rows.extend(row)
        self.segments = rows.tobytes()
        self.sum = None      # accumulated gradients
        self.before = None   # the first of a pair
        self.turn = 0        # which part of large gradients is looked at
        self.moments = None  # Adam's second moments, flat
        self._shown = self._shown_capsules = None
        self._parts = {}
        self._capsule = dlpack.to_dlpack(block) if self.in_memory else None

    # ---- what is looked at ----

    def _slices(self, turn):
        """(start, end) of the part of each gradient."""
        for size in self.sizes:
            if size < LARGE:
                yield 0, size
            else:
                part = turn % EVERY
                yield part * size // EVERY, (part + 1) * size // EVERY

    def _sample(self, block, turn):
        """Parts of the gradients in block; their weights, by group, as a tensor [parts, groups]."""
        if turn % EVERY not in self._parts:
            weights = torch.zeros(len(self.sizes), self.count, dtype=torch.float64)
            spans = []
            for i, (first, last) in enumerate(self._slices(turn)):
                weights[i, self.groups[i]] = self.sizes[i] / max(last - first, 1)
                spans.append((self.starts[i] + first, self.starts[i] + last))
            weights = weights.to(block.device, torch.float32 if block.device.type == "mps" else None)
            self._parts[turn % EVERY] = spans, weights
        spans, weights = self._parts[turn % EVERY]
        return [block[first:last] for first, last in spans], weights

    def _divisors(self, moments, turn):
        """Adam's preconditioner for the sampled parts: sqrt(v / correction) + eps."""
        values, corrections, eps = moments
        parts = [v[first:last] for v, (first, last) in zip(values, self._slices(turn))]
        pre = _each("div", parts, [corrections[g] for g in self.groups])
        pre = _each("sqrt", list(pre))
        return list(_each("add", list(pre), [eps[g] for g in self.groups]))

    def _capsules(self, moments):
        """The moments as the library takes them; made anew when there are others."""
        if moments is None:
            return None
        values, corrections, eps = moments
        if self._shown is not values:
            self._shown, self._shown_capsules = values, [dlpack.to_dlpack(v) for v in values]
        return self._shown_capsules, corrections, eps

    # ---- measuring ----

    def norms(self, factor, moments):
        """|g|^2 of each group, as a list (in memory) or a tensor; afterwards the block is multiplied by
        factor.

        Args:
            factor (float): 1.0 leaves the block alone.
            moments (tuple or None): Adam's (second moments of each parameter, flat; corrections and eps
                of each group).
        """
        if self.in_memory:
            every = 1 if moments is None else EVERY
            return _core.bucket_norms(self._capsule, self.segments, self.count, factor, every,
                                      self.turn, self._capsules(moments))
        if moments is None and self.count == 1:
            half = self.block.dtype in (torch.float16, torch.bfloat16)
            norm = torch.linalg.vector_norm(self.block, dtype=torch.float32 if half else None)
            found = _wide(norm).square().view(1)
        elif moments is None:
            parts = [self.block[s:s + n] for s, n in zip(self.starts, self.sizes)]
            ones, exact = [1.0] * len(parts), self._parts.get("exact")
            if exact is None:
                exact = torch.zeros(len(parts), self.count, dtype=torch.float64)
                exact[range(len(parts)), self.groups] = torch.tensor(ones, dtype=torch.float64)
                self._parts["exact"] = exact = exact.to(self.block.device)
            found = (_norm_each(parts).square().unsqueeze(1) * exact).sum(0)
        else:
            parts, weights = self._sample(self.block, self.turn)
            parts = list(_each("div", parts, self._divisors(moments, self.turn)))
            found = (_norm_each(parts).square().unsqueeze(1) * weights).sum(0)
        if factor != 1.0:
            self.block.mul_(factor)
        return found

    def keep(self):
        """The block is the first of a pair of gradients."""
        self.turn += 1
        if self.in_memory:
            if self.before is None:
                self.before = torch.zeros_like(self.block)
            _core.bucket_pair(self._capsule, dlpack.to_dlpack(self.before), self.segments, self.count,
                              EVERY, self.turn, True)
            return
        parts, _ = self._sample(self.block, self.turn)
        self.before = torch.cat(parts)

    def compare(self, moments):
        """(|g|^2, |h|^2, |g - h|^2) of each group, g the block and h the kept one: a list of 3 x groups
        (in memory), or a tensor [groups, 3]."""
        if self.in_memory:
            return _core.bucket_pair(self._capsule, dlpack.to_dlpack(self.before), self.segments,
                                     self.count, EVERY, self.turn, False, self._capsules(moments))
        parts, weights = self._sample(self.block, self.turn)
        kept = list(torch.split(self.before, [p.numel() for p in parts]))
        if moments is not None:
            pre = self._divisors(moments, self.turn)
            parts, kept = list(_each("div", parts, pre)), list(_each("div", kept, pre))
        apart = list(_each("sub", parts, kept))
        three = [(_norm_each(some).square().unsqueeze(1) * weights).sum(0)
                 for some in (parts, kept, apart)]
        return torch.stack(three, dim=1)
