"""The same measurement as bench_allreduce, of Gloo as PyTorch uses it: two processes, all_reduce of
float32 tensors, medians of rank 0 in microseconds. Usage: gloo_allreduce.py BYTES..."""
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist


def rounds_for(size):
    return max(11, (1 << 29) // (size + (1 << 18)))


def run(rank, port, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for size in sizes:
        tensor, times, rounds = torch.zeros(size // 4), [], rounds_for(size)
        for i in range(-(rounds // 10 + 2), rounds):
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if i >= 0:
                times.append(time.perf_counter() - start)
        dist.barrier()
        if rank == 0:
            print(f"gloo {size} {1e6 * statistics.median(times):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    wanted = [int(size) // 4 * 4 for size in sys.argv[1:]]
    child = os.fork()
    run(0 if child else 1, chosen, wanted)
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(status != 0)
