"""A job for the launcher's tests that goes on with other replicas while it runs: it counts batches of the library's own
loops, and says so whenever they have become more or fewer. Needs loops.py beside it."""

import argparse
import json
import os
import time

import adaptdl.checkpoint
import adaptdl.collective
import ledger_job
import loops
from adaptdl import _core, env


class Ledger(adaptdl.checkpoint.State):
    steps = []

    def save(self, fileobj):
        fileobj.write(json.dumps(self.steps).encode())

    def load(self, fileobj):
        self.steps = json.loads(fileobj.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", required=True, help="the file that ends it")
    args = parser.parse_args()
    _core.context_start(signals=True)
    ledger, loop, before = Ledger("ledger"), _core.Loop("work", 12), 0
    adaptdl.checkpoint.load_state(ledger)
    if env.replica_rank() == 0:
        ledger_job.report()
    for epoch in loops.epochs(100000):
        for _ in loops.batches(loop, 48):
            ledger.steps = ledger.steps + [[epoch, loop.index]]
            if env.replica_rank() == 0 and env.num_replicas() != before:
                before = env.num_replicas()
                print(f"SIZE replicas={before} restarts={env.num_restarts()} step={len(ledger.steps)} "
                      f"at={time.time():.3f}", flush=True)
            time.sleep(0.05)
        if adaptdl.collective.broadcast(os.path.exists(args.until)):
            break
    if env.replica_rank() == 0:
        whole = ledger.steps == [[number, index] for number in range(epoch + 1) for index in range(0, 48, 12)]
        print(f"END whole={whole} restarts={env.num_restarts()}", flush=True)
    adaptdl.collective.teardown()


if __name__ == "__main__":
    main()
