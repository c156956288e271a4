#!/usr/bin/python3
"""Every entry point of the extension with wrong types, sizes, numbers and values, in child processes: whatever
they raise, the interpreter lives."""

import os
import subprocess
import sys

import harness
import pytest

COUNT = int(os.environ.get("ADL_PYTHON_FUZZ", 20000))

# What the child runs: random calls of everything callable in _core, on everything that it returned so far.
CHILD = r"""
import array, faulthandler, inspect, math, os, random, resource, signal, sys, types
faulthandler.enable()
if "ADL_PYTHON_SANITIZED" not in os.environ:     # what asks for too much gets nothing
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import adaptdl
from adaptdl import _core, checkpoint
seed, count, skip = int(sys.argv[1]), int(sys.argv[2]), set(sys.argv[3].split(","))
rng = random.Random(seed)
try:
    import numpy as np
    arrays = [np.zeros((2, 3)), np.array([], dtype="i4"), np.array(["x"]), np.array([object()]), np.float32(1),
              np.zeros(3, dtype=">f4"), np.zeros((1,) * 20), np.arange(4)[::-1], np.float16(2), np.longdouble(3)]
except ImportError:
    arrays = []
endless = []
endless.append(endless)

class Liar:
    "A sequence whose length and items do not fit."
    def __len__(self): return rng.choice([0, 1, 3, 2**62])
    def __getitem__(self, i): return rng.choice([1, "x", self, None]) if rng.random() < 0.9 else 1 // 0
class Number:
    def __float__(self): return rng.choice([1.0, math.nan, 1 // 1])
    def __index__(self): return rng.choice([1, -1, 2**70])
class Mean:
    def __float__(self): raise KeyError
    def __index__(self): raise ZeroDivisionError
    def __len__(self): return -1
    def __getitem__(self, i): raise OSError
    def __call__(self, *args): raise LookupError
    def __eq__(self, other): raise MemoryError
    __hash__ = None
class State(checkpoint.State):
    def save(self, f): rng.choice([lambda: None, f.close, lambda: f.write(b"x"), lambda: 1 // 0])()
    def load(self, f): rng.choice([lambda: None, f.close, f.read, lambda: 1 // 0])()
    def sync(self): rng.choice([lambda: None, lambda: 1 // 0, checkpoint.save_all_states, _core.context_exit])()
class Half(checkpoint.State):
    def __init__(self): pass

model = ((0.1, 0.01, 0.2, 0.02, 0.1, 0.01, 1.5), (1.0, 2.0), 64)
pool = [None, True, False, 0, 1, 2, 3, -1, 64, 2**31, 2**63, -2**63, 2**64, 10**400, 0.5, -0.0, math.nan, math.inf, 1e308,
        "", "a", "g", "t", "e", "\0", "\ud800", "x" * 5000, "http://127.0.0.1:1/", "http://", "127.0.0.1", "/proc/nonexistent",
        b"", b"x", b"\x01N", b"\x01l" + b"\xff" * 8, bytearray(b"y"), memoryview(b"z"), [], [1], [1, [2]], (), (1, 2), (1, (2,)),
        {}, {"a": 1}, set(), {1}, range(4), range(10**12), iter([1]), endless, object(), object, len, max, lambda: 1,
        lambda a, b: a, lambda a, b: 1 // 0, array.array("d", [1, 2]), array.array("H"), Liar(), Number(), Mean(), Half(),
        model, model[0], model[1], types.SimpleNamespace(), Ellipsis, 1j, type("T", (), {}), *arrays]
pool += [State(f"state {i}") for i in range(3)]
functions = [getattr(_core, name) for name in dir(_core) if callable(getattr(_core, name)) and name not in skip]
stdout = os.dup(1)
calls = raised = 0
kept = []
signal.alarm(300)
for _ in range(count):
    function = rng.choice(functions)
    if kept and rng.random() < 0.3:          # a method of something that came back
        thing = rng.choice(kept)
        names = [name for name in dir(thing) if rng.random() < 0.5 and not name.startswith("__")]
        if names and rng.random() < 0.2:
            function = lambda value: setattr(thing, rng.choice(names), value)
        elif names:
            try:
                function = getattr(thing, rng.choice(names))
            except (RuntimeError, ValueError):   # its context has gone, or it is closed
                continue
    try:
        wanted = len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        wanted = 2
    if rng.random() < 0.1:
        wanted = rng.randrange(9)
    args = [rng.choice(pool + kept) for _ in range(wanted)]
    if getattr(function, "__name__", "").startswith("goodput") and args and rng.random() < 0.8:
        args[0] = model
        if function is _core.goodput_evaluate:
            args[1:] = [rng.choice("gte")] + [rng.choice(pool + [1, 2, 64, [1, 2], arrays[:1]]) for _ in range(4)]
    keywords = {rng.choice(["signals", "master_port", "num_replicas", "x"]): rng.choice(pool)} if rng.random() < 0.1 else {}
    if "num_replicas" in keywords or function in (getattr(_core, "context_start", 0), _core.Group):
        # A group of several would wait for them; those are other tests.
        args = args[:0] if function is not _core.Group else [0, 1, rng.choice(pool), rng.choice(pool)]
        keywords.pop("num_replicas", None)
    if getattr(function, "__name__", "") in ("clear", "pop", "append", "extend", "insert", "remove"):
        continue                              # of a list that came back: not ours
    calls += 1
    try:
        result = function(*args, **keywords)
    except (Exception, SystemExit):
        raised += 1
    else:
        if type(result).__module__ == "adaptdl._core" or isinstance(result, (bytes, tuple)):
            kept.append(result)
            del kept[:-20]
    if rng.random() < 0.01:
        kept.clear()
os.write(stdout, f"{calls} {raised}".encode())
"""

SKIP = {"http_put"}  # one call in its own test: random URLs would be waited for


def run(seed, count, skip=()):
    env = harness.environment()
    result = subprocess.run([sys.executable, "-X", "dev", "-c", CHILD, str(seed), str(count), ",".join(SKIP | set(skip))],
                            env=env, capture_output=True, text=True, timeout=380, cwd=os.environ.get("TMPDIR", "/tmp"))
    assert result.returncode == 0, f"seed {seed}: exit status {result.returncode}\n{result.stdout}\n{result.stderr[-4000:]}"
    return [int(number) for number in result.stdout.split()]


def test_random_calls_of_everything():
    calls = raised = 0
    for seed in range(4):
        more = run(seed, COUNT // 4)
        calls, raised = calls + more[0], raised + more[1]
    print(f"info - {calls} calls, {raised} raised an exception")
    assert 0 < raised < calls


def test_random_calls_without_the_process_group():
    calls, raised = run(99, COUNT // 4, skip=["context_start", "context_exit", "context_finish", "states_save"])
    print(f"info - {calls} calls, {raised} raised an exception")


@pytest.mark.parametrize("arguments", [
    (), ("http://127.0.0.1:1/", b"", 0), ("http://127.0.0.1:1/", "text", 10), (b"x", b"", 10), ("\0", b"", 10),
    ("http://127.0.0.1:1/", b"", 10**20), ("gopher://x", b"", 10), ("http://127.0.0.1:1/", b"{}", 500),
    ("http://a\r\nX: y/", b"", 10), ("http://" + "a" * 10000, b"", 10)])
def test_http_put_refuses_nonsense(arguments):
    from adaptdl import _core
    with pytest.raises((TypeError, ValueError, OSError, OverflowError)):
        _core.http_put(*arguments)


@pytest.mark.skipif("ADL_PYTHON_SANITIZED" in os.environ, reason="sanitizers need the address space")
def test_running_out_of_memory_is_an_exception():
    harness.script(r"""
import resource
from adaptdl import _core, goodput
limit = 600 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
f = goodput.GoodputFunction((0.1, 0.01, 0.2, 0.02, 0.1, 0.01, 1.5), (1.0, 2.0), 64)
class Long:
    def __len__(self): return 1 << 26
    def __getitem__(self, i): return 64
for call in (lambda: f.efficiency(Long()), lambda: _core.value_encode([bytes(200 << 20)] * 2),
             lambda: _core.value_encode(bytes(400 << 20))):
    try:
        call()
    except (MemoryError, ValueError):
        pass
    else:
        raise SystemExit("no error")
""")


if __name__ == "__main__":
    harness.main(__file__)
