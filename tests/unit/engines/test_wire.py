"""The byte formulas, held against what the in-process engine really sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hvd_compress.engines import wire
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, BROADCASTS
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError

world_sizes = pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8])
numels = pytest.mark.parametrize("numel", [0, 1, 6, 64, 1001])


def mean_sent(n: int, body: Callable[[InProcessEngine], object]) -> int:
    """Return the mean over ranks of the bytes that `body` made them send, rounded down."""

    def counted(engine: InProcessEngine) -> int:
        body(engine)
        return engine.sent_bytes

    return sum(run_ranks(n, counted)) // n


@world_sizes
@numels
@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_allreduce(n, numel, algorithm):
    sent = mean_sent(n, lambda engine: engine.allreduce(torch.ones(numel), algorithm))
    assert sent == wire.allreduce(4 * numel, n, algorithm)


@world_sizes
@numels
def test_other_verbs(n, numel):
    x = torch.ones(numel)
    assert mean_sent(n, lambda engine: engine.broadcast(x.clone(), n - 1)) == wire.broadcast(4 * numel, n)
    assert mean_sent(n, lambda engine: engine.allgather(x)) == wire.allgather(4 * numel, n)
    assert mean_sent(n, lambda engine: engine.reduce_scatter(x)) == wire.reduce_scatter(4 * numel, n)
    assert mean_sent(n, lambda engine: engine.gather(x, 0)) == wire.gather(4 * numel, n)
    assert mean_sent(n, lambda engine: engine.alltoall([x] * n)) == wire.alltoall(4 * numel * n, n)


@world_sizes
@numels
def test_forced_broadcasts_and_allgathers(n, numel):
    for algorithm in BROADCASTS:
        size = -(-numel // n) * n if algorithm == "scatter_allgather" else numel  # exact where N divides it
        sent = mean_sent(n, lambda engine, name=algorithm, k=size: engine.broadcast(torch.ones(k), n - 1, name))
        assert sent == wire.broadcast(4 * size, n, algorithm)
    for algorithm in ALLGATHERS:
        sent = mean_sent(n, lambda engine, name=algorithm: engine.allgather(torch.ones(numel), [numel] * n, name))
        assert sent == wire.allgather(4 * numel, n)


def test_figures_by_hand():
    assert [wire.allreduce(1000, 4, name) for name in ALGORITHMS] == [1500, 1500, 2000, 1500]
    assert wire.allreduce(900, 3, "recursive_doubling") == (2 * 900 + 2 * 900) // 3
    assert wire.allgather(1000, 4) == 3000
    assert wire.broadcast(1000, 4) == wire.reduce_scatter(1000, 4) == wire.gather(1000, 4) == 750
    assert wire.alltoall(1000, 4) == 750
    assert wire.broadcast(1000, 4, "scatter_allgather") == (3000 + 250 * 4) // 4


def test_an_unknown_algorithm_is_a_config_error():
    with pytest.raises(ConfigError, match="bubble"):
        wire.allreduce(4, 2, "bubble")
    with pytest.raises(ConfigError, match="bubble"):
        wire.broadcast(4, 2, "bubble")
