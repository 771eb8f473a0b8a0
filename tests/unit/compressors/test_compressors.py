"""What every compressor promises, and what each one means."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import (
    BlockQuantizer,
    Cast,
    CompressedMomentum,
    DeMo,
    EFSign,
    FeedbackCompressor,
    Natural,
    OneBit,
    SingleRound,
    TopK,
)
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload
from tests.brought import brought

SEGMENTS = (91, 7, 1, 0, 360)
LAYOUT = Layout.of(*SEGMENTS)
NUMEL = LAYOUT.numel

COMPRESSORS = {
    "topk": TopK(0.05),
    "lwtopk": TopK(0.05, layerwise=True),
    "everything": TopK(1.0),
    "efsign": EFSign(),
    "efsign-bucket": EFSign(layerwise=False),
    "int8": BlockQuantizer(8),
    "int4-stochastic": BlockQuantizer(4, 128, stochastic=True),
    "int3": BlockQuantizer(3),
    "five-levels": BlockQuantizer(2.5),
    "int2": BlockQuantizer(2),
    "onebit": OneBit(128),
    "onebit-magnitude": OneBit(64, 1),
    "natural": Natural(),
    "momentum": CompressedMomentum(0.9, BlockQuantizer(8)),
    "demo": DeMo(4, 8, decay=1.0),
    "bf16": Cast(torch.bfloat16),
    "dense": Cast(),
    **dict(brought("SINGLE_ROUND")),
}
WITH_FEEDBACK = [name for name, compressor in COMPRESSORS.items() if isinstance(compressor, FeedbackCompressor)]


def draw(seed: int = 0) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_wire_needs_no_tensor_and_is_right(name: str) -> None:
    compressor = COMPRESSORS[name]
    (announced,) = compressor.wire(LAYOUT)
    sent = compressor.compress(draw(), LAYOUT).wire_bytes
    assert sent == announced.nbytes if announced.fixed else sent <= announced.nbytes


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressing_changes_nothing_and_depends_on_nothing_else(name: str) -> None:
    compressor, x = COMPRESSORS[name], draw()
    state = torch.get_rng_state()
    first, second = compressor.compress(x, LAYOUT), compressor.compress(x, LAYOUT)
    assert torch.equal(x, draw())
    assert torch.equal(torch.get_rng_state(), state)
    for key in first.tensors:
        assert torch.equal(first[key], second[key])


@pytest.mark.parametrize("name", WITH_FEEDBACK)
def test_the_fused_form_equals_the_three_steps(name: str) -> None:
    compressor = COMPRESSORS[name]
    assert isinstance(compressor, FeedbackCompressor)
    gradient, residual, pending = draw(1), draw(2), torch.empty(NUMEL)
    payload = compressor.compress_feedback(gradient, residual, pending, LAYOUT)
    corrected = gradient + residual
    apart = compressor.compress(corrected, LAYOUT)
    for key in apart.tensors:
        assert torch.equal(payload[key], apart[key])
    torch.testing.assert_close(pending, corrected - compressor.decompress(payload, LAYOUT))
    assert torch.equal(residual, draw(2))
    assert torch.equal(gradient, draw(1))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_adding_scales(name: str) -> None:
    compressor: SingleRound = COMPRESSORS[name]
    payload = compressor.compress(draw(), LAYOUT)
    out = torch.ones(NUMEL)
    compressor.add_to(out, payload, 0.25, LAYOUT)
    torch.testing.assert_close(out, 1 + 0.25 * compressor.decompress(payload, LAYOUT))


@pytest.mark.parametrize("layerwise", [False, True])
def test_topk_keeps_the_largest(layerwise: bool) -> None:
    x, compressor = draw(), TopK(0.05, layerwise)
    kept = compressor.decompress(compressor.compress(x, LAYOUT), LAYOUT)
    for part, original in zip(kept.split(SEGMENTS), x.split(SEGMENTS), strict=True) if layerwise else [(kept, x)]:
        k = max(1, round(0.05 * original.numel())) if original.numel() else 0
        assert int((part != 0).sum()) == k
        if k:
            assert original[part != 0].abs().min() >= original[part == 0].abs().max() if k < original.numel() else True


def test_efsign_sends_one_scale_for_each_parameter() -> None:
    x = draw()
    payload = EFSign().compress(x, LAYOUT)
    expected = [part.double().abs().mean().float() if part.numel() else torch.zeros(()) for part in x.split(SEGMENTS)]
    torch.testing.assert_close(payload["scales"], torch.stack(expected))
    assert payload["bits"].numel() == sum(-(-numel // 8) for numel in SEGMENTS)


def test_cast_never_widens() -> None:
    assert Cast(torch.bfloat16).sum_dtype(torch.float32) == torch.bfloat16
    assert Cast(torch.bfloat16).sum_dtype(torch.float16) == torch.float16
    assert Cast().sum_dtype(torch.float64) == torch.float64


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("topk", {"indices": torch.tensor([NUMEL], dtype=torch.int32), "values": torch.ones(1)}),
        ("topk", {"indices": torch.tensor([-1], dtype=torch.int32), "values": torch.ones(1)}),
        ("topk", {"indices": torch.tensor([0, 1], dtype=torch.int32), "values": torch.ones(1)}),
        ("efsign", {"bits": torch.zeros(5, dtype=torch.uint8), "scales": torch.ones(5)}),
        ("efsign", {"bits": torch.zeros(59, dtype=torch.uint8), "scales": torch.ones(4)}),
        ("bf16", {"values": torch.zeros(NUMEL - 1, dtype=torch.bfloat16)}),
    ],
)
def test_a_bad_payload_is_refused_and_nothing_is_written(name: str, tensors: dict[str, torch.Tensor]) -> None:
    out = torch.ones(NUMEL)
    with pytest.raises(PayloadError):
        COMPRESSORS[name].add_to(out, Payload(tensors, NUMEL), 1.0, LAYOUT)
    assert torch.equal(out, torch.ones(NUMEL))
