"""Run tests/parallel, and those of guests, on the ranks of mpirun or horovodrun; leave results in TEST_RESULTS.

launches.py first: its first level under mpirun with 3 ranks, one of which is neither the first nor the last.
launches.py rest: its second level, and with 2 and 4 ranks what depends on the launcher or on the number of ranks.
launches.py: both.

Every rank writes its output into a file of its own. Rank 0's is shown; when a launch fails, so are the others'.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import progress
import results

TIMEOUT_S = float(os.environ.get("LAUNCH_TIMEOUT_S", "600"))
RANKS_DIFFER = -1
"""Instead of an exit code of 0."""
GRACE_S = 10.0  # between asking a launcher to end its ranks and killing it

# What each rank runs: pytest with its output in a file, whose name carries the rank. pytest's temporary files lie next
# to it: ranks that end in step would all remove the same old ones.
RANK_SCRIPT = """
rank=${OMPI_COMM_WORLD_RANK:-${HOROVOD_RANK:-$RANK}}
exec "$@" --basetemp="$0/$rank.tmp" --junitxml="$0/$rank.xml" >"$0/$rank.log" 2>&1 </dev/null
"""
# As `python -m pytest`, but a rank that failed leaves without MPI_Finalize, where it would wait for the other ranks,
# which wait for it in a collective: so the launcher ends them at once rather than at the time limit.
RUN_PYTEST = """
import os, sys, pytest
code = pytest.main(sys.argv[1:])
sys.stdout.flush()
if code:
    os._exit(code)
"""
# Ranks share the checkout, so they must not write one cache. A test that hangs shows where, before the launch is ended.
OPTIONS = ["-x", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={TIMEOUT_S * 0.8}", "-o", "timeout=0"]

FOLDER = "tests/parallel"
GUESTS = sorted(path.as_posix() for path in Path("tests").rglob("parallel") if path.as_posix() != FOLDER)
FIRST, REST = ["-m", "not level2"], ["-m", "level2"]
# What a launch can break: the engines, and that all ranks come to the same with each of them.
BY_LAUNCH = [f"{FOLDER}/{name}" for name in ("test_drop_in.py", "test_engines.py", "test_mpi_algorithms.py")]
# Four ranks show algorithms of two rounds: what an engine sums, through it and through a whole step. And they are two
# hosts of two ranks each.
SUMS = ("gradients_are_bit_identical_on_all_ranks", "every_algorithm_gives_the_same_sum_and_the_same_bits")
OF_HOSTS = sorted(str(file) for folder in GUESTS for file in Path(folder).glob("test_tree.py"))
# On this package's own runtime, whole steps by either transport.
OURS = {"HVD_COMPRESS_RUNTIME": "torch"}
OF_OURS = [f"{FOLDER}/test_{name}.py" for name in ("drop_in", "failures", "options", "process_sets", "sparse")]
OF_FOUR = [*(f"{BY_LAUNCH[0]}::test_{name}" for name in SUMS), *OF_HOSTS, *BY_LAUNCH[1:]]


@dataclass(frozen=True)
class Launch:
    """One job: the tests of the folder that are marked so, or of some files of it; on Horovod's runtime where it is."""

    launcher: list[str]
    ranks: int
    marked: list[str]
    tests: list[str] = field(default_factory=list)
    runtime: dict[str, str] = field(default_factory=dict)

    @property
    def start(self) -> list[str]:
        """The launcher with the number of ranks."""
        if self.launcher[0] == "torchrun":
            return [*self.launcher, "--nproc-per-node", str(self.ranks), "--no-python"]
        return [*self.launcher, "-np", str(self.ranks)]

    @property
    def arguments(self) -> list[str]:
        """Of pytest."""
        return [*self.marked, *(self.tests or [FOLDER, *GUESTS])]

    @property
    def name(self) -> str:
        ours = "-without-horovod" * bool(self.runtime)
        return f"{self.launcher[0]}-{self.ranks}-{'rest' if self.marked == REST else 'first'}{ours}"


def main() -> None:
    mpirun = ["mpirun", *shlex.split(os.environ.get("MPIRUN_FLAGS", ""))]
    horovodrun = ["horovodrun", *shlex.split(os.environ.get("HOROVODRUN_FLAGS", "--gloo"))]
    levels = {
        "first": [Launch(mpirun, 3, FIRST)],
        "rest": [
            Launch(mpirun, 3, REST),
            Launch(mpirun, 2, FIRST, BY_LAUNCH),
            Launch(mpirun, 4, FIRST, OF_FOUR),
            Launch(horovodrun, 2, FIRST, BY_LAUNCH),
            Launch(horovodrun, 2, REST, [f"{FOLDER}/test_broadcasts.py"]),
            Launch(mpirun, 2, FIRST, OF_OURS, OURS),
            Launch(["torchrun", "--standalone"], 2, FIRST, OF_OURS, OURS),
        ],
    }
    progress.adopt_orphans()
    asked = [launch for level in sys.argv[1:] or levels for launch in levels[level]]
    if shutil.which("horovodrun") is None:
        print("Horovod is not installed: its launches are left out, and the others run without it", flush=True)
        asked = [launch for launch in asked if launch.launcher != horovodrun]
    passed = [_passes(launch) for launch in asked]
    sys.exit(int(not all(passed)))


def _passes(launch: Launch) -> bool:
    """Run one, and leave rank 0's result file; after a failure those of all ranks."""
    print(f"--- {launch.name}", flush=True)
    start = time.monotonic()
    folder_of_results = os.environ.get("TEST_RESULTS")
    with tempfile.TemporaryDirectory(prefix="hvd_compress-parallel-") as folder:
        rank = ["sh", "-c", RANK_SCRIPT, folder, sys.executable, "-c", RUN_PYTEST, *OPTIONS, *launch.arguments]
        code = _run([*launch.start, *rank], Path(folder, "launcher.log"), launch.runtime)
        if code == 0 and not _alike(Path(folder), launch.ranks):
            code = RANKS_DIFFER
        logs = [Path(folder, "0.log")] if code == 0 else sorted(Path(folder).glob("*.log"))
        for log in logs:
            text = log.read_text(errors="replace") if log.exists() else "(no output)"
            print(f"[{log.name}]", text.rstrip(), sep="\n", flush=True)
        if folder_of_results is not None:
            found = sorted(Path(folder).glob("*.xml"))[: 1 if code == 0 else None]
            for file in found:
                shutil.copy(file, Path(folder_of_results, f"{launch.name}-rank{file.stem}.xml"))
            if code != 0 and not any(case.outcome == "failed" for case in results.read(Path(folder))):
                results.leave_failure(folder_of_results, launch.name, "the launch itself")
    outcome = {0: "ok", None: "FAILED: was stopped", RANKS_DIFFER: "FAILED, as ranks differ"}.get(
        code, f"FAILED with exit code {code}"
    )
    print(f"--- {launch.name}: {outcome} after {time.monotonic() - start:.0f} s", flush=True)
    return code == 0


def _alike(folder: Path, ranks: int) -> bool:
    """Whether all ranks have come to the end of the same tests, and some of them."""
    found = [results.read(folder, f"{rank}.xml") for rank in range(ranks)]
    seen = [{(case.name, case.outcome) for case in cases} for cases in found]
    if seen[0] and all(each == seen[0] for each in seen):
        return True
    differ = sorted({name for each in seen for name, _ in each ^ seen[0]})
    print(f"ranks have run {', '.join(str(len(each)) for each in seen)} tests: {' '.join(differ)}", flush=True)
    return False


def _run(command: list[str], log: Path, runtime: dict[str, str]) -> int | None:
    """Return the exit code; None where a launch takes too long. After it nothing of it is left."""
    with log.open("w") as output:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | runtime,
        )
        try:
            return launcher.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if launcher.poll() is None:
                progress.end_group(launcher, signal.SIGTERM, GRACE_S)  # launchers end their ranks when asked to
            progress.end_orphans()


if __name__ == "__main__":
    progress.main(main)
