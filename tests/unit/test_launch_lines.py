"""Every command with mpirun that we print or write down starts more ranks than there are cores.

A launch line is `mpirun`, its options with the number of ranks among them, and what it starts, written as one types it.
It holds the two options of README's, or the Makefile's variable with both. Exempt are lines that name hosts: a hostfile
says how many slots there are. Lists of words that code puts together are no lines: what they start, tests start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = (
    *(ROOT.joinpath(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", ".ci/run")),
    *(
        path
        for folder in ("hvd_compress", "docs", "docker", "examples", "benchmarks", "tests", "tools")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".md", ".py", ".sh", ".yaml", ".Dockerfile") and path != Path(__file__)
    ),
)
LAUNCH = re.compile(r"""\bmpirun\s+(?:[^"'`\n]*\s)?-np?\s+[^\s"'`:]+\s+[^\s"'`].*""")
OPTIONS = ("--map-by :OVERSUBSCRIBE", "--bind-to none")


def launches(text: str) -> Iterator[str]:
    """Return the launch lines of a text; one that a backslash breaks is one."""
    return (found[0] for found in LAUNCH.finditer(re.sub(r"\\\n\s*", "", text)))


def is_complete(line: str) -> bool:
    return all(option in line for option in OPTIONS) or "$(MPIRUN_FLAGS)" in line or "--host" in line


def test_launch_lines_hold_the_two_options() -> None:
    found = [(path.relative_to(ROOT), line) for path in PLACES for line in launches(path.read_text())]
    assert {"README.md", "tests/parallel/conftest.py", "docs/usage.md", "docker/cpu.Dockerfile"} <= {
        str(path) for path, _ in found
    }
    assert [f"{path}: {line}" for path, line in found if not is_complete(line)] == []


def test_what_is_a_launch_line() -> None:
    assert not is_complete(*launches("launch it as `mpirun -np 4 hvd-compress probe`"))
    assert not is_complete(*launches("    X=1 mpirun --bind-to none -n 4 \\\n      python train.py"))
    assert is_complete(*launches("    mpirun -np 8 --hostfile hosts python train.py"))
    for text in (
        'Launch(f"mpirun -np {ranks}", ranks)',
        '["mpirun", "-np", "2", "true"]',
        "mpirun takes -x NAME",
        "mpirun -np 2: ok in 3 s",
    ):
        assert list(launches(text)) == []
