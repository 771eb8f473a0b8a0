"""All launches of tests/parallel run, though one fails; ranks that run other tests are seen, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
# Instead of mpirun and torchrun: one rank after the other.
MPIRUN = """#!/bin/sh
while [ "$1" != -np -a "$1" != --nproc-per-node ]; do shift; done
ranks=$2 rank=0 code=0
shift 2
[ "$1" != --no-python ] || shift
while [ $rank -lt $ranks ]; do
    OMPI_COMM_WORLD_RANK=$rank RANKS=$ranks "$@" || code=$?
    rank=$((rank + 1))
done
setsid sleep 1000 & echo $! >> "$LEFT"
exit $code
"""
TESTS = {
    "test_drop_in": """
def test_gradients_are_bit_identical_on_all_ranks(): pass
def test_every_algorithm_gives_the_same_sum_and_the_same_bits(): pass
""",
    "test_engines": """
import os
def test_of_three():
    assert (os.environ["RANKS"], os.environ["OMPI_COMM_WORLD_RANK"]) != ("3", "1")
if (os.environ["RANKS"], os.environ["OMPI_COMM_WORLD_RANK"]) == ("4", "2"):
    def test_of_one_rank(): pass
""",
    "test_mpi_algorithms": "",
    **dict.fromkeys(("test_failures", "test_options", "test_process_sets"), ""),
    "test_sparse": """
import os
def test_the_runtime(): assert os.environ.get("HVD_COMPRESS_RUNTIME") == {"2": "torch"}.get(os.environ["RANKS"])
""",
    "test_broadcasts": "import pytest\n@pytest.mark.level2\ndef test_a_tensor(): pass",
}


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def launch(folder: Path, *levels: str) -> subprocess.CompletedProcess[str]:
    """Run launches of the tests above, whose results lie in the folder."""
    for name in ("mpirun", "torchrun"):
        program(folder / "bin" / name, MPIRUN)
    program(folder / "bin" / "horovodrun", "#!/bin/sh\nexit 7\n")
    for name, text in TESTS.items():
        path = folder / "tests" / "parallel" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program(folder / "tests" / "papers" / "parallel" / "test_tree.py", "def test_an_option(): pass")
    (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\nmarkers = level2\ntimeout = 0\n")
    (folder / "results").mkdir(exist_ok=True)
    own = {
        "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}",
        "TEST_RESULTS": f"{folder}/results",
        "LEFT": f"{folder}/left",
    }
    command = [sys.executable, TOOLS / "launches.py", *levels]
    return subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)


def ends(done: subprocess.CompletedProcess[str]) -> list[str]:
    lines = done.stdout.splitlines()
    return [line[4:].partition(" after ")[0] for line in lines if line.startswith("--- ") and " after " in line]


def test_a_launch_that_fails_keeps_no_other_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = launch(tmp_path)
    assert done.returncode == 1, done.stderr
    assert ends(done) == [
        "mpirun-3-first: FAILED with exit code 1",
        "mpirun-3-rest: ok",
        "mpirun-2-first: ok",
        "mpirun-4-first: FAILED, as ranks differ",
        "horovodrun-2-first: FAILED with exit code 7",
        "horovodrun-2-rest: FAILED with exit code 7",
        "mpirun-2-first-without-horovod: ok",
        "torchrun-2-first-without-horovod: ok",
    ], done.stdout
    monkeypatch.syspath_prepend(str(TOOLS))
    import results

    failed = [case.name for case in results.read(tmp_path / "results") if case.outcome == "failed"]
    assert failed == [
        *("horovodrun-2-first", "horovodrun-2-rest"),
        *("tests/parallel/test_engines.py::test_of_three", "mpirun-4-first"),
    ]
    assert "tests/parallel/test_engines.py::test_of_one_rank" in done.stdout
    for pid in (tmp_path / "left").read_text().split():
        assert not Path(f"/proc/{pid}").exists(), "a process that a launch has left"


def test_one_level(tmp_path: Path) -> None:
    assert ends(launch(tmp_path, "first")) == ["mpirun-3-first: FAILED with exit code 1"]
    assert "KeyError" in launch(tmp_path, "frist").stderr
