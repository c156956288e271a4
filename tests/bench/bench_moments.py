#!/usr/bin/env python3
"""What becomes of Adam's moments when the batch size changes: examples/pytorch/transformer.py at equal examples, with a
fixed batch size, and with an adaptive one, where they are restarted and where they are kept (ADAPTDL_MOMENTS).

    bench_moments.py [--seeds N] [--epochs N] [--bytes N] [--jobs N]     with the built package on PYTHONPATH

Prints what each seed came to after the last epoch, bits per character of text that it was not trained on, and for the two
adaptive ways the mean of the differences from fixed, and its standard error."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = {"fixed": (["--max-batch-size", "16"], "keep"), "restart": ([], "restart"), "keep": ([], "keep")}
LINE = re.compile(r"Epoch (\d+): ([\d.]+) bits per character, batch size (\d+)")


def train(way, seed, text, epochs):
    """(bits per character, batch size) after each epoch."""
    words, moments = WAYS[way]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ADAPTDL_")}
    env.update(ADAPTDL_MOMENTS=moments, ADAPTDL_BATCH_STEPS="20", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, ROOT / "examples/pytorch/transformer.py", "--text", text, "--seed", str(seed),
                           "--epochs", str(epochs), *words], env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{way}, seed {seed}: exit status {done.returncode}\n{done.stderr}")
    return [(float(bits), int(size)) for _, bits, size in LINE.findall(done.stdout)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=40000, help="of docs/*.md")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args()
    whole = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    with tempfile.NamedTemporaryFile("w", suffix=".md") as text, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        text.write(whole[:args.bytes])
        text.flush()
        runs = {(way, seed): pool.submit(train, way, seed, text.name, args.epochs)
                for seed in range(1, args.seeds + 1) for way in WAYS}
        results = {key: run.result() for key, run in runs.items()}
    for (way, seed), epochs in results.items():
        print(f"{way:8} seed {seed}: " + " ".join(f"{bits:.3f}({size})" for bits, size in epochs), flush=True)
    for way in ("restart", "keep"):
        apart = [results[way, seed][-1][0] - results["fixed", seed][-1][0] for seed in range(1, args.seeds + 1)]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        print(f"{way:8} - fixed after {args.epochs} epochs: {statistics.mean(apart):+.4f} +- {error:.4f} bits")
    apart = [results["restart", seed][-1][0] - results["keep", seed][-1][0] for seed in range(1, args.seeds + 1)]
    error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
    print(f"restart - keep: {statistics.mean(apart):+.4f} +- {error:.4f} bits")


if __name__ == "__main__":
    main()
