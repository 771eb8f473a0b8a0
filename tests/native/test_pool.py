"""The worker pool: results do not depend on it, and neither forks nor several callers confuse it."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from hvd_compress import _native, native
from hvd_compress.errors import ConfigError

N = 1_600_001  # a gain curve counts a part of so many


def results(seed: int) -> list[torch.Tensor]:
    """What the kernels that divide their work make of random tensors."""
    generator = torch.Generator().manual_seed(seed)
    grad, residual = torch.randn(N, generator=generator), torch.randn(N, generator=generator)
    left = [residual.clone() for _ in range(8)]
    found = [*native.topk_accumulate(grad, left[0], N // 50), *native.sign_accumulate(grad, left[1])]
    found += native.quantize_accumulate(grad, left[2], 4, seed=1, step=2, bucket=3)
    found += native.threshold_select(grad, 2.0)
    momentum = native.Momentum(0.9, residual, torch.empty(N))
    found += [*native.threshold_accumulate(grad, left[3], 2.0, left[6], momentum), momentum.out]
    found += native.mstopk_accumulate(grad, residual, N // 50, out=left[7])
    form, key = native.BlockFormat(4), native.RandomKey(1, 2, 3)
    sent = native.block_quantize(grad, left[3], form, key=key)
    added = native.block_sum_quantize(grad, [sent, sent], 1, form, rest=left[4])
    native.block_sum([sent, added], left[5], form, 0.5)
    found += [sent.codes, sent.units, added.codes, added.units]
    out = torch.zeros(N)
    native.scatter_lists([tuple(found[:2]), tuple(found[:2])], out, 0.5)
    words = native.elias_fano_encode(found[0], N)
    found += [words, native.elias_fano_decode(words, N, found[0].numel())]
    curve = native.gain_curve(grad)
    return [*found, *left, out, curve.counts, curve.shares]


@pytest.mark.parametrize("threads", [2, 3, 7, 100])
def test_results_do_not_depend_on_the_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", "1")
    expected = results(1)
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", str(threads))
    for own, other in zip(results(1), expected, strict=True):
        assert torch.equal(own, other)


def test_results_do_not_depend_on_the_level(level: str) -> None:
    levels = native.simd_levels()
    if level != levels[-1]:
        return  # all levels are set here
    found = []
    for level in levels:
        native.set_simd_level(level)
        found.append(results(2))
    for level, tensors in zip(levels, found, strict=True):
        for number, (own, first) in enumerate(zip(tensors, found[0], strict=True)):
            assert torch.equal(own, first), f"result {number} of {level} differs"


def test_several_callers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", "3")
    expected = [results(seed) for seed in range(4)]
    found: dict[int, list[torch.Tensor]] = {}

    def call(seed: int) -> None:
        for _ in range(3):
            found[seed] = results(seed)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for seed, tensors in enumerate(expected):
        assert all(torch.equal(a, b) for a, b in zip(found[seed], tensors, strict=True))


def test_workers_treat_denormals_as_their_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would matter which thread runs which part."""
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", "3")
    tiny, zeros = torch.full((N,), -1e-40), torch.zeros(N)
    native.accumulate(tiny, zeros, out=torch.empty(N))  # workers are there before the mode changes
    kept = {}
    for flush in (True, False):
        if not torch.set_flush_denormal(flush):
            pytest.skip("this machine cannot flush denormals")
        try:
            out = torch.empty(N)
            native.accumulate(tiny, zeros, out=out)
            native.sign_accumulate(tiny, zeros.clone())
        finally:
            torch.set_flush_denormal(False)
        kept[flush] = int(out.view(torch.int32).ne(0).logical_and(out.view(torch.int32).ne(-(2**31))).sum())
    assert kept == {True: 0, False: N}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the workers of a data loader have. A child that waited for threads it does not have would never end."""
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", "3")
    x = torch.arange(N, dtype=torch.float32)
    expected = native.topk(x, N // 50)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(native.topk(x, N // 50)[0], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1025", "99999999999"])
def test_a_number_of_threads_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", value)
    with pytest.raises(ConfigError, match=rf"HVD_COMPRESS_NUM_THREADS = '{value}' is not a whole number"):
        native.topk(torch.ones(3), 1)


def test_kernels_use_the_number_of_threads_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (3, 1, 2):
        monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", str(threads))
        native.topk(torch.ones(3), 1)
        assert _native.num_threads() == threads


def test_kernels_are_those_of_the_level_that_is_set() -> None:
    for number, level in enumerate(native.simd_levels()):
        native.set_simd_level(level)
        assert _native.simd_level_of_kernels() == number


def test_torchs_number_of_threads_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVD_COMPRESS_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        for threads in (3, 1):
            torch.set_num_threads(threads)
            assert native.num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_level_that_is_none() -> None:
    with pytest.raises(ConfigError, match="'sse9' is not one of those that run here: portable"):
        native.set_simd_level("sse9")
