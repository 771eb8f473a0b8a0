"""Momentum that is summed before it is sent, and how many elements a sampled threshold sends."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Input
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.states import States
from hvd_compress.papers.family.dgc import DGC, KIND, flat_view

LAYOUT = Layout.of(300, 1, 0, 99)


def draw(numel: int = LAYOUT.numel, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def one_step(compressor: DGC, states: States, gradient: torch.Tensor, step: int, layout: Layout = LAYOUT) -> list[int]:
    """Take a step of one rank; return the indices that were sent."""
    state = states.bind(layout, own=compressor.new_state(layout, torch.device("cpu"))) if step == 0 else bound(states)
    rounds = compressor.rounds(Input(gradient.clone(), layout, step, 0, 1.0, state))
    payload = next(rounds)
    state.commit()
    return payload["indices"].tolist()


def bound(states: States):
    (state,) = states._buckets.values()
    return state


def of_ranks(states: States) -> tuple[torch.Tensor, torch.Tensor]:
    """Return velocity and residual."""
    kept, residuals = states.own_state_dict().get(KIND, {}), states.state_dict()
    names = LAYOUT.names
    return torch.cat([kept[name] for name in names]), torch.cat([residuals[name] for name in names])


@pytest.mark.parametrize("momentum", [0.5, 0.9])
@pytest.mark.parametrize("layerwise", [False, True])
def test_velocity_and_residual_are_those_of_the_paper(momentum: float, layerwise: bool) -> None:
    """Algorithm 4, in fp64, by the indices that were sent."""
    compressor, states = DGC(0.05, momentum, layerwise=layerwise), States()
    velocity, residual = torch.zeros(2, LAYOUT.numel, dtype=torch.float64)
    for step in range(6):
        gradient = draw(seed=step)
        sent = one_step(compressor, states, gradient, step)
        velocity = momentum * velocity + gradient.double()
        residual = residual + velocity
        velocity[sent], residual[sent] = 0.0, 0.0
        for found, expected in zip(of_ranks(states), (velocity, residual), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


ONES = torch.ones(40_000)


@pytest.mark.parametrize(
    ("gradient", "ratio"),
    [
        (torch.where(torch.arange(40_000) % 144 < 16, 5.0, ONES), 0.2),
        (torch.where(torch.arange(40_000) % 144 >= 128, 5.0, ONES), 0.02),
    ],
    ids=["all of the sample is large", "nothing of the sample is large"],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_where_the_sample_misleads(gradient: torch.Tensor, ratio: float, momentum: float) -> None:
    """Of each 144 elements 16 are sampled: the limit is lowered, or what is above it is cut to the k largest."""
    layout, k = Layout.of(30_000, 10_000), round(ratio * 40_000)
    noisy = gradient * (1 + 0.1 * draw(40_000, 3))
    compressor, states = DGC(ratio, momentum), States()
    velocity, residual = torch.zeros(2, 40_000)
    for step in range(3):
        sent = one_step(compressor, states, noisy, step, layout)
        velocity = (velocity * momentum).add_(noisy)
        residual = residual + velocity
        assert 0.8 * k <= len(sent) <= 1.3 * k
        least, left = residual[sent].abs().min(), residual.clone()
        left[sent] = 0.0
        assert float(least) >= float(left.abs().max())
        velocity[sent], residual = 0.0, left
        found = states.state_dict()
        assert torch.equal(torch.cat([found[name] for name in layout.names]), residual)
        if momentum:
            kept = states.own_state_dict()[KIND]
            assert torch.equal(torch.cat([kept[name] for name in layout.names]), velocity)


def test_a_velocity_lives_in_two_pieces_of_memory_in_turns() -> None:
    """New memory in each step would cost more than all else."""
    compressor, states, places = DGC(0.05), States(), []
    for step in range(6):
        one_step(compressor, states, draw(seed=step), step)
        places.append({tensor.data_ptr() for tensor in bound(states).current.values() if tensor.numel()})
    assert places[2] == places[4] != places[3] == places[5]


def test_a_velocity_whose_parts_lie_apart_is_the_same() -> None:
    """As after a checkpoint or a change of the loss scale."""
    together, apart, compressor = States(), States(), DGC(0.05)
    for step in range(4):
        sent = [one_step(compressor, states, draw(seed=step), step) for states in (together, apart)]
        assert sent[0] == sent[1]
        apart.scale(1.0)
    assert all(torch.equal(a, b) for a, b in zip(of_ranks(together), of_ranks(apart), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_are_summed_in_fp32(dtype: torch.dtype) -> None:
    narrow, wide, gradient = States(), States(), draw().to(dtype)
    for step in range(3):
        sent = [one_step(DGC(0.05), states, g, step) for states, g in ((narrow, gradient), (wide, gradient.float()))]
        assert sent[0] == sent[1]
    assert all(torch.equal(a, b) for a, b in zip(of_ranks(narrow), of_ranks(wide), strict=True))


def test_a_step_that_does_not_count_leaves_the_velocity() -> None:
    compressor, states = DGC(0.05), States()
    one_step(compressor, states, draw(), 0)
    before = of_ranks(states)
    rounds = compressor.rounds(Input(draw(seed=1), LAYOUT, 1, 0, 1.0, bound(states)))
    next(rounds)
    bound(states).discard()
    assert all(torch.equal(a, b) for a, b in zip(of_ranks(states), before, strict=True))


def test_the_velocity_follows_a_loss_scale() -> None:
    compressor, states = DGC(0.05), States()
    one_step(compressor, states, draw(), 0)
    before = of_ranks(states)
    states.scale(0.5)
    assert all(torch.equal(a, 0.5 * b) for a, b in zip(of_ranks(states), before, strict=True))


@pytest.mark.parametrize("numel", [10_000, 1_000_000])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_a_sampled_threshold_sends_about_as_many_and_the_largest(numel: int, ratio: float) -> None:
    x, layout, k = draw(numel) ** 3, Layout.of(numel), round(ratio * numel)
    found = DGC(ratio).compress(x, layout)["indices"].long()
    assert 0.8 * k <= found.numel() <= max(1.3 * k, k)
    left = x.clone()
    left[found] = 0.0
    assert float(x[found].abs().min()) >= float(left.abs().max())


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_zeros_are_not_sent(share: float) -> None:
    x = torch.zeros(50_000)
    count = int(share * x.numel())
    x[17 : 17 + count] = 1.0
    assert DGC(0.01).compress(x, Layout.of(x.numel()))["values"].tolist() == [1.0] * count


def test_the_ratio_falls_during_the_warm_up() -> None:
    compressor = DGC(0.01, warmup_steps=4)
    ratios = [compressor.ratio_in(step) for step in range(6)]
    assert ratios[0] == 0.25
    assert ratios[4:] == [0.01, 0.01]
    for first, second in itertools.pairwise(ratios[:5]):
        assert math.isclose(second / first, (0.01 / 0.25) ** 0.25)
    (most,) = compressor.wire(LAYOUT)
    states = States()
    sent = [len(one_step(compressor, states, draw(seed=step), step)) for step in range(5)]
    assert 8 * sent[0] <= most.nbytes
    assert 80 <= sent[0] <= 130
    assert sent[4] <= 5


def test_a_long_gradient_is_made_shorter() -> None:
    states = States()
    one_step(DGC(0.05, clip=2.0), states, 100 * draw(), 0)
    residual = of_ranks(states)[1]
    assert 1.0 < float(torch.linalg.vector_norm(residual)) < 2.0
    short = States()
    one_step(DGC(0.05, clip=1e9), short, draw(), 0)
    plain = States()
    one_step(DGC(0.05), plain, draw(), 0)
    assert torch.equal(of_ranks(short)[1], of_ranks(plain)[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 2}, "ratio"),
        ({"momentum": 1.0}, "momentum = 1.0 is not below 1"),
        ({"momentum": -0.1}, "momentum"),
        ({"warmup_steps": 1.5}, "warmup_steps"),
        ({"clip": 0.0}, "clip"),
        ({"layerwise": 1}, "layerwise"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DGC(**settings)


def test_parts_of_one_piece_of_memory_are_seen_as_one() -> None:
    whole = torch.arange(12.0)
    parts = torch.split(whole[2:10], [3, 0, 1, 4])
    seen = flat_view(parts)
    assert seen is not None
    assert seen.tolist() == whole[2:10].tolist()
    assert seen.data_ptr() == parts[0].data_ptr()
    assert flat_view([]) is None
    for apart in ([parts[0], parts[3]], [parts[3], parts[0]], [parts[0], parts[2].clone()], [parts[0], parts[0]]):
        assert flat_view(apart) is None
