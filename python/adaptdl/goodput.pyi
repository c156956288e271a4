from typing import Any, NamedTuple, Optional

__all__: list[str]

class PerfParams(NamedTuple):
    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float

class GradParams(NamedTuple):
    sqr: float
    var: float

# Numbers, sequences and arrays alike: the result is a number when every argument is one.
class GoodputFunction:
    def __init__(self, perf_params: PerfParams, grad_params: GradParams, init_batch_size: float) -> None: ...
    def __call__(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any: ...
    def evaluate(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any: ...
    def throughput(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any: ...
    def efficiency(self, batch_size: Any) -> Any: ...
    def optimize(
        self,
        num_nodes: Any,
        num_replicas: Any,
        max_batch_size: Optional[float] = None,
        atomic_bsz_range: Optional[tuple[Optional[float], Optional[float]]] = None,
        accumulation: bool = False,
    ) -> tuple[Any, Any, Any]: ...

def fit_perf_params(
    num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_step_time: Any, optim_step_time: Any
) -> PerfParams: ...
