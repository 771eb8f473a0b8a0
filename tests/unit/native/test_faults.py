"""What is said of a bad index that a kernel has noted; the kernel is played by a write to its 8 bytes."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch

from hvd_compress import native
from hvd_compress.errors import MismatchError, UsageError
from hvd_compress.native import faults
from hvd_compress.native.faults import Faults

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_all", [])


def note(noted: Faults, tag: int, number: int, position: int) -> None:
    """As Fault::note() of csrc/include/hvd_compress/scatter.hpp."""
    assert noted._first is not None
    word = tag << 48 | number << 32 | position
    noted._first.fill_(word - (1 << 64) if word >> 63 else word)


def test_kernel_list_position_and_origin_are_named_once() -> None:
    noted = Faults(CPU)
    noted.place("gather", 5)
    with native.about("payload a|b from rank"):
        tag = noted.place("scatter_lists", 100)[1]
    note(noted, tag, 3, 2**31)
    message = (
        rf"^payload a\|b from rank 3: the index at position {2**31} lies outside 0\.\.99, .*\(scatter_lists on cpu\)"
    )
    with pytest.raises(MismatchError, match=message):
        native.check_pending()
    native.check_pending()


def test_about_ends_with_its_block_and_its_thread() -> None:
    noted = Faults(CPU)
    plain = noted.place("take", 4)
    tags = []
    with native.about("outer"):
        outer = noted.place("take", 4)
        with native.about("inner"):
            inner = noted.place("take", 4)
            other = threading.Thread(target=lambda: tags.append(noted.place("take", 4)))
            other.start()
            other.join()
        assert noted.place("take", 4) == outer
    assert noted.place("take", 4) == plain == tags[0]
    assert len({plain, outer, inner}) == 3


def test_calls_beyond_the_last_tag_are_told_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_MAX_TAG", 3)  # a mask, too
    noted = Faults(CPU)
    tags = [noted.place("take", numel)[1] for numel in range(10, 16)]
    assert tags == [0, 1, 2, 3, 3, 3]
    note(noted, 1, 0, 7)
    with pytest.raises(MismatchError, match=r"position 7 lies outside 0\.\.10,"):
        native.check_pending()
    note(noted, 3, 0, 7)
    with pytest.raises(MismatchError, match=r"position 7 lies outside 0\.\.numel - 1, .*\(some kernel on cpu\)"):
        native.check_pending()


def test_every_device_is_asked() -> None:
    first, second = Faults(CPU), Faults(CPU)
    for noted in (first, second):
        noted.place("take", 4)
    note(second, 0, 0, 1)
    with pytest.raises(MismatchError, match="position 1"):
        native.check_pending()


def test_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    with pytest.raises(UsageError, match="take is called for the first time on cuda:0 while a CUDA graph is captured"):
        Faults(torch.device("cuda", 0)).place("take", 4)
