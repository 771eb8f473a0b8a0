"""What `bench compressors` says of a compressor, against what can be computed by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hvd_compress.bench.compressors import WARM_UP, measure
from hvd_compress.bench.inputs import Gradients
from hvd_compress.bench.simulation import SimulatedRank, take_step
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, Cast, CompressedMomentum, PowerSGD, TopK
from hvd_compress.compressors.base import Input, Rounds
from tests.brought import brought
from tests.harness import COMPRESSORS

LAYOUT = Layout.of((40, 30), 17)
NUMEL = LAYOUT.numel


def gradients(noise: float = 1.0) -> Gradients:
    common = torch.randn(NUMEL, generator=torch.Generator().manual_seed(3))
    return Gradients.of(LAYOUT, common, noise, 7)


def test_topk_without_noise_is_what_the_definition_says() -> None:
    """After s steps of the same gradient an element that was never sent has a residual of s times it."""
    figure = measure("topk", TopK(0.1), gradients(noise=0.0), ranks=3, rounds=1)
    assert figure.failure == ""
    common, k = gradients().common, round(0.1 * NUMEL)
    residual = torch.zeros(NUMEL)
    for _ in range(WARM_UP + 1):
        corrected = residual + common
        sent = torch.zeros(NUMEL)
        largest = corrected.abs().topk(k).indices
        sent[largest] = corrected[largest]
        residual = corrected - sent
    whole = float(corrected.square().sum())
    assert figure.gain == pytest.approx(float(sent.square().sum()) / whole, rel=1e-5)
    assert figure.lost == pytest.approx(1 - figure.gain, rel=1e-5)
    assert figure.cosine == pytest.approx(float(torch.cosine_similarity(sent, common, dim=0)), rel=1e-5)
    assert figure.sent_bytes == 8 * k
    assert figure.bits == pytest.approx(64 * k / NUMEL)


def test_what_is_corrected_is_sent_or_kept() -> None:
    """A velocity is part of it: without, more would be sent than there is."""
    for compressor in (TopK(0.1), *brought("WITH_VELOCITY")):
        figure = measure("sparse", compressor, gradients(noise=0.0), ranks=2, rounds=1)
        assert figure.gain + figure.lost == pytest.approx(1.0, rel=1e-5)


def test_what_loses_nothing() -> None:
    figure = measure("dense", Cast(), gradients(), ranks=2, rounds=2)
    assert (figure.gain, figure.lost, figure.failure) == (1.0, 0.0, "")
    assert figure.cosine == pytest.approx(1.0, abs=1e-6)
    assert figure.bits == 32


def test_times_and_their_floor() -> None:
    figure = measure("int4", BlockQuantizer(4), gradients(), ranks=2, rounds=3)
    assert figure.encode_s is not None
    assert figure.decode_s is not None
    assert min(figure.encode_s, figure.decode_s, figure.floor_s) > 0
    assert figure.both_s >= max(figure.encode_s, figure.decode_s)
    assert figure.times_floor(figure.both_s) == figure.both_s / figure.floor_s
    assert figure.times_floor(None) is None


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_can_be_measured(name: str) -> None:
    figure = measure(name, COMPRESSORS[name], gradients(), ranks=3, rounds=1)
    assert figure.failure == ""
    assert figure.sent_bytes > 0
    assert -1.0 <= figure.cosine <= 1.000001


def test_energy_of_a_rank_alone_leaves_no_trace() -> None:
    for compressor in (TopK(0.1), PowerSGD(2), *brought("ENERGIES")):
        looked_at, other = (SimulatedRank(compressor, LAYOUT, 0, 1) for _ in range(2))
        for step in range(3):
            for rank in (looked_at, other):
                gradients().write(0, step, 1, rank.gradient)
            energy = looked_at.alone(step)
            for rank in (looked_at, other):
                take_step([rank], compressor, LAYOUT, step)
            assert torch.equal(looked_at.gradient, other.gradient)
            assert energy.transmitted == pytest.approx(float(other.gradient.square().sum()), rel=1e-4)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_shared_momentum_is_there_once_whatever_the_number_of_ranks(ranks: int) -> None:
    """Of the same gradient in each step the gradient that leads from one momentum to the next is that gradient."""
    compressor = CompressedMomentum(0.9, BlockQuantizer(8))
    members = [SimulatedRank(compressor, LAYOUT, rank, ranks) for rank in range(ranks)]
    for step in range(5):
        for member in members:
            member.gradient.fill_(1.0)
        take_step(members, compressor, LAYOUT, step)
        torch.testing.assert_close(members[0].gradient, torch.ones(NUMEL), rtol=0.05, atol=0)


@dataclass(frozen=True)
class Broken(TopK):
    """Raises in its third step."""

    def rounds(self, work: Input) -> Rounds:
        if work.step == 2:
            raise RuntimeError("out of order")
        return (yield from super().rounds(work))


@dataclass(frozen=True)
class Differing(Cast):
    """Adds its rank to the result."""

    def rounds(self, work: Input) -> Rounds:
        yield from super().rounds(work)
        work.gradient.add_(work.rank)
        return None


def test_an_error_stands_in_its_row() -> None:
    figure = measure("broken", Broken(0.1), gradients(), ranks=2, rounds=1)
    assert figure.failure == "RuntimeError: out of order"
    assert figure.name == "broken"


def test_ranks_that_differ_are_an_error() -> None:
    figure = measure("differing", Differing(), gradients(), ranks=2, rounds=1)
    assert figure.failure == "AssertionError: the result of rank 1 is not that of rank 0"
