"""Checkpoints that the original package wrote: directories checkpoint-N with a file for each state, most of them
pickles. They are read once, when a job finds no checkpoint of this package's; what it saves then is in the library's
format, and the old directory stays as it is.

Nothing in them is executed: the unpickler here knows tensors, arrays and plain containers, and whatever else a file
names is refused, by name, with the file's. States of the program's own are handed to their ``load`` as they are.
"""

import collections
import io
import logging
import os
import pickle
import re
import zipfile

_LOG = logging.getLogger(__name__)
_DIRECTORY = re.compile(r"checkpoint-(\d+)")
_LOADER = re.compile(r"adaptdl-dataloader-epoch(None|\d+)-(\d+)")
_ACCUMULATOR = re.compile(r"adaptdl-accumulator-epoch(None|\d+)-(\d+)")

_loaders = {}       # (epoch, order): what Loop.restore takes
_accumulators = {}  # (epoch, order): what Sums.restore takes
_torch = {}         # states of wrappers that are still to be loaded: file

_PLAIN = {"int", "float", "complex", "bool", "str", "bytes", "bytearray", "list", "tuple", "dict", "set",
          "frozenset", "slice", "range"}
_COLLECTIONS = {"OrderedDict", "Counter", "defaultdict", "deque"}


def _array(subtype, shape, dtype):
    """What a NumPy array is made with before its contents are set."""
    import numpy
    if subtype is not numpy.ndarray:
        raise pickle.UnpicklingError(f"an array of the class {subtype!r}")
    return numpy.ndarray.__new__(numpy.ndarray, shape, dtype)


def _scalar(dtype, data=None):
    import numpy
    return numpy.frombuffer(data, dtype)[0]


def _encode(text, encoding="latin1"):
    """Bytes in pickles of the older protocols."""
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Knows data; refuses the rest."""

    def find_class(self, module, name):
        if module in ("builtins", "__builtin__") and name in _PLAIN:
            return getattr(__import__("builtins"), name)
        if module == "collections" and name in _COLLECTIONS:
            return getattr(collections, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if module == "adaptdl.goodput" and name in ("PerfParams", "GradParams"):
            from adaptdl import goodput
            return getattr(goodput, name)
        found = self._numpy(module, name) if module.startswith("numpy") else self._of_torch(module, name)
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not read from a checkpoint")
        return found

    @staticmethod
    def _numpy(module, name):
        import numpy
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return {"_reconstruct": _array, "scalar": _scalar}.get(name)
        return getattr(numpy, name) if module == "numpy" and name in ("ndarray", "dtype") else None

    def _of_torch(self, module, name):
        """Nothing of PyTorch's, here."""
        return None


def _load(file):
    return _Unpickler(file).load()


class _TensorUnpickler(_Unpickler):
    """A file of torch.save: a zip archive with a pickle and the bytes of each storage. torch.load would call
    whatever the pickle names."""

    _TYPES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
              "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
              "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
              "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"}

    def __init__(self, data):
        import torch
        self._torch, self._storages = torch, {}
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        index, = [name for name in self._archive.namelist() if name.endswith("/data.pkl")]
        self._folder = index[:-len("data.pkl")]
        super().__init__(io.BytesIO(self._archive.read(index)))

    def _of_torch(self, module, name):
        if module == "torch" and name in self._TYPES:
            return getattr(self._torch, self._TYPES[name])
        if module == "torch" and name in ("Size", "device"):
            return getattr(self._torch, name)
        if module == "torch" and isinstance(getattr(self._torch, name, None), self._torch.dtype):
            return getattr(self._torch, name)
        rebuild = {"_rebuild_tensor_v2": self._tensor, "_rebuild_parameter": lambda data, *_: data}
        return rebuild.get(name) if module == "torch._utils" else None

    def persistent_load(self, key):
        """The elements of a storage, as a tensor."""
        kind, dtype, name, _location, _count = key
        if kind != "storage" or not isinstance(dtype, self._torch.dtype):
            raise pickle.UnpicklingError(f"it holds a {kind!r} of {dtype!r}")
        if name not in self._storages:
            data = bytearray(self._archive.read(f"{self._folder}data/{name}"))
            self._storages[name] = self._torch.frombuffer(data, dtype=dtype) if data \
                else self._torch.empty(0, dtype=dtype)
        return self._storages[name]

    def _tensor(self, storage, offset, size, stride, *_):
        return self._torch.as_strided(storage, size, stride, offset).clone()


def _refuse(path, error):
    return ValueError(f"{path}: a checkpoint of the original package that cannot be taken over: {error}; move "
                      f"{os.path.dirname(path)} away to start without it")


def _read(path):
    """What was pickled to a file."""
    try:
        with open(path, "rb") as file:
            return _load(file)
    except Exception as error:  # an unpickler may raise anything
        raise _refuse(path, error) from error


def newest(path):
    """The newest checkpoint of the original's in a directory; None when there is none."""
    found = []
    for name in os.listdir(path) if os.path.isdir(path) else ():
        match = _DIRECTORY.fullmatch(name)
        if match and os.path.isdir(os.path.join(path, name)) \
                and not os.path.exists(os.path.join(path, name, "MANIFEST")):
            found.append((int(match.group(1)), name))
    return os.path.join(path, max(found)[1]) if found else None


def adopt(path, own):
    """Called by the library when a context was made: what to take over.

    Args:
        path (str): Where checkpoints are.
        own (str): The checkpoint of this package's that was read; "" for none.

    Returns:
        tuple or None: Finished epochs, and the bytes of each state of the program's, by name.

    Raises:
        ValueError: If there is one that cannot be read.
    """
    for known in (_loaders, _accumulators, _torch):
        known.clear()
    directory = newest(path)
    if directory is None:
        return None
    if own:
        _LOG.info("%s is of the original package, and older than %s: not read", directory, own)
        return None
    epoch, states = 0, {}
    for name in sorted(os.listdir(directory)):
        file = os.path.join(directory, name)
        if name == ".adaptdl-epoch":
            epoch = _whole(file, _read(file))
        elif _LOADER.fullmatch(name):
            _loaders[_place(_LOADER, name)] = file, _read(file)
        elif _ACCUMULATOR.fullmatch(name):
            _accumulators[_place(_ACCUMULATOR, name)] = _sums(file, _read(file))
        elif name != "adaptdl-metrics":  # step times are measured anew
            with open(file, "rb") as opened:
                states[name] = opened.read()
            _torch[name] = file
    _convert_loaders(epoch)
    _LOG.warning("%s was written by the original package: its models, optimizers, epoch, loaders and accumulators are "
                 "taken over; gradient statistics and step times are measured anew", directory)
    return epoch, states


def _whole(file, value):
    if type(value) is not int or not 0 <= value < 2**31:
        raise _refuse(file, f"{value!r} epochs")
    return value


def _place(pattern, name):
    epoch, order = pattern.fullmatch(name).groups()
    return None if epoch == "None" else int(epoch), int(order)


def _convert_loaders(epoch):
    """Positions of loops are counted over all loaders there, and for each loader here. Loaders take turns."""
    for place, (file, saved) in _loaders.items():
        try:
            index, end, last = saved
            last = {key: _whole(file, value) for key, value in last.items()}
            _loaders[place] = [_whole(file, index), _whole(file, end), last]
        except (TypeError, ValueError, AttributeError) as error:
            raise _refuse(file, error) from error

    def done(last, key):
        turns = sum(key in other[2] for other in _loaders.values())
        return last[key] // turns + 1 if key in last else 0

    places = {place: (index, end, epoch if epoch in last else -1, done(last, epoch), done(last, None))
              for place, (index, end, last) in _loaders.items()}
    _loaders.update(places)


def _sums(file, saved):
    try:
        history, results = saved
        moments = [(-1 if epoch is None else epoch, dict(some)) for epoch, seen in history.items() for some in seen]
        return dict(results), moments
    except (TypeError, ValueError, AttributeError) as error:
        raise _refuse(file, error) from error


def restore_loader(loop, epoch, order):
    """The place of a loader, if the original saved one."""
    if (epoch, order) in _loaders:
        loop.restore(*_loaders.pop((epoch, order)))


def restore_accumulator(sums, epoch, order):
    """The sums of an accumulator, if the original saved them."""
    if (epoch, order) in _accumulators:
        sums.restore(_accumulators.pop((epoch, order)))


def read_wrapper(name, fileobj):
    """The state dicts of an AdaptiveDataParallel, if it is now loaded from a checkpoint of the original's.

    Args:
        name (str): The wrapper's name.
        fileobj (BinaryIO): What was saved.

    Returns:
        dict or None: {"model": ..., "optimizer": ..., "lr_scheduler": ..., "mp_scaler": ...}; None: not the original's.
    """
    file = _torch.pop(name, None)
    if file is None:
        return None
    try:
        dicts, _gain, _factor = _TensorUnpickler(fileobj.read()).load()
        saved = {key: part for key, part in zip(("model", "optimizer", "lr_scheduler", "mp_scaler"), dicts)
                 if part is not None}
        if not all(isinstance(part, dict) for part in (saved["model"], saved["optimizer"]["state"])):
            raise TypeError("it has no model and optimizer")
        return saved
    except Exception as error:
        raise _refuse(file, error) from error
