"""Classes whose instances can be sent to other replicas and kept in checkpoints, beside Python's plain types: by a
registry of names, not by pickle. What arrives is a name and plain data; a name that this program does not know is an
error, and of those that it knows nothing is called but what was registered here.

Named tuples and dataclasses need no registration: they are made of their fields alone, without their constructor.
"""

import collections
import datetime
import decimal
import fractions
import sys

_by_type = {}  # class: (name, to_value)
_by_name = {}  # name: from_value
_factories = {}  # name: default_factory of a defaultdict


def register(cls, to_value=None, from_value=None):
    """See :func:`adaptdl.collective.register`."""
    if not isinstance(cls, type):
        raise TypeError(f"a class is registered, not {cls!r}")
    if (to_value is None) != (from_value is None):
        raise TypeError("give both to_value and from_value, or none of them")
    _add(cls, _name_of(cls), to_value or _attributes, from_value or _maker(cls))
    return cls


def _add(cls, name, to_value, from_value):
    _by_type[cls] = name, to_value
    _by_name[name] = from_value


def _name_of(thing):
    return f"{thing.__module__}:{thing.__qualname__}"


def _attributes(value):
    return dict(vars(value))


def _maker(cls):
    def make(attributes):
        value = cls.__new__(cls)
        value.__dict__.update(attributes)
        return value
    return make


def dump(value):
    """Name and plain data of a value; None when its class is not known. Called by the library."""
    cls = type(value)
    known = _by_type.get(cls)
    if known is None and not _learn(cls):
        return None
    name, to_value = _by_type[cls]
    return name, to_value(value)


def load(name, data):
    """The value of what :func:`dump` gave, here or elsewhere. Called by the library."""
    if name not in _by_name:
        cls = _find(name)
        if cls is None or not _learn(cls):
            raise ValueError(f"a {name} was sent or saved, and is not known here: adaptdl.collective.register it")
    try:
        return _by_name[name](data)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a {name} was sent or saved that cannot be one: {error}") from error


def _learn(cls):
    """Named tuples and dataclasses are known by what they are."""
    if issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple):
        _add(cls, _name_of(cls), tuple, lambda data: _named_tuple(cls, data))
    elif isinstance(cls.__dict__.get("__dataclass_fields__"), dict):
        names = tuple(cls.__dataclass_fields__)
        _add(cls, _name_of(cls), lambda value: _fields_of(value, names), lambda data: _dataclass(cls, names, data))
    else:
        return False
    return True


def _named_tuple(cls, data):
    if type(data) is not tuple or len(data) != len(cls._fields):
        raise TypeError(f"it has {len(cls._fields)} fields")
    return tuple.__new__(cls, data)


def _fields_of(value, names):
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _dataclass(cls, names, data):
    value = object.__new__(cls)
    for name, field in data.items():
        if name not in names:
            raise TypeError(f"it has no field {name!r}")
        object.__setattr__(value, name, field)
    return value


def _find(name):
    """A class of a module that is loaded, by name; nothing is imported, and no code runs."""
    module, _, path = name.partition(":")
    found = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


# ---- of Python's own ----

def _factory_name(factory):
    """The name of a defaultdict's factory. Functions of the program's own are noted where they are sent: all
    replicas run the same program."""
    if factory is None:
        return None
    code = getattr(factory, "__code__", None)
    name = _name_of(factory) if hasattr(factory, "__qualname__") else repr(factory)
    if code is not None:
        name += f":{code.co_firstlineno}"
    _factories.setdefault(name, factory)
    return name


def _default_dict(data):
    name, contents = data
    if name is not None and name not in _factories:
        raise KeyError(f"default_factory {name} was not used here")
    return collections.defaultdict(None if name is None else _factories[name], contents)


for _type in (int, float, complex, bool, str, bytes, list, tuple, dict, set, collections.Counter,
              collections.OrderedDict, collections.deque):
    _factory_name(_type)
_add(collections.Counter, "Counter", dict, lambda data: _filled(collections.Counter(), data))
_add(collections.OrderedDict, "OrderedDict", lambda value: list(value.items()), collections.OrderedDict)
_add(collections.deque, "deque", lambda value: (list(value), value.maxlen), lambda data: collections.deque(*data))
_add(collections.defaultdict, "defaultdict", lambda value: (_factory_name(value.default_factory), dict(value)),
     _default_dict)
_add(fractions.Fraction, "Fraction", lambda value: (value.numerator, value.denominator),
     lambda data: fractions.Fraction(*data))
_add(decimal.Decimal, "Decimal", str, decimal.Decimal)
_add(datetime.date, "date", datetime.date.isoformat, datetime.date.fromisoformat)
_add(datetime.datetime, "datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat)
_add(datetime.timedelta, "timedelta", lambda value: (value.days, value.seconds, value.microseconds),
     lambda data: datetime.timedelta(*data))


def _filled(empty, data):
    for key, value in data.items():  # as they are: a Counter may hold what is no number
        empty[key] = value
    return empty
