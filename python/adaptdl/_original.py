"""Checkpoints that the original package wrote: directories checkpoint-N with a file for each state, most of them
pickles. They are read once, when a job finds no checkpoint of this package's; what it saves then is in the library's
format, and the old directory stays as it is.

Nothing in them is executed: the unpickler here knows tensors, arrays and plain containers, and whatever else a file
names is refused, by name, with the file's. States of the program's own are handed to their ``load`` as they are.
"""

import collections
import io
import logging
import math
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

_FLAT = (type(None), bool, int, float, complex, str, bytes)  # what keys and members of sets are, or tuples of them
_DTYPE = re.compile(r"[<>|=]?([biufc])(\d{1,2})")


def _bad(text):
    return pickle.UnpicklingError(text)


class _Dtype:
    """What a file says of a NumPy type. NumPy's own objects take whole memory layouts from a file."""

    def __init__(self, code, *_flags):
        if not isinstance(code, str) or not _DTYPE.fullmatch(code):
            raise _bad("it holds an array of a type that is not read from a checkpoint")
        self.code, self.order = code.lstrip("<>|="), "="

    def set(self, state):
        """Takes the byte order, and no more."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "=") \
                or any(part is not None for part in state[2:5]):
            raise _bad("it holds an array of a type with fields, which is not read from a checkpoint")
        self.order = state[1]
        return self

    def numpy(self):
        import numpy
        return numpy.dtype(self.order + self.code)


class _Array:
    """An array whose contents are still to come."""

    array = None

    def set(self, state):
        """The array itself, a copy of nothing but its bytes."""
        import numpy
        _version, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes) or not _sizes(shape):
            raise _bad("it holds an array that is not of numbers")
        real, count = dtype.numpy(), math.prod(shape)
        if len(data) != real.itemsize * count:
            raise _bad(f"it holds an array of {count} elements with {len(data)} bytes")
        self.array = numpy.frombuffer(data, real).reshape(shape, order="F" if fortran else "C").copy("K")
        return self.array


def _sizes(value):
    return isinstance(value, tuple) and len(value) <= 32 and \
        all(type(size) is int and 0 <= size < 2**48 for size in value)


class _Memo(dict):
    """Arrays are remembered before they have contents."""

    def __getitem__(self, key):
        value = super().__getitem__(key)
        return value.array if type(value) is _Array and value.array is not None else value


class _Unpickler(pickle._Unpickler):
    """Knows data; refuses the rest. It hands no class and no function of any module to the file, only what is
    made here for this one file; objects take no state but those below; and what a file makes is bounded by its
    size."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, data):
        super().__init__(io.BytesIO(data))
        self.memo = _Memo()
        self._left = len(data)  # elements and bytes that may be copied: each came from the file once
        self._known = self._functions()

    def _functions(self):
        """{(module, name): what is handed out}"""
        plain = {"list": list, "tuple": tuple, "dict": dict, "set": set, "frozenset": frozenset}
        made = {name: self._of(kind) for name, kind in plain.items()}
        made.update({kind.__name__: self._factory(kind) for kind in (int, float, bool, str, bytes)})
        made.update(complex=self._complex, bytearray=self._bytearray)
        known = {(module, name): value for name, value in made.items() for module in ("builtins", "__builtin__")}
        self._factories = {id(made[name]): kind for name, kind in plain.items()}
        self._factories.update({id(made[kind.__name__]): kind for kind in (int, float, bool, str, bytes)})
        known.update({("collections", "OrderedDict"): self._of(collections.OrderedDict),
                      ("collections", "Counter"): self._of(collections.Counter),
                      ("collections", "defaultdict"): self._defaultdict, ("collections", "deque"): self._deque,
                      ("_codecs", "encode"): self._encode, ("numpy", "ndarray"): "ndarray",
                      ("numpy", "dtype"): lambda *args: _Dtype(*args)})
        for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            known[module, "_reconstruct"], known[module, "scalar"] = self._reconstruct, self._scalar
        return known

    def find_class(self, module, name):
        found = self._known.get((module, name))
        if found is None:
            raise _bad(f"it names {module}.{name}, which is not read from a checkpoint")
        return found

    def _spend(self, value, kinds):
        if not isinstance(value, kinds):
            raise _bad(f"it makes something of a {type(value).__name__}")
        self._left -= len(value)
        if self._left < 0:
            raise _bad("it holds more than its size allows")
        return value

    # ---- what it may call ----

    def _of(self, kind):
        def make(*args):
            if len(args) > 1:
                raise _bad(f"it makes a {kind.__name__} of {len(args)} things")
            for values in args:
                self._spend(values, (list, tuple, dict, set, frozenset))
                if kind not in (list, tuple):
                    pairs = kind in (dict, collections.OrderedDict) and not isinstance(values, dict)
                    self._check_keys([pair[0] for pair in values] if pairs else values)
            return kind(*args)
        return make

    @staticmethod
    def _factory(kind):
        def make():
            return kind()
        return make

    @staticmethod
    def _complex(real, imaginary):
        if type(real) is not float or type(imaginary) is not float:
            raise _bad("it holds a complex number of other things")
        return complex(real, imaginary)

    def _bytearray(self, data=b"", encoding="latin-1"):
        return bytearray(data if isinstance(self._spend(data, (str, bytes)), bytes) else data.encode("latin1"))

    def _encode(self, text, encoding="latin1"):
        """Bytes in pickles of the older protocols."""
        return self._spend(text, str).encode("latin1")

    def _defaultdict(self, factory=None, values=()):
        made = collections.defaultdict(self._factories.get(id(factory)))
        made.update(self._known["builtins", "dict"](values))
        return made

    def _deque(self, values=(), limit=None):
        if limit is not None and type(limit) is not int:
            raise _bad("it holds a deque without a length")
        return collections.deque(self._spend(values, (list, tuple)), limit)

    @staticmethod
    def _reconstruct(subtype, _shape, _code):
        """What a NumPy array is made with before its contents are set."""
        if subtype != "ndarray":
            raise _bad("it holds an array of a class of its own")
        return _Array()

    @staticmethod
    def _scalar(dtype, data=b""):
        import numpy
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes) or len(data) != dtype.numpy().itemsize:
            raise _bad("it holds a number of NumPy's that is none")
        return numpy.frombuffer(data, dtype.numpy())[0]

    # ---- opcodes ----

    @staticmethod
    def _check_keys(keys):
        """Keys of any depth take for ever, or the whole stack, to be hashed."""
        for key in keys:
            parts = key if type(key) is tuple else (key,)
            if len(parts) > 64 or not all(type(part) in _FLAT or type(part).__module__ == "numpy" for part in parts):
                raise _bad(f"it has a {type(key).__name__} as a key")

    def load_build(self):
        """States of the three kinds of objects that have one."""
        state = self.stack.pop()
        made = self.stack[-1]
        if type(made) is _Array:
            self._spend(state[4], bytes)
        if type(made) in (_Dtype, _Array):
            self.stack[-1] = made.set(state)
        elif type(made) is collections.OrderedDict and isinstance(state, dict) and set(state) == {"_metadata"}:
            made._metadata = state["_metadata"]  # of a module's state_dict()
        else:
            raise _bad(f"it gives a {type(made).__name__} a state")

    def load_newobj(self):
        """Nothing that is read here is made this way."""
        raise _bad("it makes an object of a class, which is not read from a checkpoint")

    def load_bytearray8(self):
        """The standard one makes room before it reads."""
        length = int.from_bytes(self.read(8), "little")
        if length > self._left:
            raise _bad("it ends too early")
        self.append(self._bytearray(self.read(length)))

    def _checked(opcode, keys):
        standard = pickle._Unpickler.dispatch[opcode[0]]

        def load(self):
            self._check_keys(keys(self.stack))
            if opcode in (pickle.SETITEM, pickle.SETITEMS):
                target = self.stack[-3] if opcode == pickle.SETITEM else self.metastack[-1][-1]
                if not isinstance(target, dict):
                    raise _bad(f"it sets an item of a {type(target).__name__}")
            standard(self)
        return load

    dispatch.update({pickle.BUILD[0]: load_build, pickle.NEWOBJ[0]: load_newobj, pickle.NEWOBJ_EX[0]: load_newobj,
                     pickle.BYTEARRAY8[0]: load_bytearray8,
                     pickle.SETITEM[0]: _checked(pickle.SETITEM, lambda stack: stack[-2:-1]),
                     pickle.SETITEMS[0]: _checked(pickle.SETITEMS, lambda stack: stack[::2]),
                     pickle.DICT[0]: _checked(pickle.DICT, lambda stack: stack[::2]),
                     pickle.ADDITEMS[0]: _checked(pickle.ADDITEMS, lambda stack: stack),
                     pickle.FROZENSET[0]: _checked(pickle.FROZENSET, lambda stack: stack)})


def _load(file):
    return _Unpickler(file.read()).load()


class _TensorUnpickler(_Unpickler):
    """A file of torch.save: a zip archive with a pickle and the bytes of each storage. torch.load would call
    whatever the pickle names."""

    _TYPES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
              "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
              "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
              "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"}

    def __init__(self, data):
        import torch
        self._torch, self._storages, self._unread = torch, {}, len(data)
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        index, = [name for name in self._archive.namelist() if name.endswith("/data.pkl")]
        self._folder = index[:-len("data.pkl")]
        super().__init__(self._entry(index))

    def _entry(self, name):
        """What a file of the archive holds; PyTorch compresses none."""
        entry = self._archive.getinfo(name)
        self._unread -= entry.file_size
        if entry.compress_type != zipfile.ZIP_STORED or self._unread < 0:
            raise _bad(f"its {entry.filename.rpartition('/')[2]} is compressed, or overlaps another")
        return self._archive.read(entry)

    def find_class(self, module, name):
        torch = self._torch
        if module == "torch" and name in self._TYPES:
            return getattr(torch, self._TYPES[name])
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module == "torch" and name == "Size":
            return lambda sizes: torch.Size(sizes) if _sizes(sizes) else self.find_class("torch.Size", "other")
        if module == "torch" and name == "device":
            return lambda *args: torch.device(*args)
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return lambda *args: self._tensor(*args)
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda data, *_: data
        return super().find_class(module, name)

    def persistent_load(self, key):
        """The elements of a storage, as a tensor."""
        kind, dtype, name, _location, _count = key
        if kind != "storage" or not isinstance(dtype, self._torch.dtype) or not isinstance(name, str):
            raise _bad("it holds a reference to something that is no storage")
        if name not in self._storages:
            data = bytearray(self._entry(f"{self._folder}data/{name}"))
            self._storages[name] = self._torch.frombuffer(data, dtype=dtype) if data \
                else self._torch.empty(0, dtype=dtype)
        return self._storages[name]

    def _tensor(self, storage, offset, size, stride, *_):
        """Tensors of one storage share it, as they did."""
        size, stride = tuple(size), tuple(stride)
        if not isinstance(storage, self._torch.Tensor) or not _sizes(size + stride + (offset,)):
            raise _bad("it holds a tensor of no storage")
        if math.prod(size) > storage.numel():
            raise _bad(f"it holds a tensor of {math.prod(size)} elements, and its storage has {storage.numel()}")
        return self._torch.as_strided(storage, size, stride, offset)


def read_torch(file):
    """What torch.save wrote to a file, if it is plain data; nothing in it is executed. (PyTorch's own such reader
    knows no plain numbers before 2.0.)

    Args:
        file (BinaryIO): The file, of PyTorch 1.6 or later.

    Raises:
        ValueError: If it is something else; the text names what it holds.
    """
    try:
        return _TensorUnpickler(file.read()).load()
    except Exception as error:  # an unpickler may raise anything
        raise ValueError(str(error) or type(error).__name__) from error


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
        raise _refuse(file, f"it holds a {type(value).__name__}, not a whole number")
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
