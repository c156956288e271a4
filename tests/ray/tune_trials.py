"""Training functions for the Tune tests, and what watches them. Without PyTorch where that is not the point: it
takes long to start."""

import json
import os
import time

import adaptdl.checkpoint
import adaptdl.collective
from adaptdl import _signal, env, sched_hints
from ray import tune
from ray.tune import Callback
from ray.tune.search import Searcher


class Ledger(adaptdl.checkpoint.State):
    """Every step that counts, and how many results there were."""
    steps, reports = [], 0

    def save(self, fileobj):
        fileobj.write(json.dumps([self.steps, self.reports]).encode())

    def load(self, fileobj):
        self.steps, self.reports = json.loads(fileobj.read())


def send_hints():
    """As if replicas were nearly for free: the policy wants as many as it may."""
    sched_hints.post_sched_hints({
        "initBatchSize": 64, "maxBatchSize": 6400, "localBszBounds": [32, 64], "gradientAccumulation": False,
        "maxProfiledReplicas": 8, "gradParams": {"norm": 1.0, "var": 1000.0}, "progress": 1.0,
        "perfParams": {"alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 1e-4, "beta_n": 1e-5, "alpha_r": 1e-4,
                       "beta_r": 1e-5, "gamma": 1.5}}, env.job_id())


def ledger_trial(config, checkpoint_dir=None):
    """Counts steps; config: steps, and optionally until (a file that must be there before the end)."""
    ledger = Ledger("ledger")
    adaptdl.checkpoint.load_state(ledger)
    ledger.steps, ledger.reports = adaptdl.collective.broadcast([ledger.steps, ledger.reports])
    if env.replica_rank() == 0:
        send_hints()
    started = len(ledger.steps)
    while len(ledger.steps) < config["steps"] or (config.get("until") and not os.path.exists(config["until"])):
        time.sleep(0.05)
        if adaptdl.collective.allreduce(int(_signal.get_exit_flag())):
            adaptdl.checkpoint.save_all_states()
            raise SystemExit(143)
        ledger.steps.append(len(ledger.steps))
        if len(ledger.steps) % 20 == 0:
            ledger.reports += 1
            tune.report(whole=ledger.steps == list(range(len(ledger.steps))), steps=len(ledger.steps), started=started,
                        reports=ledger.reports, replicas=env.num_replicas(), worker=os.getpid())
            adaptdl.checkpoint.save_all_states()


def failing_trial(config):
    tune.report({"mean_accuracy": 0.5})
    raise ValueError("this function fails on purpose")


def silent_trial(config):
    pass


class Watch(Callback):
    """Calls a function with every result, on Tune's side."""

    def __init__(self, function):
        self.function = function

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.function(trial, result)


class Late(Searcher):
    """A second trial once the first has that many replicas; both end when the second has had a result."""

    def __init__(self, replicas, end):
        super().__init__(metric="steps", mode="max")
        self.replicas, self.end = replicas, end
        self.first = self.wanted = False
        self.seen = {}

    def suggest(self, trial_id):
        if not self.first:
            self.first = True
            return {"steps": 40, "until": self.end}
        if self.wanted:
            self.wanted = None
            return {"steps": 40, "until": self.end}
        return Searcher.FINISHED if self.wanted is None else None

    def on_trial_result(self, trial_id, result):
        seen = self.seen.setdefault(trial_id, [])
        seen.append(result["replicas"])
        if self.wanted is False and result["replicas"] >= self.replicas:
            self.wanted = True
        if len(self.seen) == 2:
            open(self.end, "w").close()

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass
