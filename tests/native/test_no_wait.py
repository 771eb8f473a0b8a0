"""No CUDA kernel makes the host wait for the device: nobody looks into a tensor during the call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hvd_compress import native

N, K = 20_000, 300
UP = torch.arange(0, N, N // K, dtype=torch.int32)
KEY = {"seed": 1, "step": 2, "bucket": 3}
WORDS = native.elias_fano_encode(UP, N)
FORM = native.BlockFormat(4)
SENT = native.BlockCodes(torch.zeros(FORM.code_bytes(N), dtype=torch.uint8), torch.ones(FORM.blocks(N)).bfloat16())

CODED = native.block_encode(SENT.codes, N, FORM)

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "accumulate": lambda x, y: native.accumulate(x, y),
    "topk": lambda x, y: native.topk(x, K),
    "topk_accumulate": lambda x, y: native.topk_accumulate(x, y, K),
    "mstopk": lambda x, y: native.mstopk(x, K),
    "mstopk_accumulate": lambda x, y: native.mstopk_accumulate(x, y, K),
    "sign_accumulate": lambda x, y: native.sign_accumulate(x, y),
    "sign_accumulate_kept": lambda x, y: native.sign_accumulate_kept(x, y, torch.zeros(())),
    "sign_add": lambda x, y: native.sign_add(torch.zeros(N // 8, dtype=torch.uint8), torch.ones(()), y, 0.5),
    "quantize_accumulate": lambda x, y: native.quantize_accumulate(x, y, 4, **KEY),
    "quantize_add": lambda x, y: native.quantize_add(torch.zeros(N, dtype=torch.uint8), torch.ones(()), y, 8, 0.5),
    "block_quantize": lambda x, y: native.block_quantize(x, y, FORM, key=native.RandomKey(**KEY)),
    "block_sum": lambda x, y: native.block_sum([SENT] * 3, y, FORM, 0.5),
    "block_sum_quantize": lambda x, y: native.block_sum_quantize(x, [SENT] * 3, 1, FORM, rest=y),
    "gather": lambda x, y: native.gather(x, UP),
    "take": lambda x, y: native.take(y, UP),
    "scatter_add": lambda x, y: native.scatter_add(UP, torch.ones(UP.numel()), y, 0.5),
    "scatter_set": lambda x, y: native.scatter_set(UP, torch.ones(UP.numel()), y, 0.5),
    "scatter_lists": lambda x, y: native.scatter_lists([(UP, torch.ones(UP.numel()))] * 3, y, 0.5),
    "elias_fano_encode": lambda x, y: native.elias_fano_encode(UP, N),
    "elias_fano_decode": lambda x, y: native.elias_fano_decode(WORDS, N, UP.numel()),
    "gain_curve": lambda x, y: native.gain_curve(x).gain(torch.tensor([1, K])),
}


class LookedIntoError(AssertionError):
    pass


def _look(*arguments: object) -> None:
    raise LookedIntoError


@pytest.fixture
def no_looking(level: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every way in which torch copies from a GPU to the host, or makes a size of what lies there."""
    native.gather(torch.ones(1), torch.zeros(1, dtype=torch.int32))  # the first call of all may wait
    for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, _look)
    return level == "tiles"


@pytest.mark.parametrize("name", CALLS)
def test_nobody_looks_into_a_result(name: str, no_looking: bool) -> None:
    x, y = torch.randn(N), torch.randn(N)
    if no_looking:
        CALLS[name](x, y)


def test_the_guard_sees_a_look(no_looking: bool) -> None:
    if no_looking:
        with pytest.raises(LookedIntoError):
            native.check_pending()  # waits, and says so
        with pytest.raises(LookedIntoError):
            native.threshold_select(torch.randn(N), 1.0)  # so does this: the size of its result is not known before
        with pytest.raises(LookedIntoError):
            native.threshold_accumulate(torch.randn(N), torch.randn(N), 1.0, torch.empty(N))
        with pytest.raises(LookedIntoError):
            native.block_encode(SENT.codes, N, FORM)
        with pytest.raises(LookedIntoError):
            native.block_decode(CODED, N, FORM)
