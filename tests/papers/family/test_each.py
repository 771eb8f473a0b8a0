"""What each of them means, and what all sparsifiers among them do with how elements are coded."""

from __future__ import annotations

import pickle

import pytest
import torch

from hvd_compress import compressors
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import build
from hvd_compress.compressors import TopK
from hvd_compress.compressors.sparse_coding import INDEX_CODINGS, VALUES
from hvd_compress.cost.paths import Path
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.papers.family.compressions import Family
from hvd_compress.papers.family.dgc import DGC
from hvd_compress.papers.family.mstopk import MSTopK
from hvd_compress.papers.family.qsgd import QSGD
from hvd_compress.papers.family.randomk import RandomK
from hvd_compress.papers.family.threshold import Threshold
from hvd_compress.payload import Payload
from hvd_compress.request.request import Request

LAYOUT = Layout.of(91, 7, 1, 0, 360)
NUMEL = LAYOUT.numel
WIDE = Layout.of(9000, 7, 1000)
CODED = [(values, index_coding) for values in VALUES for index_coding in INDEX_CODINGS]


def draw(seed: int = 0, numel: int = NUMEL) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def test_mstopk_is_topk_where_bisection_goes_on_for_long_enough() -> None:
    x, k = draw(), 23
    exact, found = TopK(k / NUMEL).compress(x, LAYOUT), MSTopK(k / NUMEL, bisections=48).compress(x, LAYOUT)
    assert torch.equal(found["indices"], exact["indices"])
    rough = MSTopK(k / NUMEL, bisections=3).compress(x, LAYOUT)
    assert rough["indices"].numel() == k
    share = rough["values"].double().square().sum() / exact["values"].double().square().sum()
    assert 0.7 < share < 1.0


@pytest.mark.parametrize(("tau", "sent"), [(1e-30, NUMEL), (1.5, None), (1e30, 0)])
def test_threshold_sends_what_reaches_it(tau: float, sent: int | None) -> None:
    x = draw()
    found = Threshold(tau).compress(x, LAYOUT)
    assert torch.equal(found["indices"].long(), torch.where(x.abs() >= tau)[0])
    assert sent is None or found["values"].numel() == sent


@pytest.mark.parametrize(
    "tensors",
    [
        {"codes": torch.zeros(232, dtype=torch.uint8), "norms": torch.ones(5)},
        {"codes": torch.zeros(231, dtype=torch.uint8), "norms": torch.ones(4)},
        {"codes": torch.zeros(231, dtype=torch.uint8), "norms": -torch.ones(5)},
    ],
)
def test_a_bad_payload_of_qsgd_is_refused_and_nothing_is_written(tensors: dict[str, torch.Tensor]) -> None:
    out = torch.ones(NUMEL)
    with pytest.raises(PayloadError):
        QSGD(4).add_to(out, Payload(tensors, NUMEL), 1.0, LAYOUT)
    assert torch.equal(out, torch.ones(NUMEL))


def test_coded_indices_mean_the_same_to_the_bit() -> None:
    plain, coded = Threshold(1.5), Threshold(1.5, index_coding="delta")
    payloads = [plain.compress(draw(seed, WIDE.numel), WIDE) for seed in range(3)]
    again = [coded.compress(draw(seed, WIDE.numel), WIDE) for seed in range(3)]
    expected, found = torch.empty(WIDE.numel), torch.empty(WIDE.numel)
    plain.sum_into(expected, payloads, 0.3, WIDE)
    coded.sum_into(found, again, 0.3, WIDE)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("values", "index_coding"), CODED)
def test_nothing_and_everything_can_be_sent(values: str, index_coding: str) -> None:
    for tau in (1e30, 1e-30):
        compressor = Threshold(tau, values=values, index_coding=index_coding)
        payload = compressor.compress(draw(0, WIDE.numel), WIDE)
        assert payload.wire_bytes <= compressor.wire(WIDE)[0].nbytes
        assert compressor.coding.decode(payload)[0].numel() == (WIDE.numel if tau < 1 else 0)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_reaches_the_sum(values: str, bad: float) -> None:
    gradient = draw(0, WIDE.numel)
    gradient[5000] = bad
    for compressor in (Threshold(2.0, values=values), MSTopK(0.01, values=values)):
        payload = compressor.compress_feedback(gradient, torch.zeros(WIDE.numel), torch.empty(WIDE.numel), WIDE)
        assert not torch.isfinite(compressor.decompress(payload, WIDE)).all()


def test_artopk_sums_no_rounded_values() -> None:
    compressor = MSTopK(0.01, values="int8")
    with pytest.raises(ConfigError, match="unknown collective 'star'; known here are auto, allgather"):
        Request(compressor, "star")
    with pytest.raises(ConfigError, match="cannot carry"):
        build(compressor, Path("var"))


def test_dgc_keeps_what_rounding_takes_beside_its_velocity() -> None:
    gradient, pending = draw(0, WIDE.numel), torch.empty(WIDE.numel)
    payload = DGC(0.01, momentum=0.0, values="int8").compress_feedback(gradient, torch.zeros(WIDE.numel), pending, WIDE)
    sent = DGC(0.01, values="int8").decompress(payload, WIDE)
    assert torch.equal(sent + pending, gradient)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            Family.mstopk(0.1, bisections=3, layerwise=True).by(
                collective="star", algorithm="ring", engine="mpi", device="cpu"
            ),
            Request(MSTopK(0.1, True, 3), "star", "ring", "mpi", "cpu"),
        ),
        (
            Family.randomk(0.1, error_feedback=False, seed=5).by(
                collective="allgather", algorithm="bruck", engine="mpi", device="cpu"
            ),
            Request(RandomK(0.1, False, 5), "allgather", "bruck", "mpi", "cpu"),
        ),
        (Family.threshold(0.5).by(engine="mpi", device="cpu"), Request(Threshold(0.5), engine="mpi", device="cpu")),
        (
            Family.qsgd(8, "max", layerwise=False, seed=5).by(engine="mpi", device="cpu"),
            Request(QSGD(8, "max", None, False, 5), engine="mpi", device="cpu"),
        ),
        (Family.terngrad(), Request(QSGD(2, "max", 2.5))),
        (
            Family.terngrad(clip=None, seed=5).by(engine="mpi", device="cpu"),
            Request(QSGD(2, "max", None, True, 5), engine="mpi", device="cpu"),
        ),
    ],
)
def test_what_is_asked_for_is_what_is_requested(found: Request, expected: Request) -> None:
    assert found == expected


def test_what_an_earlier_version_has_pickled_can_be_read() -> None:
    """The state of DDP's hook holds the compressor, and its class by name."""
    pickled = pickle.dumps(Family.qsgd(), protocol=0)
    assert b"hvd_compress.papers.family.qsgd" in pickled
    earlier = pickled.replace(b"hvd_compress.papers.family.qsgd", b"hvd_compress.compressors.qsgd")
    assert pickle.loads(earlier) == Family.qsgd()


def test_they_are_where_users_import_compressors_from() -> None:
    assert compressors.QSGD is QSGD
    assert {"QSGD", "TopK"} <= {*dir(compressors)}
    assert {"QSGD", "TopK"} <= {*compressors.__all__}
    assert not hasattr(compressors, "Qsgd")
