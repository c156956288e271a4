#!/usr/bin/python3
"""The encoding of values: what is sent comes back, and bytes from a stranger do no harm."""

import collections
import dataclasses
import datetime
import decimal
import fractions
import os
import pickle
import random
import struct

import harness
import numpy as np
import pytest

from adaptdl import _core, collective

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class Number(int):
    pass


class Own:
    def __init__(self, value):
        self.value = value


class Odd(dict):
    def items(self):
        raise KeyError


def u64(number):
    return struct.pack("<Q", number)


VALUES = [
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -2**63, 2**63, -2**63 - 1, 2**4000 + 1, -7**900, 0.0, -0.0, 1.5,
    float("inf"), 5e-324, 1 - 2j, "", "text", "h\u00e9\u4e2d\U0001f600", "\ud800", "a\0b", b"", b"\x00\xff", bytearray(b"x"),
    [], [1, [2, [3]]], (), (1, (2,)), {}, {"a": 1, 2: [3], (4, 5): None}, set(), {1, "a"}, frozenset({(1, 2)}),
    [True, 1, 1.0], {"nested": {"deeper": [({1},)]}},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20].encode("ascii", "replace").decode())
def test_values_come_back(value):
    back = _core.value_decode(_core.value_encode(value))
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value) or isinstance(value, (set, frozenset, dict, list))


def test_nan_comes_back():
    assert str(_core.value_decode(_core.value_encode(float("nan")))) == "nan"


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8",
                                   "c16", ">i4", ">f8"])
def test_arrays_and_their_scalars_come_back(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for sent in (array, array.T, array[::-1, ::2], array[:0], array[0, 0, 0:1], np.asarray(array[1, 2, 3])):
        back = _core.value_decode(_core.value_encode(sent))
        assert isinstance(back, np.ndarray) and back.shape == sent.shape
        assert back.dtype == sent.dtype.newbyteorder("<") and np.array_equal(back, sent)
        if back.size:
            back[...] = 0  # writable
    scalar = array[1, 1, 1]
    back = _core.value_decode(_core.value_encode(scalar))
    assert back == scalar
    if not isinstance(scalar, (float, complex)):  # those are Python's own as well
        assert back.dtype == scalar.dtype.newbyteorder("<")


def test_subclasses_travel_as_what_they_extend():
    for value, plain in ((Odd(a=1), {"a": 1}), (Number(7), 7), (np.float64(2.5), 2.5)):
        back = _core.value_decode(_core.value_encode(value))
        assert back == plain and type(back) is type(plain)


def test_classes_that_keep_their_type():
    values = [Pair(1, [2]), Point(3, [Pair(4, 5)]), Frozen(9), collections.Counter(a=1, b=-2),
              collections.defaultdict(list, {(1, 2): [3]}), collections.defaultdict(lambda: 7, a=1),
              collections.OrderedDict(b=1, a=2), collections.deque([1], 3), decimal.Decimal("1.50"),
              fractions.Fraction(2, 6), datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.date(2026, 1, 2),
              datetime.timedelta(1, 2, 3)]
    for value in values + [values, {"k": values}]:
        back = _core.value_decode(_core.value_encode(value))
        assert back == value and type(back) is type(value)
    assert _core.value_decode(_core.value_encode(values[4]))["new"] == []
    assert _core.value_decode(_core.value_encode(values[5]))["new"] == 7


def test_a_class_that_is_registered():
    with pytest.raises(TypeError, match="Own cannot be sent.*register"):
        _core.value_encode(Own(1))
    assert collective.register(Own) is Own
    assert _core.value_decode(_core.value_encode([Own(5)]))[0].value == 5
    collective.register(Own, lambda own: own.value, lambda value: Own(value + 1))
    assert _core.value_decode(_core.value_encode(Own(5))).value == 6
    for wrong in ((5,), (Own, str), (Own, None, str)):
        with pytest.raises(TypeError):
            collective.register(*wrong)


def named(name, data=b"N"):
    return b"\x01o" + u64(len(name)) + name + data


@pytest.mark.parametrize("data", [
    named(b"os:system", b"s" + u64(4) + b"true"), named(b"subprocess:Popen"), named(b"builtins:eval"),
    named(b"test_core_values:Evil"), named(b"__main__:Evil"), named(b"no.such:Thing"), named(b""), named(b"\xff"),
    named(b"Counter"), named(b"deque"), named(b"defaultdict"), named(b"Decimal", b"s" + u64(1) + b"x"),
    named(b"date", b"s" + u64(1) + b"x"), named(b"defaultdict", b"t" + u64(2) + b"s" + u64(2) + b"osm" + u64(0)),
    named(b"collections:OrderedDict"), named(b"x", b""), named(b"Fraction", b"t" + u64(2) + b"i" + u64(1) + b"i" + u64(0)),
    b"\x01" + named(b"Counter", b"")[1:] * 1000 + b"N"])
def test_names_of_nothing_that_is_known_are_value_errors(data):
    with pytest.raises(ValueError):
        _core.value_decode(data)


def test_what_a_data_class_cannot_be_is_a_value_error():
    for good in (Pair(1, 2), Point(1)):
        data = _core.value_encode(good)
        assert _core.value_decode(data) == good
    pair, point = _core.value_encode(Pair(1, 2)), _core.value_encode(Point(1))
    for bad in (pair.replace(b"t" + u64(2), b"t" + u64(1), 1)[:-9], pair[:-27] + b"N", point.replace(b"y", b"z")):
        with pytest.raises(ValueError):
            _core.value_decode(bad)


def test_tensors_come_back():
    torch = pytest.importorskip("torch", reason="no torch")
    for tensor in (torch.arange(6.0).reshape(2, 3).t(), torch.tensor(3), torch.ones(2, requires_grad=True)):
        back = _core.value_decode(_core.value_encode(tensor))
        assert isinstance(back, torch.Tensor) and back.dtype == tensor.dtype and torch.equal(back, tensor)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("value, name", [
    (object(), "object"), (Evil(), "Evil"), (lambda: 1, "function"), (os, "module"), (range(3), "range"),
    ([1, {2: (Evil(),)}], "Evil"), (np.array([Evil()]), "object"), (np.array(["text"]), "<U4"),
    (np.array([1], dtype="M8[s]"), "datetime64"), (np.zeros(2, dtype=[("a", "i4")]), "a"), (Evil, "type"),
    (iter([]), "list_iterator"), (Ellipsis, "ellipsis")])
def test_what_cannot_be_sent_is_named(value, name):
    with pytest.raises(TypeError) as caught:
        _core.value_encode(value)
    assert name in str(caught.value)


def test_odd_subclasses_do_no_harm():
    assert _core.value_decode(_core.value_encode(Odd(a=1))) == {"a": 1}


def test_values_in_themselves_are_refused():
    endless = []
    endless.append(endless)
    mapping = {}
    mapping["self"] = mapping
    deep = ()
    for _ in range(100000):
        deep = (deep,)
    for value in (endless, mapping, deep):
        with pytest.raises(ValueError, match="nested deeper"):
            _core.value_encode(value)
    while deep:  # freed layer by layer: older interpreters recurse
        deep = deep[0]


@pytest.mark.parametrize("data", [
    b"", b"\x02N", b"\x01", b"\x01?", b"\x01NN", b"\x01i\0", b"\x01d\0\0", b"\x01s" + u64(5) + b"abc",
    b"\x01s" + u64(2**64 - 1), b"\x01l" + u64(2**62), b"\x01l" + u64(2) + b"N", b"\x01m" + u64(1) + b"N",
    b"\x01m" + u64(1) + b"l" + u64(0) + b"N", b"\x01S" + u64(1) + b"l" + u64(0), b"\x01s" + u64(1) + b"\xff",
    b"\x01af\x08\x01" + u64(2) + b"\0" * 15, b"\x01aO\x08\x00" + b"\0" * 8, b"\x01af\x08\xff",
    b"\x01af\x08\x02" + u64(2**40) + u64(2**40), b"\x01" + (b"l" + u64(1)) * 1000 + b"N",
    b"\x01ai\x08\x02" + u64(0) + u64(2**62), pickle.dumps(Evil()), pickle.dumps([1, 2])])
def test_broken_messages_are_value_errors(data):
    with pytest.raises(ValueError):
        _core.value_decode(data)


def test_random_messages_never_do_more_than_fail():
    count = int(os.environ.get("ADL_PYTHON_FUZZ", 20000))
    rng = random.Random(7)
    seeds = [_core.value_encode(value) for value in VALUES] + [
        _core.value_encode(value) for value in (np.arange(6.0).reshape(2, 3), np.int8(1), np.zeros((0, 2)))]
    decoded = 0
    for _ in range(count):
        data = bytearray(rng.choice(seeds) + (rng.choice(seeds)[1:] if rng.random() < 0.3 else b""))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            change = rng.randrange(4)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1:
                data[at:at] = rng.choice((b"l", b"m", b"S", b"a", b"I", u64(rng.randrange(4)), b"\xff" * 8))
            elif change == 2 and len(data) > 1:
                del data[at]
            else:
                data[at] = ord(rng.choice("NTFiIdcsbyltSZmagu"))
        try:
            value = _core.value_decode(bytes(data))
        except (ValueError, MemoryError):
            continue
        decoded += 1
        _core.value_encode(value)
    print(f"info - {count} messages, {decoded} of them values")
    assert decoded > 0


if __name__ == "__main__":
    harness.main(__file__)
