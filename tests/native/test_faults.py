"""Where kernels note bad indices, as several threads ask for it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from hvd_compress.native import about, faults
from hvd_compress.native.faults import Faults


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: no kernel runs here."""


def test_threads_that_come_first_together_note_in_one_place_with_tags_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one of them would write to memory that is free again, and nobody would look there."""
    monkeypatch.setattr(faults, "_all", [])  # not for others to check
    full, threads = torch.full, 4
    together = threading.Barrier(threads)

    def slow(*arguments: Any, **options: Any) -> torch.Tensor:
        time.sleep(0.05)  # long enough for the others to come
        return full(*arguments, **options)

    monkeypatch.setattr(torch, "full", slow)
    places = Faults(torch.device("cpu"))

    def place(number: int) -> tuple[int, int]:
        together.wait()
        with about(f"bucket {number}"):
            return places.place("take", 10)

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(place, range(threads)))
    assert len({address for address, _ in found}) == 1
    assert len({tag for _, tag in found}) == threads
