"""Pieces of a text in order: lengths, splits, and the last piece, also after a stop (ADL_COMPAT_STOP: at which piece)
and on another number of replicas."""
import os
import signal

import adaptdl.collective
import adaptdl.env
import torch
from adaptdl.torch.iterator import AdaptiveBPTTIterator
from common import adl, begin, result
from torchtext.data import Dataset, Example, Field


def text(count):
    tokens = [str(i) for i in range(count)]
    return Dataset([Example.fromlist([tokens], [("text", field)])], [("text", field)])


# Lengths of which the original can deal with the end: it fails where its last piece would be empty.
field = Field(tokenize=lambda line: line)
begin()
train, test = text(207), text(70)
field.build_vocab(train)
own, last = AdaptiveBPTTIterator.splits((train, test), batch_size=4, bptt_len=5, device="cpu")
sizes = AdaptiveBPTTIterator.splits((train, test), batch_sizes=(8, 2), bptt_len=5, device="cpu")
result("lengths", (len(own), len(last), [each.batch_size for each in sizes]))
pieces = 0
for epoch in adl.remaining_epochs_until(2):
    for batch in own:
        pieces += 1
        result(f"piece{epoch}.{pieces}", (batch.text.tolist(), batch.target.tolist()))
        if os.environ.get("ADL_COMPAT_STOP") == str(pieces):
            os.kill(os.getpid(), signal.SIGTERM)
    result(f"end{epoch}", [batch.text.shape[0] for batch in last])
result("pieces", adaptdl.collective.allreduce(pieces))
