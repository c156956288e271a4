#!/usr/bin/python3
"""adaptdl.checkpoint: states that survive, in one process and in many."""

import os
import pathlib

import harness
import pytest

BEGIN = """
import os, pathlib, sys
from adaptdl import checkpoint, collective, env
rank = env.replica_rank()
class Number(checkpoint.State):
    def __init__(self, name, value=0):
        super().__init__(name)
        self.value = value
    def save(self, fileobj):
        fileobj.write(str(self.value).encode())
    def load(self, fileobj):
        self.value = int(fileobj.read())
def fails(error, call, text=""):
    try:
        call()
    except error as caught:
        assert text in str(caught), caught
    else:
        raise SystemExit(f"no {error}")
"""


@pytest.fixture
def path(tmp_path):
    return {"ADAPTDL_CHECKPOINT_PATH": tmp_path / "ck"}


def test_states_survive_a_restart(path):
    for restarts in range(3):
        harness.script(BEGIN + f"""
a, b = Number("a"), Number("b", 7)
assert checkpoint.load_state(a) == checkpoint.load_state(b) == ({restarts} > 0)
assert (a.value, b.value) == ({restarts}, 7 + {restarts}), (a.value, b.value)
a.value += 1
b.value += 1
checkpoint.save_all_states()
a.value = 1000    # not saved
""", ADAPTDL_NUM_RESTARTS=restarts, **path)


def test_without_a_path_nothing_is_saved(tmp_path):
    harness.script(BEGIN + f"""
os.chdir({str(tmp_path)!r})
a = Number("a")
assert checkpoint.load_state(a) is False
checkpoint.save_all_states()
assert checkpoint.load_state(a) is False
checkpoint.save_state(a, None)
assert os.listdir(".") == []
""")


def test_a_state_can_be_loaded_again(path):
    harness.script(BEGIN + """
a = Number("a", 5)
checkpoint.save_all_states()
a.value = 6
assert checkpoint.load_state(a) and a.value == 5
a.value = 7
assert checkpoint.load_state(a) and a.value == 5
late = Number("late")
assert checkpoint.load_state(late) is False
""", **path)


def test_a_checkpoint_is_not_for_another_replica(path):
    """Model files that a checkpoint knows nothing of must stay, so the runner asks which it is."""
    harness.script(BEGIN + """
from adaptdl import _core
class Asks(Number):
    def save(self, fileobj):
        self.sending = _core.states_sending()
        super().save(fileobj)
a = Asks("a")
checkpoint.save_all_states()
assert a.sending is False
""", **path)


def test_states_nobody_loads_are_carried_over(path):
    harness.script(BEGIN + "Number('a', 1); Number('b', 2); checkpoint.save_all_states()", **path)
    harness.script(BEGIN + "a = Number('a'); checkpoint.load_state(a); a.value = 10; checkpoint.save_all_states()", **path)
    harness.script(BEGIN + """
a, b = Number("a"), Number("b")
assert checkpoint.load_state(b) and checkpoint.load_state(a) and (a.value, b.value) == (10, 2)
""", **path)


def test_big_and_odd_contents(path):
    harness.script(BEGIN + """
import io, json, pickle, zipfile
class Odd(checkpoint.State):
    def save(self, f):
        assert f.seekable() and f.writable() and f.tell() == 0
        f.write(b"0" * 10)
        f.seek(2)
        f.write(memoryview(b"ab"))
        f.seek(0, io.SEEK_END)
        pickle.dump({"a": [1, 2]}, f)
        f.write(bytes(5_000_000))
    def load(self, f):
        assert f.read(10) == b"00ab000000" and pickle.load(f) == {"a": [1, 2]}
        self.rest = len(f.read())
class Empty(checkpoint.State):
    loaded = 0
    def load(self, f):
        self.loaded += f.read() == b""
class Partial(checkpoint.State):
    def save(self, f):
        f.write(b"abcdef")
    def load(self, f):
        self.got = f.read(2)      # what is left unread does not matter
odd, empty, partial = Odd("odd"), Empty("empty"), Partial("a name, with spaces & \u00e9")
checkpoint.State("nothing at all")
checkpoint.save_all_states()
assert all(map(checkpoint.load_state, (odd, empty, partial)))
assert odd.rest == 5_000_000 and empty.loaded == 1 and partial.got == b"ab"
""", **path)


def test_names(path):
    harness.script(BEGIN + """
Number("a")
fails(ValueError, lambda: Number("a"), "exists already")
for name in ("", "a/b", "..", "new\\nline", "nul\\0", "/" + "x" * 100):
    fails(ValueError, lambda: Number(name))
for name in (None, 5, b"a"):
    fails(TypeError, lambda: Number(name))
class Forgetful(checkpoint.State):
    def __init__(self):
        pass
fails(ValueError, lambda: checkpoint.load_state(Forgetful()), "super().__init__(name)")
fails(ValueError, lambda: checkpoint.load_state(5))
fails(TypeError, lambda: checkpoint.save_state(5, "/"))
""", **path)


def test_long_names_and_those_of_the_library(path):
    """Two that differ only at their ends, one of the library's, one cut inside a character."""
    names = ["x" * 200 + "a", "x" * 200 + "b", "adaptdl.epoch", "adaptdl.epoch2", "\u20ac" * 60, "x" * 80]
    for value in (1, 100):
        harness.script(BEGIN + f"""
names, value = {names!r}, {value}
states = [Number(name) for name in names]
for i, state in enumerate(states):
    assert checkpoint.load_state(state) == (value > 1)
    assert value == 1 or state.value == 1 + i, (state.value, i)
    state.value = value + i
fails(ValueError, lambda: Number(names[0]), "exists already")
checkpoint.save_all_states()
checkpoint.save_state(states[0], os.environ["ADAPTDL_CHECKPOINT_PATH"])
assert os.path.exists(os.path.join(os.environ["ADAPTDL_CHECKPOINT_PATH"], names[0]))
""", **path)


def test_exceptions_of_callbacks_are_the_program_s_own(path):
    harness.script(BEGIN + """
class Bad(Number):
    how = None
    def save(self, f):
        if self.how == "save": raise KeyError("in save")
        super().save(f)
    def load(self, f):
        if self.how == "load": raise ZeroDivisionError("in load")
        super().load(f)
    def sync(self):
        if self.how == "sync": raise LookupError("in sync")
        if self.how == "again": checkpoint.save_all_states()
bad, good = Bad("bad", 1), Number("good", 2)
checkpoint.save_all_states()
good.value = 3
for how, error in (("save", KeyError), ("sync", LookupError)):
    bad.how = how
    fails(error, checkpoint.save_all_states, "in " + how)
    assert checkpoint.load_state(good) and good.value == 2     # the last good one is still there
class Long(checkpoint.State):
    how = None
    def save(self, f):
        if self.how: raise KeyError("x" * 5000)
long = Long("long")
bad.how, long.how = None, True
fails(KeyError, checkpoint.save_all_states, "xxx")
long.how = None
bad.how = "again"
fails(RuntimeError, checkpoint.save_all_states, "save_all_states")
bad.how = "load"
fails(ZeroDivisionError, lambda: checkpoint.load_state(bad), "in load")
bad.how = None
assert checkpoint.load_state(bad) and bad.value == 1
checkpoint.save_all_states()
""", **path)


def test_a_failed_save_leaves_the_last_one(path):
    harness.script(BEGIN + """
import shutil
root = pathlib.Path(os.environ["ADAPTDL_CHECKPOINT_PATH"])
a = Number("a", 1)
checkpoint.save_all_states()
kept = root.rename(root.with_name("elsewhere"))
root.write_text("in the way")
fails(OSError, checkpoint.save_all_states, str(root))
root.unlink()
kept.rename(root)
a.value = 2
checkpoint.save_all_states()
a.value = 0
assert checkpoint.load_state(a) and a.value == 2
""", **path)


def test_a_path_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    harness.script(BEGIN + """
a = Number("a")
fails(OSError, lambda: checkpoint.load_state(a), os.environ["ADAPTDL_CHECKPOINT_PATH"])
fails(OSError, collective.initialize, os.environ["ADAPTDL_CHECKPOINT_PATH"])
""", ADAPTDL_CHECKPOINT_PATH=tmp_path / "file" / "ck")


def test_a_damaged_checkpoint_is_reported(path, tmp_path):
    harness.script(BEGIN + "Number('a', 1); checkpoint.save_all_states()", **path)
    for file in (tmp_path / "ck").glob("*/a.state"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    harness.script(BEGIN + "a = Number('a'); fails(RuntimeError, lambda: checkpoint.load_state(a), 'a.state')", **path)


def test_save_state_writes_one_file(tmp_path):
    harness.script(BEGIN + f"""
class Synced(Number):
    synced = 0
    def sync(self):
        self.synced += 1
a = Synced("a", 42)
root = pathlib.Path({str(tmp_path)!r})
checkpoint.save_state(a, root)
assert a.synced == 1 and (root / "a").read_bytes() == b"42"
a.value = 43
checkpoint.save_state(a, str(root), sync=False)
assert a.synced == 1 and os.listdir(root) == ["a"] and (root / "a").read_bytes() == b"43"
fails(OSError, lambda: checkpoint.save_state(a, root / "missing"), "missing")
""")


def test_many_replicas_sync_save_once_and_load_the_same(path):
    code = BEGIN + """
class Sum(Number):
    saves = 0
    def sync(self):
        self.value = collective.allreduce(self.value)
    def save(self, f):
        assert rank == 0
        super().save(f)
early = Sum("early", rank)
collective.initialize()
late = Sum("late", 10 * rank)
found = checkpoint.load_state(early), checkpoint.load_state(late)
print(*found, early.value, late.value)
checkpoint.save_all_states()
collective.teardown()
"""
    first = harness.replicas(3, code, **path)
    assert first == [f"False False {rank} {10 * rank}\n" for rank in range(3)]
    second = harness.replicas(2, code, ADAPTDL_NUM_RESTARTS=1, **path)
    # 0 + 1 + 2 by the first save; the sum of three equal values by the last one, at teardown.
    assert second == ["True True 9 90\n"] * 2


def test_replicas_read_before_they_meet(path):
    """Each on its own; rank 0 alone writes."""
    for rank, wanted in ((1, None), (0, None), (1, 7), (0, 7)):
        harness.script(BEGIN + f"""
a = Number("a")
assert checkpoint.load_state(a) == ({wanted} is not None) and (not {wanted} or a.value == 7)
a.value = 7 if rank == 0 else 8
checkpoint.save_all_states()
from adaptdl import env
assert env.num_replicas() == 2 and env.replica_rank() == rank
fails(RuntimeError, lambda: collective.allreduce(1), "not initialized")
""", ADAPTDL_NUM_REPLICAS=2, ADAPTDL_REPLICA_RANK=rank, ADAPTDL_MASTER_PORT=1, **path)


def test_what_was_read_before_stays_when_replicas_meet(path):
    harness.script(BEGIN + """
a = Number("a")
a.value = 7
checkpoint.save_all_states()
""", **path)
    harness.replicas(2, BEGIN + """
a = Number("a")
assert checkpoint.load_state(a) and a.value == 7
collective.initialize()
assert collective.allreduce(a.value) == 14
a.value = 9
checkpoint.save_all_states()
assert checkpoint.load_state(a) and a.value == 9
""", **path)


def test_a_failure_on_one_replica_is_a_failure_on_all(path):
    harness.replicas(2, BEGIN + """
class Bad(Number):
    def save(self, f):
        raise ValueError("rank 0 only")
collective.initialize()
bad = Bad("bad")
fails(ValueError, checkpoint.save_all_states, "rank 0 only" if rank == 0 else "another replica")
assert collective.allreduce(1) == 2
os._exit(0)
""", **path)


def test_the_quiet_context_becomes_the_process_group(path):
    harness.script(BEGIN + """
a = Number("a", 1)
checkpoint.save_all_states()
collective.initialize()
a.value = 2
checkpoint.save_all_states()
a.value = 0
assert checkpoint.load_state(a) and a.value == 2
collective.teardown()
a.value = 3
checkpoint.save_all_states()
assert checkpoint.load_state(a) and a.value == 3
""", **path)


def test_states_move_from_a_quiet_context_to_a_real_group(path):
    port = harness.free_port()
    harness.script(BEGIN + f"""
a = Number("a", 1)
pid = os.fork()
rank = 0 if pid else 1
if rank == 0:
    checkpoint.save_all_states()      # alone, before the group
collective.initialize("127.0.0.1", {port}, rank, 2)
assert checkpoint.load_state(a) and a.value == 1
a.value = 2
checkpoint.save_all_states()
collective.teardown()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
""", **path)


def test_the_base_class_saves_nothing():
    from adaptdl import checkpoint
    state = checkpoint.State("only in this test")
    assert state.save(None) is None and state.load(None) is None and state.sync() is None


if __name__ == "__main__":
    harness.main(__file__)
