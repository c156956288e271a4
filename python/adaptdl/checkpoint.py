"""States of a program that survive its restarts.

Subclass :class:`State` for each piece of state, load it at the start, and it is part of every checkpoint
from then on: those that the training loop makes, and those of :func:`save_all_states`::

    class Best(adaptdl.checkpoint.State):
        accuracy = 0.0
        def save(self, fileobj):
            fileobj.write(struct.pack("<d", self.accuracy))
        def load(self, fileobj):
            self.accuracy, = struct.unpack("<d", fileobj.read())

    best = Best("best-accuracy")
    adaptdl.checkpoint.load_state(best)

Checkpoints go to ``ADAPTDL_CHECKPOINT_PATH``; without it nothing is saved. Each is written beside the
previous one and takes its place as a whole, so that a crash at any moment leaves a complete one.
"""

from adaptdl import _core

__all__ = ["CKPT_DIR_PREFIX", "State", "load_state", "save_all_states", "save_state"]

#: What the names of checkpoints begin with, in ``ADAPTDL_CHECKPOINT_PATH``.
CKPT_DIR_PREFIX = "checkpoint-"


class State:
    """A piece of state that is saved in checkpoints and loaded after a restart. Subclasses say how, in
    :meth:`save`, :meth:`load` and :meth:`sync`.

    Args:
        name (str): Its name in the checkpoint, the same after a restart, without slashes and control
            characters.

    Raises:
        ValueError: If the name is taken by another State, or is no name.
    """

    def __init__(self, name):
        _core.state_add(self, name, type(self).sync is State.sync)

    def save(self, fileobj):
        """Write the state. Called on the replica of rank 0 only.

        Args:
            fileobj (BinaryIO): Where to write; a file in memory that can be sought.
        """

    def load(self, fileobj):
        """Read what :meth:`save` wrote. Called on every replica.

        Args:
            fileobj (BinaryIO): Where to read from.
        """

    def sync(self):
        """Bring the replicas' parts together before a save, with ``adaptdl.collective`` for example.
        Called on every replica, states in the order of their names.
        """


def load_state(state):
    """Give a state its value from the newest checkpoint, by its :meth:`State.load`.

    Args:
        state (State): What to load.

    Returns:
        bool: True if there was a saved value, False if the state keeps the value it has.
    """
    return _core.state_load(state)


def save_all_states():
    """Save a checkpoint of every State, and of the training's own progress. All replicas call it; it
    returns when the checkpoint is on disk. Without ``ADAPTDL_CHECKPOINT_PATH`` nothing is written.

    Raises:
        OSError: If it could not be written; the previous checkpoint is untouched.
    """
    _core.states_save()


def save_state(state, checkpoint_dir, sync=True):
    """Save one state to the file ``checkpoint_dir/<its name>``: first :meth:`State.sync` on all replicas,
    then :meth:`State.save` on the replica of rank 0. The file is complete or not there at all.

    Such files are for the program's own use; :func:`load_state` reads what :func:`save_all_states` and
    the training loop saved.

    Args:
        state (State): What to save.
        checkpoint_dir (str or os.PathLike or None): An existing directory; None writes nothing.
        sync (bool): Whether to call :meth:`State.sync`.
    """
    if not isinstance(state, State):
        raise TypeError(f"state must be a checkpoint.State, not {type(state).__name__}")
    if sync:
        state.sync()
    if checkpoint_dir is not None and _core.env()["replica_rank"] == 0:
        _core.state_write(state, checkpoint_dir)
