"""Run the tests that need what has changed since main, committed or not: tools/closure.py says which.

python tools/changed_tests.py [--list] [--since COMMIT] [ARGUMENTS OF PYTEST]

Of the first level; of the second one (marker level2) the files that were changed themselves. What pytest alone cannot
run is named, with the command that does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import closure

ROOT = Path(__file__).resolve().parent.parent
PROSE = (".md", ".png")
EVERYTHING = ("CMakeLists.txt", "pyproject.toml", "requirements/", "setup.py", "tests/conftest.py")
"""What all tests need."""
ELSEWHERE = {
    "/parallel/": "mpirun -np 3 --map-by :OVERSUBSCRIBE --bind-to none python -m pytest -x {}",
    "tests/player/": "make sanitize-rest",
    "tests/benchmarks/": "python -m pytest -n 2 {}",
}
"""Tests that this does not run, and what does. Those of benchmarks need almost everything, and are named only where
benchmarks/ has changed."""
FIRST_LEVEL = ("-m", "not level2")
LEVEL2_FOLDERS = ("tests/jobs/", "tests/unit/docs/", "tests/unit/integrations/", "tests/unit/tools/")
"""As tests/conftest.py has them."""
SUCCESS, NOTHING_COLLECTED = 0, 5  # of pytest
FEW = 4
"""Files of tests that take less time than a second process of pytest."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the files of tests, and run none")
    parser.add_argument("--since", help="instead of what HEAD and origin/main, or main, have in common")
    options, arguments = parser.parse_known_args()
    changed = changed_files(ROOT, options.since or _fork(ROOT))
    found = [test for test in selected(closure.checkout(ROOT, changed), changed) if (ROOT / test).exists()]
    tests, elsewhere = divided(found, changed)
    print(f"{len(changed)} files have changed, {len(tests)} files of tests need them", flush=True)
    if later := [test for test in found if test not in changed and is_of_level2(ROOT, test)]:
        elsewhere.append(f"python -m pytest -m level2 {' '.join(later)}")
    for command in elsewhere:
        print(f"not run here: {command}", flush=True)
    if options.list:
        print(*tests, sep="\n")
        return SUCCESS
    return run(tests, changed, arguments)


def changed_files(root: Path, since: str) -> list[str]:
    """Return what differs from a commit, with files that git does not know yet."""
    differ = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", since).split("\0")
    return sorted(filter(None, [*differ, *_git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")]))


def _fork(root: Path) -> str:
    known = _git(root, "for-each-ref", "--format=%(refname:short)", "refs/remotes/origin/main", "refs/heads/main")
    if not known:
        sys.exit("neither origin/main nor main is known here: name a commit with --since")
    return _git(root, "merge-base", "HEAD", known.split()[-1]).strip()


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout


def selected(checkout: closure.Checkout, changed: Iterable[str]) -> list[str]:
    """Return the files of tests that need one of these files, from the nearest on."""
    changed = list(changed)
    unknown = [file for file in changed if not file.endswith(PROSE) and not checkout.tests_of([file])]
    if everything := [file for file in changed if file.startswith(EVERYTHING)] or unknown:
        print(f"all tests {'may ' * (everything == unknown)}need {', '.join(everything)}")
        return checkout.tests
    steps = checkout.tests_of(changed)
    return sorted(steps, key=lambda test: (steps[test], test))


def divided(tests: Iterable[str], changed: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the tests that pytest runs, and the commands for the others."""
    here, others = [], dict[str, list[str]]()
    for test in tests:
        folder = next((folder for folder in ELSEWHERE if folder in test), None)
        if folder is None:
            here.append(test)
        else:
            others.setdefault(folder, []).append(test)
    if not any(file.startswith(("benchmarks/", "tests/benchmarks/")) for file in changed):
        others.pop("tests/benchmarks/", None)
    return here, [ELSEWHERE[folder].format(" ".join(files)) for folder, files in others.items()]


def run(tests: list[str], changed: Iterable[str], arguments: list[str]) -> int:
    """Run both levels of what has changed itself, and of the rest the first; return the status of the first failure."""
    own = [test for test in tests if test in set(changed)]
    others = [test for test in tests if test not in set(changed)]
    of_own, of_others = _pytest(own, arguments), _pytest(others, [*FIRST_LEVEL, *arguments])
    if of_own == NOTHING_COLLECTED and arguments:  # such as -k
        of_own = SUCCESS
    return of_own or (SUCCESS if of_others == NOTHING_COLLECTED else of_others)


def is_of_level2(root: Path, test: str) -> bool:
    """Whether some of a file's tests are of the second level and run by pytest alone."""
    if any(folder in test for folder in ELSEWHERE):
        return False
    return test.startswith(LEVEL2_FOLDERS) or "level2" in (root / test).read_text()


def _pytest(tests: list[str], arguments: list[str]) -> int:
    if not tests:
        return SUCCESS
    processes = ["-n", "2", "--dist", "worksteal"] if len(tests) > FEW else []
    return subprocess.run([sys.executable, "-m", "pytest", *processes, *arguments, *tests], check=False).returncode


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
