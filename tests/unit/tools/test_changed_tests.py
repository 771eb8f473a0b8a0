"""Which tests `make test-changed` runs, and at which level."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests import conftest

CHANGED = ["tests/unit/test_own.py", "hvd_compress/a.py"]


@pytest.fixture
def changed_tests(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    import changed_tests

    return changed_tests


def test_changes_are_those_since_a_commit_and_new_files(changed_tests: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=b")
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(f"{name} {len(list(tmp_path.iterdir()))}")

    git("init", "--initial-branch", "main")
    write("kept.py", "committed.py", "gone.py", "changed.py", ".gitignore")
    (tmp_path / ".gitignore").write_text("ignored.py")
    git("add", ".")
    git("commit", "--message", "first")
    git("switch", "--create", "topic")
    write("committed.py")
    git("rm", "gone.py")
    git("commit", "--all", "--message", "second")
    write("changed.py", "new.py", "ignored.py")
    found = changed_tests.changed_files(tmp_path, changed_tests._fork(tmp_path))
    assert found == ["changed.py", "committed.py", "gone.py", "new.py"]


def test_what_all_tests_need_selects_all(changed_tests: ModuleType, tmp_path: Path) -> None:
    checkout = changed_tests.closure.Checkout(tmp_path, ["tests/unit/test_a.py", "tests/test_b.py", "setup.py"])
    assert changed_tests.selected(checkout, ["docs/a.md"]) == []
    assert changed_tests.selected(checkout, ["docs/a.md", "setup.py"]) == ["tests/test_b.py", "tests/unit/test_a.py"]


def test_a_file_that_no_test_seems_to_need_selects_all(changed_tests: ModuleType, tmp_path: Path) -> None:
    checkout = changed_tests.closure.Checkout(tmp_path, ["tests/unit/test_a.py", "tests/test_b.py", "Makefile"])
    assert changed_tests.selected(checkout, ["Makefile"]) == checkout.tests


def test_the_second_level_of_what_has_not_changed_is_named(changed_tests: ModuleType, tmp_path: Path) -> None:
    texts = {
        "tests/unit/test_a.py": "",
        "tests/unit/test_b.py": "@pytest.mark.level2",
        "tests/jobs/test_c.py": "",
        "tests/player/test_d.py": "level2",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    later = [name for name in texts if changed_tests.is_of_level2(tmp_path, name)]
    assert later == ["tests/unit/test_b.py", "tests/jobs/test_c.py"]
    by_folder = {f"tests/{folder}/" for folder in conftest.LEVEL2_FOLDERS}
    assert set(changed_tests.LEVEL2_FOLDERS) == by_folder - changed_tests.ELSEWHERE.keys()


def test_what_pytest_cannot_run_is_named(changed_tests: ModuleType) -> None:
    tests = [f"tests/{folder}/test_a.py" for folder in ("unit", "parallel", "player", "benchmarks")]
    here, elsewhere = changed_tests.divided(tests, CHANGED)
    assert here == ["tests/unit/test_a.py"]
    assert [command.split()[-1] for command in elsewhere] == ["tests/parallel/test_a.py", "sanitize-rest"]
    assert "python -m pytest -n 2 tests/benchmarks/test_a.py" in changed_tests.divided(tests, ["benchmarks/a.py"])[1]


def test_the_second_level_runs_where_it_was_changed(changed_tests: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(changed_tests, "_pytest", lambda tests, arguments: runs.append((tests, arguments)) or 5)
    assert changed_tests.run(["tests/unit/test_own.py", "tests/unit/test_a.py"], CHANGED, ["-x"]) == 0
    assert runs == [(["tests/unit/test_own.py"], ["-x"]), (["tests/unit/test_a.py"], ["-m", "not level2", "-x"])]
    assert changed_tests.run(["tests/unit/test_own.py"], CHANGED, []) == 5, (
        "a changed file without a test is no success"
    )
