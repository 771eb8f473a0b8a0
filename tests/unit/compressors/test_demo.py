"""Chunks and their cosine coefficients: that nothing is lost, how much is sent, and what is no payload."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import DeMo, dct
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.payload import Payload

LAYOUT = Layout.of((7, 13), 7, 1, (), 0, (40, 9), (3, 4, 5), (8, 8), (16, 8))
NUMEL = LAYOUT.numel


def draw(seed: int = 0, numel: int = NUMEL) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def test_chunks_are_cut_and_put_back() -> None:
    x, back = draw(), torch.full((NUMEL,), torch.nan)
    groups = dct.tilings(LAYOUT, 8)
    for group in groups:
        chunks = dct.cut(group, x)
        assert max(chunks.shape[1:]) <= 8
        dct.put(group, chunks, back)
    assert torch.equal(back, x)
    assert any(len(group) > 1 for group in groups), "equal chunks of several parameters are transformed at once"


@pytest.mark.parametrize(
    ("length", "chunk", "piece"), [(128, 64, 64), (100, 64, 50), (101, 64, 51), (64, 64, 64), (65, 64, 33), (1, 64, 1)]
)
def test_pieces_are_few_and_of_one_length(length: int, chunk: int, piece: int) -> None:
    """Also of a prime, which has no divisor to cut it by."""
    ((tiling,),) = dct.tilings(Layout.of(length), chunk)
    assert tiling.width == piece
    assert tiling.chunks == math.ceil(length / chunk)


def test_the_transform_is_the_textbooks_and_its_inverse_brings_back() -> None:
    chunks = draw(numel=3 * 5 * 8).view(3, 5, 8)
    found = dct.transform(chunks)
    for k, j in ((0, 0), (1, 0), (0, 7), (4, 3)):
        rows = torch.cos(math.pi * k * (2 * torch.arange(5.0) + 1) / 10) * math.sqrt((2 if k else 1) / 5)
        cols = torch.cos(math.pi * j * (2 * torch.arange(8.0) + 1) / 16) * math.sqrt((2 if j else 1) / 8)
        torch.testing.assert_close(found[:, k, j], torch.einsum("nab,a,b->n", chunks, rows, cols), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dct.inverse(found), chunks, rtol=1e-5, atol=1e-5)


def test_what_is_not_sent_stays_and_decays() -> None:
    compressor, residual, pending = DeMo(4, 8, decay=0.5), draw(1), torch.empty(NUMEL)
    payload = compressor.compress_feedback(draw(2), residual, pending, LAYOUT)
    momentum = 0.5 * residual + draw(2)
    torch.testing.assert_close(pending + compressor.decompress(payload, LAYOUT), momentum, rtol=1e-5, atol=1e-5)
    assert torch.equal(residual, draw(1))


def test_with_all_coefficients_it_is_a_rounded_sum() -> None:
    compressor = DeMo(64, 8, decay=1.0)
    out = torch.empty(NUMEL)
    compressor.sum_into(out, [compressor.compress(draw(seed), LAYOUT) for seed in range(3)], 0.5, LAYOUT)
    torch.testing.assert_close(out, 0.5 * (draw(0) + draw(1) + draw(2)), rtol=0.02, atol=0.05)


def test_the_largest_coefficients_are_sent() -> None:
    """A wave is one of them."""
    wave = torch.cos(math.pi * 5 * (2 * torch.arange(64.0) + 1) / 128)
    compressor, layout = DeMo(1, 64), Layout.of((64, 64))
    x = wave.repeat(64) + 0.1 * draw(numel=4096)
    payload = compressor.compress(x, layout)
    assert payload["indices"].view(torch.int16).tolist() == [5]
    torch.testing.assert_close(compressor.decompress(payload, layout), wave.repeat(64), rtol=0.02, atol=0.02)


def test_bytes_are_four_a_coefficient() -> None:
    assert DeMo(32, 64).wire(Layout.of((128, 192)))[0].nbytes == 4 * 32 * 6
    assert DeMo(32, 64).wire(Layout.of(10007))[0].nbytes == 4 * 32 * 157
    assert DeMo(32, 64).wire(Layout.of((3, 5)))[0].nbytes == 4 * 15


def test_the_number_of_threads_changes_no_bit() -> None:
    layout, threads = Layout.of((256, 192), (192, 65), 1000), torch.get_num_threads()
    compressor, x, found = DeMo(8, 64), draw(numel=layout.numel), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            payload = compressor.compress(x, layout)
            found.append((payload["indices"], payload["values"], compressor.decompress(payload, layout)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def spoilt(index: int, value: int) -> Payload:
    payload = DeMo(4, 8).compress(draw(), LAYOUT)
    places = payload["indices"].view(torch.int16).clone()
    places[index] = value
    return Payload({"indices": places.view(torch.uint8), "values": payload["values"]}, NUMEL)


@pytest.mark.parametrize(("index", "value"), [(0, -1), (3, 49), (1, 0), (2, 32767)])
def test_places_that_are_none_or_come_twice_are_refused(index: int, value: int) -> None:
    """Those of the first chunk, which has 7 by 7 elements."""
    out = torch.ones(NUMEL)
    broken = spoilt(index, value)
    if index == 1:
        broken = Payload({"indices": torch.zeros_like(broken["indices"]), "values": broken["values"]}, NUMEL)
    with pytest.raises(PayloadError, match="do not ascend within 0 to 48"):
        DeMo(4, 8).add_to(out, broken, 1.0, LAYOUT)
    assert torch.equal(out, torch.ones(NUMEL))
    with pytest.raises(PayloadError, match="payload from rank 1: "):
        DeMo(4, 8).sum_into(out, [DeMo(4, 8).compress(draw(), LAYOUT), broken], 1.0, LAYOUT)


@pytest.mark.parametrize("name", ["indices", "values"])
def test_other_lengths_are_refused(name: str) -> None:
    payload = DeMo(4, 8).compress(draw(), LAYOUT)
    cut = Payload({**payload.tensors, name: payload[name][:-1]}, NUMEL)
    with pytest.raises(PayloadError, match="bytes of indices and"):
        DeMo(4, 8).add_to(torch.ones(NUMEL), cut, 1.0, LAYOUT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 90, 97, NUMEL - 1])
def test_what_is_not_finite_is_sent(place: int, value: float) -> None:
    x = draw()
    x[place] = value
    found = DeMo(1, 8).decompress(DeMo(1, 8).compress(x, LAYOUT), LAYOUT)
    assert not found.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k = 0"),
        ({"k": 1.5}, "k"),
        ({"chunk": 1}, "chunk"),
        ({"chunk": 129}, "chunk = 129 is not a whole number, 2 to 128"),
        ({"decay": 0}, "decay"),
        ({"decay": 1.01}, "decay = 1.01 .* above 1 the momentum would grow"),
        ({"decay": float("nan")}, "decay"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeMo(**settings)
