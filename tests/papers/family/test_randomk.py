"""Random elements: which ones, and that what they stand for is right on average."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Input
from hvd_compress.compressors.draws import mixed, words
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.papers.family.randomk import RandomK
from hvd_compress.payload import Payload


def sent(compressor: RandomK, gradient: torch.Tensor, step: int = 0, bucket: int = 0) -> torch.Tensor:
    """Return what one rank alone gets back."""
    work = Input(gradient.clone(), Layout.of(gradient.numel()), step, bucket, 1.0)
    rounds = compressor.rounds(work)
    payload = next(rounds)
    with pytest.raises(StopIteration):
        rounds.send([payload])
    return work.gradient


def chosen(compressor: RandomK, numel: int, step: int = 0, bucket: int = 0) -> list[int]:
    return torch.where(sent(compressor, torch.ones(numel), step, bucket) != 0)[0].tolist()


@pytest.mark.parametrize("numel", [1, 2, 63, 100, 1001])
@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.37, 1.0])
def test_each_interval_has_one_element_sent(numel: int, ratio: float) -> None:
    found, k = chosen(RandomK(ratio, error_feedback=False), numel), max(1, round(ratio * numel))
    assert len(found) == k
    for number, place in enumerate(found):
        assert number * numel // k <= place < (number + 1) * numel // k


def test_seed_step_and_bucket_draw_others() -> None:
    plain = RandomK(0.1, error_feedback=False)
    draws = [chosen(plain, 500), chosen(plain, 500, step=1), chosen(plain, 500, bucket=1)]
    draws.append(chosen(RandomK(0.1, error_feedback=False, seed=1), 500))
    assert len({tuple(draw) for draw in draws}) == 4
    assert chosen(plain, 500) == draws[0]


def test_every_element_of_an_interval_is_as_likely() -> None:
    """Pearson's statistic of 10 intervals of 10 elements: 90 +- 13.4; above 180 in fewer than 1e-7 of the cases."""
    compressor, draws = RandomK(0.1, error_feedback=False), 4000
    counts = sum((sent(compressor, torch.ones(100), step) != 0).double() for step in range(draws))
    assert 30 < float(((counts - draws / 10) ** 2 / (draws / 10)).sum()) < 180


def test_without_feedback_the_mean_over_draws_is_the_gradient() -> None:
    """With 3 or 4 elements an interval the standard error is at most |v| sqrt(3 / draws); 6 of them, for each of 37."""
    gradient, draws = torch.randn(37, generator=torch.Generator().manual_seed(0)), 6000
    compressor = RandomK(10 / 37, error_feedback=False)
    mean = sum(sent(compressor, gradient, step).double() for step in range(draws)) / draws
    assert bool(((mean - gradient).abs() <= 6 * gradient.abs() * (3 / draws) ** 0.5).all())


def test_words_are_those_of_splitmix64() -> None:
    """The first outputs from the state 1234567, as published with the generator; the upper 31 bits of 64."""
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    assert words(1234567, 4, torch.device("cpu")).tolist() == [word >> 33 for word in published]
    assert mixed(1) != mixed(2) != mixed(1, 2)


def test_values_of_another_length_are_refused() -> None:
    work = Input(torch.ones(50), Layout.of(50), 0, 0, 0.5)
    rounds = RandomK(0.1, error_feedback=False).rounds(work)
    own = next(rounds)
    with pytest.raises(PayloadError, match="rank 1: 4 values instead of 5"):
        rounds.send([own, Payload({"values": torch.ones(4)}, 50, summable=True)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0.0}, "outside"),
        ({"ratio": True}, "a number"),
        ({"error_feedback": 1}, "neither True nor False"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RandomK(**settings)
