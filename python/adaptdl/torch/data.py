"""Data loaders whose loops survive restarts and whose batch sizes adapt.

:class:`AdaptiveDataLoader` replaces ``torch.utils.data.DataLoader``. Loaders of another kind (for
sequences, streams) are made of :class:`AdaptiveDataLoaderMixin` and the
:class:`AdaptiveDataLoaderHelper` that it brings as ``self._elastic``::

    def __iter__(self):
        with self._elastic.context():
            if self._elastic.skipdone():
                return
            local_bsz = self._elastic.sync_local_bsz()
            for batch in ...:                # from self._elastic.current_index on
                with self._elastic.profile(self.training):
                    yield batch
                    self._elastic.current_index += ...
"""

import collections
import contextlib
import math
import numbers
import os
import random
import sys
import threading
import weakref

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from adaptdl import _core, _original, env
from adaptdl.torch import _world
from adaptdl.torch.epoch import current_epoch

__all__ = [
    "AdaptiveDataLoader",
    "AdaptiveDataLoaderHelper",
    "AdaptiveDataLoaderMixin",
    "ElasticSampler",
    "current_dataloader",
]

GO, PLAN, PASSED = range(3)  # what the library says before a batch, see Loop.advance

_current = None  # the helper that is being iterated
_made = collections.Counter()  # helpers by epoch, for their names
_loops = []  # (epoch, weak reference to the helper, library's loop)


def current_dataloader():
    """The data loader that is being iterated.

    Returns:
        AdaptiveDataLoaderHelper or None: The loader's helper; None outside loops over data.
    """
    return _current


class ElasticSampler(Sampler):
    """Divides the examples of a data set among the replicas, in an order that depends on the epoch alone:
    after a restart, on any number of replicas, it goes on where it was.

    Args:
        dataset (torch.utils.data.Dataset): What to sample from; it has a length, which may change between
            epochs.
        shuffle (bool): Whether each epoch has another random order.
    """

    def __init__(self, dataset, shuffle=True):
        self.dataset = dataset
        self.shuffle = shuffle
        self._order = self._place = None
        self._rank = self._num_replicas = None
        self._deal = 0  # what all replicas together take at a time; 0: each the same
        self.set_epoch(0)

    @property
    def rank(self):
        """The replica whose examples these are; this one, unless set."""
        return env.replica_rank() if self._rank is None else self._rank

    @rank.setter
    def rank(self, rank):
        self._rank = rank

    @property
    def num_replicas(self):
        """Among how many replicas the examples are divided; the job's, unless set."""
        return env.num_replicas() if self._num_replicas is None else self._num_replicas

    @num_replicas.setter
    def num_replicas(self, replicas):
        self._num_replicas = replicas

    def _seek(self, place):
        """The library's sampler, at that place."""
        if place[0] == 0:
            return None
        if self._order is None or place[:2] != self._place[:2]:
            self._order, self._place = _core.Sampler(*place[:2]), None
        if place != self._place:
            self._length = self._order.seek(*place[2:])
            self._place = place
        return self._order

    def _here(self):
        return len(self.dataset), bool(self.shuffle), self.epoch or 0, self.index, self.rank, self.num_replicas, \
            self._deal

    def __iter__(self):
        """The examples of this replica, from the set index to the end of the pass.

        Returns:
            Iterator[int]: Numbers of examples.
        """
        return self._from(self._here())

    def _from(self, place):
        first = 0
        while self._seek(place) is not None and first < self._length:
            some = self._order.take(first, 1024)
            first += len(some)
            yield from some

    def __len__(self):
        """How many examples this replica gets from the set index on: as many as every other, unless the
        loader's batch size does not divide by the replicas."""
        return 0 if self._seek(self._here()) is None else self._length

    @property
    def padded(self):
        """Is the last of this replica's examples another one's, too, so that all have equally many?"""
        order = self._seek(self._here())
        return order is not None and order.padded

    def set_epoch(self, epoch, index=0):
        """Go to a place.

        Args:
            epoch (int): The epoch, which makes the order.
            index (int): How many examples all replicas together have had in this epoch; each multiple of
                the data set's length is another pass over it, in another order.
        """
        self._goto(epoch, index, 0)

    def _goto(self, epoch, index, deal):
        self.epoch, self.index, self._deal = epoch, index, deal
        self._seek(self._here())


def whole(name, value, kind=numbers.Integral, rounded=int):
    """A size as an int. NumPy's are taken, too; bounds may be floats."""
    if isinstance(value, kind) and not isinstance(value, bool) and 0 < value < 2**31:
        size = int(rounded(value))
        if size > 0 and (size == value or rounded is not int):
            return size
    raise ValueError(f"{name} must be a whole number of at least 1 that fits into 31 bits, not {value!r}")


def _forget_finished():
    """Loops of epochs that are over, whose loaders nobody has any more, leave the checkpoint. Those of the
    present epoch stay: a restart in it runs their code again."""
    epoch = current_epoch()
    for entry in list(_loops):
        if entry[0] != epoch and entry[0] is not None and entry[1]() is None:
            entry[2].free()
            _loops.remove(entry)


class AdaptiveDataLoaderHelper:
    """One elastic loop over data, without the data: its position, its batch size, the boundaries between
    steps where the job may stop. For building data loaders of other kinds; see the module's text.

    Args:
        batch_size (int): The total batch size wanted, over all replicas.
    """

    def __init__(self, batch_size=1):
        self.batch_size = whole("batch_size", batch_size)
        self._epoch = epoch = current_epoch()
        self._name = "loader-{}".format(_made[epoch]) if epoch is None \
            else "loader-epoch{}-{}".format(epoch, _made[epoch])
        self._order = _made[epoch]
        _made[epoch] += 1
        self._examples = 0
        self._bounds = None
        self._loop = None
        self._run = False
        self._begun = 0
        self.extra = 0  # examples at the end of the present batch that another replica has, too

    def _bound(self):
        """The library's loop. Made when it is needed first: loaders may be made before the process
        group, and live longer than it."""
        loop = self._loop
        if loop is None or not loop.alive:
            _forget_finished()
            loop = _core.Loop(self._name, self.batch_size)
            if self._bounds is not None:
                loop.autoscale(*self._bounds)
            _original.restore_loader(loop, self._epoch, self._order)
            self._loop = loop
            _loops.append((self._epoch, weakref.ref(self), loop))
        return loop

    def _alive(self):
        """Is there a loop of the library's? Before the first one, sizes and places are 0."""
        return self._loop is not None and self._loop.alive

    @property
    def current_index(self):
        """How many examples all replicas together have had in the present loop; None outside. May be set
        by loaders that go over their data in a way of their own; outside a loop that does nothing."""
        return self._bound().index if _current is self else None

    @current_index.setter
    def current_index(self, index):
        if _current is self:
            self._bound().index = index

    @property
    def end_index(self):
        """Where the loop ends, for loaders whose data changes its layout with the batch size; 0 until it
        is set. Kept over restarts. Setting another one moves :attr:`current_index` to the same share
        of the data."""
        return self._bound().end_index

    @end_index.setter
    def end_index(self, index):
        self._bound().end_index = index

    @property
    def max_batch_size(self):
        """The largest total batch size allowed; None when the batch size is fixed."""
        return self._bounds[0] if self._bounds else None

    @property
    def local_bsz_bounds(self):
        """The smallest and largest local batch size allowed, (min, max), each None when open; None when
        there are no bounds."""
        if not self._bounds or not any(self._bounds[1:3]):
            return None
        return self._bounds[1] or None, self._bounds[2] or None

    @property
    def current_local_bsz(self):
        """How many examples this replica gets at a time; 0 before the first loop."""
        return self._loop.local_bsz if self._alive() else 0

    @property
    def accumulation_steps(self):
        """How many batches are accumulated before the one that ends in an optimizer step."""
        return self._loop.accum_steps if self._alive() else 0

    @property
    def current_batch_size(self):
        """The present total batch size, over all replicas and accumulated batches."""
        return self._loop.batch_size if self._alive() else 0

    @property
    def training(self):
        """Is this the loader that is trained on? It is, if its batch size adapts, or once a backward pass
        was made in its loop; with several such loaders, the one in whose loop the last was made."""
        if self._alive() and self._begun > 0:
            return self._loop.training
        return self._bounds is not None

    @property
    def future_exit(self):
        """Always None. The replicas' agreement to stop is made in the library, at each step."""
        return None

    def train(self):
        """Make this the loader that is trained on, whose steps are timed and whose batch size counts. A
        backward pass in its loop does so, too."""
        self._bound().train()

    def is_accum_step(self):
        """Is the present batch's gradient only accumulated?"""
        return not self.is_optim_step()

    def is_optim_step(self):
        """Does the present batch end in an optimizer step?"""
        return self._bound().optim_step

    def autoscale_batch_size(self, max_batch_size, local_bsz_bounds=None, gradient_accumulation=False):
        """Let the batch size adapt: the total is chosen for the best goodput, between ``batch_size`` and
        ``max_batch_size``. Once, before the first loop.

        Args:
            max_batch_size (int): The largest total batch size.
            local_bsz_bounds (tuple): The smallest and largest size on each replica, (min, max), each None
                when open. They say what is efficient, and what fits into memory.
            gradient_accumulation (bool): Whether gradients of several batches may make one step.

        Raises:
            ValueError: If a bound makes no sense; the text says which.
        """
        low, high = local_bsz_bounds if local_bsz_bounds is not None else (None, None)
        max_batch_size = whole("max_batch_size", max_batch_size, numbers.Real)
        low = low if low is None else whole("local_bsz_bounds[0]", low, numbers.Real, math.ceil)
        high = high if high is None else whole("local_bsz_bounds[1]", high, numbers.Real, math.floor)
        bounds = (max_batch_size, low or 0, high or 0)
        if low and high and low > high:
            raise ValueError(f"local_bsz_bounds: {low} is above {high}")
        _core.check_bounds(self._name, self.batch_size, *bounds)
        self._bounds = bounds + (bool(gradient_accumulation),)
        if self._loop is not None and self._loop.alive:
            self._loop.autoscale(*self._bounds)

    @contextlib.contextmanager
    def context(self):
        """The loop, for ``with``: not inside another loop over data. Outside the epochs it has a place of
        its own: such loops are counted over the whole program.

        Raises:
            RuntimeError: If it is inside another one.
        """
        global _current
        loop = self._bound()
        _world.outside_ends()
        self._run = loop.begin(self._examples)
        self._begun += 1
        _current = self
        try:
            yield
        finally:
            _current = None
            loop.end()
            _world.outside_begins()

    def skipdone(self):
        """Was this loop finished before a restart? First in :meth:`context`; if so, yield nothing."""
        return not self._run

    def sync_local_bsz(self):
        """A pass over the data begins: chooses its batch size, together with the other replicas.

        Returns:
            int: The local batch size.
        """
        _world.follow()
        return self._bound().choose()

    _sync_local_bsz = sync_local_bsz

    @contextlib.contextmanager
    def profile(self, commit):
        """One batch, for ``with``: before it the job may stop (then this raises ``SystemExit``), and its
        time is measured. As often on every replica.

        Args:
            commit (bool): Whether the time counts.
        """
        self._step(self._bound().local_bsz, False)
        if not commit:
            self._loop.no_profile()
        yield
        self._loop.commit()

    def _step(self, size, last):
        self._bound().step(size, last)

    def _advance(self, passed):
        """Before each batch: GO, PLAN (there are other replicas: the rest of the pass is planned anew) or PASSED."""
        return self._loop.advance(passed, _world.follows())

    def _commit(self):
        self._loop.commit()
        _world.batch_over()

    def to_tensorboard(self, writer, global_step, tag_prefix=""):
        """Write the batch sizes to TensorBoard.

        Args:
            writer (torch.utils.tensorboard.SummaryWriter): Where to.
            global_step (int): The step they belong to.
            tag_prefix (str): Put before each tag.
        """
        prefix = tag_prefix_of(tag_prefix)
        writer.add_scalar(prefix + "Total_Batch_Size", self.current_batch_size, global_step)
        writer.add_scalar(prefix + "Local_Batch_Size", self.current_local_bsz, global_step)
        writer.add_scalar(prefix + "Accumulation_Steps", self.accumulation_steps, global_step)


def tag_prefix_of(prefix):
    """A tag's prefix, with a slash after it unless it is empty or has one."""
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


class AdaptiveDataLoaderMixin:
    """Gives a data loader an :class:`AdaptiveDataLoaderHelper`, ``self._elastic``, and those of its methods
    that programs use.

    Args:
        batch_size (int): The total batch size wanted, over all replicas.
    """

    def __init__(self, batch_size):
        self._elastic = AdaptiveDataLoaderHelper(batch_size)

    def autoscale_batch_size(self, max_batch_size, local_bsz_bounds=None, gradient_accumulation=False):
        """Let the batch size adapt, see :meth:`AdaptiveDataLoaderHelper.autoscale_batch_size`.

        Args:
            max_batch_size (int): The largest total batch size.
            local_bsz_bounds (tuple): The smallest and largest size on each replica, (min, max).
            gradient_accumulation (bool): Whether gradients of several batches may make one step.

        Raises:
            ValueError: If a bound makes no sense; the text says which.
        """
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    @property
    def current_local_bsz(self):
        """How many examples this replica gets at a time; None outside its loop."""
        return self._elastic.current_local_bsz if _current is self._elastic else None

    @property
    def accumulation_steps(self):
        """How many batches are accumulated before the one that ends in an optimizer step."""
        return self._elastic.accumulation_steps

    @property
    def current_batch_size(self):
        """The present total batch size, over all replicas and accumulated batches; None outside its
        loop."""
        return self._elastic.current_batch_size if _current is self._elastic else None

    @property
    def training(self):
        """Is this the loader that is trained on?"""
        return self._elastic.training

    def to_tensorboard(self, writer, global_step, tag_prefix=""):
        """Write the batch sizes to TensorBoard.

        Args:
            writer (torch.utils.tensorboard.SummaryWriter): Where to.
            global_step (int): The step they belong to.
            tag_prefix (str): Put before each tag.
        """
        self._elastic.to_tensorboard(writer, global_step, tag_prefix)


class _WorkerInit:
    """What a worker process does first: leave CTRL-C and SIGTERM to the program, which needs its workers
    until the step ends, and draw other random numbers than the same worker of another replica."""

    def __init__(self, then):
        self.then = then
        self.rank = self.parent = 0

    def __call__(self, worker):
        _core.worker_signals(self.parent)
        if self.rank > 0:
            seed = (torch.initial_seed() + self.rank * 0x9E3779B97F4A7C15) % 2**64
            random.seed(seed)
            torch.manual_seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % 2**32)
        if self.then is not None:
            self.then(worker)


class AdaptiveDataLoader(DataLoader, AdaptiveDataLoaderMixin):
    """A ``DataLoader`` whose loops survive restarts and whose batch size adapts. It takes the place of
    PyTorch's, with three differences: ``batch_size`` is the total over all replicas; samplers are its
    own; one loader is iterated at a time, usually in a loop of ``remaining_epochs_until``.

    Args:
        dataset (torch.utils.data.Dataset): Where the data comes from; it has a length.
        batch_size (int): The total batch size wanted. Where it does not divide by the replicas, some have one
            example more than others, and gradients count by examples; it may adapt
            (:meth:`autoscale_batch_size`).
        shuffle (bool): Whether each epoch has another random order.
        **kwargs: As for ``torch.utils.data.DataLoader``.

    Raises:
        ValueError: If ``sampler`` or ``batch_sampler`` is given.
    """

    def __init__(self, dataset, batch_size=1, shuffle=False, **kwargs):
        if kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None:
            raise ValueError("AdaptiveDataLoader has a sampler of its own: leave out 'sampler' and "
                             "'batch_sampler'")
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError("AdaptiveDataLoader needs a data set with a length and numbered examples")
        kwargs.pop("batch_sampler", None)
        kwargs["sampler"] = ElasticSampler(dataset, shuffle=shuffle)
        kwargs["worker_init_fn"] = _WorkerInit(kwargs.get("worker_init_fn"))
        AdaptiveDataLoaderMixin.__init__(self, batch_size)
        batch_size = self._elastic.batch_size
        self._behind = 0  # batches of the present pass before the present plan
        DataLoader.__init__(self, dataset, batch_size, **kwargs)
        self.batch_sampler.batch_size = -(-batch_size // self.sampler.num_replicas)

    def __len__(self):
        """How many batches this replica gets in a pass; in one, those it had before the batch size or the replicas
        changed, and the rest."""
        return super().__len__() + (self._behind if current_dataloader() is self._elastic else 0)

    def __iter__(self):
        """One loop over the data. With a fixed batch size it ends when all replicas together have gone
        over the data once. With an adaptive one it ends after as much statistical progress as that
        would make at the initial batch size, which may be more, or less, than one pass.

        Between any two steps the job may be stopped, and goes on there when it is started again.
        """
        if len(self.dataset) == 0:
            return
        elastic = self._elastic
        elastic._examples = len(self.dataset)
        with elastic.context():
            if elastic.skipdone():
                return
            loop = elastic._bound()
            batches, what, i = None, PLAN, 0
            self._behind = 0
            while True:
                if what == PLAN:
                    batches = None  # the workers, if there are any, end before others begin
                    self._behind += i
                    size, left, count = self._plan(loop)
                    batches, i = super().__iter__(), 0
                what = elastic._advance(i == count)
                if what == GO:
                    loop.step(min(size, left - i * size), i == count - 1)
                    elastic.extra = int((i + 1) * size >= left and self.sampler.padded)
                    yield next(batches)
                    elastic._commit()
                    i += 1
                elif what == PASSED:
                    if not loop.more():
                        return
                    what, i, self._behind = PLAN, 0, 0

    def _plan(self, loop):
        """The rest of the pass, for the replicas that there are now: size of a batch, examples, batches."""
        size = self._elastic.sync_local_bsz()
        epoch = current_epoch()
        self.sampler._goto(loop.outside if epoch is None else epoch, loop.index, loop.deal)
        left = len(self.sampler)
        self.batch_sampler.batch_size = size
        # A pass of less than one batch is not dropped: after a restart it may be all that is left.
        self.batch_sampler.drop_last = self.drop_last and left >= size
        self.worker_init_fn.rank = env.replica_rank()
        # A thread may end before its process does, and its workers would with it.
        in_main = threading.current_thread() is threading.main_thread()
        self.worker_init_fn.parent = os.getpid() if in_main else 0
        return size, left, loop.batches(self.drop_last)
