"""Is a step of one checkout slower than that of another? Windows in turns, the ratio with its interval.

    python benchmarks/steps/paired.py ../old . --ranks 4
    python benchmarks/steps/paired.py ../old . --in-process --ranks 2
    python benchmarks/steps/paired.py ../old . --lab 5ms 100mbit --adapt --compressions int4 --parts 64    # as root

Both checkouts must be built. Each compression gets a job of each checkout. Both stay alive, and one steps while the
other's ranks sleep in a read. A pair is a window of each; which of them is first changes from pair to pair. It prints
the median of the ratios of pairs and its 95 % interval by bootstrap, and as the noise the same of odd to even windows
of the first one. The second is not slower where its interval contains 1 or lies below.

With --lab each rank has a host of its own in an emulated network, which both jobs share. --parts divides the elements
into equal parameters, so that HOROVOD_FUSION_THRESHOLD says how large buckets are. Below each row stands by which paths
the buckets of each checkout travelled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from turns import ms, ratio_cells

from hvd_compress.netlab import Lab

HERE = Path(__file__).resolve().parent
COMPRESSIONS = ("topk", "efsign", "dense")
CHOICES = (*COMPRESSIONS, "int4")
MPIRUN = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]


class Job:
    """The ranks of one checkout."""

    def __init__(
        self, checkout: Path, compression: str, arguments: argparse.Namespace, folder: Path, lab: Lab | None
    ) -> None:
        self._folder, self._processes = folder, 1 if arguments.in_process else arguments.ranks
        folder.mkdir()
        for name in (*(f"go-{rank}" for rank in range(self._processes)), "done"):
            os.mkfifo(folder / name)
        kind = "in-process" if arguments.in_process else "mpi"
        sizes = [str(number) for number in (arguments.ranks, arguments.numel, arguments.parts)]
        command = [sys.executable, str(HERE / "rank.py"), kind, compression, *sizes, str(folder)]
        variables = {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
        variables |= {"HVD_COMPRESS_ADAPT": str(int(arguments.adapt)), "HVD_COMPRESS_CACHE": str(folder / "cache")}
        self._job = self._started(command, {**os.environ, **variables}, lab)
        self.window(5)

    def _started(
        self, command: Sequence[str], environment: Mapping[str, str], lab: Lab | None
    ) -> subprocess.Popen[bytes]:
        if lab is not None:
            # The ranks of the job whose turn it is not look at each other less often.
            return lab.start(command, {"HOROVOD_CYCLE_TIME": "100", **environment})
        launcher = [] if command[2] == "in-process" else [*MPIRUN, "-np", str(self._processes)]
        return subprocess.Popen([*launcher, *command], env=environment)

    def window(self, steps: int) -> float:
        """Return the seconds of a step, as the slowest rank sees it."""
        for rank in range(self._processes):
            (self._folder / f"go-{rank}").write_text(f"{steps}\n")
        return float((self._folder / "done").read_text())

    def end(self) -> None:
        for rank in range(self._processes):
            (self._folder / f"go-{rank}").write_text("0\n")
        self._job.wait(60)

    @property
    def travelled(self) -> str:
        """By which paths buckets travelled, after end(); nothing where ranks are threads."""
        file = self._folder / "paths"
        return file.read_text() if file.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--in-process", action="store_true", help="ranks are threads, not processes under mpirun")
    parser.add_argument("--numel", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10, help="of one window")
    parser.add_argument("--parts", type=int, default=0, help="equal parameters, instead of five of other sizes")
    parser.add_argument("--adapt", action="store_true", help="HVD_COMPRESS_ADAPT=1")
    parser.add_argument("--lab", nargs=2, metavar=("LATENCY", "BANDWIDTH"), help="a host for each rank")
    parser.add_argument("--compressions", nargs="+", choices=CHOICES, default=COMPRESSIONS)
    asked = parser.parse_args()
    where = "in process" if asked.in_process else "under mpirun"
    where += f" in a lab of {' and '.join(asked.lab)}" if asked.lab else ""
    print(f"{asked.ranks} ranks {where}, {asked.numel:,} elements, {asked.pairs} pairs of {asked.steps} steps\n")
    print("| compression | old, ms | new, ms | new / old | 95 % interval | old / old | 95 % interval |")
    print("| --- | ---: | ---: | ---: | --- | ---: | --- |")
    for compression in asked.compressions:
        lab = Lab(asked.ranks, *asked.lab) if asked.lab else None
        with tempfile.TemporaryDirectory() as folder, lab or nullcontext():
            both = ("old", asked.old), ("new", asked.new)
            jobs = [Job(checkout, compression, asked, Path(folder, name), lab) for name, checkout in both]
            rows = []
            for pair in range(asked.pairs):
                order = (0, 1) if pair % 2 else (1, 0)
                taken = {number: jobs[number].window(asked.steps) for number in order}
                rows.append((taken[0], taken[1]))
            for job in jobs:
                job.end()
            travelled = [(name, job.travelled) for (name, _), job in zip(both, jobs, strict=True) if job.travelled]
        ratios = [new / old for old, new in rows]
        noise = [odd[0] / even[0] for odd, even in zip(rows[::2], rows[1::2], strict=False)]
        cells = [*map(ms, zip(*rows, strict=True)), *ratio_cells(ratios), *ratio_cells(noise)]
        print(f"| {compression} | {' | '.join(cells)} |", flush=True)
        if asked.lab:
            print(*(f"  {name}: {paths}" for name, paths in travelled), sep="\n", flush=True)


if __name__ == "__main__":
    main()
