"""Bytes an element that a compression takes in addition to the same front end uncompressed, over gloo.

    python -m benchmarks.memory.step
    python -m benchmarks.memory.step --fronts DDP --compressions int4 dense --layers 24

Each row is a job of its own, of rank 0. Standing is what a rank holds between two steps, after malloc has given back
what is free; resident, before that; peak is the most of the training, its first step and the handshake among it.
"""

from __future__ import annotations

import argparse

from benchmarks.frame.circumstances import told
from benchmarks.frame.page import head, row
from benchmarks.frame.processes import run_job
from benchmarks.memory.training import FRONTS, train

COMPRESSIONS = ("dense", "int4", "int8", "topk", "powersgd", "auto", "differences")
TAKES = {
    "FSDP2, shards": ("dense", "int4", "int8"),
    "FSDP2, parameters": ("dense", "int4", "int8", "differences"),  # of int4
}
"""By front end, those that it takes; others all but the last."""
KINDS = ("standing", "resident", "peak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fronts", nargs="+", choices=tuple(FRONTS), default=tuple(FRONTS))
    parser.add_argument("--compressions", nargs="+", choices=COMPRESSIONS, default=COMPRESSIONS)
    parser.add_argument("--layers", type=int, default=48, help="of 1,049,600 elements")
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    print(f"{told()}\n{asked.ranks} ranks, {asked.layers} layers\n")
    print(head(["front end", "compression", *KINDS], words=2))
    for front in asked.fronts:
        plain = run_job(asked.ranks, train, front, "none", asked.layers)
        cells = [f"{plain[kind] / plain['numel']:.2f}" for kind in KINDS]
        print(row([front, "none, all that the process has", *cells]), flush=True)
        for compression in asked.compressions:
            if compression not in TAKES.get(front, COMPRESSIONS[:-1]):
                continue
            found = run_job(asked.ranks, train, front, compression, asked.layers)
            more = [f"{(found[kind] - plain[kind]) / plain['numel']:+.2f}" for kind in KINDS]
            print(row([front, compression, *more]), flush=True)


if __name__ == "__main__":
    main()
