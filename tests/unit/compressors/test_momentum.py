"""Momentum in the place of gradients: what is sent, what comes out, and in which units it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.compressors import BlockQuantizer, Cast, CompressedMomentum, DenseMomentum, Input, TopK
from hvd_compress.compressors.momentum import KIND
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState, States
from hvd_compress.policies import Warmup

LAYOUT = Layout.of(300, 1, 0, 99)
NUMEL = LAYOUT.numel
CPU = torch.device("cpu")


def draw(seed: int = 0) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


def make_work(compressor: CompressedMomentum | DenseMomentum, momentum: torch.Tensor, **settings: object) -> Input:
    state = BucketState(Residual(torch.zeros(NUMEL), torch.zeros(NUMEL)))
    parts = momentum.split(LAYOUT.segments)
    state.current = {(KIND, name): part.clone() for name, part in zip(LAYOUT.names, parts, strict=True)}
    return Input(
        **{"gradient": draw(1), "layout": LAYOUT, "step": 0, "bucket": 0, "scale": 1.0, "state": state} | settings
    )


def finish(compressor: CompressedMomentum | DenseMomentum, work: Input, ranks: int = 1) -> torch.Tensor:
    """Exchange the same payload for all ranks; return the momentum that is to be kept."""
    rounds = compressor.rounds(work)
    payload = next(rounds)
    with pytest.raises(StopIteration) as end:
        rounds.send([payload] * ranks)
    assert bool(end.value.value)
    return torch.cat([work.state.pending[KIND, name] for name in LAYOUT.names])


def test_what_is_kept_is_what_was_sent_and_the_gradient_leads_to_it() -> None:
    compressor, momentum = CompressedMomentum(0.8, BlockQuantizer(4)), draw(2)
    work = make_work(compressor, momentum)
    gradient = work.gradient.clone()
    after = finish(compressor, work)
    corrected = 0.8 * momentum + 0.2 * gradient
    sent = BlockQuantizer(4).decompress(BlockQuantizer(4).compress(corrected, LAYOUT), LAYOUT)
    torch.testing.assert_close(after, sent, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(work.pending, corrected - after, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(0.8 * momentum + 0.2 * work.gradient, after, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("factor", [1.0, 3.0], ids=["average", "sum"])
def test_momentum_is_in_the_units_of_the_result(ranks: int, factor: float) -> None:
    """With sums in the place of averages, too: momentum is there once, and not once for each rank."""
    compressor, momentum = CompressedMomentum(0.8, BlockQuantizer(8)), draw(2)
    work = make_work(compressor, momentum, scale=factor / ranks, world_size=ranks)
    gradient = work.gradient.clone()
    expected = 0.8 * momentum + 0.2 * factor * gradient
    torch.testing.assert_close(finish(compressor, work, ranks), expected, rtol=0.02, atol=0.1)


def test_the_dense_stage_averages_and_builds_it() -> None:
    compressor, momentum = DenseMomentum(0.8), draw(2)
    work = make_work(compressor, momentum, scale=0.5)
    gradient = work.gradient.clone()
    after = finish(compressor, work)
    torch.testing.assert_close(work.gradient, 0.5 * gradient)
    torch.testing.assert_close(after, 0.8 * momentum + 0.2 * 0.5 * gradient)
    assert compressor.wire(LAYOUT)[0].nbytes == 4 * NUMEL


def test_it_follows_a_loss_scale() -> None:
    states = States()
    state = states.bind(LAYOUT, own=CompressedMomentum().new_state(LAYOUT, CPU))
    state.pending.update({key: tensor + 1 for key, tensor in state.current.items()})
    state.commit()
    states.scale(0.25)
    assert all((tensor == 0.25).all() for tensor in state.current.values())


def test_a_shard_may_begin_and_end_within_parameters() -> None:
    compressor, momentum = CompressedMomentum(0.8, BlockQuantizer(8)), draw(2)
    shard = slice(256, 384)
    work = make_work(compressor, momentum, scale=0.5, world_size=2)
    compressor.keep_shard(work, shard)
    torch.testing.assert_close(work.pending[shard], (0.8 * momentum + 0.2 * work.gradient)[shard])
    assert not work.pending[:256].any()
    assert not work.pending[384:].any()


def test_a_gradient_that_overflows_its_type_counts_as_not_finite() -> None:
    """The momentum fits into float16, and what leads to it does not."""
    compressor = CompressedMomentum(0.9, BlockQuantizer(8))
    layout = replace(LAYOUT, dtype=torch.float16)
    work = make_work(compressor, torch.full((NUMEL,), -6e4), gradient=torch.full((NUMEL,), 6e4).half(), layout=layout)
    work.state.residual.current.fill_(1e5)
    rounds = compressor.rounds(work)
    with pytest.raises(StopIteration) as end:
        rounds.send([next(rounds)])
    assert not bool(end.value.value)


def test_what_can_be_asked_for() -> None:
    assert Compression.momentum(0.5).compressor == CompressedMomentum(0.5)
    assert Compression.momentum(0.5).policy is None
    request = Compression.momentum(0.5, 10, BlockQuantizer(2)).by(collective="alltoall-allgather")
    assert request.compressor == CompressedMomentum(0.5, BlockQuantizer(2))
    assert request.policy == Warmup(DenseMomentum(0.5), 10)
    assert request.collective == "alltoall-allgather"


def test_a_plan_names_it_with_what_compresses_it(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    inner = '{"name": "blocks", "bits": 2}'
    file.write_text(f'{{"version": 1, "default": {{"compressor": {{"name": "momentum", "inner": {inner}}}}}}}')
    assert Compression.plan(file).policy.plan.default.built() == CompressedMomentum(0.9, BlockQuantizer(2))
    for wrong, told in (
        ('{"name": "topk"}', "cannot compress a momentum"),
        ('{"name": "nobody"}', "unknown compressor"),
    ):
        file.write_text(f'{{"version": 1, "default": {{"compressor": {{"name": "momentum", "inner": {wrong}}}}}}}')
        with pytest.raises(PlanError, match=told):
            Compression.plan(file)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 1.0}, "beta = 1.0 is not below 1"),
        ({"beta": -0.1}, "beta"),
        ({"beta": "0.9"}, "beta"),
        ({"inner": TopK(0.1)}, "cannot compress a momentum"),
        ({"inner": Cast()}, "cannot compress a momentum"),
        ({"inner": CompressedMomentum()}, "cannot compress a momentum"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CompressedMomentum(**settings)
    if "beta" in settings:
        with pytest.raises(ConfigError, match=message):
            DenseMomentum(**settings)
