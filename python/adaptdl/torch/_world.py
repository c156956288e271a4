"""torch.distributed's process group, as the job has other replicas.

The library opens worlds (docs/elastic.md); here PyTorch follows. At a step boundary in another world the old group is
left, one of the new replicas is made over a store of its own, and DistributedDataParallel is built anew around the same
parameters. When a replica dies, a collective that is under way is waited for no longer: its step is void.
"""

import contextlib
import datetime
import logging
import os
import socket
import stat
import threading
import time
import weakref

import torch
import torch.distributed as dist

from adaptdl import _core, env

LOG = logging.getLogger(__name__)

_SLICE = datetime.timedelta(milliseconds=100)  # in which a collective is waited for
_PATIENCE_S = 15.0  # for the library to notice, too, what a failed collective has noticed
_WATCH_S = 0.1
_HURRY_AFTER_S = 1.0


class _Group:
    """torch.distributed's default group, and what belongs to it."""

    backend = None      # None: the program has none of ours
    follows = False     # can it be left for another one?
    generation = None   # of the world it is for; -1: of this process alone, before it has joined
    server = store = None
    sockets = {}        # of the group and its store: {number: inode}
    pending = []        # collectives that nobody waits for any more
    aborted = False     # NCCL's collectives were ended, and are worth nothing
    calls = None        # torch.distributed's count of them, when the last loop was left


_group = _Group()
_wrappers = weakref.WeakSet()
_watch = None  # (thread's event, generation)


def _cannot_follow(backend):
    """None, or why a group of this backend cannot be left when a replica has died."""
    if "nccl" in str(backend) and not _aborter():
        return f"PyTorch {torch.__version__} cannot abort collectives of NCCL"
    return None


def follows():
    """Can this program go on with other replicas?"""
    return _group.follows


def restart_instead():
    """This program cannot go on with other replicas: it is to be restarted when they change."""
    _group.follows = False


def _aborter():
    """The name of the method that ends NCCL's collectives, which later versions have."""
    kind = getattr(dist, "ProcessGroupNCCL", None)
    return next((name for name in ("abort", "_abort") if hasattr(kind, name)), None)


def start(backend):
    """The first group: of all replicas, or of this process alone if it has still to join them."""
    rank, replicas, generation = _core.world()
    if _core.joining():
        rank, replicas, generation = 0, 1, -1
    _form(backend, rank, replicas)
    _group.backend, _group.generation = backend, generation
    why = _cannot_follow(backend)
    _group.follows = why is None
    if why:
        LOG.warning("%s: the job is restarted when its replicas change", why)
    _note_calls()
    LOG.info("torch.distributed initialized (%s, rank %d of %d)", backend, rank, replicas)


def _form(backend, rank, replicas):
    """A group over a store whose port rank 0 picks and tells the others: nothing to collide with, and no
    retries. False: a replica was lost meanwhile."""
    server = None
    if replicas == 1:
        store = dist.HashStore()
    else:
        address = env.master_addr()
        if address == "0.0.0.0":
            address = "127.0.0.1"
        if rank == 0:  # the server is an object of its own: when it goes, nobody waits in vain
            server = dist.TCPStore(address, 0, replicas, True, wait_for_workers=False)
        port = _core.tell(server.port if server else 0)
        if port is None:
            return False
        store = dist.TCPStore(address, port, replicas, False, wait_for_workers=False)
    _group.server, _group.store, _group.aborted = server, store, False
    del server
    _start_watch()
    before = _sockets() if replicas > 1 else {}
    dist.init_process_group(backend, store=store, rank=rank, world_size=replicas)
    _group.sockets = {fd: inode for fd, inode in _sockets().items() if before.get(fd) != inode} if replicas > 1 else {}
    return True


def _sockets():
    """{number: inode} of the sockets of this process that are TCP connections."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                with _borrowed(int(name)) as one:
                    if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                        one.getpeername()
                        found[int(name)] = status.st_ino
        except OSError:  # not connected, or closed meanwhile
            continue
    return found


@contextlib.contextmanager
def _borrowed(fd):
    """Somebody else's socket, to be asked and told something, and not closed."""
    one = socket.socket(fileno=fd)
    try:
        yield one
    finally:
        one.detach()


def _break_off():
    """Ends Gloo's collectives that are under way, here and where others wait for this replica: it has no call for that,
    but minds its connections."""
    for fd, inode in _group.sockets.items():
        try:
            if os.fstat(fd).st_ino == inode:
                with _borrowed(fd) as one:
                    one.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
    _group.sockets = {}


def leave():
    """At exit."""
    _stop_watch()
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- another world ----


def follow():
    """Brings torch.distributed into the present world; all its replicas call this, each at its place in the loop."""
    generation = _core.world()[2]
    if _group.backend is None or generation == _group.generation or _core.lost():
        return
    begin = time.perf_counter()
    _bury()
    rank, replicas, _ = _core.world()
    try:
        if not _form(_group.backend, rank, replicas):
            return
    except Exception:
        if _core.void_step(_PATIENCE_S):
            return
        raise
    for wrapper in list(_wrappers):
        wrapper._enter_world()
    _group.generation = generation
    _note_calls()
    LOG.info("torch.distributed: rank %d of %d now, after %.3f s", rank, replicas, time.perf_counter() - begin)


def _bury():
    """Leaves the group that is."""
    _stop_watch()
    for wrapper in list(_wrappers):
        wrapper._leave_world()
    pending = [work for work in _group.pending if not work.is_completed()]
    grave = (dist.distributed_c10d._get_default_group(), _group.store, pending) if dist.is_initialized() else None
    _group.pending = []
    _group.server = _group.store = None
    if dist.is_initialized():
        dist.destroy_process_group()
    if pending:  # freeing it would wait for them
        _core.hold(grave)
        threading.Thread(target=_free, args=(grave,), name="adl-grave", daemon=True).start()


def _free(grave):
    while not all(work.is_completed() for work in grave[2]):
        time.sleep(0.05)
    _core.release(grave)


# ---- a replica was lost ----


def watched():
    """Are there other replicas whose loss can be survived, and that are waited for here, not by a stream?"""
    return _core.recovers() and "nccl" not in str(_group.backend) and _core.world()[1] > 1


def streams():
    """Are there, and does the stream wait for them?"""
    return _core.recovers() and "nccl" in str(_group.backend) and _core.world()[1] > 1


def aborted():
    """Were collectives of the group ended that had not come to their end?"""
    return _group.aborted


def mark(cuda):
    """A place in the present stream, to be asked about by arrived(); None on the CPU, where nothing runs ahead."""
    if not cuda:
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def arrived(event):
    """Has the stream come there, and not because collectives were ended?"""
    return (event is None or event.query()) and not _group.aborted


def waited(work):
    """Waits for a collective, or a future. False: a replica was lost, the step is void."""
    if not _core.recovers():
        _wait_plainly(work)
        return True
    if _core.lost():
        return _voided(work)
    if "nccl" in str(_group.backend):
        return _streamed(work)
    if isinstance(work, torch._C.Future):
        return _polled(work, work.done)
    while True:
        try:
            work.wait(_SLICE)
            return True
        except RuntimeError:
            if not work.is_completed():
                if _core.void_step(0.0):
                    return _voided(work)
                continue
        try:
            work.wait()
            return True
        except RuntimeError as error:
            return _failed(error)


def _polled(work, done):
    pause = 1e-5
    while not done():
        if _core.void_step(0.0):
            return _voided(work)
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    try:
        work.wait()
        return True
    except RuntimeError as error:
        return _failed(error)


def _streamed(work):
    """NCCL's wait is one of the stream, not of the program. Its collectives say that they are completed also when a
    connection has failed, so it is the stream that is asked; and they end when they are ended by _abort."""
    try:
        work.wait()
    except RuntimeError as error:
        return _failed(error)
    if not _polled(work, mark(True).query):
        return False
    return not _group.aborted or _failed(RuntimeError("NCCL's collectives were ended"))


def _voided(work=None):
    """The step is void. What the program may still do in it is to be taken back."""
    if work is not None:
        _group.pending.append(work)
    if "nccl" in str(_group.backend) and not _group.aborted:
        _abort()  # the stream would wait for ever
    for wrapper in list(_wrappers):
        wrapper._keep()
    return False


def _failed(error):
    if _core.void_step(_PATIENCE_S):
        return _voided()
    return _explain(error)


def _wait_plainly(work):
    try:
        work.wait()
    except RuntimeError as error:
        _explain(error)


def _explain(error):
    """When a collective fails, the other replicas are gone or elsewhere: that is the reason, and not what the
    connection says."""
    reason = _core.context_reason()
    if reason is None:
        raise error
    raise RuntimeError(f"{reason} ({error})") from error


def attempt(call, patience=_PATIENCE_S):
    """call(), which uses the group. None: a replica was lost, the step is void."""
    if _core.lost():
        return None
    try:
        return call()
    except RuntimeError:
        if _core.void_step(patience):
            _voided()
            return None
        raise


def step_begins(meter):
    """Of the optimizer: what the meter says of it. None: it is void."""
    shape = None if _core.lost() else meter.step()
    if shape is None:
        _voided()
    return shape


def batch_over():
    """What the program did in a void step, and will do again, is taken back."""
    if _core.lost():
        for wrapper in list(_wrappers):
            wrapper._take_back()
        _break_off()


# ---- a thread that watches ----


def _start_watch():
    global _watch
    _stop_watch()
    if env.num_replicas() == 1:
        return
    _watch = threading.Event()
    threading.Thread(target=_look_out, args=(_watch,), name="adl-watch", daemon=True).start()


def _stop_watch():
    global _watch
    if _watch is not None:
        _watch.set()
        _watch = None


def _look_out(over):
    """The program may wait inside PyTorch for a replica that will not come. The store is closed, NCCL's
    collectives are ended; and if the program does not come out by itself, whoever opens worlds is told, and Gloo's are
    ended, too."""
    while not over.wait(_WATCH_S):
        if not _core.peers_lost():
            continue
        _group.server = None
        if "nccl" in str(_group.backend):
            _abort()
        if over.wait(_HURRY_AFTER_S) or not _core.peers_lost():
            continue
        if _core.hurry():
            _voided()
        _break_off()
        return


def _abort():
    name = _aborter()
    _group.aborted = True
    try:
        group = dist.distributed_c10d._get_default_group()
        group = group._get_backend(torch.device("cuda")) if hasattr(group, "_get_backend") else group
        getattr(group, name)()
    except Exception as error:  # it is gone already
        LOG.debug("NCCL: %s", error)


# ---- what the program does with torch.distributed itself ----


def _count():
    """Collectives on the default group so far; None when this version does not count them."""
    if not dist.is_initialized():
        return None
    try:
        return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    except (AttributeError, RuntimeError):
        return None


def _note_calls():
    _group.calls = _count()


def outside_ends():
    """A loop begins, or a wrapper is made. What the program did since the last one a process that joins later would do
    without the others."""
    if _group.backend is not None and _count() != _group.calls:
        _core.unlogged()


def outside_begins():
    """The loop is over, or the wrapper made."""
    if _group.backend is not None:
        _note_calls()


def add(wrapper):
    """It is to follow, too."""
    _wrappers.add(wrapper)
