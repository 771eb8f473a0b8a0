"""The terms of the formulas, held against the in-process engine's algorithms, played on a clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest
import torch

from hvd_compress.cost import formulas
from hvd_compress.cost.formulas import Formulas, Terms, crossover
from hvd_compress.engines import algorithms
from hvd_compress.engines.names import ALGORITHMS, ALLGATHERS, BROADCASTS, SEGMENT_BYTES
from hvd_compress.errors import ConfigError


@dataclass
class ClockedLink:
    """A rank whose messages take alpha + bytes * beta on a clock of its own: nothing is timed.

    Its way out and its way in each carry one message after the other, both at once.
    """

    rank: int
    world_size: int
    queues: list[list[SimpleQueue[tuple[torch.Tensor, float]]]]
    alpha: float
    beta: float
    now: float = 0.0
    out_free: float = field(default=0.0)
    in_free: float = field(default=0.0)

    def send(self, destination: int, tensor: torch.Tensor) -> None:
        start = max(self.now, self.out_free)
        self.out_free = start + self.beta * tensor.numel() * tensor.element_size()
        self.queues[self.rank][destination].put((tensor.clone(), start))

    def recv(self, source: int) -> torch.Tensor:
        tensor, start = self.queues[source][self.rank].get(timeout=120)
        self.in_free = max(self.in_free, start + self.alpha) + self.beta * tensor.numel() * tensor.element_size()
        self.now = max(self.now, self.in_free)
        return tensor


def played(n: int, body: Callable[[ClockedLink], object], alpha: float, beta: float) -> float:
    """Return when the last rank is done."""
    queues = [[SimpleQueue() for _ in range(n)] for _ in range(n)]
    links = [ClockedLink(rank, n, queues, alpha, beta) for rank in range(n)]
    threads = [threading.Thread(target=body, args=(link,), daemon=True) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return max(link.now for link in links)


def assert_terms(n: int, body: Callable[[ClockedLink], object], terms: Terms) -> None:
    assert played(n, body, 1.0, 0.0) == terms.steps
    assert played(n, body, 0.0, 1.0) == pytest.approx(terms.bytes)
    assert played(n, body, 1000.0, 0.5) == pytest.approx(terms.seconds(1000.0, 0.5))


NUMEL = 61_440  # whole shards for up to 8 ranks, and whole segments of both pipelines
SIZE = 4 * NUMEL
world_sizes = pytest.mark.parametrize("n", [1, 2, 4, 8])


@world_sizes
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_allreduce(n, algorithm):
    body = algorithms.ALLREDUCE[algorithm]
    assert_terms(n, lambda link: body(link, torch.zeros(NUMEL)), formulas.allreduce(SIZE, n, algorithm))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("algorithm", BROADCASTS)
def test_broadcast(n, algorithm):
    """The formulas of trees are those of whole trees: one that lacks ranks has at most as many steps and bytes."""

    def body(link: ClockedLink) -> None:
        algorithms.BROADCAST[algorithm](link, torch.zeros(NUMEL), root=n // 2)

    terms = formulas.broadcast(SIZE, n, algorithm)
    if algorithm in SEGMENT_BYTES or not n & (n - 1):
        assert_terms(n, body, terms)
    else:
        assert 0 < played(n, body, 1.0, 0.0) <= terms.steps
        assert SIZE < played(n, body, 0.0, 1.0) <= terms.bytes


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_the_other_verbs(n):
    x = torch.zeros(NUMEL // 60 * n)
    size = 4 * x.numel()
    for name in ALLGATHERS:
        assert_terms(n, lambda link, name=name: algorithms.ALLGATHER[name](link, x), formulas.allgather(size, n, name))
    parts = list(x.split(x.numel() // n))
    assert_terms(n, lambda link: algorithms.pairwise_alltoall(link, parts), formulas.alltoall(size, n))
    scatter = algorithms.ring_reduce_scatter
    assert_terms(n, lambda link: scatter(link, x.clone()), formulas.reduce_scatter(size, n))
    assert_terms(n, lambda link: algorithms.flat_gather(link, x, 0), formulas.gather(size, n))


@pytest.mark.parametrize("n", [3, 5, 6, 7])
@pytest.mark.parametrize("algorithm", ["tree", "recursive_doubling", "rabenseifner"])
def test_ranks_beyond_a_power_of_two_cost_at_most_what_the_formula_says(n, algorithm):
    """Less where the round that folds them in overlaps with the first one of the others."""

    def body(link: ClockedLink) -> None:
        algorithms.ALLREDUCE[algorithm](link, torch.zeros(NUMEL))

    terms = formulas.allreduce(SIZE, n, algorithm)
    assert terms.steps - 2 <= played(n, body, 1.0, 0.0) <= terms.steps
    assert terms.bytes - 2 * SIZE <= played(n, body, 0.0, 1.0) <= terms.bytes


def test_figures_by_hand():
    """Table I with 8 ranks: log2 N = 3."""
    assert formulas.allreduce(800, 8, "ring") == Terms(14, 1400)
    assert formulas.allreduce(800, 8, "tree") == Terms(6, 4800)
    assert formulas.broadcast(800, 8) == Terms(3, 2400)
    assert formulas.allgather(800, 8) == Terms(3, 5600)
    assert formulas.gather(800, 8) + formulas.broadcast(800, 8, "linear") == Terms(2, 2 * 7 * 800)  # parameter server
    assert formulas.broadcast(100_000, 8, "pipeline_16k") == Terms(7, 100_000 + 6 * SEGMENT_BYTES["pipeline_16k"])
    assert formulas.broadcast(100, 8, "pipeline_16k") == Terms(7, 700)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 64])
def test_equation_5_follows(n):
    """The thresholds of the paper, from the terms alone; Mc are the bytes of the values that are kept."""
    mc, log_n = 1e6, math.ceil(math.log2(n))
    ring = formulas.broadcast(mc, n) + formulas.allreduce(mc, n, "ring")
    tree = formulas.broadcast(mc, n) + formulas.allreduce(mc, n, "tree")
    gathered = formulas.allgather(2 * mc, n)
    if n > 3:  # with 2 or 3 ranks a ring has no more steps than a tree
        assert crossover(ring, tree) == pytest.approx((log_n - (n - 1) / n) / (n - 1 - log_n) * mc)  # 5a
        assert crossover(ring, gathered) == pytest.approx((1 - 1 / n - log_n / (2 * (n - 1))) * mc)  # 5b
        assert crossover(tree, gathered) == pytest.approx(((n - 1) / log_n - 3 / 2) * mc, abs=1e-3)  # 5c
    else:
        assert crossover(ring, tree) == math.inf
        assert crossover(tree, gathered) == 0.0


def test_a_crossover_is_where_two_costs_meet():
    ring, tree = formulas.allreduce(1e6, 8, "ring"), formulas.allreduce(1e6, 8, "tree")
    alpha = crossover(ring, tree) * 1e-9
    assert ring.seconds(alpha, 1e-9) == pytest.approx(tree.seconds(alpha, 1e-9))
    assert ring.seconds(0.9 * alpha, 1e-9) < tree.seconds(0.9 * alpha, 1e-9)
    with pytest.raises(ConfigError, match="swap them"):
        crossover(tree, ring)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Formulas(-1e-3, 1e-9, 4), "alpha"),
        (lambda: Formulas(1e-3, math.nan, 4), "beta"),
        (lambda: Formulas(1e-3, 1e-9, 0), "world_size"),
        (lambda: Formulas(1e-3, 1e-9, 4).seconds("scan", "auto", 8), "unknown collective 'scan'"),
        (lambda: Formulas(1e-3, 1e-9, 4).seconds("allreduce", "bubble", 8), "bubble"),
        (lambda: Formulas(1e-3, 1e-9, 4).seconds("broadcast", "bubble", 8), "bubble"),
        (lambda: Formulas(1e-3, 1e-9, 4).seconds("allgather", "bubble", 8), "bubble"),
        (lambda: Formulas(1e-3, 1e-9, 4).seconds("gather", "ring", 8), "only 'auto'"),
    ],
)
def test_bad_input_is_a_config_error(call, says):
    with pytest.raises(ConfigError, match=says):
        call()
