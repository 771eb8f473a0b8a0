r"""What do collectives of MPI take among hosts, and of the processor, where the thread that waits polls, or sleeps?

    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- python benchmarks/waiting/collectives.py

The same engine both ways, in turns, in one job, while nothing else computes: so what polling takes from others is the
processor time alone. Figures are medians of rank 0.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch

from hvd_compress.engines.layout import shard_lengths
from hvd_compress.engines.mpi import MpiEngine

sys.path.append(str(Path(__file__).resolve().parents[1]))
from turns import median_with_interval, ms

SIZES = (1_000, 30_000, 400_000, 1_500_000, 7_500_000)
"""Bytes of a bucket, those of int4() and of dense() of time_to_accuracy's transformer last."""


class Engine(MpiEngine):
    """One that polls where it is told to."""

    sleeps = True

    @property
    def _sleeps(self) -> bool:
        return self.sleeps and super()._sleeps

    def _allreduce(self, tensor: torch.Tensor, algorithm: str) -> None:
        """Polling, a large one goes around Open MPI's ring, as it did before."""
        rings = not self.sleeps and algorithm == "auto" and tensor.nbytes >= self.world_size << 20
        super()._allreduce(tensor, "ring" if rings else algorithm)


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def taken(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call, and those of the processor."""
    start_s, used_s = time.perf_counter(), processor_s()
    call()
    return time.perf_counter() - start_s, processor_s() - used_s


@click.command(help=__doc__)
@click.option("--rounds", default=8, show_default=True)
def main(rounds: int) -> None:
    engine = Engine()
    engine.locate()
    if engine.rank == 0:
        print("| collective | bytes | polls, ms | sleeps, ms | sleeps / polls (95 %) | processor: polls, ms | sleeps |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for size in SIZES:
        values, codes = torch.zeros(size // 4), torch.zeros(size, dtype=torch.uint8)
        lengths = shard_lengths(size, engine.world_size)
        own = codes[: lengths[engine.rank]].clone()
        calls: dict[str, Callable[[], object]] = {
            "allreduce": lambda values=values: engine.allreduce(values),
            "all-to-all": lambda codes=codes, lengths=lengths: engine.alltoall(
                torch.split(codes, lengths), [lengths[engine.rank]] * engine.world_size
            ),
            "all-gather": lambda own=own, lengths=lengths: engine.allgather(own, lengths),
        }
        for name, call in calls.items():
            rows: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for number in range(-1, rounds):  # the first round opens connections
                for sleeps in (False, True) if number % 2 else (True, False):
                    engine.sleeps = sleeps
                    found = taken(call)
                    if number >= 0:
                        rows[sleeps].append(found)
            if engine.rank == 0:
                pairs = zip(rows[True], rows[False], strict=True)
                ratio, low, high = median_with_interval([asleep[0] / polls[0] for asleep, polls in pairs])
                both = [ms([row[place] for row in rows[sleeps]]) for place in (0, 1) for sleeps in (False, True)]
                cells = [name, f"{size:,}", *both[:2], f"{ratio:.2f} ({low:.2f} to {high:.2f})", *both[2:]]
                print(f"| {' | '.join(cells)} |", flush=True)
    engine.close()


if __name__ == "__main__":
    main()
