"""Run tests/parallel under mpirun and horovodrun, though a launch fails, and print a short result for each.

With 3 ranks all of it, so that there is one that is neither the first nor the last; in the other launches what depends
on the number of ranks or on the launcher.

Every rank writes its output into a file of its own. Rank 0's is shown; when a launch fails, so is that of the ranks
at fault. The results of all ranks are left in TEST_RESULTS, if that is set (tools/outcomes.py).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import outcomes
import process_tree
import progress

TIMEOUT_S = float(os.environ.get("LAUNCH_TIMEOUT_S", "600"))
KILLED = "none: killed, or never started"  # in place of an exit code
GRACE_S = 10.0  # between asking a launcher to end its ranks and killing it

# What each rank runs: pytest with its output in a file, whose name carries the rank. The exit code lands in a second
# file, as a launcher reports only one for all ranks, and kills the rest. pytest's temporary files lie beside them, as
# ranks that end in step would all clear away its old ones, each what another one is just removing: an error.
RANK_SCRIPT = """
rank=${OMPI_COMM_WORLD_RANK:-$HOROVOD_RANK}
"$@" --basetemp="$0/$rank.tmp" --junitxml="$0/$rank.xml" >"$0/$rank.log" 2>&1 </dev/null
code=$?
echo $code >"$0/$rank.exit"
exit $code
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
OPTIONS = ["-x", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={TIMEOUT_S * 0.8}"]
RANK_COMMAND = [sys.executable, "-c", RUN_PYTEST, *OPTIONS]

NEEDS_LOCALHOST = "horovodrun fails where localhost does not resolve: add the line `127.0.0.1 localhost` to /etc/hosts"

FOLDER = "tests/parallel"
# What a launch can break: the engines, and that all ranks come to the same with each of them.
ENGINES = [f"{FOLDER}/test_engines.py", f"{FOLDER}/test_mpi_algorithms.py"]
BY_LAUNCH = [f"{FOLDER}/test_drop_in.py", f"{FOLDER}/test_broadcasts.py", *ENGINES]
# Four ranks show algorithms of two rounds: what an engine sums, through it and through a whole step. And they are two
# hosts of two ranks each.
SUMS = ("gradients_are_bit_identical_on_all_ranks", "every_algorithm_gives_the_same_sum_and_the_same_bits")
OF_FOUR = [*(f"{FOLDER}/test_drop_in.py::test_{name}" for name in SUMS), f"{FOLDER}/test_tree.py", *ENGINES]


@dataclass(frozen=True)
class Launch:
    name: str
    ranks: int
    command: list[str]
    tests: list[str]


def main() -> None:
    process_tree.adopt_orphans()
    try:
        sys.exit(_launch_all())
    except FileNotFoundError as error:
        sys.exit(f"error: {error.filename} is not there: run this through make, which puts .venv/bin on PATH")
    except KeyboardInterrupt:
        sys.exit("interrupted")


def _launch_all() -> int:
    mpirun = ["mpirun", *shlex.split(os.environ.get("MPIRUN_FLAGS", ""))]
    launches = [
        Launch(f"mpirun -np {ranks}", ranks, [*mpirun, "-np", str(ranks)], tests)
        for ranks, tests in ((2, BY_LAUNCH), (3, [FOLDER]), (4, OF_FOUR))
    ]
    horovodrun = ["horovodrun", *shlex.split(os.environ.get("HOROVODRUN_FLAGS", "--gloo"))]
    under_horovodrun = Launch("horovodrun --gloo -np 2", 2, [*horovodrun, "-np", "2"], BY_LAUNCH)
    with tempfile.TemporaryDirectory(prefix="hvd_compress-parallel-") as folder:
        results = outcomes.wanted() or Path(folder)
        if _resolves("localhost") or "HOROVODRUN_FLAGS" in os.environ:
            launches.append(under_horovodrun)
        else:
            print(f"--- {under_horovodrun.name}: skipped: {NEEDS_LOCALHOST}", flush=True)
            outcomes.skipped(results / under_horovodrun.name, under_horovodrun.name, NEEDS_LOCALHOST)
        failed = [launch.name for launch in launches if not _passes(launch, results / launch.name)]
        found = outcomes.read(results)
    print(*found.failed, sep="\n", end="\n" * bool(found.failed))
    print(f"parallel: {len(launches) - len(failed)} of {len(launches)} launches passed, {found.line()}")
    return int(bool(failed))


def _resolves(host: str) -> bool:
    try:
        socket.gethostbyname(host)
    except OSError:
        return False
    return True


def _passes(launch: Launch, results: Path) -> bool:
    """Run one, and leave in `results` what its ranks found."""
    print(f"--- {launch.name}", flush=True)
    start = time.monotonic()
    results.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="hvd_compress-parallel-") as folder:
        logs = Path(folder)
        outcome = _run(
            [*launch.command, "sh", "-c", RANK_SCRIPT, folder, *RANK_COMMAND, *launch.tests], logs / "launcher.log"
        )
        codes = [_exit_code(logs, rank) for rank in range(launch.ranks)]
        ok = outcome == "0" and codes == ["0"] * launch.ranks
        for rank in [0] if ok else _worth_showing(codes):
            _show(f"rank {rank}, exit code {codes[rank]}", logs / f"{rank}.log", heading=not ok)
        if not ok:
            _show(f"launcher, exit code {outcome}", logs / "launcher.log", heading=True)
        for path in logs.glob("*.xml"):
            shutil.copy(path, results)
    if not ok:
        outcomes.failed(results, f"the launch itself, exit code {outcome}")
    print(f"--- {launch.name}: {'ok' if ok else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
    return ok


def _worth_showing(codes: list[str]) -> list[int]:
    """Rank 0 and those that failed by themselves, not those that were killed for it; all when none failed (a hang)."""
    failed = {rank for rank, code in enumerate(codes) if code not in ("0", KILLED)}
    return sorted({0} | failed) if failed else list(range(len(codes)))


def _run(command: list[str], log: Path) -> str:
    """Return the exit code, or what happened instead of one. Behind it nothing of the launch is left."""
    with log.open("w") as output, progress.uninterrupted() as deliver:
        launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=deliver,
        )  # fmt: skip
        try:
            deliver()
            return str(launcher.wait(timeout=TIMEOUT_S))
        except subprocess.TimeoutExpired:
            return f"none: stopped after {TIMEOUT_S:.0f} s"
        finally:
            with progress.uninterrupted():
                process_tree.end(launcher, signal.SIGTERM, GRACE_S)  # launchers end their ranks when asked to


def _exit_code(logs: Path, rank: int) -> str:
    path = logs / f"{rank}.exit"
    return path.read_text().strip() if path.exists() else KILLED


def _show(title: str, log: Path, heading: bool) -> None:
    if heading:
        print(f"[{title}]")
    text = log.read_text(errors="replace") if log.exists() else "(no output)\n"
    sys.stdout.write(re.sub(r"\n*\Z", "\n", text))
    sys.stdout.flush()


if __name__ == "__main__":
    progress.main(main)
