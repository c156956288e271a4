"""The scheduler: what every live trial gets is decided together, by one of AdaptDL's policies."""

from __future__ import annotations

import logging
import os
import pickle
import time
from typing import Any, Mapping, Optional

import adaptdl.policy
import ray
from adaptdl_ray import _board, _groups, _snapshot
from adaptdl_ray.tune._trainable import AdaptDLTrainable
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

__all__ = ["AdaptDLScheduler", "ElasticTrial"]

_LOG = logging.getLogger(__name__)
_ASK_S = 1.0
# A trial that is still without a placement group after this long is looked at again.
_STUCK_S = 10.0
# How long decisions wait for a trial that changes its size while it trains; a busy machine starts processes slowly.
_CHANGE_S = 120.0
# How long a trial that has just begun may take to say that it can; else it is paused for another size.
_SAY_S = 5.0
# What a change of size while a trial trains costs before one was measured, as in AdaptDL's own scheduler.
_USUAL_PAUSE_S = 1.0
_LOST_MAX = 10
# A search is over when its last trial is: all trials weigh the same, where rank would take from the long for the short.
_USUAL_PARAMETERS = {"rank": {"price": 0.0, "hep": 0.0, "alpha": 0.0}}


class ElasticTrial(Trial):
    """A trial that does not count machines that were lost as failures of its own. Trials become one when they are
    added to the scheduler; Tune makes them itself, and offers no other way."""

    adaptdl_lost = 0

    def handle_error(self, exc: Any = None) -> None:
        before = self.run_metadata.num_failures
        super().handle_error(exc)
        cause = getattr(exc, "cause", exc) if isinstance(exc, RayTaskError) else exc
        if not isinstance(cause, (RayActorError, _groups.WorkersLost)) or self.adaptdl_lost >= _LOST_MAX:
            return
        self.adaptdl_lost += 1
        self.run_metadata.num_failures = before
        saved = getattr(cause, "checkpoint", None)
        if saved is not None:
            self.on_checkpoint(saved)


class _Watch:
    """What the scheduler knows of one trial."""

    def __init__(self, now: float) -> None:
        self.submitted = self.last_change = now
        self.restarts = 0          # of the whole trial: resizes, and machines that were lost
        self.status: dict[str, Any] = {}
        self.hints: Optional[dict[str, Any]] = None  # the last report, of whichever group
        self.models: dict[str, dict[str, Any]] = {}  # the last from each device type
        self.question: Optional[ray.ObjectRef] = None
        self.asked = 0.0
        self.saved: Any = None
        self.wanted: Optional[int] = None   # replicas, while a resize is under way
        self.wanted_type = ""
        self.target: Optional[int] = None   # replicas, while it changes without a pause,
        self.target_since = 0.0             # since then
        self.replicas = 0                   # of a running trial, as it says; 0: it has not said yet
        self.in_place = True                # False: once it could not
        self.able = False                   # once it could
        self.began = 0.0                    # when it was up, for the first time or after it could
        self.held = False  # paused by this scheduler, not by the base scheduler
        self.pending_since: Optional[float] = None
        self.pause_began: Optional[float] = None
        self.reason = ""


class AdaptDLScheduler(TrialScheduler):
    """A Tune scheduler that shares the cluster among the trials: those that use more replicas well get more, and
    all of them grow when others end and shrink when new ones come. A trial is resized while it trains, where its
    function can go on with other replicas (docs/elastic.md), else by a pause; its state is kept either way. It uses
    GPUs, and CPUs on a cluster that has none.

    The trainable must be one of :func:`adaptdl_ray.tune.DistributedTrainableCreator`.

    Args:
        base_scheduler: Decides which trials are stopped early (``ASHAScheduler`` for example); without one every
            trial runs to its end.
        policy: One of ``adaptdl.policy.names()``.
        parameters: The policy's constants by name, where they shall not be the usual ones. Those of "rank" are such that
            all trials weigh the same, so that the search as a whole ends early; ``{"hep": 1.4, "alpha": 0.1}`` puts short
            trials first.
        interval_s: Seconds between decisions. There is one also whenever a trial starts or ends.
    """

    def __init__(self, base_scheduler: Optional[TrialScheduler] = None, policy: str = "rank",
                 parameters: Optional[Mapping[str, float]] = None, interval_s: float = 60.0) -> None:
        super().__init__()
        if not interval_s > 0:
            raise ValueError(f"interval_s must be positive, not {interval_s!r}")
        self._base = base_scheduler or FIFOScheduler()
        self._parameters = {**_USUAL_PARAMETERS.get(policy, {}), **(parameters or {})}
        self._policy_name = policy
        self._policy = adaptdl.policy.Policy(policy, self._parameters)
        self._interval_s = interval_s
        self._watches: dict[str, _Watch] = {}
        self._decided = 0.0
        self._due = False
        self._last: Optional[dict[str, Any]] = None
        self._nodes: list[_snapshot.Node] = []  # that it was about
        self._checked = False
        self._search: Optional[str] = None  # as the cluster's board names it
        self._restart_cost = 0.0  # seconds; measured on all trials, which are the same program

    # ---- Tune's calls ----

    @property
    def metric(self) -> Optional[str]:
        return self._base.metric

    def set_search_properties(self, metric: Optional[str], mode: Optional[str], **spec: Any) -> bool:
        return self._base.set_search_properties(metric, mode, **spec)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._check(tune_controller, trial)
        trial.__class__ = ElasticTrial
        watch = self._watches.get(trial.trial_id)
        if watch is None:
            watch = self._watches[trial.trial_id] = _Watch(time.time())
            self._base.on_trial_add(tune_controller, trial)
        self._rename(trial)
        self._due = True

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        watch = self._watches.get(trial.trial_id)
        if watch is not None and trial.should_recover():  # it comes back, wherever there is room now
            watch.restarts += 1
            watch.status = {"ledger": watch.status.get("ledger")}
            watch.wanted = watch.question = watch.target = None
            watch.replicas = 0
            self._resize(trial, *self._place_one(tune_controller, trial))
        else:
            self._base.on_trial_error(tune_controller, trial)
        self._due = True

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict) -> str:
        return self._base.on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict) -> None:
        self._base.on_trial_complete(tune_controller, trial, result)
        self._ended(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._base.on_trial_remove(tune_controller, trial)
        self._ended(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Optional[Trial]:
        now = time.time()
        trials = self._live(tune_controller)
        for trial in trials:
            self._ask(tune_controller, trial, now)
        if (self._due or now - self._decided >= self._interval_s) and not self._busy(trials):
            self._decide(tune_controller, trials, now)
        for trial in trials:
            self._unstick(tune_controller, trial, now)
        return self._next(trials, tune_controller)

    def debug_string(self) -> str:
        return "Using AdaptDL scheduling algorithm."

    def explain(self) -> dict[str, str]:
        """Why each trial has what it has, by the name of the trial: the reasons of the last decision, in the
        words of ``adaptdl explain``."""
        return {job["name"]: job["text"] for job in (self._last or {"jobs": []})["jobs"]}

    def save(self, checkpoint_path: str) -> None:
        state = {"base": self._base, "restarts": {name: watch.restarts for name, watch in self._watches.items()}}
        with open(checkpoint_path, "wb") as file:
            pickle.dump(state, file)

    def restore(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "rb") as file:
            state = pickle.load(file)
        self._base = state["base"]
        for name, restarts in state["restarts"].items():
            self._watches.setdefault(name, _Watch(time.time())).restarts = restarts

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_policy"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._policy = adaptdl.policy.Policy(self._policy_name, self._parameters)

    # ---- looking ----

    def _check(self, tune_controller: Any, trial: Trial) -> None:
        """What cannot work is said at the first trial, in one line."""
        if getattr(_unwrapped(tune_controller), "_reuse_actors", False):
            raise ValueError("AdaptDLScheduler: reuse_actors must be off (tune.run(reuse_actors=False) or "
                             "TuneConfig(reuse_actors=False)): a resized trial needs actors of its own")
        cls = trial.get_trainable_cls()
        if not (isinstance(cls, type) and issubclass(cls, AdaptDLTrainable)):
            raise ValueError("AdaptDLScheduler: the trainable must be made by adaptdl_ray.tune."
                             f"DistributedTrainableCreator, not be {getattr(cls, '__name__', cls)}")
        if not self._checked:
            _fits(cls)
            self._checked = True

    def _ended(self, tune_controller: Any, trial: Trial) -> None:
        self._due = True
        if self._search and not [other for other in self._live(tune_controller) if other is not trial]:
            _board.remove(self._search)

    @staticmethod
    def _live(tune_controller: Any) -> list[Trial]:
        return [trial for trial in tune_controller.get_trials()
                if trial.status in (Trial.PENDING, Trial.RUNNING, Trial.PAUSED)]

    def _ask(self, tune_controller: Any, trial: Trial, now: float) -> None:
        """Keeps the status of a running trial fresh, without waiting for it."""
        watch = self._watches[trial.trial_id]
        if trial.status != Trial.RUNNING:
            watch.replicas, watch.target = 0, None
            watch.question = None  # of an actor that goes: its answer would be taken for the next one's
            return
        watch.pending_since = None
        actor = trial.temporary_state.ray_actor
        if watch.question is not None:
            if not ray.wait([watch.question], timeout=0)[0]:
                return
            question, watch.question = watch.question, None
            try:
                self._learn(trial, watch, ray.get(question), now)
                self._settle(tune_controller, trial, watch, now)
            except RayError:
                pass  # Tune notices a dead actor by itself
        if actor is not None and now - watch.asked >= _ASK_S:
            watch.asked = now
            watch.question = actor.adaptdl_status.remote()

    def _learn(self, trial: Trial, watch: _Watch, status: dict[str, Any], now: float) -> None:
        fresh = status["ready"] and not watch.status.get("ready")
        watch.status = status
        watch.hints = status["hints"] or watch.hints
        watch.models.update(status["models"])
        watch.able = watch.able or status["able"]
        if status["restarts"] > watch.restarts or (status["ready"] and len(status["nodes"]) != watch.replicas):
            if watch.target is None and watch.replicas:
                self._due = True  # a replica died
            watch.restarts = max(status["restarts"], watch.restarts)
            watch.replicas = len(status["nodes"]) if status["ready"] else 0
            self._rename(trial)
        if fresh and (watch.able or not watch.began):
            watch.began = now
        if fresh:  # before the first resize, what a start costs is the best guess
            cost = status["startSeconds"] if watch.pause_began is None else now - watch.pause_began
            self._restart_cost = (self._restart_cost + cost) / 2 if self._restart_cost else cost
            watch.pause_began = None
        if status["saved"] is not None and status["saved"] is not watch.saved:
            known = watch.saved.checkpoint.path if watch.saved else None
            watch.saved = status["saved"]
            if watch.saved.checkpoint.path != known:
                trial.on_checkpoint(watch.saved)

    def _settle(self, tune_controller: Any, trial: Trial, watch: _Watch, now: float) -> None:
        """What has become of a change of size without a pause."""
        if watch.target is None:
            return
        if watch.status["cannot"] is not None:
            watch.in_place = False
            replicas, watch.target = watch.target, None
            self._pause(tune_controller, trial, replicas, "", now)
        elif not watch.status["changes"] or now - watch.target_since > _CHANGE_S:
            watch.target = None

    def _busy(self, trials: list[Trial]) -> bool:
        """Is a resize under way? The next decision waits for it: it would be about a cluster that is not there."""
        watches = [(trial, self._watches[trial.trial_id]) for trial in trials]
        return any((watch.wanted is not None or watch.target is not None) and trial.status == Trial.RUNNING
                   for trial, watch in watches)

    # ---- deciding ----

    def _jobs(self, trials: list[Trial]) -> list[_snapshot.Job]:
        jobs = []
        for trial in trials:
            watch, cls = self._watches[trial.trial_id], trial.get_trainable_cls()
            status = watch.status if trial.status == Trial.RUNNING else {}
            ledger = watch.status.get("ledger") or {}
            jobs.append(_snapshot.Job(
                trial.trial_id, cls.replica_request(), cls.options["min_replicas"], cls.options["max_replicas"] or 0,
                status.get("nodes") or (), watch.submitted, watch.last_change, ledger.get("runSeconds", 0.0),
                ledger.get("replicaSeconds", 0.0), watch.restarts, self._restart_cost, watch.hints, watch.models,
                (status.get("pauseSeconds") or _USUAL_PAUSE_S) if watch.in_place and status.get("able") else 0.0))
        return jobs

    def _decide(self, tune_controller: Any, trials: list[Trial], now: float) -> None:
        self._decided, self._due = now, False
        if any(trial.status == Trial.RUNNING and not self._watches[trial.trial_id].status.get("ready")
               for trial in trials):
            self._due = True  # a trial is just starting: in a moment it is known where it is
            return
        decision = self._ask_policy(trials, now)
        if decision is None:
            return
        for trial, job in zip(trials, decision["jobs"]):
            watch, replicas = self._watches[trial.trial_id], len(job["nodes"])
            watch.reason, kind = job["text"], job.get("deviceType", "")
            if trial.status == Trial.RUNNING and (
                    replicas != self._replicas(trial) or (kind and kind != watch.status.get("deviceType"))):
                if watch.in_place and not watch.status.get("able") and now - watch.began < _SAY_S:
                    self._due = True
                    continue
                watch.last_change = now
                if self._in_place(trial, watch, replicas, kind):
                    self._change(trial, watch, replicas, [self._nodes[index].name for index in job["nodes"]], now)
                else:
                    self._pause(tune_controller, trial, replicas, kind, now)
            elif trial.status == Trial.PAUSED and watch.held:
                watch.wanted, watch.wanted_type = replicas, kind
        self._publish(trials, now)

    def _publish(self, trials: list[Trial], now: float) -> None:
        """For ``adaptdl ray trials``, from anywhere in the cluster."""
        self._search = self._search or str(getattr(trials[0].storage, "experiment_dir_name", None) or id(self))
        _board.write(self._search, now, [
            {"name": str(trial), "status": trial.status, "explain": self._watches[trial.trial_id].reason}
            for trial in trials])

    def _ask_policy(self, trials: list[Trial], now: float) -> Optional[dict[str, Any]]:
        if not trials:
            return None
        self._nodes = _snapshot.ray_nodes()
        snapshot = _snapshot.make_snapshot(self._nodes, self._jobs(trials), now, self._policy_name,
                                           self._parameters)
        try:
            self._last = self._policy.decide(snapshot)
        except ValueError as error:
            _LOG.warning("no decision this time: %s", error)
            return None
        return self._last

    def _place_one(self, tune_controller: Any, trial: Trial) -> tuple[int, str]:
        """How many replicas a trial that lost its machine starts again with, and on what."""
        trials = [other for other in self._live(tune_controller) if other is not trial]
        decision = self._ask_policy(trials + [trial], time.time())
        found = [job for job in (decision or {"jobs": []})["jobs"] if job["name"] == trial.trial_id]
        replicas = max(len(found[0]["nodes"]) if found else 1, trial.get_trainable_cls().options["min_replicas"], 1)
        return replicas, found[0].get("deviceType", "") if found else ""

    # ---- doing ----

    def _replicas(self, trial: Trial) -> int:
        watch = self._watches[trial.trial_id]
        return watch.replicas if trial.status == Trial.RUNNING and watch.replicas else _given(trial)

    @staticmethod
    def _in_place(trial: Trial, watch: _Watch, replicas: int, device_type: str) -> bool:
        """Can it be so without a pause? Not with less than what Tune made room for."""
        return bool(watch.in_place and watch.status.get("able") and replicas >= _given(trial)
                    and device_type in ("", watch.status.get("deviceType")))

    @staticmethod
    def _change(trial: Trial, watch: _Watch, replicas: int, nodes: list[str], now: float) -> None:
        actor = trial.temporary_state.ray_actor
        if actor is None:
            return
        watch.target, watch.target_since = replicas, now
        watch.question = None  # what is on its way is older than this
        actor.adaptdl_resize.remote(replicas, nodes)

    def _pause(self, tune_controller: Any, trial: Trial, replicas: int, device_type: str, now: float) -> None:
        watch = self._watches[trial.trial_id]
        watch.wanted, watch.wanted_type, watch.pause_began, watch.held = replicas, device_type, now, True
        tune_controller.pause_trial(trial)

    def _resize(self, trial: Trial, replicas: int, device_type: str) -> None:
        """Of a trial that does not run. One that grows while it trains begins with the least."""
        watch, least = self._watches[trial.trial_id], trial.get_trainable_cls().options["min_replicas"]
        if watch.able and watch.in_place:
            replicas = min(replicas, max(least, 1))
        wanted = trial.get_trainable_cls().resources_for(replicas, device_type)
        if wanted != trial.placement_group_factory:
            trial.placement_group_factory = None
            trial.update_resources(wanted)
        self._rename(trial)

    def _rename(self, trial: Trial) -> None:
        watch = self._watches[trial.trial_id]
        trial.custom_trial_name = f"AdaptDLTrainable_{self._replicas(trial)}_{watch.restarts}_{trial.trial_id}"

    def _next(self, trials: list[Trial], tune_controller: Any) -> Optional[Trial]:
        """A paused trial whose resize is to be carried out now, or what the base scheduler wants to run."""
        for trial in trials:
            watch = self._watches[trial.trial_id]
            if trial.status != Trial.PAUSED or not watch.wanted:
                continue
            replicas, watch.wanted, watch.held = watch.wanted, None, False
            watch.restarts += 1
            watch.status = {**watch.status, "ready": False, "nodes": []}
            self._resize(trial, replicas, watch.wanted_type)
            self._due = True
            return trial
        trial = self._base.choose_trial_to_run(tune_controller)
        if trial is not None and trial.status == Trial.PAUSED and self._watches[trial.trial_id].wanted == 0:
            return None
        return trial

    def _unstick(self, tune_controller: Any, trial: Trial, now: float) -> None:
        """A trial that waits for more than the cluster still has (a machine went meanwhile) asks for less."""
        watch = self._watches[trial.trial_id]
        if trial.status != Trial.PENDING:
            watch.pending_since = None
            return
        watch.pending_since = watch.pending_since or now
        if now - watch.pending_since < _STUCK_S or self._replicas(trial) == 1:
            return
        watch.pending_since = now
        request = trial.get_trainable_cls().replica_request()
        room = sum(_snapshot.fits(node.resources, request) for node in _snapshot.ray_nodes())
        others = sum(self._replicas(other) for other in self._live(tune_controller)
                     if other is not trial and other.status == Trial.RUNNING)
        if self._replicas(trial) <= room - others:
            return
        controller = _unwrapped(tune_controller)
        if trial in controller._staged_trials and trial in controller._trial_to_actor:
            controller._unstage_trial_with_resources(trial)
            controller._schedule_trial_stop(trial)
            controller._set_trial_status(trial, Trial.PAUSED)
            watch.held = True
            watch.wanted, watch.wanted_type = self._place_one(tune_controller, trial)


def _unwrapped(tune_controller: Any) -> Any:
    """Tune gives schedulers a wrapper that warns of what is not public."""
    return vars(tune_controller).get("_tune_controller", tune_controller)


def _given(trial: Trial) -> int:
    """How many replicas Tune made room for."""
    return len(trial.placement_group_factory.bundles)


def _fits(cls: type) -> None:
    """ValueError: no node of the cluster has what one replica takes, and none is going to be added."""
    request = cls.replica_request()
    nodes = _snapshot.ray_nodes()
    if os.environ.get("ADAPTDL_RAY_AUTOSCALES") or any(_snapshot.fits(node.resources, request) for node in nodes):
        return
    most = {name: max((node.resources.get(name, 0) for node in nodes), default=0) for name in request}
    wants = ", ".join(f"{amount:g} {name}" for name, amount in request.items())
    has = ", ".join(f"{amount:g} {name}" for name, amount in most.items())
    raise ValueError(f"no node of the Ray cluster has what one replica takes ({wants}); the most that a node has is {has}")
