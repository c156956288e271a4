"""The same measurement as bench_allreduce, of Gloo as PyTorch uses it: all_reduce of float32 tensors, medians
of rank 0 in microseconds, and the processor time of its process. Usage: gloo_allreduce.py BYTES..., two
processes of this machine; or gloo_allreduce.py --member RANK REPLICAS ADDRESS PORT BYTES..., one of them."""
import os
import resource
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist


def rounds_for(size):
    return max(11, (1 << 29) // (size + (1 << 18)))


def processor():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(rank, replicas, address, port, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank,
                            world_size=replicas)
    for size in sizes:
        tensor, times, rounds = torch.zeros(size // 4), [], rounds_for(size)
        for i in range(-(rounds // 10 + 2), rounds):
            if i == 0:
                before = processor()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if i >= 0:
                times.append(time.perf_counter() - start)
        spent = (processor() - before) / rounds
        dist.barrier()
        if rank == 0:
            print(f"gloo {size} {1e6 * statistics.median(times):.2f} 0 {1e6 * spent:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "--member":
        rank, replicas, address, port = arguments[1:5]
        run(int(rank), int(replicas), address, int(port),
            [int(size) // 4 * 4 for size in arguments[5:]])
        sys.exit(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    child = os.fork()
    run(0 if child else 1, 2, "127.0.0.1", chosen, [int(size) // 4 * 4 for size in arguments])
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(status != 0)
