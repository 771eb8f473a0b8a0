"""Prices of tasks, by hand; a problem from the three profiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso import planning
from hvd_compress.papers.espresso.espresso import Chosen, algorithm1, algorithm2, espresso, near_optimal, start
from hvd_compress.papers.espresso.fusion import cut, fuse, merges
from hvd_compress.papers.espresso.options import UNCOMPRESSED, Constraints, by_name
from hvd_compress.papers.espresso.planning import plan
from hvd_compress.papers.espresso.prices import Prices
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.papers.espresso.tree.counts import steps
from hvd_compress.profiler.profiles import CompressorProfile, Link, ModelProfile, SystemProfile, Tensor

NUMEL = 8_000
BYTES = 4 * NUMEL


def times(launch_us: float, element_ns: float) -> dict[str, Any]:
    numel = (1, 1000, 2000, 4000, NUMEL, 10 * NUMEL)
    return {"numel": numel, "us": tuple(launch_us + element_ns * n * 1e-3 for n in numel)}


def compressor(**devices: tuple[float, float]) -> CompressorProfile:
    return CompressorProfile.model_validate(
        {
            "compressor": {"name": "topk", "ratio": 0.01},
            "payload": {"per_tensor_bytes": 10.0, "per_element_bytes": 0.1},
            "devices": {
                name: {"compress": times(*costs), "decompress": times(costs[0] / 2, costs[1] / 10)}
                for name, costs in devices.items()
            },
        }
    )


WITHIN, ACROSS = Link(alpha_us=1.0, bytes_per_s=1e9), Link(alpha_us=10.0, bytes_per_s=1e8)
SYSTEM = SystemProfile(hosts=2, ranks_per_host=4, within=WITHIN, across=ACROSS)
BOTH = compressor(training=(5.0, 1.0), host=(20.0, 8.0))


def ns(option: str, system: SystemProfile = SYSTEM, prices: Prices | None = None) -> list[int]:
    prices = prices or Prices(system, BOTH)
    return [prices.ns(step, NUMEL) for step in steps(by_name(option).tasks, system.hosts, system.ranks_per_host)]


class TestByHand:
    def test_dense_hierarchical(self) -> None:
        # 3 of 4 parts at 1 GB/s after 3 messages; 4 ranks' quarters over a link of 2 hosts: 1 message of all
        scatter = round(3_000 + BYTES * 3 / 4)
        assert ns("reduce_scatter@within allreduce@across allgather@within") == [
            scatter,
            round(1 * 10_000 + BYTES * 10),  # recursive doubling of two: one message of everything
            round(2_000 + BYTES * 3 / 4),
        ]

    def test_payloads_across(self) -> None:
        option = "reduce_scatter@within comp@training allgather*@across decomp@training allgather@within"
        quarter = NUMEL / 4
        found = ns(option)
        assert found[1] == round(5_000 + quarter)  # of its part alone
        assert found[2] == round(10_000 + 4 * (10 + 0.1 * quarter) * 10)  # one message; four ranks share the link
        assert found[3] == round(2 * (2_500 + 0.1 * quarter))  # of both hosts

    def test_payloads_everywhere_are_not_added_on_the_way(self) -> None:
        option = (
            "comp@training alltoall*@within allgather*@across decomp@training comp@training "
            "allgather*@within decomp@training"
        )
        found = ns(option)
        payload = 10 + 0.1 * NUMEL / 4
        assert found[1] == round(3_000 + 3 / 4 * (10 + 0.1 * NUMEL))
        assert found[2] == round(10_000 + 4 * 4 * payload * 10)  # four payloads of a quarter, from four ranks of a host
        assert found[3] == round(8 * (2_500 + 0.1 * NUMEL / 4))  # of all eight ranks
        assert found[4] == round(5_000 + NUMEL / 4)
        assert found[6] == round(4 * (2_500 + 0.1 * NUMEL / 4))

    def test_a_root_works_on_everything(self) -> None:
        option = "reduce@within comp@host allgather*@across decomp@host broadcast@within"
        found = ns(option)
        assert found[0] == found[4] == round(min(2_000 + 2 * BYTES, 4_000 + 2 * 3 / 4 * BYTES))
        assert found[1] == round(20_000 + 8 * NUMEL)  # one rank of the host compresses
        assert found[2] == round(10_000 + (10 + 0.1 * NUMEL) * 10)
        assert found[3] == round(2 * (10_000 + 0.8 * NUMEL))

    def test_the_cpu_compresses_for_all_ranks_of_a_host(self) -> None:
        found = ns("comp@host allgather*@all decomp@host")
        assert found[0] == round(4 * (20_000 + 8 * NUMEL))
        assert found[1] == round(3 * 10_000 + 7 * (10 + 0.1 * NUMEL) * 10)  # three messages over the slower link
        assert found[2] == round(8 * 4 * (10_000 + 0.8 * NUMEL))

    def test_a_flat_all_to_all_crosses_with_what_is_for_the_other_host(self) -> None:
        found = ns("comp@training alltoall*@all decomp@training allgather@all")
        assert found[1] == round(7 * 10_000 + 4 * 4 / 8 * (10 + 0.1 * NUMEL) * 10)


@pytest.mark.parametrize("slow_bandwidth", ["within", "across"])
@pytest.mark.parametrize("slow_latency", ["within", "across"])
def test_a_flat_collective_waits_for_the_slower_link(slow_latency: str, slow_bandwidth: str) -> None:
    links = {
        name: Link(alpha_us=10.0 if name == slow_latency else 1.0, bytes_per_s=1e8 if name == slow_bandwidth else 1e9)
        for name in ("within", "across")
    }
    found = ns("comp@training allgather*@all decomp@training", SYSTEM.model_copy(update=links))
    assert found[1] == round(3 * 10_000 + 7 * (10 + 0.1 * NUMEL) * 10)  # as in the slowest of both


def test_one_host_communicates_within() -> None:
    alone = SystemProfile(hosts=1, ranks_per_host=4, within=WITHIN, across=ACROSS)
    assert ns("reduce_scatter@within allreduce@across allgather@within", alone)[1] == 0
    problem = Problem(_model(), alone, BOTH)
    spans = problem.native.spans(problem.uniform(UNCOMPRESSED))
    assert {span.lane for span in spans} == {0, 2}


def test_measured_curves_come_before_formulas() -> None:
    row = {"verb": "allgather", "algorithm": "auto", "bytes": [1, 10**6], "seconds": [0.5, 0.5]}
    measured = SYSTEM.model_copy(update={"across": Link(alpha_us=1, bytes_per_s=1e9, curves=(row,))})
    option = "reduce_scatter@within comp@training allgather*@across decomp@training allgather@within"
    assert ns(option, measured)[2] == 500_000_000
    assert ns(option, measured)[4] == ns(option)[4]  # within the host nothing was measured


def proportional(verb: str, ns_per_byte: float) -> dict[str, Any]:
    seconds = [ns_per_byte * 1e-9 * size for size in (1, 10**9)]
    return {"verb": verb, "algorithm": "auto", "bytes": [1, 10**9], "seconds": seconds}


def test_a_reduce_is_measured_as_what_it_is_made_of() -> None:
    """A reduce-scatter, and a gather of the shards of four ranks; by the formula where one of them was not measured."""
    option = "reduce@within allreduce@across broadcast@within"
    scatter, gather = proportional("reduce_scatter", 2.0), proportional("gather", 3.0)
    both, one = (
        SYSTEM.model_copy(update={"within": Link(alpha_us=1.0, bytes_per_s=1e9, curves=curves)})
        for curves in ((scatter, gather), (scatter,))
    )
    assert ns(option, both)[0] == pytest.approx(2 * BYTES + 3 * BYTES / 4, abs=1)
    assert ns(option, one) == ns(option)


def test_free_compression_takes_no_time() -> None:
    found = ns("comp@training allgather*@all decomp@training", prices=Prices(SYSTEM, BOTH, free=True))
    assert found[0] == found[2] == 0 < found[1]


def test_a_device_without_times() -> None:
    with pytest.raises(PlanError, match="no times of device 'host'"):
        ns("comp@host allgather*@all decomp@host", prices=Prices(SYSTEM, compressor(training=(1.0, 1.0))))
    problem = Problem(_model(), SYSTEM, compressor(training=(1.0, 1.0)))
    assert len(problem.options) == 174
    assert problem.twins == list(range(174))
    with pytest.raises(PlanError, match="not one of the 174"):
        problem.number(by_name("comp@host allgather*@all decomp@host"))


def _model(tensors: int = 4) -> ModelProfile:
    sizes = [NUMEL * (1 + number % 3) for number in range(tensors)]
    return ModelProfile(
        model="made",
        tensors=tuple(Tensor(name=f"p{n}", numel=size, backward_us=50.0) for n, size in enumerate(sizes)),
    )


def test_neighbours_are_merged_beyond_the_sizes_to_begin_with() -> None:
    """Of three tensors of 40 MiB two never fit into a bucket of 64 MiB, and a message takes a second."""
    far = SYSTEM.model_copy(update={"across": Link(alpha_us=1e6, bytes_per_s=1e9)})
    sizes = [10 << 20] * 3
    tensors = tuple(Tensor(name=f"p{n}", numel=size, backward_us=50.0) for n, size in enumerate(sizes))
    found = plan(ModelProfile(model="made", tensors=tensors), far, BOTH, budget_s=20)
    assert found.fused.cuts == ((0, 1, 2),)


class TestPlanning:
    def test_each_step_is_no_worse(self) -> None:
        problem = Problem(_model(), SYSTEM, BOTH, Constraints(mixed=False))
        first = start(problem)
        one = algorithm1(problem)
        two = algorithm2(problem, one)
        assert first.end_ns >= one.end_ns >= two.end_ns == espresso(problem).end_ns
        assert two.end_ns == problem.end_ns(two.strategy)
        best = near_optimal(problem, [first, one, two], clock=lambda: 0.0)
        assert best.end_ns <= two.end_ns
        assert best.end_ns == problem.end_ns(best.strategy)

    def test_without_time_the_best_start_is_kept(self) -> None:
        problem = Problem(_model(), SYSTEM, BOTH, Constraints(mixed=False))
        starts = [start(problem), algorithm1(problem)]
        found, best = near_optimal(problem, starts, budget_s=0.0), min(starts, key=lambda chosen: chosen.end_ns)
        assert found == replace(best, complete=False)

    def test_a_search_says_whether_it_came_to_its_own_end(self) -> None:
        problem = Problem(_model(), SYSTEM, BOTH, Constraints(mixed=False))
        starts = [start(problem), algorithm1(problem)]
        assert near_optimal(problem, starts, budget_s=math.inf).complete
        times = itertools.chain([0.0, 0.0], itertools.repeat(2.0))  # the budget ends behind the first turn
        assert not near_optimal(problem, starts, budget_s=1.0, clock=lambda: next(times)).complete

    @pytest.mark.parametrize("fusion", [True, False])
    def test_a_plan_says_whether_its_search_came_to_its_own_end(self, fusion: bool) -> None:
        arguments = _model(4), SYSTEM, BOTH, Constraints(mixed=False)
        first, second = (plan(*arguments, fusion=fusion, budget_s=math.inf) for _ in range(2))
        assert first.complete
        assert (first.chosen, first.fused.cuts) == (second.chosen, second.fused.cuts)
        assert not plan(*arguments, fusion=fusion, budget_s=0.0).complete

    @pytest.mark.parametrize(("fusion", "share_s"), [(True, 2.0), (False, 4.0)])
    def test_a_share_of_the_budget_is_left_for_merges_where_there_are_any(
        self, monkeypatch: pytest.MonkeyPatch, fusion: bool, share_s: float
    ) -> None:
        shares = []

        def searched(problem: Problem, starts: list[Chosen], budget_s: float, clock: object) -> Chosen:
            shares.append(budget_s)
            return starts[0]

        monkeypatch.setattr(planning, "near_optimal", searched)
        planning.plan(_model(1), SYSTEM, BOTH, fusion=fusion, policies=(start,), budget_s=4.0, clock=lambda: 0.0)
        assert shares == [share_s]

    def test_fusion_saves_latency(self) -> None:
        slow = SYSTEM.model_copy(update={"across": Link(alpha_us=2000.0, bytes_per_s=1e10)})
        apart = plan(_model(8), slow, BOTH, fusion=False, budget_s=0.5)
        fused = plan(_model(8), slow, BOTH, budget_s=1.0)
        assert [len(numbers) for numbers in apart.fused.cuts] == [1] * 8
        assert sum(map(len, fused.fused.cuts)) == 8 > len(fused.fused.cuts)
        assert fused.end_ns < apart.end_ns
        assert len(fused.options) == len(fused.fused.cuts)

    def test_cuts(self) -> None:
        model = _model(4)  # of 8, 16, 24 and 8 thousand elements
        assert cut(model, 0) == ((0,), (1,), (2,), (3,))
        assert cut(model, 100_000) == ((0, 1), (2,), (3,))  # 96,000 bytes; the third has 96,000 alone, 32,000 more
        assert cut(model, 1 << 30) == ((0, 1, 2, 3),)
        fused = fuse(model, ((0, 1), (2, 3))).model
        assert [(t.name, t.numel, t.backward_us) for t in fused.tensors] == [
            ("p0 and 1 more", 3 * NUMEL, 100.0),
            ("p2 and 1 more", 4 * NUMEL, 100.0),
        ]
        apart = fuse(model, ((0,), (1, 2), (3,)))
        assert list(merges(apart)) == [(1, ((0,), (1, 2, 3))), (0, ((0, 1, 2), (3,)))]

    def test_buckets_have_one_dtype(self) -> None:
        model, dtypes = _model(6), ("bfloat16", "bfloat16", "float32", "bfloat16", None, None)
        tensors = [t.model_copy(update={"dtype": d}) for t, d in zip(model.tensors, dtypes, strict=True)]
        mixed = model.model_copy(update={"tensors": tuple(tensors)})
        cuts = cut(mixed, 1 << 30)
        assert cuts == ((0, 1), (2,), (3,), (4, 5))
        assert [tensor.dtype for tensor in fuse(mixed, cuts).model.tensors] == ["bfloat16", "float32", "bfloat16", None]
        assert list(merges(fuse(mixed, cuts))) == []
        assert [at for at, _ in merges(fuse(mixed, cut(mixed, 0)))] == [4, 0]
        slow = SYSTEM.model_copy(update={"across": Link(alpha_us=2000.0, bytes_per_s=1e10)})
        planned = plan(mixed, slow, BOTH, budget_s=1.0)
        assert all(len({dtypes[number] for number in numbers}) == 1 for numbers in planned.fused.cuts)
        assert len(planned.fused.cuts) == 4, "all that may be joined is, as with one dtype"

    def test_compression_does_not_pay_on_a_fast_network(self) -> None:
        fast = Link(alpha_us=0.1, bytes_per_s=1e13)
        found = plan(_model(), SystemProfile(hosts=2, ranks_per_host=2, within=fast, across=fast), BOTH, budget_s=0.5)
        assert not any(option.compressions for option in found.options)
