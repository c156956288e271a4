"""The loop over epochs.

A training program is a loop over epochs, with one or more loops over data in each. It may be stopped
between any two steps of a loop over data, and started again on another number of replicas; it then
skips what was done and goes on in the middle. So parts of the program run more than once, and must not
mind (be idempotent): what stands directly before a loop over epochs, and in its body before a loop over
data::

    ### may run again ###
    for epoch in remaining_epochs_until(30):
        ### may run again ###
        for batch in train_loader:
            # ... once ...
        ### may run again ###
        for batch in valid_loader:
            # ... once ...
        # ... once: a learning-rate schedule steps here ...
    # ... once ...

``lr_scheduler.step()`` before the last loop over data of the body would be taken again after each
restart in that loop; after it, it is taken once: no stop comes between there and the end of the epoch.
"""

import logging
import operator

from adaptdl import _core

__all__ = ["current_epoch", "finished_epochs", "remaining_epochs_until"]

LOG = logging.getLogger(__name__)


def remaining_epochs_until(epoch):
    """Iterate over the epochs that are left, up to ``epoch`` (not included)::

        for epoch in remaining_epochs_until(30):
            print(current_epoch())  # 0 to 29
        for epoch in remaining_epochs_until(60):
            print(current_epoch())  # 30 to 59

    After a restart, finished epochs are skipped and the interrupted one is entered again. An epoch is
    finished when its body is left, by whatever way.

    Args:
        epoch (int): The epoch to end before.

    Returns:
        Iterator[int]: The numbers of the epochs.

    Raises:
        RuntimeError: If a loop over epochs is still going on.
    """
    return _epochs(_core.Epochs(operator.index(epoch)))


def _epochs(loop):
    first = True
    while True:
        number = loop.next()
        if number is None:
            return
        if first:
            LOG.info("starting at epoch %d", number)
            first = False
        try:
            yield number
        finally:
            loop.leave()


def current_epoch():
    """The epoch that the program is in.

    Returns:
        int or None: Its number; None outside a loop of :func:`remaining_epochs_until`.
    """
    return _core.current_epoch()


def finished_epochs():
    """How many epochs are finished, restarts included. Inside the loop the same as
    :func:`current_epoch`.

    Returns:
        int: The number of epochs.
    """
    return _core.finished_epochs()
