"""A job for the launcher's tests: counts steps, with everything that an elastic program has (other replicas,
checkpoints, reports, a stop in time) and without PyTorch, which takes long to start. Each step is written down in
its state; at the end none may be missing or double."""

import argparse
import json
import os
import signal
import sys
import time

import adaptdl.checkpoint
import adaptdl.collective
from adaptdl import env, sched_hints


class Ledger(adaptdl.checkpoint.State):
    steps = []

    def save(self, fileobj):
        fileobj.write(json.dumps(self.steps).encode())

    def load(self, fileobj):
        self.steps = json.loads(fileobj.read())


def report():
    """As if replicas were nearly for free: the policy wants as many as it may."""
    sched_hints.post_sched_hints({
        "initBatchSize": 64, "maxBatchSize": 6400, "localBszBounds": [32, 64], "gradientAccumulation": False,
        "maxProfiledReplicas": 8, "gradParams": {"norm": 1.0, "var": 1000.0}, "progress": 1.0,
        "perfParams": {"alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 1e-4, "beta_n": 1e-5, "alpha_r": 1e-4,
                       "beta_r": 1e-5, "gamma": 1.5}}, env.job_id())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--until", help="goes on past that step only once this file is there")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--deaf", action="store_true", help="takes no notice when it is asked to stop")
    args = parser.parse_args()
    asked = []
    signal.signal(signal.SIGTERM, lambda *unused: asked.append(True))
    adaptdl.collective.initialize()
    ledger = Ledger("ledger")
    adaptdl.checkpoint.load_state(ledger)
    ledger.steps = adaptdl.collective.broadcast(ledger.steps)
    rank = env.replica_rank()
    if rank == 0:
        print(f"START replicas={env.num_replicas()} restarts={env.num_restarts()} step={len(ledger.steps)} "
              f"at={time.time():.3f}", flush=True)
        report()
    while len(ledger.steps) < args.steps or (args.until and not os.path.exists(args.until)):
        time.sleep(0.05)
        if adaptdl.collective.allreduce(0 if args.deaf else len(asked)):
            adaptdl.checkpoint.save_all_states()
            saved = time.time()
            time.sleep(1.5)  # longer than a question for output waits for an answer
            print(f"STOPPED at={saved:.3f}", flush=True)
            os._exit(143)
        ledger.steps.append(len(ledger.steps))
        if len(ledger.steps) % 20 == 0:
            adaptdl.checkpoint.save_all_states()
            if rank == 0 and len(ledger.steps) % 100 == 0:
                report()
    if rank == 0:
        whole = ledger.steps == list(range(len(ledger.steps)))
        print(f"END whole={whole} helper={__import__('ledger_helper').WORD} restarts={env.num_restarts()}", flush=True)
    sys.exit(args.exit)


if __name__ == "__main__":
    main()
