"""Random rounding to multiples of a norm: right on average, and of a few sizes."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Input
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.papers.family.qsgd import QSGD

SHAPES = (33, 1, 0, 67)
LAYOUT = Layout.of(*SHAPES)


def draw() -> torch.Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(3))


def sent(compressor: QSGD, gradient: torch.Tensor, step: int = 0, bucket: int = 0, rank: int = 0) -> torch.Tensor:
    """Return what one rank alone gets back; `rank` is what it takes itself for."""
    work = Input(gradient.clone(), LAYOUT, step, bucket, 1.0, rank=rank)
    rounds = compressor.rounds(work)
    payload = next(rounds)
    with pytest.raises(StopIteration):
        rounds.send([payload])
    return work.gradient


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_mean_over_draws_is_the_gradient(bits: int, norm: str) -> None:
    """Within 6 standard errors, for each of 101 elements: in units of u the variance is at most u^2 / 4."""
    gradient, draws, levels = draw(), 2000, 2 ** (bits - 1) - 1
    mean = sum(sent(QSGD(bits, norm), gradient, step).double() for step in range(draws)) / draws
    for own, part in zip(mean.split(SHAPES), gradient.split(SHAPES), strict=True):
        if part.numel():
            size = torch.linalg.vector_norm(part, math.inf if norm == "max" else 2)
            assert float((own - part).abs().max()) <= 6 * float(size) / levels / 2 / math.sqrt(draws) + 1e-4 * float(
                size
            )


def test_a_parameter_has_a_norm_of_its_own() -> None:
    gradient = draw()
    for norm, degree in (("l2", 2), ("max", math.inf)):
        payload = QSGD(4, norm).compress(gradient, LAYOUT)
        parts = [
            torch.linalg.vector_norm(part.double(), degree) if part.numel() else 0 for part in gradient.split(SHAPES)
        ]
        torch.testing.assert_close(payload["norms"].double(), torch.tensor(parts, dtype=torch.float64))
    whole = QSGD(4, "max", layerwise=False).compress(gradient, LAYOUT)
    assert whole["norms"].tolist() == [float(gradient.abs().max())]


def test_terngrad_sends_three_sizes_and_clips() -> None:
    gradient = draw()
    gradient[5] = 50.0
    found = sent(QSGD(2, "max", 2.5), gradient)
    first = found[:33]
    assert set(first.tolist()) <= {-float(first.abs().max()), 0.0, float(first.abs().max())}
    expected = 2.5 * gradient[:33].square().mean().sqrt()
    torch.testing.assert_close(first.abs().max(), expected)
    assert float(found[33]) == float(gradient[33]), "the only element of a parameter is the largest, and not clipped"


def test_tiny_gradients_are_not_clipped_away() -> None:
    """Their squares are nothing in fp32."""
    gradient = 1e-25 * draw()
    assert bool((QSGD(2, "max", 2.5).compress(gradient, LAYOUT)["norms"][[0, 1, 3]] > 0).all())


def test_seed_step_bucket_rank_and_place_draw_others() -> None:
    gradient = torch.full((LAYOUT.numel,), 0.3)
    gradient[0] = gradient[40] = 1.0
    plain = QSGD(2, "max")
    draws = [sent(plain, gradient), sent(plain, gradient, step=1), sent(plain, gradient, bucket=1)]
    draws += [sent(plain, gradient, rank=1), sent(QSGD(2, "max", seed=1), gradient)]
    assert len({tuple(found.tolist()) for found in draws}) == 5
    assert torch.equal(sent(plain, gradient), draws[0])
    assert not torch.equal(draws[0][1:33], draws[0][35:67]), "parameters share no random numbers"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 3}, "is not 2, 4 or 8"),
        ({"bits": 4.0}, "is not 2, 4 or 8"),
        ({"norm": "l1"}, "unknown norm .l1.; known are l2, max"),
        ({"clip": 0}, "above 0"),
        ({"clip": math.nan}, "above 0"),
        ({"layerwise": None}, "neither True nor False"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QSGD(**settings)


@pytest.mark.parametrize("bits", [8, 4])
def test_what_rounding_loses_is_remembered_and_stays_small(bits: int) -> None:
    """200 steps: all that was given is what was sent and what is left, which is less than one gradient."""
    compressor = QSGD(bits, "max", error_feedback=True)
    state = BucketState(Residual(torch.zeros(LAYOUT.numel), torch.zeros(LAYOUT.numel)))
    given, came = torch.zeros(LAYOUT.numel, dtype=torch.float64), torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for step in range(200):
        own = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(step))
        given += own
        came += compressor.decompress(compressor.encode(Input(own, LAYOUT, step, 0, 1.0, state)), LAYOUT)
        state.commit()
        assert state.residual.current.norm() < own.norm()
    torch.testing.assert_close(came + state.residual.current, given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arguments", [{}, {"norm": "max", "bits": 2}, {"norm": "max", "clip": 2.5}])
def test_error_feedback_that_would_diverge_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="the residual would grow"):
        QSGD(error_feedback=True, **arguments)
    with pytest.raises(ConfigError, match="error_feedback = 1 is neither"):
        QSGD(8, "max", error_feedback=1)
