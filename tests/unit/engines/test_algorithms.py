"""The allreduce algorithms are different algorithms: each leaves its own pattern of messages."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.engines.base import ALGORITHMS
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks

NUMEL = 64
M = 4 * NUMEL


def traffic(world_size: int, algorithm: str) -> list[tuple[int, int]]:
    """Return (messages, bytes) that each rank sent."""

    def body(engine: InProcessEngine) -> tuple[int, int]:
        engine.allreduce(torch.ones(NUMEL), algorithm)
        return engine.sent_messages, engine.sent_bytes

    return run_ranks(world_size, body)


def test_patterns_of_four_ranks():
    assert traffic(4, "ring") == [(6, 6 * M // 4)] * 4
    assert traffic(4, "tree") == [(2, 2 * M), (1, M), (2, 2 * M), (1, M)]
    assert traffic(4, "recursive_doubling") == [(2, 2 * M)] * 4
    assert traffic(4, "rabenseifner") == [(4, 6 * M // 4)] * 4


def test_patterns_of_forced_broadcasts_and_allgathers():
    """A pipeline sends every segment once along the chain; van de Geijn's scatters quarters, then gathers them."""

    def patterns(run):
        def body(engine: InProcessEngine) -> tuple[int, int]:
            run(engine)
            return engine.sent_messages, engine.sent_bytes

        return run_ranks(4, body)

    numel = 3 * 4096 + 1  # three segments of 16 KiB and a bit
    size = 4 * numel
    chain = patterns(lambda engine: engine.broadcast(torch.ones(numel), 2, "pipeline_16k"))
    assert chain == [(4, size), (0, 0), (4, size), (4, size)]
    q = size // 4 // 4 * 4  # a shard, but for the odd element
    assert patterns(lambda engine: engine.broadcast(torch.ones(q), 0, "scatter_allgather")) == [
        (6, 6 * q),
        (3, 3 * q),
        (4, 4 * q),
        (3, 3 * q),
    ]
    assert patterns(lambda engine: engine.allgather(torch.ones(5), [5] * 4, "bruck")) == [(3, 60)] * 4


def test_ranks_beyond_a_power_of_two_fold_onto_others():
    assert traffic(3, "recursive_doubling") == [(2, 2 * M), (1, M), (1, M)]
    assert traffic(3, "rabenseifner") == [(3, 2 * M), (2, M), (1, M)]


def test_auto_is_the_ring():
    assert traffic(5, "auto") == traffic(5, "ring")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_rank_sends_nothing(algorithm):
    assert traffic(1, algorithm) == [(0, 0)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_sums_that_depend_on_the_order_agree_on_all_ranks(algorithm, world_size):
    """Values of very different size, so that another order of summing would leave other bits."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        x = torch.randn(101, generator=torch.Generator().manual_seed(engine.rank)) * 10.0 ** (engine.rank * 3)
        engine.allreduce(x, algorithm)
        return x

    first, *others = run_ranks(world_size, body)
    assert all(torch.equal(first, other) for other in others)
