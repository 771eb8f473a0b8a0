"""All parallel launches run, though one fails; what failed is named; what was skipped counts once, not per rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# In the place of mpirun: one rank after the other.
MPIRUN = """#!/bin/sh
while [ "$1" != -np ]; do shift; done
ranks=$2 rank=0 code=0
shift 2
while [ $rank -lt $ranks ]; do
    OMPI_COMM_WORLD_RANK=$rank RANKS=$ranks "$@" || code=$?
    rank=$((rank + 1))
done
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
""",
    "test_tree": "def test_an_option(): pass",
    "test_broadcasts": "def test_a_tensor(): pass",
    "test_mpi_algorithms": """
import pytest
def test_that_skips(): pytest.skip("this library has none")
""",
}


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_a_launch_that_fails_keeps_no_other_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "mpirun", MPIRUN)
    program(tmp_path / "bin" / "horovodrun", "#!/bin/sh\nexit 7\n")
    for name, text in TESTS.items():
        path = tmp_path / "tests" / "parallel" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    env = os.environ | {
        "PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}",
        "TEST_RESULTS": f"{tmp_path}/results",
        "HOROVODRUN_FLAGS": "--gloo",  # else it would be skipped where localhost does not resolve
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, ROOT / "tools" / "parallel_tests.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    ends = [line[4:].rsplit(" in ", 1)[0] for line in lines if line.startswith("--- ") and " in " in line]
    assert ends == [
        "mpirun -np 2: ok",
        "mpirun -np 3: FAILED",
        "mpirun -np 4: ok",
        "horovodrun --gloo -np 2: FAILED",
    ]
    failed = [
        "horovodrun --gloo -np 2: the launch itself, exit code 7",
        "mpirun -np 3: tests/parallel/test_engines.py::test_of_three",
    ]
    assert lines[-3:-1] == failed
    assert lines[-1] == "parallel: 2 of 4 launches passed, 12 passed, 2 failed, 3 skipped"
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import outcomes

    found = outcomes.read(tmp_path / "results")
    assert (found.passed, found.failed, found.skipped) == (12, failed, Counter({"this library has none": 3}))
