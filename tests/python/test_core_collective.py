#!/usr/bin/python3
"""adaptdl.collective and adaptdl.reducer between real processes."""

import signal
import time

import harness
import pytest

from adaptdl import collective, reducer

BEGIN = """
import os, sys, time, threading
from adaptdl import collective, env
rank, replicas = env.replica_rank(), env.num_replicas()
collective.initialize()
"""


def test_nothing_works_before_initialization():
    for call in (lambda: collective.allreduce(1), lambda: collective.allreduce_async(1),
                 lambda: collective.broadcast(1), collective.teardown):
        with pytest.raises(RuntimeError, match="not initialized"):
            call()


def test_one_replica_needs_no_network():
    harness.script("""
from adaptdl import collective
collective.initialize()
assert collective.allreduce([1], max) == [1]
assert collective.allreduce_async("a").result() == "a"
assert collective.broadcast({"x": 1}) == {"x": 1}
try:
    collective.initialize()
except RuntimeError as error:
    assert "already initialized" in str(error)
else:
    raise SystemExit("initialized twice")
collective.teardown()
collective.initialize(num_replicas=1)
collective.teardown()
try:
    collective.teardown()
except RuntimeError:
    pass
else:
    raise SystemExit("torn down twice")
""")


def test_reductions_and_broadcasts():
    out = harness.replicas(3, BEGIN + """
import numpy as np
assert collective.allreduce(rank) == 3
assert collective.allreduce(2**100 + rank) == 3 * 2**100 + 3
assert collective.allreduce([rank]) == [0, 1, 2]          # in rank order
assert collective.allreduce(str(rank)) == "012"
assert collective.allreduce({rank}, lambda a, b: a | b) == {0, 1, 2}
assert collective.allreduce(rank, max) == 2
assert collective.allreduce(rank, lambda a, b: b) == 2
assert (collective.allreduce(np.full(3, rank)) == 3).all()
assert collective.broadcast(("from", rank)) == ("from", 0)
assert collective.broadcast(object() if rank else None) is None   # only rank 0's counts
futures = [collective.allreduce_async({"n": i, "r": [rank]}, lambda a, b: {"n": a["n"], "r": a["r"] + b["r"]})
           for i in range(100)]
assert [future.result()["n"] for future in futures] == list(range(100))
assert futures[0].result()["r"] == [0, 1, 2] and futures[0].result() is futures[0].result()
collective.allreduce_async("dropped")
collective.teardown()
print("fine")
""")
    assert out == ["fine\n"] * 3


def test_a_failing_function_fails_everywhere_and_nothing_breaks():
    harness.replicas(2, BEGIN + """
try:
    collective.allreduce(1 if rank == 0 else "x")
except TypeError as error:          # the exception itself, where it happened
    assert rank == 0 and "unsupported operand" in str(error)
except ValueError as error:
    assert rank == 1 and "TypeError: unsupported operand" in str(error)
else:
    raise SystemExit("no error")
def fail(a, b):
    raise KeyError("my key")
try:
    collective.allreduce(1, fail)
except KeyError as error:
    assert rank == 0 and error.__traceback__ is not None
except RuntimeError as error:
    assert rank == 1 and "my key" in str(error)
try:
    collective.allreduce(1, lambda a, b: object())
except TypeError:
    assert rank == 0
except ValueError as error:
    assert rank == 1 and "object cannot be sent" in str(error)
for wrong in (None, 5, "sum"):
    try:
        collective.allreduce(1, wrong)
    except TypeError as error:
        assert "function of two values" in str(error)
assert collective.allreduce(1) == 2
collective.teardown()
""")


def test_different_calls_fail_on_both_sides():
    harness.replicas(2, BEGIN + """
try:
    collective.allreduce(1) if rank == 0 else collective.broadcast(1)
except ValueError as error:
    assert "reduce" in str(error) and "broadcast" in str(error), error
else:
    raise SystemExit("no error")
""")


def test_a_replica_that_dies_is_an_error_for_the_others():
    harness.replicas(3, BEGIN + """
if rank == 2:
    os.kill(os.getpid(), 9)
try:
    collective.allreduce(1)
except ConnectionError as error:
    assert "2" in str(error), error
else:
    raise SystemExit("no error")
future = None
try:
    future = collective.allreduce_async(1)
    future.result()
except ConnectionError:
    pass
else:
    raise SystemExit("no error")
os._exit(0)
""", status=[0, 0, -signal.SIGKILL])


def test_replicas_need_the_job_s_secret():
    code = """
import sys
from adaptdl import collective, env
try:
    collective.initialize()
except ConnectionError as error:
    print(error)
    sys.exit(3)
"""
    port = harness.free_port()
    common = dict(ADAPTDL_MASTER_ADDR="127.0.0.1", ADAPTDL_MASTER_PORT=port, ADAPTDL_NUM_REPLICAS=2)
    zero = harness.start(code, ADAPTDL_REPLICA_RANK=0, ADAPTDL_JOB_SECRET="right", **common)
    try:
        said = harness.script(code, status=3, ADAPTDL_REPLICA_RANK=1, ADAPTDL_JOB_SECRET="wrong", **common)
        assert "secret" in said
        harness.script(code + "collective.teardown()", ADAPTDL_REPLICA_RANK=1, ADAPTDL_JOB_SECRET="right", **common)
        assert zero.wait(timeout=60) == 0
    finally:
        zero.kill()
        zero.communicate()


def test_ctrl_c_ends_a_wait():
    process = harness.start("""
import os
from adaptdl import collective, reducer
port = int(os.environ["PORT"])
pid = os.fork()
r = reducer.Reducer(1 if pid == 0 else 0, 2, "127.0.0.1", port)
if pid == 0:
    import time
    time.sleep(600)
print(pid, flush=True)
try:
    r.allreduce(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os.kill(pid, 9)
""", PORT=harness.free_port())
    child = process.stdout.readline()
    assert child.strip().isdigit(), process.stderr.read()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("interrupted\n", 0), err


@pytest.mark.parametrize("how", ["collective.initialize('127.0.0.1', port, 1, 2)",
                                 "reducer.Reducer(1, 2, '127.0.0.1', port)"])
def test_ctrl_c_ends_the_waiting_for_others(how):
    process = harness.start(f"""
import os
from adaptdl import collective, reducer
port = int(os.environ["PORT"])
print("waiting", flush=True)
{how}
""", PORT=harness.free_port())
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # The process group's own way to stop is exit status 143; a Reducer has nothing to do with it.
    assert process.returncode == (143 if "collective" in how else -signal.SIGINT), err


def test_threads_may_share_the_group():
    harness.script("""
import threading
from adaptdl import collective
collective.initialize()
wrong = []
def work():
    for i in range(300):
        if collective.allreduce([i]) != [i]:
            wrong.append(i)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong
collective.teardown()
""")


def test_reducers_are_groups_of_their_own():
    harness.script(f"""
import os
from adaptdl import reducer
assert reducer.default_reduce_fn(1, 2) == 3
pid = os.fork()
rank = 0 if pid else 1
one = reducer.Reducer(rank, 2, "127.0.0.1", {harness.free_port()})
two = reducer.Reducer(rank, 2, "127.0.0.1", {harness.free_port()})
first, second = one.allreduce_async(1), two.allreduce_async(10)
assert second.result() == 20 and first.result() == 2
assert one.allreduce(rank, max) == 1 and two.broadcast(rank) == 0
one.close()
one.close()
try:
    one.allreduce(1)
except RuntimeError as error:
    assert "closed" in str(error)
else:
    raise SystemExit("no error")
two.allreduce(1)
if pid:
    assert os.waitpid(pid, 0)[1] == 0
""")  # two is not closed: the end of the process must do


def test_a_reducer_alone():
    alone = reducer.Reducer(0, 1, None, 0)
    assert alone.allreduce("x") == "x" and alone.broadcast(5) == 5
    assert alone.allreduce_async([1]).result() == [1]
    alone.close()


@pytest.mark.parametrize("arguments, error", [
    ((2, 2, "127.0.0.1", 1), ValueError), ((-1, 2, "127.0.0.1", 1), ValueError), ((0, 0, None, 0), ValueError),
    ((0, 2, "127.0.0.1", 70000), ValueError), ((0, 2, "127.0.0.1", 0), ValueError), (("0", 2, None, 1), TypeError),
    ((0, 10**30, None, 1), OverflowError), ((0, 1), TypeError)])
def test_wrong_arguments_of_a_reducer(arguments, error):
    with pytest.raises(error):
        reducer.Reducer(*arguments)


@pytest.mark.parametrize("arguments, error", [
    (dict(master_port="x"), TypeError), (dict(master_port=-1), ValueError), (dict(master_port=2**80), ValueError),
    (dict(replica_rank=5), ValueError), (dict(num_replicas=0), ValueError), (dict(master_addr=5), TypeError),
    (dict(master_addr="a\0b"), ValueError), (dict(num_replicas=2), ValueError)])
def test_wrong_arguments_of_initialize(arguments, error):
    with pytest.raises(error):
        collective.initialize(**arguments)
    with pytest.raises(RuntimeError, match="not initialized"):
        collective.teardown()


if __name__ == "__main__":
    harness.main(__file__)
