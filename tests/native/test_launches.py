"""Launches of each kernel, as docs/gpu-kernels.md has them: counted on the CUDA kernels that the CPU plays."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hvd_compress import native
from hvd_compress.native import module
from tests.native.conftest import BUILD, PlayedByCpu

DOC = (Path(__file__).parents[2] / "docs" / "gpu-kernels.md").read_text()
ROW = re.compile(r"^\| (?P<kernel>[^|]*) \| [^|]* \| (?P<launches>\d+(?:, \d+)*) \| [^|]* \| [^|]* \|$", re.MULTILINE)
N, LARGE, K = 20_011, (1 << 20) + 3, 300
FORM = native.BlockFormat(4)


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: launches are those of the CUDA kernels."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    found = ctypes.CDLL(os.environ.get("HVD_COMPRESS_TILES", str(BUILD / "tiles.so")))
    monkeypatch.setattr(module, "compiled", PlayedByCpu(found))
    return found


def x(n: int = N) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


def topk(way: str, gradient: torch.Tensor) -> None:
    played = module.compiled
    assert isinstance(played, PlayedByCpu)
    played.way = way
    native.topk_accumulate(gradient, torch.zeros_like(gradient), K)


def misleading() -> torch.Tensor:
    """Few are so large that the k-th largest lies far below them; a sample finds the range of those few."""
    few = x()
    few[: K // 2] *= 1e6
    return few


def encoded() -> native.BlockCodes:
    return native.block_quantize(x(), None, FORM)


def indices() -> torch.Tensor:
    return torch.arange(0, N, 7, dtype=torch.int32)


LISTS = [(torch.arange(0, N, 7, dtype=torch.int32), torch.ones(len(range(0, N, 7))))] * 8
SENT = torch.zeros(())

CALLS: dict[str, list[Callable[[], object]]] = {
    "`topk_accumulate`, up to 49,152 elements with k <= 512, or 16,384 with k <= 2048": [lambda: topk("queue", x())],
    "`topk_accumulate`, from 16,384 elements on": [lambda: topk("bracket", x())],
    "the same where the sample was wrong": [lambda: topk("bracket", misleading())],
    "the same for fewer elements": [lambda: topk("radix", x(9001))],
    "the same where most elements are equal": [lambda: topk("bracket", torch.ones(N))],
    "`sign_accumulate_kept`": [lambda: native.sign_accumulate_kept(x(), torch.zeros(N), SENT)],
    "`sign_accumulate`": [lambda: native.sign_accumulate(x(), torch.zeros(N))],
    "`sign_add`": [lambda: native.sign_add(torch.zeros(-(-N // 8), dtype=torch.uint8), 1.0, x(), 0.5)],
    "`scatter_lists` of up to 64": [lambda: native.scatter_lists(LISTS, torch.zeros(N), 0.5)],
    "`gain_curve`, from 2^20 elements on": [lambda: native.gain_curve(x(LARGE))],
    "`mstopk`, 25 rounds": [lambda: native.mstopk(x(), K, 25)],
    "`mstopk_accumulate`, 25 rounds": [lambda: native.mstopk_accumulate(x(), torch.zeros(N), K, 25)],
    "`threshold_accumulate`": [lambda: native.threshold_accumulate(x(), torch.zeros(N), 1.5, torch.empty(N))],
    "`quantize_accumulate`": [
        lambda: native.quantize_accumulate(x(), torch.zeros(N), 4, seed=1, step=2, bucket=3, norm="l2")
    ],
    "`quantize_add`, b bits": [
        lambda: native.quantize_add(torch.zeros(-(-N // 2), dtype=torch.uint8), SENT, x(), 4, 0.5)
    ],
    "`accumulate`": [lambda: native.accumulate(x(), torch.zeros(N))],
    "`scale`": [lambda: native.scale(x(), 0.5)],
    "`block_quantize`, b bits, blocks of B": [encoded],
    "`block_sum` of N": [lambda: native.block_sum([native_payload] * 3, torch.zeros(N), FORM, 0.5)],
    "`block_sum_quantize`, N - 1 others": [lambda: native.block_sum_quantize(x(), [native_payload] * 3, 0, FORM)],
    "`block_encode`, `block_decode`, b bits in h": [
        lambda: native.block_encode(native_payload.codes, N, FORM),
        lambda: native.block_decode(native_coded, N, FORM),
    ],
    "`elias_fano_encode`, `elias_fano_decode`": [
        lambda: native.elias_fano_encode(indices(), N),
        lambda: native.elias_fano_decode(native_words, N, len(range(0, N, 7))),
    ],
}
native_payload, native_words = encoded(), native.elias_fano_encode(indices(), N)
native_coded = native.block_encode(native_payload.codes, N, FORM)
"""Made by the CPU's twins."""


def test_each_kernel_of_the_table_is_counted() -> None:
    assert {row["kernel"] for row in ROW.finditer(DOC)} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_launches_are_those_of_the_table(library: ctypes.CDLL, name: str) -> None:
    (row,) = (row for row in ROW.finditer(DOC) if row["kernel"] == name)
    found = []
    for call in CALLS[name]:
        before = library.hvd_compress_launches()
        call()
        found.append(library.hvd_compress_launches() - before)
    assert ", ".join(map(str, found)) == row["launches"]


def test_the_tail_of_top_k_has_at_most_eight(library: ctypes.CDLL) -> None:
    """Behind the pass that corrects: before it come three."""
    before = library.hvd_compress_launches()
    topk("bracket", x())
    assert library.hvd_compress_launches() - before - 4 <= 8
