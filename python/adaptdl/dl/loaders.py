"""The loaders of a run: checked, and made into loaders of the engine's kind."""

import random
import sys
import warnings

import torch
from torch.utils.data import (
    BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from adaptdl import _core
from adaptdl.torch.data import AdaptiveDataLoader, AdaptiveDataLoaderMixin

__all__ = ["BatchLimitLoader", "check_loaders", "distributed_loader", "elastic_loader", "library_loop",
           "loader_batch_size", "loader_samples", "repeated"]

KINDS = ("train", "valid", "infer")


def check_loaders(loaders):
    """The loaders as a dict, each one usable.

    Args:
        loaders (dict): Loaders by key.

    Returns:
        dict: The same loaders; one whose sampler belongs to another data set has one of its own.

    Raises:
        TypeError, ValueError: If they are no dict, or a key or loader is wrong; the text names it.
    """
    if loaders is None:
        raise ValueError("loaders is None, and get_loaders() of the runner gives None too: pass loaders= or "
                         "override get_loaders")
    if not hasattr(loaders, "items"):
        raise TypeError(f"loaders must be a dict of DataLoaders, not {type(loaders).__name__}")
    checked = {}
    for key, loader in loaders.items():
        if not isinstance(key, str) or not key.startswith(KINDS):
            raise ValueError(f"loader key {key!r}: keys start with 'train', 'valid' or 'infer'; there are "
                             f"{', '.join(map(repr, loaders))}")
        if not hasattr(loader, "__iter__") or not hasattr(loader, "__len__"):
            raise TypeError(f"loader {key!r} must be a DataLoader (something with __iter__ and __len__), not "
                            f"{type(loader).__name__}")
        checked[key] = _own_sampler(key, loader)
    if not checked:
        raise ValueError("loaders is empty: there is nothing to go over")
    return checked


def _own_sampler(key, loader):
    """A loader whose sampler was made for another data set gets one of the same kind for its own: its
    numbers would be out of range, or leave examples out."""
    sampler = getattr(loader, "sampler", None)
    source = getattr(sampler, "data_source", getattr(sampler, "dataset", None))
    if not isinstance(loader, DataLoader) or source is None or source is loader.dataset \
            or not isinstance(loader.batch_sampler, BatchSampler):
        return loader
    if isinstance(sampler, DistributedSampler):
        own = DistributedSampler(loader.dataset, sampler.num_replicas, sampler.rank, sampler.shuffle,
                                 sampler.seed, sampler.drop_last)
    elif type(sampler) is SequentialSampler:
        own = SequentialSampler(loader.dataset)
    elif type(sampler) is RandomSampler:
        own = RandomSampler(loader.dataset)
    else:
        return loader
    warnings.warn(f"loader {key!r}: its {type(sampler).__name__} belongs to another data set "
                  f"({len(source)} examples, the loader's has {len(loader.dataset)}); it gets one of its own")
    return _remake(loader, DataLoader, sampler=own, batch_size=loader.batch_size)


def _remake(loader, kind, **changes):
    """A loader with the same settings but these."""
    settings = {name: getattr(loader, name) for name in
                ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn",
                 "multiprocessing_context", "generator", "persistent_workers")}
    if loader.num_workers > 0:
        settings["prefetch_factor"] = loader.prefetch_factor
    settings.update(changes)
    return kind(loader.dataset, **settings)


def loader_batch_size(loader):
    """How many examples a batch of the loader has; 0 when it does not say."""
    size = getattr(loader, "batch_size", None)
    return size or getattr(getattr(loader, "batch_sampler", None), "batch_size", None) or 0


def loader_samples(loader):
    """How many examples a loop over the loader has, as far as it says."""
    if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__"):
        return len(loader) * loader_batch_size(loader)
    size, count = loader_batch_size(loader), len(loader.dataset)
    if not isinstance(loader.batch_sampler, BatchSampler):
        return len(loader) * size
    return count // size * size if loader.drop_last and size else count


def repeated(loader, number):
    """How many examples at the end of a batch are another process's too: those that make all shares equally long.

    Args:
        loader: The loader.
        number (int): Which of its batches, from 0 on.
    """
    loader = getattr(loader, "origin", loader)  # of a BatchLimitLoader
    if isinstance(loader, AdaptiveDataLoaderMixin):
        return loader._elastic.extra
    sampler, size = getattr(loader, "sampler", None), loader_batch_size(loader)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last or (number + 1) * size < len(sampler):
        return 0
    return int((len(sampler) - 1) * sampler.num_replicas + sampler.rank >= len(sampler.dataset))


def library_loop(loader):
    """The library's loop of an elastic loader, made if need be; None of others."""
    loader = getattr(loader, "origin", loader)
    if not isinstance(loader, AdaptiveDataLoaderMixin):
        return None
    loop = loader._elastic._bound()
    if isinstance(loader, AdaptiveDataLoader):
        loop.rewinds()  # what the runner counts in it can be taken back
    return loop


def distributed_loader(key, loader, rank, count, seed=0):
    """This process's share of a loader; ``batch_size`` is that of each process.

    Args:
        key (str): Its key, for the error's text.
        loader (DataLoader): The loader.
        rank (int): This process.
        count (int): How many processes there are.
        seed (int): For samplers of other kinds than PyTorch's own.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.sampler, DistributedSampler):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(f"loader {key!r}: an IterableDataset cannot be divided among {count} processes; divide it "
                         "in get_loaders(), by self.engine.process_index")
    if type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(f"loader {key!r}: batches of a {type(loader.batch_sampler).__name__} cannot be divided "
                         f"among {count} processes; divide them in get_loaders(), by self.engine.process_index")
    if not _whole(loader):
        sampler = _DrawnShare(loader.sampler, rank, count, seed)
    else:
        sampler = DistributedSampler(loader.dataset, count, rank, shuffle=type(loader.sampler) is RandomSampler)
    return _remake(loader, DataLoader, sampler=sampler, batch_size=loader.batch_size)


def _whole(loader):
    """Does its sampler go over all of the data once, in order or in any order? Others mean something."""
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return True
    return type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(loader.dataset)


def _draw(sampler, seed):
    """What a sampler of the program's own draws in an epoch: the same in every process, wherever it takes its
    random numbers from."""
    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    numpy, ours = sys.modules.get("numpy"), random.getstate()
    theirs = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed % 2**32)
            return list(sampler)
    finally:
        random.setstate(ours)
        if numpy:
            numpy.random.set_state(theirs)


class _DrawnShare(DistributedSampler):
    """A process's share of what a sampler of the program's own draws; the first ones again where it does not
    divide."""

    def __init__(self, sampler, rank, count, seed):
        super().__init__(sampler, count, rank, shuffle=False, seed=seed)
        self.sampler = sampler

    def __iter__(self):
        drawn = _draw(self.sampler, self.seed + self.epoch)
        share = drawn[self.rank::self.num_replicas]
        if drawn and len(share) < -(-len(drawn) // self.num_replicas):
            share.append(drawn[0])
        return iter(share)


class _Drawn(torch.utils.data.Dataset):
    """The examples that a sampler of the program's own draws in an epoch, in its order: the same on every
    replica and after a restart, since it draws from numbers seeded by the epoch."""

    def __init__(self, dataset, sampler, seed):
        self.dataset, self.sampler, self.seed = dataset, sampler, seed
        self.places = []

    def draw(self, epoch):
        self.places = _draw(self.sampler, self.seed + epoch)

    def __len__(self):
        return len(self.sampler)

    def __getitem__(self, index):
        return self.dataset[self.places[index]]


class _DrawnLoader(AdaptiveDataLoader):
    """An AdaptiveDataLoader over the examples of a sampler."""

    def __iter__(self):
        from adaptdl.torch.epoch import current_epoch
        self.dataset.draw(current_epoch() or 0)
        return super().__iter__()


def elastic_loader(key, loader, seed):
    """An AdaptiveDataLoader for a loader of PyTorch's: ``batch_size`` becomes the total over all replicas.

    Args:
        key (str): Its key, for the error's text.
        loader (DataLoader): The loader.
        seed (int): For samplers of other kinds than PyTorch's own.
    """
    if isinstance(loader, AdaptiveDataLoaderMixin):
        return loader
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader {key!r} must be a DataLoader or an AdaptiveDataLoader to be elastic, not "
                        f"{type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise ValueError(f"loader {key!r}: elastic training needs a data set with a length and numbered examples, "
                         f"not {type(loader.dataset).__name__}")
    if type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(f"loader {key!r}: elastic training makes its own batches; a "
                         f"{type(loader.batch_sampler).__name__} cannot be used")
    sampler, size = loader.sampler, loader.batch_size
    if (isinstance(sampler, DistributedSampler) or _whole(loader)) and len(loader.dataset) > 0:
        shuffle = getattr(sampler, "shuffle", type(sampler) is RandomSampler)
        return _remake(loader, AdaptiveDataLoader, batch_size=size, shuffle=shuffle)
    drawn = _Drawn(loader.dataset, sampler, seed)
    # Workers that stay would keep the first epoch's draw.
    return _remake(loader, lambda _, **settings: _DrawnLoader(drawn, **settings), batch_size=size,
                   persistent_workers=False)


class BatchLimitLoader:
    """The first batches of a loader, the same in every loop.

    Args:
        loader: The loader.
        num_batches (int): How many; what it has, if that is less.
    """

    def __init__(self, loader, num_batches):
        self.origin = loader
        self._batches = []
        self.num_batches = max(1, min(int(num_batches), len(loader)))

    def __getattr__(self, name):
        if name == "origin":
            raise AttributeError(name)
        return getattr(self.origin, name)

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        number = 0
        for batch in self.origin:
            if len(self._batches) <= number:
                self._batches.append(batch)
            yield self._batches[number]
            number += not _core.lost()  # else it comes again
            if number >= self.num_batches:
                break
