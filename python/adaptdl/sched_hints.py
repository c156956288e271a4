"""Reports to the scheduler. A training loop of ``adaptdl.torch`` reports by itself, every half minute; this
module is for programs that measure and report on their own."""

import json
import logging
import types

from adaptdl import _core
from adaptdl.goodput import PerfParams

__all__ = ["PERF_PARAMS", "SCHED_HINTS", "post_sched_hints"]

_LOG = logging.getLogger(__name__)
_TIMEOUT_MS = 20000

#: The fields of ``perfParams``, with values that say nothing.
PERF_PARAMS = types.MappingProxyType(dict.fromkeys(PerfParams._fields, 0.0))

#: The fields of a report, with values that say nothing.
SCHED_HINTS = types.MappingProxyType({
    "initBatchSize": 0, "localBszBounds": None, "globalBatchSize": None, "maxBatchSize": 0,
    "maxProfiledReplicas": 0, "gradientAccumulation": False, "gradParams": None, "perfParams": None,
})

#: What our scheduler understands beside them.
_MORE_HINTS = frozenset({"progress", "epoch", "targetEpochs", "iterationsPerEpoch", "elapsed", "profile",
                         "loneReplicaGrows"})


def post_sched_hints(sched_hints, job_key):
    """Send a report to the supervisor. Without one (``ADAPTDL_SUPERVISOR_URL``) nothing happens. A supervisor
    that cannot be reached, or a report that makes no sense (a field that no scheduler knows, a number that is
    not finite), is logged as a warning, and the program goes on.

    Args:
        sched_hints (dict): Values for some or all of the fields of ``SCHED_HINTS``; ``perfParams`` has
            those of ``PERF_PARAMS``, ``gradParams`` has "norm" and "var".
        job_key (str): The job, "namespace/name" (``adaptdl.env.job_id()``).
    """
    url = _core.env()["supervisor_url"]
    if url is None:
        return
    url = f"{url.rstrip('/')}/hints/{job_key}"
    try:
        code, answer = _core.http_put(url, _body(sched_hints, job_key), _TIMEOUT_MS)
    except (OSError, TypeError, ValueError) as error:  # ConnectionError and TimeoutError are OSErrors
        _LOG.warning("hints not sent: %s", error)
        return
    if not 200 <= code < 300:
        _LOG.warning("hints not sent: PUT %s: the supervisor answered %d %.200s",
                     _core.masked(url), code, answer)


def _body(sched_hints, job_key):
    """The report as it is sent, checked."""
    _check("sched_hints", sched_hints, SCHED_HINTS.keys() | _MORE_HINTS)
    _check("perfParams", sched_hints.get("perfParams") or {}, PERF_PARAMS.keys())
    _check("gradParams", sched_hints.get("gradParams") or {}, {"norm", "var"})
    if not isinstance(job_key, str) or not 0 <= job_key.count("/") <= 1:
        raise ValueError(f"job_key must be \"namespace/name\", not {job_key!r}")
    return json.dumps(dict(sched_hints), allow_nan=False).encode()


def _check(what, fields, known):
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"{what} has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
