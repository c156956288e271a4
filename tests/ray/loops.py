"""A loop over batches that goes on with other replicas, as AdaptiveDataLoader has it, without PyTorch and without data:
PyTorch takes long to start."""

from adaptdl import _core

GO, PLAN, PASSED = range(3)


def batches(loop, examples):
    """Yields once for each batch; loop: a _core.Loop."""
    if not loop.begin(examples):
        return
    try:
        what = PLAN
        while True:
            if what == PLAN:
                size, count, index = loop.choose(), loop.batches(False), 0
            what = loop.advance(index == count, True)
            if what == GO:
                loop.step(size, index == count - 1)
                yield
                loop.commit()
                index += 1
            elif what == PASSED:
                if not loop.more():
                    return
                what = PLAN
    finally:
        loop.end()


def epochs(until):
    """As adaptdl.torch.remaining_epochs_until."""
    loop = _core.Epochs(until)
    while True:
        epoch = loop.next()
        if epoch is None:
            return
        try:
            yield epoch
        finally:
            loop.leave()
