"""Is a step of one checkout slower than that of another? Windows in turns, the ratio with its interval.

    python benchmarks/steps/paired.py ../old . --ranks 4
    python benchmarks/steps/paired.py ../old . --in-process --ranks 2

Both checkouts must be built. Each compression gets a job of each checkout. Both stay alive, and one steps while the
other's ranks sleep in a read. A pair is a window of each; which of them is first changes from pair to pair. It prints
the median of the ratios of pairs and its 95 % interval by bootstrap, and as the noise the same of odd to even windows
of the first one. The second is not slower where its interval contains 1 or lies below.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from turns import ms, ratio_cells

HERE = Path(__file__).resolve().parent
COMPRESSIONS = ("topk", "efsign", "dense")
MPIRUN = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]


class Job:
    """The ranks of one checkout."""

    def __init__(self, checkout: Path, compression: str, arguments: argparse.Namespace, folder: Path) -> None:
        self._folder, self._processes = folder, 1 if arguments.in_process else arguments.ranks
        folder.mkdir()
        for name in (*(f"go-{rank}" for rank in range(self._processes)), "done"):
            os.mkfifo(folder / name)
        kind = "in-process" if arguments.in_process else "mpi"
        command = [sys.executable, str(HERE / "rank.py"), kind, compression, str(arguments.ranks), str(arguments.numel)]
        launcher = [] if arguments.in_process else [*MPIRUN, "-np", str(arguments.ranks)]
        variables = {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1", "HVD_COMPRESS_ADAPT": "0"}
        self._job = subprocess.Popen([*launcher, *command, str(folder)], env={**os.environ, **variables})
        self.window(5)

    def window(self, steps: int) -> float:
        """Return the seconds of a step, as the slowest rank sees it."""
        for rank in range(self._processes):
            (self._folder / f"go-{rank}").write_text(f"{steps}\n")
        return float((self._folder / "done").read_text())

    def end(self) -> None:
        for rank in range(self._processes):
            (self._folder / f"go-{rank}").write_text("0\n")
        self._job.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--in-process", action="store_true", help="ranks are threads, not processes under mpirun")
    parser.add_argument("--numel", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10, help="of one window")
    asked = parser.parse_args()
    where = "in process" if asked.in_process else "under mpirun"
    print(f"{asked.ranks} ranks {where}, {asked.numel:,} elements, {asked.pairs} pairs of {asked.steps} steps\n")
    print("| compression | old, ms | new, ms | new / old | 95 % interval | old / old | 95 % interval |")
    print("| --- | ---: | ---: | ---: | --- | ---: | --- |")
    for compression in COMPRESSIONS:
        with tempfile.TemporaryDirectory() as folder:
            jobs = [Job(c, compression, asked, Path(folder, n)) for n, c in (("old", asked.old), ("new", asked.new))]
            rows = []
            for pair in range(asked.pairs):
                order = (0, 1) if pair % 2 else (1, 0)
                taken = {number: jobs[number].window(asked.steps) for number in order}
                rows.append((taken[0], taken[1]))
            for job in jobs:
                job.end()
        ratios = [new / old for old, new in rows]
        noise = [odd[0] / even[0] for odd, even in zip(rows[::2], rows[1::2], strict=False)]
        cells = [*map(ms, zip(*rows, strict=True)), *ratio_cells(ratios), *ratio_cells(noise)]
        print(f"| {compression} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
