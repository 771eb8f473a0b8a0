"""Indices that another thread writes to during a call: on a CPU, nothing outside is reached."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from hvd_compress import native
from hvd_compress.errors import MismatchError


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: these kernels have no levels. On a GPU it is streams that order who writes."""


CHANGED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "gather": lambda indices, values, out: native.gather(out, indices),
    "take": lambda indices, values, out: native.take(out, indices),
    "scatter_add": lambda indices, values, out: native.scatter_add(indices, values, out, 1.0),
    "scatter_set": lambda indices, values, out: native.scatter_set(indices, values, out, 1.0),
    "scatter_lists": lambda indices, values, out: native.scatter_lists([(indices, values)], out, 1.0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_indices_that_change_during_the_call_reach_nothing_outside(name: str) -> None:
    """After they were checked, before they are used. Behind `out` lies what the wrong ones would reach."""
    n = 100_000
    memory = torch.zeros(n + 10)
    memory[n:] = 5.0
    indices, values = torch.arange(n, dtype=torch.int32), torch.ones(n)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            indices[-1] = n + 3
            indices[-1] = n - 1

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for _ in range(100):
            try:
                found = CHANGED[name](indices, values, memory[:n])
            except (MismatchError, RuntimeError):  # seen when indices were checked, or later
                continue
            assert found is None or 5.0 not in found
    finally:
        stop.set()
        disturber.join()
    assert (memory[n:] == 5.0).all()
