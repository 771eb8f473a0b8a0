"""torch's hooks, on an object with the methods of a bucket."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

from hvd_compress.bench import hooks
from hvd_compress.bench.inputs import Gradients
from hvd_compress.buckets.layout import Layout
from hvd_compress.errors import UsageError

LAYOUT = Layout.of((64, 48), 17)


def gradients() -> Gradients:
    return Gradients.of(LAYOUT, torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(3)), 1.0, 7)


def test_each_hook_has_its_figures() -> None:
    names: list[str] = []
    figures = {figure.name: figure for figure in hooks.measure_hooks(gradients(), 2, names.append)}
    assert list(figures) == names == [hook.name for hook in hooks.hooks()]
    assert not dist.is_initialized()
    assert all(not figure.failure and figure.both_s > 0 and figure.encode_s is None for figure in figures.values())
    assert figures["allreduce"].bits == 32
    assert (figures["allreduce"].gain, figures["allreduce"].lost) == (1.0, 0.0)
    assert figures["fp16_compress"].bits == figures["bf16_compress"].bits == 16
    assert figures["fp16_compress"].lost < figures["bf16_compress"].lost < 1e-4
    assert figures["powerSGD"].sent_bytes == 4 * (hooks.RANK * (64 + 48) + 17)
    assert 0 < figures["powerSGD"].gain < 1
    assert figures["powerSGD"].gain + figures["powerSGD"].lost == pytest.approx(1.0, abs=0.02)
    assert figures["quantization_pertensor"].sent_bytes == LAYOUT.numel + 8


def test_a_hook_that_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(state: object, bucket: object) -> torch.futures.Future[torch.Tensor]:
        raise RuntimeError("not on this machine")

    known = hooks.hooks()
    monkeypatch.setattr(hooks, "hooks", lambda: [hooks.Hook("broken", None, refuse), known[0]])
    broken, other = hooks.measure_hooks(gradients(), 1, lambda name: None)
    assert broken.failure == "RuntimeError: not on this machine"
    assert other.failure == ""
    assert dist.all_reduce.__module__.startswith("torch.distributed")


def test_a_callback_of_gloo_never_drops_the_last_reference_to_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = list[weakref.ref[dist.ProcessGroup]]()

    def hook(state: object, bucket: hooks.Bucket) -> torch.futures.Future[torch.Tensor]:
        groups.append(weakref.ref(dist.group.WORLD))
        future = torch.futures.Future[torch.Tensor]()
        future.set_result(bucket.buffer())
        return future

    monkeypatch.setattr(hooks, "hooks", lambda: [hooks.Hook("noted", None, hook)])
    (figure,) = hooks.measure_hooks(gradients(), 1, lambda name: None)
    gc.collect()
    assert figure.failure == ""
    assert groups[0]() is not None
    assert not dist.is_initialized()


def test_a_process_group_is_not_touched() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(UsageError, match="this process has one already"):
            next(hooks.measure_hooks(gradients(), 1, lambda name: None))
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
