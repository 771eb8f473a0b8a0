"""Settings of all tests, and the clock of those whose outcome follows from what something took."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.clock import Clock

# Machines are noisy, so no example may fail for being slow; ranks must draw the same examples.
settings.register_profile("hvd_compress", deadline=None, derandomize=True)
settings.load_profile("hvd_compress")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-product", action="store_true", help="every combination, not a covering of pairs (conformance, digests)"
    )


LEVEL2_FOLDERS = ("benchmarks", "jobs", "player", "unit/docs", "unit/integrations", "unit/tools")
"""Of these the tests are of the second level, but for those that are marked `level1`: they start programs."""
FIRST_LEVEL, SECOND_LEVEL = "not level2", "level2"
"""Tests, as `-m` selects them."""
RANKS_FOLDER, RANK_VARIABLES = "parallel", {"OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"}
"""Its tests run in ranks of one job; what launchers say to a rank."""


def is_level2(folder: str) -> bool:
    return f"{folder}/".startswith(tuple(f"{each}/" for each in LEVEL2_FOLDERS))


def folder_of(item: pytest.Item) -> str:
    return item.path.parent.relative_to(Path(__file__).parent).as_posix()


def may_hold(level: str, file: Path) -> bool:
    """Whether a file, or what its folder says of all, marks tests: a mark is not looked for elsewhere."""
    return any(level in each.read_text() for each in (file, file.with_name("conftest.py")) if each.exists())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file without a test of the level that is asked for is not imported for it: some take seconds.

    Nor is one that needs the ranks of a job where there is none.
    """
    if collection_path.is_dir():
        return (collection_path.name == RANKS_FOLDER and not (RANK_VARIABLES & os.environ.keys())) or None
    if collection_path.suffix != ".py":
        return None
    folder = collection_path.parent.relative_to(Path(__file__).parent).as_posix()
    if config.option.markexpr == FIRST_LEVEL:
        return (is_level2(folder) and not may_hold("level1", collection_path)) or None
    if config.option.markexpr == SECOND_LEVEL:
        return not (is_level2(folder) or may_hold("level2", collection_path)) or None
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    assert not (item.get_closest_marker("level1") and item.get_closest_marker("level2")), (
        f"{item.nodeid} is of both levels"
    )
    for level in ("level1", "level2"):
        if item.get_closest_marker(level) is not None:
            assert may_hold(level, item.path), f"{item.path} is not read for a mark that stands elsewhere"
    if is_level2(folder_of(item)) and item.get_closest_marker("level1") is None:
        item.add_marker("level2")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What starts a program is of the second level, or says that it is worth its time in the first."""
    is_marked = any(item.get_closest_marker(level) for level in ("level1", "level2"))
    with pytest.MonkeyPatch.context() as patch:
        if not is_marked and item.path.parent.name != RANKS_FOLDER:
            patch.setattr(subprocess.Popen, "__init__", refuse)
        return (yield)


_START = subprocess.Popen.__init__


def refuse(process: subprocess.Popen[bytes], args: Sequence[str], *others: Any, **options: Any) -> None:
    if args[0] == "fc-list":  # matplotlib, which asks once in a home what fonts there are
        return _START(process, args, *others, **options)
    raise AssertionError("this test starts a program: mark it level2 (CONTRIBUTING.md), or level1 if it is quick")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    """Time passes only where in-process ranks communicate; nothing is known of networks that others have measured."""
    from tests.clock import hold  # imports torch, which not all tests need

    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path_factory.mktemp("cache")))
    return hold(monkeypatch)
