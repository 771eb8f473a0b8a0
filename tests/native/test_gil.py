"""The GIL is released inside every kernel, so that backward passes and other threads go on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from hvd_compress import _native

N = 1 << 19
K = N // 8
GRAD, RESIDUAL, OUT = torch.ones(N), torch.ones(N), torch.ones(N)
INDICES, VALUES = torch.arange(K, dtype=torch.int32), torch.zeros(N)
VELOCITY = torch.ones(N)
BITS, SCALE = torch.zeros(N // 8, dtype=torch.uint8), torch.zeros(1)
WORKSPACE = torch.empty(1 << 22, dtype=torch.uint8)
THRESHOLDS = torch.zeros(1 << 22, dtype=torch.uint8)  # as if none had been found
T = THRESHOLDS.data_ptr()
PACKED, COUNTS = torch.zeros(N, dtype=torch.uint8), torch.zeros((1 << 16) + 1, dtype=torch.int64)
SHARES = torch.zeros((1 << 16) + 1, dtype=torch.float64)
G, R, O, I, V, B, S, W, Q, C = (  # noqa: E741
    tensor.data_ptr() for tensor in (GRAD, RESIDUAL, OUT, INDICES, VALUES, BITS, SCALE, WORKSPACE, PACKED, COUNTS)
)
UNITS = torch.zeros(N // 64, dtype=torch.bfloat16)
WORDS = torch.zeros(N, dtype=torch.int32)
CODE = WORDS.data_ptr()
_native.elias_fano_encode(I, K, N, CODE)
CODED = torch.zeros(N, dtype=torch.uint8)
CODED_BYTES = _native.block_encode(Q, N, 3, CODED.data_ptr())
SENT = (torch.zeros(N, dtype=torch.uint8).data_ptr(), UNITS.data_ptr())
PLAN = torch.tensor([0, 1, 0, 0, 1, 0, 0])
INDEX = torch.zeros(N // 8, dtype=torch.int64)

KERNELS: dict[str, Callable[[], object]] = {
    "accumulate": lambda: _native.accumulate(G, 0, R, O, 0, N),
    "scale": lambda: _native.scale(O, 0, N, 1.0),
    "topk": lambda: _native.topk(G, 0, N, K, I, V, W, WORKSPACE.numel()),
    "topk_accumulate": lambda: _native.topk_accumulate(G, 0, R, O, 0, N, K, I, V, W, WORKSPACE.numel()),
    "gather": lambda: _native.gather(G, 0, N, I, K, V),
    "take": lambda: _native.take(O, 0, N, I, K, V),
    "scatter_add": lambda: _native.scatter_add(I, V, 0, K, O, 0, N, 0.0),
    "scatter_set": lambda: _native.scatter_set(I, V, 0, K, O, 0, N, 0.0),
    "sign_accumulate": lambda: _native.sign_accumulate(G, 0, R, O, 0, N, B, S, W, WORKSPACE.numel()),
    "scatter_lists": lambda: _native.scatter_lists([(I, V, K)], 0, O, 0, N, 0.0, False),
    "threshold_select": lambda: _native.threshold_select(G, 0, N, 2.0, 0, I, V, T, THRESHOLDS.numel()),
    "threshold_count": lambda: _native.threshold_count(G, 0, N, 0.5, W, WORKSPACE.numel()),
    "threshold_accumulate": lambda: _native.threshold_accumulate(
        G, 0, R, 0.9, G, VELOCITY.data_ptr(), O, N, 0.5, W, WORKSPACE.numel()
    ),
    "threshold_take": lambda: _native.threshold_take(O, 0, N, 2e9, 0, I, V, T, THRESHOLDS.numel()),
    "mstopk_accumulate": lambda: _native.mstopk_accumulate(G, 0, R, O, 0, N, K, 25, I, V, W, WORKSPACE.numel()),
    "sign_accumulate_kept": lambda: _native.sign_accumulate_kept(G, 0, R, S, O, 0, N, B, S, W, WORKSPACE.numel()),
    "mstopk": lambda: _native.mstopk(G, 0, N, K, 25, I, V, W, WORKSPACE.numel()),
    "magnitude_curve": lambda: _native.magnitude_curve(G, 0, N, C, SHARES.data_ptr(), W, WORKSPACE.numel()),
    "quantize_accumulate": lambda: _native.quantize_accumulate(
        G, 0, R, O, 0, N, 8, 0, 1, 2, 3, Q, S, W, WORKSPACE.numel()
    ),
    "quantize_add": lambda: _native.quantize_add(Q, S, O, 0, N, 8, 0.0),
    "block_quantize": lambda: _native.block_quantize(G, 0, R, O, N, 127, 64, 0, True, 1, 2, 3, Q, UNITS.data_ptr()),
    "block_sum": lambda: _native.block_sum([SENT, SENT], N, 127, 64, 0.5, O, 0),
    "block_sum_quantize": lambda: _native.block_sum_quantize(
        G, 0, [SENT, SENT], 1, O, N, 127, 64, 0, False, 0, 0, 0, Q, UNITS.data_ptr()
    ),
    "block_encode": lambda: _native.block_encode(Q, N, 3, W),
    "block_decode": lambda: _native.block_decode(CODED.data_ptr(), CODED_BYTES, N, 3, Q),
    "elias_fano_encode": lambda: _native.elias_fano_encode(I, K, N, Q),
    "elias_fano_decode": lambda: _native.elias_fano_decode(CODE, K, N, Q, W, WORKSPACE.numel()),
    "copy_tokens": lambda: _native.copy_tokens(G, 1, 1, 0, 0, 1024, INDEX.data_ptr(), N // 8, O, 0),
    "decode_attention": lambda: _native.decode_attention(
        PLAN.data_ptr(), 1, 1, 0, G, 1, 1, 0, 0, R, 1, N, 64, V, 1, N, 64, 0, 0, N // 64, 1.0, O, W, WORKSPACE.numel()
    ),
    "sign_add": lambda: _native.sign_add(B, S, O, 0, N, 0.0),
}


@pytest.fixture
def no_preemption() -> Iterator[None]:
    """A thread keeps the GIL until it waits for something or releases it on purpose."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", KERNELS)
def test_another_thread_runs_during_the_call(name: str, no_preemption: None) -> None:
    """Between releasing `gate` and the last line nothing but the kernel can let the other thread have the GIL.

    It may need more than one call until the system schedules that thread; without the release no number would do.
    """
    gate, ran = threading.Lock(), []
    gate.acquire()

    def wait_for_gate() -> None:
        with gate:
            ran.append(True)

    thread = threading.Thread(target=wait_for_gate)
    thread.start()
    kernel, give_up_at = KERNELS[name], time.monotonic() + 120
    gate.release()
    while not ran and time.monotonic() < give_up_at:
        kernel()
    seen = bool(ran)
    thread.join()
    assert seen, f"{name} held the GIL"
