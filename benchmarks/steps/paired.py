"""Is a step of one checkout slower than that of another? Windows in turns, the ratio with its interval.

    python -m benchmarks.steps.paired ../old . --ranks 4
    python -m benchmarks.steps.paired ../old . --kind in-process --ranks 2
    python -m benchmarks.steps.paired ../old . --kind ddp --ranks 2 --parts 161 --compressions dense
    python -m benchmarks.steps.paired ../old . --lab 5ms 100mbit --adapt --compressions int4 --parts 64    # as root
    python -m benchmarks.steps.paired . . --new-variable HVD_COMPRESS_CHECK_EVERY=1

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
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.frame.circumstances import circumstances, commit, told
from benchmarks.frame.page import head, ms, ratio_cells, row
from benchmarks.frame.store import BUILD, ROOT, append
from hvd_compress.netlab import Lab
from hvd_compress.netlab.network import INTERFACE

COMPRESSIONS = ("topk", "efsign", "dense")
CHOICES, KINDS = (*COMPRESSIONS, "int4"), ("mpi", "in-process", "ddp")
MPIRUN = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]


class Job:
    """The ranks of one checkout, which are alive within a `with` block. A job that fails interrupts this program."""

    def __init__(
        self,
        checkout: Path,
        variables: Sequence[str],
        compression: str,
        arguments: argparse.Namespace,
        folder: Path,
        lab: Lab | None,
    ) -> None:
        self._folder, self._processes = folder, 1 if arguments.kind == "in-process" else arguments.ranks
        folder.mkdir()
        for name in (*(f"go-{rank}" for rank in range(self._processes)), "done"):
            os.mkfifo(folder / name)
        sizes = [str(number) for number in (arguments.ranks, arguments.numel, arguments.parts)]
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")  # those of this checkout; hvd_compress is the other's
        command = [sys.executable, "-m", "benchmarks.steps.rank", arguments.kind, compression, *sizes, str(folder)]
        environment = {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
        environment |= {"HVD_COMPRESS_ADAPT": str(int(arguments.adapt)), "HVD_COMPRESS_CACHE": str(folder / "cache")}
        environment |= dict(variable.split("=", 1) for variable in variables)
        self._over = False
        self._job = self._started(command, {**os.environ, **environment}, lab)
        threading.Thread(target=self._watch, daemon=True).start()

    def _started(
        self, command: Sequence[str], environment: Mapping[str, str], lab: Lab | None
    ) -> subprocess.Popen[bytes]:
        if lab is not None:
            # The ranks of the job whose turn it is not look at each other less often.
            return lab.start(
                command, {"HOROVOD_CYCLE_TIME": "100", "GLOO_SOCKET_IFNAME": INTERFACE, **environment}, cwd=self._folder
            )
        launcher = [] if command[3] == "in-process" else [*MPIRUN, "-np", str(self._processes)]
        return subprocess.Popen([*launcher, *command], env=environment, cwd=self._folder)

    def _watch(self) -> None:
        if self._job.wait() and not self._over:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        if self._job.poll() is None:
            self._job.terminate()
            self._job.wait(60)

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


def compare(compression: str, arguments: argparse.Namespace) -> tuple[list[tuple[float, float]], list[tuple[str, str]]]:
    """Return the seconds of a step of old and new by pair, and by which paths buckets of each travelled."""
    checkouts = {
        "old": (arguments.old, arguments.old_variable),
        "new": (arguments.new, arguments.new_variable),
    }
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lab = stack.enter_context(Lab(arguments.ranks, *arguments.lab)) if arguments.lab else None
        jobs = [
            stack.enter_context(Job(checkout, variables, compression, arguments, Path(folder, name), lab))
            for name, (checkout, variables) in checkouts.items()
        ]
        for job in jobs:
            job.window(5)
        rows = []
        for pair in range(arguments.pairs):
            taken = {number: jobs[number].window(arguments.steps) for number in ((0, 1) if pair % 2 else (1, 0))}
            rows.append((taken[0], taken[1]))
        for job in jobs:
            job.end()
        return rows, [(name, job.travelled) for name, job in zip(checkouts, jobs, strict=True) if job.travelled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kind", choices=KINDS, default="mpi", help="of job: under mpirun, threads, or DDP over gloo")
    parser.add_argument("--numel", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10, help="of one window")
    parser.add_argument("--parts", type=int, default=0, help="equal parameters, instead of five of other sizes")
    parser.add_argument("--adapt", action="store_true", help="HVD_COMPRESS_ADAPT=1")
    for which in ("old", "new"):
        parser.add_argument(f"--{which}-variable", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--lab", nargs=2, metavar=("LATENCY", "BANDWIDTH"), help="a host for each rank")
    parser.add_argument("--compressions", nargs="+", choices=CHOICES, default=COMPRESSIONS)
    asked = parser.parse_args()
    where = {"mpi": "under mpirun", "in-process": "in process", "ddp": "with DDP over gloo"}[asked.kind]
    where += f" in a lab of {' and '.join(asked.lab)}" if asked.lab else ""
    size = f"{asked.numel:,} elements in {asked.parts or 5} parameters"
    about = f"{asked.ranks} ranks {where}, {size}, {asked.pairs} pairs of {asked.steps} steps"
    commits = [commit(checkout) for checkout in (asked.old, asked.new)]
    print(f"{told()}\nold: {commits[0]}, new: {commits[1]}; {about}\n")
    print(head(["compression", "old, ms", "new, ms", "new / old", "95 % interval", "old / old", "95 % interval"]))
    for compression in asked.compressions:
        rows, travelled = compare(compression, asked)
        figures = {"about": about, "commits": commits, "compression": compression, "pairs": rows}
        append(BUILD / "steps" / "paired.jsonl", {**figures, "circumstances": circumstances()})
        noise = [odd[0] / even[0] for odd, even in zip(rows[::2], rows[1::2], strict=False)]
        cells = [*map(ms, zip(*rows, strict=True)), *ratio_cells([new / old for old, new in rows])]
        print(row([compression, *cells, *ratio_cells(noise)]), flush=True)
        if asked.lab:
            print(*(f"  {name}: {paths}" for name, paths in travelled), sep="\n", flush=True)


if __name__ == "__main__":
    main()
