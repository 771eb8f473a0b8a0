"""SIDCo: fits against distributions that are known, and how the number of stages adapts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.compressors.base import Input
from hvd_compress.compressors.sparsifier import kept_of
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.papers.family.sidco import EVERY, FITS, KIND, SIDCo, Stages
from hvd_compress.papers.family.tails import Magnitudes, exponential, gamma, pareto

NUMEL = 100_000


def uniform(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(NUMEL, generator=generator, dtype=torch.float64).clamp(min=1e-9)


def drawn_gamma(generator: torch.Generator) -> torch.Tensor:
    """Of shape 1/2: half the square of a normal number."""
    return torch.randn(NUMEL, generator=generator, dtype=torch.float64).square() / 2


DATA: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "exponential": lambda g: -uniform(g).log(),
    "gamma": drawn_gamma,
    "pareto": lambda g: (uniform(g) ** -0.2 - 1) / 0.2,
    "normal": lambda g: torch.randn(NUMEL, generator=g, dtype=torch.float64),
    "cube": lambda g: torch.randn(NUMEL, generator=g, dtype=torch.float64) ** 3,
}


def draw(kind: str, seed: int) -> torch.Tensor:
    """A gradient (NUMEL,) of both signs."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = DATA[kind](generator)
    return (1e-3 * magnitudes * (torch.randint(2, (NUMEL,), generator=generator) * 2 - 1)).float()


class Bucket:
    """A bucket of one rank, from step to step. Nothing remains in its residual, so that gradients are as drawn."""

    def __init__(self, compressor: SIDCo, numel: int = NUMEL) -> None:
        self.compressor, self.layout, self.step = compressor, Layout.of(numel // 2, numel - numel // 2), 0
        own = dict(compressor.new_state(self.layout, torch.device("cpu")))
        self.state = BucketState(Residual(torch.zeros(numel), torch.empty(numel)), own)

    def send(self, gradient: torch.Tensor) -> int:
        """Return how many elements are sent in a step."""
        payload = self.compressor.encode(Input(gradient, self.layout, self.step, 0, 1.0, self.state))
        self.state.current.update(self.state.pending)
        self.state.pending.clear()
        self.step += 1
        return payload["values"].numel()

    @property
    def stages(self) -> int:
        return Stages.read(self.state.current[KIND, self.layout.names[1]], 99).count


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("distribution", FITS)
def test_on_data_of_its_distribution_the_ratio_is_met(distribution: str, ratio: float) -> None:
    bucket = Bucket(SIDCo(ratio, distribution))
    sent = [bucket.send(draw(distribution, step)) for step in range(4 * EVERY)]
    late = sum(sent[2 * EVERY :]) / (2 * EVERY)
    assert late == pytest.approx(ratio * NUMEL, rel=0.2)


@pytest.mark.parametrize(
    ("distribution", "data", "ratio"),
    [("exponential", "pareto", 0.001), ("exponential", "normal", 0.001), ("exponential", "cube", 0.001),
     ("exponential", "normal", 0.01), ("gamma", "normal", 0.001)],
)  # fmt: skip
def test_where_another_distribution_is_fitted_more_stages_meet_it(distribution: str, data: str, ratio: float) -> None:
    """A tail that is heavier than an exponential one, or lighter."""
    bucket = Bucket(SIDCo(ratio, distribution))
    k, before = kept_of(ratio, NUMEL), bucket.stages
    first = bucket.compressor._selected(draw(data, 0), before)[1]
    assert first is not None
    assert abs(first / k - 1) > 0.2
    sent = [bucket.send(draw(data, step)) for step in range(8 * EVERY)]
    assert bucket.stages > before
    assert sum(sent[-2 * EVERY :]) / (2 * EVERY) == pytest.approx(k, rel=0.3)


def test_the_number_of_stages_changes_every_few_steps_at_most() -> None:
    bucket = Bucket(SIDCo(0.001))
    for step in range(EVERY):
        assert bucket.stages == 2
        bucket.send(draw("normal", step))
    assert bucket.stages == 3


@pytest.mark.parametrize(
    ("achieved", "expected"),
    [
        ([1.0], [2]),
        ([1.19, 0.81], [2, 2]),
        ([1.3, 1.1], [3, 3]),
        ([1.3, 1.5, 1.3], [3, 2, 1]),  # worse, so the other way; better, so on
        ([3.0, 2.9, 2.8, 2.7], [3, 4, 3, 2]),  # no more than 4
        ([0.0, 0.0], [3, 4]),
    ],
)
def test_how_the_number_of_stages_follows(achieved: list[float], expected: list[int]) -> None:
    stages, found = Stages(2), []
    for one in achieved:
        for _ in range(EVERY):
            stages = Stages.read(stages.after(one, 4).tensor(torch.device("cpu")), 4)
        found.append(stages.count)
    assert found == expected


@pytest.mark.parametrize(("kept", "expected"), [(7.0, 5), (-3.0, 1), (1e300, 5)])
def test_stages_of_another_run_are_brought_within_bounds(kept: float, expected: int) -> None:
    tensor = torch.tensor([kept, 1.0, 0.0, 0.0, 1e9], dtype=torch.float64)
    assert Stages.read(tensor, SIDCo(0.01).most_stages).count == expected


def test_a_step_that_does_not_count_changes_no_stages() -> None:
    bucket = Bucket(SIDCo(0.001))
    before = {key: tensor.clone() for key, tensor in bucket.state.current.items()}
    bucket.compressor.encode(Input(draw("normal", 0), bucket.layout, 0, 0, 1.0, bucket.state))
    bucket.state.discard()
    assert all(torch.equal(before[key], tensor) for key, tensor in bucket.state.current.items())


@pytest.mark.parametrize(
    ("fit", "kind", "exact"),
    [
        (exponential, "exponential", lambda share: -math.log(share)),
        (gamma, "gamma", lambda share: torch.special.ndtri(torch.tensor(1 - share / 2)).item() ** 2 / 2),
        (pareto, "pareto", lambda share: (share**-0.2 - 1) / 0.2),
    ],
)
@pytest.mark.parametrize("share", [0.25, 0.04])
def test_a_fit_gives_the_quantile_of_its_distribution(
    fit: Callable[..., float], kind: str, exact: Callable[[float], float], share: float
) -> None:
    found = fit(Magnitudes.of(draw(kind, 1)).beyond(0.0), share)
    assert found == pytest.approx(1e-3 * exact(share), rel=0.05)


@pytest.mark.parametrize("threshold", [0.0, 1e-3, 2.5e-3])
def test_moments_are_those_of_torch(threshold: float) -> None:
    x = draw("cube", 2)
    x[::3] = 0.0
    found = Magnitudes.of(x).beyond(threshold)
    distances = x[x.abs() > threshold].abs().double() - threshold
    assert found.count == pytest.approx(distances.numel(), rel=2e-3)
    expected = [float(values.mean()) for values in (distances, distances.square())]
    assert [found.mean, found.square] == pytest.approx(expected, rel=5e-3)
    assert found.log == pytest.approx(float(distances.log().mean()), abs=5e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_magnitudes_tell_what_is_not_finite(bad: float) -> None:
    assert Magnitudes.of(torch.tensor([1.0, 3e38])).finite
    assert Magnitudes.of(torch.zeros(10)).finite
    assert Magnitudes.of(torch.zeros(10)).beyond(0.0).count == 0
    assert not Magnitudes.of(torch.tensor([1.0, bad, 0.0])).finite
    assert SIDCo(0.5).select(torch.tensor([1.0, bad, 0.0]))[0].tolist() in ([0, 1], [1])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = torch.randn(1_600_001, generator=torch.Generator().manual_seed(1)) ** 3
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append((Magnitudes.of(x).beyond(0.1), *SIDCo(0.01, "gamma").select(x)))
    finally:
        torch.set_num_threads(before)
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1:], found[1][1:], strict=True))


@pytest.mark.parametrize("distribution", FITS)
@pytest.mark.parametrize(
    ("x", "least", "most"),
    [
        (torch.zeros(500), 0, 0),
        (torch.zeros(0), 0, 0),
        (torch.ones(500), 5, 10),
        (torch.tensor([3.0]), 1, 1),
        (torch.cat([torch.zeros(500), torch.tensor([1e-30, -2.0, 3e38])]), 3, 3),
        (torch.cat([torch.full((1000,), 1.0), torch.full((3,), 1e30)]), 1, 20),
        (torch.full((500,), 1e-44), 0, 0),
    ],
)
def test_odd_inputs(distribution: str, x: torch.Tensor, least: int, most: int) -> None:
    """k is 5 of 500, and no more than 2 k are sent."""
    indices, values = SIDCo(0.01, distribution).select(x)
    assert least <= indices.numel() <= most
    assert torch.equal(values, x[indices.long()])
    assert bool((indices.diff() > 0).all())


def test_of_more_than_twice_k_the_largest_are_sent() -> None:
    x, compressor = draw("cube", 0), SIDCo(0.001)
    (indices, values), reached = compressor._selected(x, 2)
    assert reached is not None
    assert reached > 200
    largest = x.abs().topk(200).indices.sort().values
    assert torch.equal(indices.long(), largest)
    assert torch.equal(values, x[largest])
    payload = compressor.compress(x, Layout.of(NUMEL))
    assert payload.wire_bytes == compressor.wire(Layout.of(NUMEL))[0].nbytes


def test_a_threshold_that_nothing_reaches_does_not_keep_outliers_back() -> None:
    """Else they would stay in the residual, and mislead the next fit."""
    x = torch.cat([torch.ones(1000), torch.full((3,), 1e30)])
    (indices, _), reached = SIDCo(0.01)._selected(x, 2)
    assert reached == 0
    assert indices.tolist() == [*range(7), 1000, 1001, 1002]


@pytest.mark.parametrize(("ratio", "most"), [(1.0, 1), (0.25, 1), (0.1, 2), (0.01, 5), (0.001, 8)])
def test_later_stages_keep_less_than_half(ratio: float, most: int) -> None:
    assert SIDCo(ratio).most_stages == most


def test_everything_can_be_asked_for() -> None:
    x = draw("normal", 0)
    assert SIDCo(1.0).select(x)[0].numel() == int((x != 0).sum())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ratio": 0.0}, "ratio = 0.0 lies outside"),
        ({"distribution": "normal"}, "unknown distribution 'normal'; known are exponential, gamma, pareto"),
        ({"values": "int4"}, "unknown values 'int4'"),
    ],
)
def test_settings_that_are_none(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Compression.sidco(**arguments)  # type: ignore[arg-type]
