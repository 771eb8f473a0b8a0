"""What is read of the files in which pytest leaves its results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import pytest

class TestAll:
    @pytest.mark.parametrize("which", ["first", "second"])
    def test_passes(self, which):
        pass

    def test_fails(self):
        assert RANK == "0"

@pytest.fixture
def broken():
    yield
    raise OSError("no rights")

def test_ends_in_an_error(broken):
    pass

@pytest.mark.parametrize("which", range(3))
def test_needs_more(which):
    pytest.skip("this machine has no <nvcc>")

@pytest.mark.skip("for a reason of its own")
def test_never():
    pass
"""


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import outcomes

    return outcomes


def run(folder: Path, results: Path, text: str = TESTS, rank: str = "1") -> None:
    """Run pytest on a file, as a rank does."""
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "test_it.py").write_text(f"RANK = {rank!r}\n{text}")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "--rootdir", folder, "tests",
         "-p", "no:cacheprovider", f"--junitxml={results}"],
        cwd=folder, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def test_tests_are_told_by_the_names_that_pytest_takes(outcomes, tmp_path: Path) -> None:
    run(tmp_path, tmp_path / "found" / "results.xml")
    found = outcomes.read(tmp_path / "found")
    assert found.passed == 2
    assert found.failed == ["tests/test_it.py::TestAll::test_fails", "tests/test_it.py::test_ends_in_an_error"]
    assert found.skipped == Counter({"this machine has no <nvcc>": 3, "for a reason of its own": 1})
    assert found.line() == "2 passed, 2 failed, 4 skipped"


def test_a_file_that_cannot_be_imported_has_failed(outcomes, tmp_path: Path) -> None:
    run(tmp_path, tmp_path / "found" / "results.xml", "import no_such_module")
    assert outcomes.read(tmp_path / "found").failed == ["tests/test_it.py"]


def test_ranks_of_a_run_count_once_and_the_worst_of_them(outcomes, tmp_path: Path) -> None:
    passes = "def test_fails(): assert RANK == '0'\ndef test_passes(): pass"
    skips = f"{passes}\nimport pytest\ndef test_skips(): pytest.skip('needs mpirun')"
    for name, text in (("two ranks", passes), ("three ranks", skips)):
        for rank in "01":
            run(tmp_path, tmp_path / "found" / name / f"{rank}.xml", text, rank)
    found = outcomes.read(tmp_path / "found")
    assert found.line() == "2 passed, 2 failed, 1 skipped"
    assert found.failed == ["three ranks: tests/test_it.py::test_fails", "two ranks: tests/test_it.py::test_fails"]


def test_without_a_file_nothing_is_known(outcomes, tmp_path: Path) -> None:
    assert outcomes.read(tmp_path / "found") == outcomes.Results()
    outcomes.skipped(tmp_path / "another launch", "another launch", "no localhost")
    assert outcomes.read(tmp_path).skipped == {"no localhost": 1}


def test_a_file_whose_writer_was_killed_is_a_failure(outcomes, tmp_path: Path) -> None:
    (tmp_path / "0.xml").write_text("<testsuite><testcase name='test_it'")
    assert outcomes.read(tmp_path).failed == ["0.xml breaks off"]


def test_a_run_that_fails_is_told_where_no_test_tells_it(outcomes, tmp_path: Path) -> None:
    outcomes.failed(tmp_path / "build", "the build failed")
    run(tmp_path, tmp_path / "tests" / "results.xml", "def test_fails(): assert False")
    outcomes.failed(tmp_path / "tests", "the tests failed")
    assert outcomes.read(tmp_path).failed == ["build: the build failed", "tests: tests/test_it.py::test_fails"]
