"""Every rank of the launcher runs these tests, in step.

    mpirun -np 3 --map-by :OVERSUBSCRIBE --bind-to none python -m pytest tests/parallel

MPI or Horovod is started once, the way that a training script does it. No rank may skip or leave a test that others
stay in. A rank whose test fails ends at once, and its launcher ends the others with it.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_compress.engines.leave import fail_at_exit
from hvd_compress.engines.mpi_environment import prepare
from hvd_compress.request.request import Request
from tests.parallel.training import ENGINES, EXACT


@pytest.fixture(scope="session")
def hvd() -> Any:
    """Return horovod.torch, or what HVD_COMPRESS_RUNTIME has stand for it, initialised. Sets may be added later."""
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    os.environ["OMPI_MCA_mpi_yield_when_idle"] = "1"  # cores are few: a rank that waits must not keep one busy
    os.environ["HVD_COMPRESS_ADAPT"] = "0"  # what is sent is compared; the controller has tests of its own
    prepare()
    from hvd_compress.frontends.horovod.runtime_selection import hvd

    hvd.init()
    return hvd


@pytest.fixture(scope="session")
def abandoned(hvd: Any) -> list[str]:
    """Where an engine was abandoned, instead of the exit with status 1 that this prepares."""
    calls: list[str] = []
    modules = ["hvd_compress.engines.horovod", "hvd_compress.session.pipeline"]
    if "OMPI_COMM_WORLD_SIZE" in os.environ:  # importing it starts MPI
        modules.append("hvd_compress.engines.mpi")
    for name in modules:
        importlib.import_module(name).fail_at_exit = lambda abort: calls.append(
            "".join(traceback.format_stack(limit=8))
        )
    return calls


@pytest.fixture(autouse=True)
def nothing_left_behind(abandoned: list[str]) -> Iterator[None]:
    """A test that gives up an exchange could leave a collective unfinished, and the launch would end in a crash.

    Such tests belong to tests/jobs, or to tests/unit with in-process ranks.
    """
    yield
    gc.collect()  # an optimizer that is dropped in the middle of a step
    gc.freeze()  # what has stayed, torch and its compiler most of all, need not be looked at after every test
    assert not abandoned, f"an engine was abandoned:\n{abandoned.pop()}"
    for thread in threading.enumerate():
        if thread.name.startswith("hvd-compress-") and not thread.name.startswith("hvd-compress-runtime"):
            thread.join(60.0)
            assert not thread.is_alive(), f"{thread.name} outlives the test: something still holds its optimizer"


@pytest.fixture(scope="session")
def under_mpirun() -> bool:
    """Say whether mpirun started this process (else horovodrun did): the same on all ranks."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


@pytest.fixture(autouse=True)
def small_settings(hvd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets so small that every model here has several, and a limit for what would hang."""
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1000")
    monkeypatch.setenv("HVD_COMPRESS_TIMEOUT_S", "300")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine that this launch offers."""
    return request.param


@pytest.fixture(params=EXACT)
def exact(request: pytest.FixtureRequest) -> Request:
    """Each compression that loses nothing but rounding."""
    return EXACT[request.param]


@pytest.fixture(scope="session")
def some_ranks(hvd: Any) -> Any:
    """A process set that leaves out rank 0, and rank 2 where there are four: 1 rank of 2, else 2.

    It stays: to remove it takes all ranks, and would keep one that failed from ending.
    """
    return hvd.add_process_set({2: [1], 3: [1, 2], 4: [1, 3]}[hvd.size()])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Horovod names what has no name by a number, of which ranks outside a process set count less: then all wait."""
    items.sort(key=lambda item: item.get_closest_marker("unnamed_collectives") is None)


def pytest_sessionfinish(exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK:
        # The first rank to end makes Horovod shut MPI down, under whatever another one still does with it.
        from hvd_compress.frontends.horovod.runtime_selection import hvd

        hvd.barrier()
    elif exitstatus != pytest.ExitCode.NO_TESTS_COLLECTED:
        # The other ranks may wait for this one in a collective, where MPI's and Horovod's clean-up would join them.
        fail_at_exit(lambda: os._exit(1))
