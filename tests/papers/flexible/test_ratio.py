"""The paths of one bucket: what Eq. 4 of the paper calls the fastest is taken, and ring and tree are among them."""

from __future__ import annotations

import pytest

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.compressors import TopK
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.papers.flexible.policy import Flexible, FlexiblePolicy
from hvd_compress.papers.flexible.ratio import BucketRatio
from tests.unit.policies.auto.simulated import Priced

NUMEL, RANKS = 1_000_000, 8
PATHS = [Path("allgather", "ring"), Path("star", "ring", "binomial"), Path("star", "tree", "binomial")]


@pytest.mark.parametrize("alpha", [1e-5, 1e-3, 5e-2])
@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e10])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_the_fastest_path_is_that_of_the_formulas(alpha: float, bandwidth: float, ratio: float) -> None:
    costs = Formulas(alpha, 8 / bandwidth, RANKS)
    bucket = BucketRatio(Layout.of(NUMEL), TopK(ratio), PATHS, Path("dense"), Flexible())
    sent = 4 * int(NUMEL * ratio)
    broadcast = costs.seconds("broadcast", "binomial", sent)
    expected = {
        PATHS[0]: costs.seconds("allgather", "ring", 2 * sent),
        **{path: broadcast + costs.seconds("allreduce", path.algorithm, sent) for path in PATHS[1:]},
    }
    kernels_s, taken_s, path = bucket.fastest(ratio, Priced(costs))  # type: ignore[arg-type]
    assert kernels_s == 0.0, "none was measured"
    assert taken_s == pytest.approx(min(expected.values()), rel=0.01)
    assert expected[path] == pytest.approx(min(expected.values()), rel=0.01)


def test_ring_and_tree_are_among_the_paths() -> None:
    """Formulas call recursive doubling or Rabenseifner's better on every network; measurements do not."""

    def body(engine: InProcessEngine) -> list[str]:
        request = Compression.flexible()
        policy = FlexiblePolicy(request, Flexible())
        policy.prepare(engine, [Layout.of(1000)])
        return [str(collective.path) for collective in policy._collectives(Layout.of(1000))]

    (found, _) = run_ranks(2, body)
    assert {"allgather", "allgather-ring", "star", "star-ring", "star-tree"} <= set(found)
    assert not any("+" in path or path.startswith(("var", "dense")) for path in found)
