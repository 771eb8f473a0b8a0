"""How kept elements lie on the wire: in how many bytes, what rounding loses, and payloads that are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import build, stages
from hvd_compress.compression import Compression
from hvd_compress.compressors import FixedRatio, Sparsifier, TopK
from hvd_compress.compressors.sparse_coding import INDEX_CODINGS, VALUES, SparseCoding
from hvd_compress.cost.paths import Path
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.payload import Payload
from hvd_compress.request.request import Request
from tests.brought import brought

NUMEL = 10_007
LAYOUT = Layout.of(9000, 7, 1000)
CODED = [(values, index_coding) for values in VALUES for index_coding in INDEX_CODINGS]


def draw(seed: int = 0, numel: int = NUMEL) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("values", "index_coding"), CODED)
@pytest.mark.parametrize("ratio", [1e-6, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("layerwise", [False, True])
def test_wire_is_exact(values: str, index_coding: str, ratio: float, layerwise: bool) -> None:
    compressor = TopK(ratio, layerwise, values=values, index_coding=index_coding)
    (announced,) = compressor.wire(LAYOUT)
    assert announced.fixed
    assert compressor.compress(draw(), LAYOUT).wire_bytes == announced.nbytes


@pytest.mark.parametrize(
    ("values", "index_coding", "most"),
    [("fp32", "none", 8.0), ("bf16", "none", 6.0), ("int8", "none", 5.05), ("fp32", "delta", 5.1),
     ("bf16", "delta", 3.1), ("int8", "delta", 2.15)],
)  # fmt: skip
def test_bytes_of_one_element_of_a_hundred(values: str, index_coding: str, most: float) -> None:
    assert SparseCoding(values, index_coding).nbytes(10**7, 10**5) / 10**5 <= most


@pytest.mark.parametrize("index_coding", INDEX_CODINGS)
@pytest.mark.parametrize("numel", [1, 33, 100, 499, 5003])
def test_fewer_elements_take_no_more_than_the_bound(index_coding: str, numel: int) -> None:
    coding = SparseCoding("int8", index_coding)
    largest = 0
    for k in range(numel + 1):
        largest = max(largest, coding.nbytes(numel, k))
        assert largest <= coding.most_bytes(numel, k)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("ratio", [0.01, 0.3])
def test_what_rounding_takes_stays_in_the_residual_to_the_last_bit(values: str, ratio: float) -> None:
    compressor = TopK(ratio, values=values, index_coding="delta")
    gradient, residual, pending = draw(1), draw(2), torch.empty(NUMEL)
    payload = compressor.compress_feedback(gradient, residual, pending, LAYOUT)
    sent = compressor.decompress(payload, LAYOUT)
    plain, untouched = TopK(ratio), torch.empty(NUMEL)
    kept = plain.decompress(plain.compress_feedback(gradient, residual, untouched, LAYOUT), LAYOUT)
    assert torch.equal(sent + pending, gradient + residual)
    assert torch.equal(sent != 0, kept != 0), "the same elements as without rounding"
    assert torch.equal(pending[sent == 0], untouched[sent == 0])
    assert bool(pending[sent != 0].any()) == (values != "fp32")


@pytest.mark.parametrize(("values", "error"), [("bf16", 2**-8), ("int8", 1 / 200)])
def test_rounding_is_to_nearest(values: str, error: float) -> None:
    compressor, plain = TopK(0.1, values=values), TopK(0.1)
    found = compressor.decompress(compressor.compress(draw(), LAYOUT), LAYOUT)
    exact = plain.decompress(plain.compress(draw(), LAYOUT), LAYOUT)
    assert float((found - exact).abs().max()) <= error * float(exact.abs().max())


def test_coded_indices_mean_the_same_to_the_bit() -> None:
    plain, coded = TopK(0.1), TopK(0.1, index_coding="delta")
    payloads = [plain.compress(draw(seed), LAYOUT) for seed in range(3)]
    again = [coded.compress(draw(seed), LAYOUT) for seed in range(3)]
    expected, found = torch.empty(NUMEL), torch.empty(NUMEL)
    plain.sum_into(expected, payloads, 0.3, LAYOUT)
    coded.sum_into(found, again, 0.3, LAYOUT)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_reaches_the_sum(values: str, bad: float) -> None:
    gradient = draw()
    gradient[5000] = bad
    compressor = TopK(0.01, values=values)
    payload = compressor.compress_feedback(gradient, torch.zeros(NUMEL), torch.empty(NUMEL), LAYOUT)
    assert not torch.isfinite(compressor.decompress(payload, LAYOUT)).all()


def words_of(*changes: Callable[[dict[str, torch.Tensor]], object]) -> Payload:
    """A payload of TopK(0.01, values="int8", index_coding="delta"), changed."""
    compressor = TopK(0.01, values="int8", index_coding="delta")
    tensors = {name: tensor.clone() for name, tensor in compressor.compress(draw(), LAYOUT).tensors.items()}
    for change in changes:
        change(tensors)
    return Payload(tensors, NUMEL)


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "one value less": (lambda t: t.update(codes=t["codes"][:-1]), "more than 99 indices"),
    "more values than elements": (
        lambda t: t.update(codes=torch.zeros(10_050, dtype=torch.uint8), scales=torch.ones(158).bfloat16()),
        "10050 values for 10007 elements",
    ),
    "a scale less": (lambda t: t.update(scales=t["scales"][:-1]), "1 scales for 100 values, expected 2"),
    "a scale below zero": (lambda t: t["scales"].fill_(-1.0), "a scale is below zero"),
    "too few indices": (lambda t: t["index_words"].zero_(), "no index at position 0"),
    "too many indices": (lambda t: t["index_words"].fill_(-1), "more than 100 indices"),
    "a word less": (lambda t: t.update(index_words=t["index_words"][:-1]), "words for 100 indices"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_payload_is_refused_by_the_name_of_its_rank(name: str) -> None:
    change, words = BAD[name]
    compressor, out = TopK(0.01, values="int8", index_coding="delta"), torch.ones(NUMEL)
    with pytest.raises(PayloadError, match=words):
        compressor.add_to(out, words_of(change), 1.0, LAYOUT)
    assert torch.equal(out, torch.ones(NUMEL))
    with pytest.raises(PayloadError, match=f"payload from rank 1: .*{words}"):
        compressor.sum_into(out, [words_of(), words_of(change)], 1.0, LAYOUT)


MAKERS: dict[str, Callable[..., Request]] = {
    "topk": Compression.topk,
    **dict(brought("SPARSIFIERS")),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_sparsifier_has_the_settings(name: str) -> None:
    compressor = MAKERS[name](values="int8", index_coding="delta").compressor
    assert isinstance(compressor, Sparsifier)
    assert compressor.coding == SparseCoding("int8", "delta")
    with pytest.raises(ConfigError, match="unknown values 'fp16'; known are fp32, bf16, int8"):
        MAKERS[name](values="fp16")
    with pytest.raises(ConfigError, match="unknown index_coding 'huffman'; known are none, delta"):
        MAKERS[name](index_coding="huffman")


@pytest.mark.parametrize("compressor", [TopK(0.01, values="bf16"), TopK(0.01, True, values="int8")])
def test_artopk_sums_no_rounded_values(compressor: FixedRatio) -> None:
    with pytest.raises(ConfigError, match="unknown collective 'star'; known here are auto, allgather"):
        Request(compressor, "star")
    with pytest.raises(ConfigError, match="cannot carry"):
        build(compressor, Path("var"))


def test_artopk_is_priced_with_coded_indices() -> None:
    plain, coded = (stages(TopK(0.01, index_coding=c), Path("star"), Layout.of(10**6), 4) for c in INDEX_CODINGS)
    assert plain[0].size == 4 * 10**4
    assert coded[0].size < 1.1 * 10**4
    assert coded[1:] == plain[1:]


def test_the_ratio_can_be_changed_without_the_coding() -> None:
    compressor = TopK(0.01, values="bf16", index_coding="delta").with_ratio(0.1)
    assert (compressor.ratio, compressor.coding) == (0.1, SparseCoding("bf16", "delta"))
