"""Total time of a search of 8 trials on 8 slots, under three schedulers. The trials sleep: one unit of work takes
UNIT_S / speedup(n) on n slots, with a speedup that everybody knows beforehand, so that it does not matter how many cores
this machine has. They differ in length, as trials do. Ours are resized while they run, without a checkpoint; those of
ResourceChangingScheduler by a pause, which is what it does."""

import argparse
import os
import shutil
import tempfile
import time

import rayharness  # noqa: F401
import ray
from ray import tune

SLOTS = 8
UNIT_S = 0.5
# A few long trials keep a cluster half empty for long where trials cannot grow.
WORK = (40, 60, 80, 120, 160, 240, 480, 640)


def speedup(replicas):
    """A little worse than linear: the eighth slot still adds half of what the first did."""
    return replicas ** 0.85


def fixed_trial(config):
    """For Tune's own schedulers: as many slots as its resources say, and its place in a checkpoint."""
    import json
    checkpoint = tune.get_checkpoint() if hasattr(tune, "get_checkpoint") else ray.train.get_checkpoint()
    done = 0
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "done")) as file:
            done = json.load(file)
    slots = sum(bundle.get("CPU", 0) for bundle in tune.get_context().get_trial_resources().bundles)
    while done < config["work"]:
        time.sleep(UNIT_S / speedup(slots))
        done += 1
        if done % 4 == 0 or done == config["work"]:
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "done"), "w") as file:
                    json.dump(done, file)
                tune.report({"units": done}, checkpoint=tune.Checkpoint.from_directory(folder))


def elastic_trial(config):
    """For ours: the library's own loop, whose batches all replicas there are share, so that a batch is a unit of work."""
    import loops
    from adaptdl import _core, env, sched_hints

    def send_hints(done):
        # Times of a step on n slots that follow the curve, at a batch size that is not to be changed.
        profile = [{"nodes": 1, "replicas": n, "localBsz": 64, "accumTime": UNIT_S,
                    "optimTime": UNIT_S * n / speedup(n)} for n in (1, 2, 4, 8)]
        sched_hints.post_sched_hints({
            "initBatchSize": 64, "maxBatchSize": 64 * SLOTS, "localBszBounds": [64, 64],
            "maxProfiledReplicas": SLOTS, "gradParams": {"norm": 1.0, "var": 1e6},
            "perfParams": {"alpha_c": 0.02, "beta_c": 0.0075, "alpha_n": 1e-6, "beta_n": 1e-6, "alpha_r": 0.05,
                           "beta_r": 0.02, "gamma": 1.0},
            "profile": profile, "progress": float(done), "iterationsPerEpoch": 1.0,
            "targetEpochs": config["work"]}, env.job_id())

    loop = _core.Loop("work", SLOTS)
    for _ in loops.epochs(1):
        for _ in loops.batches(loop, config["work"] * SLOTS):
            done = loop.index // SLOTS
            if env.replica_rank() == 0 and done % 10 == 0:
                send_hints(done)
            time.sleep(UNIT_S / speedup(env.num_replicas()))
            if (done + 1) % 4 == 0:
                tune.report({"units": done + 1})
    tune.report({"units": config["work"]})


def search(trainable, scheduler, scale):
    """Seconds from the first trial to the last, and how often trials were restarted."""
    folder = tempfile.mkdtemp(prefix="bench-ray-")
    begin = time.monotonic()
    try:
        analysis = tune.run(trainable, config={"work": tune.grid_search([round(work * scale) for work in WORK])},
                            scheduler=scheduler, storage_path=folder, verbose=0, reuse_actors=False)
        seconds = time.monotonic() - begin
        for trial in analysis.trials:
            assert trial.status == "TERMINATED" and trial.last_result["units"] == trial.config["work"], trial
        return seconds
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def least(slots, scale):
    """Seconds that FIFO takes with so many slots for each trial, if starts cost nothing."""
    free = [0.0] * (SLOTS // slots)
    for work in WORK:
        free[free.index(min(free))] += round(work * scale) * UNIT_S / speedup(slots)
    return max(free)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the trials' lengths (1)")
    parser.add_argument("--fifo", type=int, nargs="*", default=[1, 2, 4], help="slots of a trial under FIFO (1 2 4)")
    parser.add_argument("--least", action="store_true", help="only print what FIFO would take if starts cost nothing")
    args = parser.parse_args()
    if args.least:
        for slots in args.fifo:
            print(f"FIFO, {slots} slot{'s' if slots > 1 else ''} each: {least(slots, args.scale):.0f} s")
        return
    from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler
    from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

    from adaptdl_ray.tune import AdaptDLScheduler, DistributedTrainableCreator

    def fixed(slots):
        return tune.with_resources(fixed_trial, tune.PlacementGroupFactory([{"CPU": slots}]))

    rows = []
    with rayharness.local(SLOTS):
        for name, trainable, scheduler in (
                ("AdaptDLScheduler", DistributedTrainableCreator(elastic_trial, backend="none"),
                 AdaptDLScheduler(interval_s=20)),
                ("ResourceChangingScheduler", fixed(1),
                 ResourceChangingScheduler(FIFOScheduler(), DistributeResources(add_bundles=False))),
                *((f"FIFO, {slots} slot{'s' if slots > 1 else ''} each", fixed(slots), FIFOScheduler())
                  for slots in args.fifo)):
            rows.append((name, search(trainable, scheduler, args.scale)))
            print(f"{name}: {rows[-1][1]:.0f} s", flush=True)
    units = sum(round(work * args.scale) for work in WORK)
    print(f"\n8 trials of {', '.join(str(round(work * args.scale)) for work in WORK)} units, {units} in all; a unit takes "
          f"{UNIT_S:g} s / n^0.85 on n slots\n")
    print("| scheduler | total time | against ours |\n|---|---|---|")
    for name, seconds in rows:
        print(f"| {name} | {seconds:.0f} s | {seconds / rows[0][1]:.2f} |")


if __name__ == "__main__":
    main()
