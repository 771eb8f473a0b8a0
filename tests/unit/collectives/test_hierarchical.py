"""Hierarchical against a plain restatement on whole tensors; and what collectives promise that run by name alone."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import collectives, of
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.flat import flat_collective
from hvd_compress.collectives.groups import leaders, neighbours, within_host
from hvd_compress.compressors import (
    BlockQuantizer,
    Cast,
    CompressedMomentum,
    Compressor,
    EFSign,
    PowerSGD,
    TopK,
)
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import predict
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.feedback.states import GRADIENT_UNITS
from hvd_compress.policies.auto.arms import leaves_open
from hvd_compress.policies.fixed import decide
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.covering import combinations
from tests.harness import backward, flat_gradient, on_engine
from tests.unit.collectives.by_hosts import (
    HEADER,
    PAYLOAD,
    PLACES,
    RATIO,
    STEPS,
    Seen,
    exchanged,
    groups_of,
    largest,
    lose,
    require_followed,
    train,
)
from tests.unit.collectives.steps import LAYOUT, NUMEL, gradient_of

CPU = torch.device("cpu")
COMPRESSORS: dict[str, Compressor] = {
    "topk": TopK(RATIO),
    "lwtopk": TopK(RATIO, layerwise=True),
    "efsign": EFSign(),
    "powersgd": PowerSGD(2),
    "int8": BlockQuantizer(8),
    "int4-stochastic": BlockQuantizer(4, stochastic=True),
    "dense": Cast(),
    "bf16": Cast(torch.bfloat16),
    **dict(brought("BY_HOSTS")),
}
CARRIED = [
    (name, collective)
    for name, compressor in COMPRESSORS.items()
    for collective in collectives.names_for(compressor)
    if collectives.by_name(collective)
]


def capabilities(place: str) -> Capabilities:
    hosts = PLACES[place]
    return InProcessWorld(len(hosts), hosts=hosts).engine(0).capabilities


RUN = combinations(
    False,
    lambda name, collective, place: (
        (name, collective) in CARRIED and not collectives.obstacle(collective, capabilities(place))
    ),
    list(COMPRESSORS),
    sorted({collective for _, collective in CARRIED}),
    list(PLACES),
)
ONCE = [
    next((name, collective) for name, collective in CARRIED if collective == each)
    for each in sorted({s for _, s in CARRIED})
]
"""Each collective with one compressor; with others, in fp32, it is in tests/conformance."""


def exchange(name: str, collective: str, hosts: tuple[int, ...], **arguments: object) -> list[list[Seen]]:
    return exchanged(COMPRESSORS[name], collective, hosts, **arguments)


@pytest.mark.parametrize(("name", "collective", "place"), RUN)
def test_all_ranks_hold_the_same_bits_and_nothing_is_lost(name: str, collective: str, place: str) -> None:
    """What was applied and what is remembered make up all gradients, whoever remembers it."""
    hosts, compressor = PLACES[place], COMPRESSORS[name]
    ranks = exchange(name, collective, hosts)
    for step in range(STEPS):
        assert all(torch.equal(history[step].result, ranks[0][step].result) for history in ranks)
        assert all(history[step].finite for history in ranks)
        assert ranks[0][step].result.any()
    gradients = sum(gradient_of(rank, step).double() for step in range(STEPS) for rank in range(len(hosts)))
    applied = len(hosts) * sum(seen.result.double() for seen in ranks[0])
    remembered = sum(history[-1].residual.double() for history in ranks)
    has_velocity = any(kind.startswith(GRADIENT_UNITS) for kind, _ in compressor.new_state(LAYOUT, CPU))
    if compressor.error_feedback and not has_velocity:
        torch.testing.assert_close(applied + remembered, gradients, rtol=1e-4, atol=1e-4)
    if name == "dense":
        torch.testing.assert_close(applied, gradients, rtol=1e-5, atol=1e-5)


def restated(hosts: tuple[int, ...]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """The result of each step, and the residual of each rank after it, with top-k and one or two hosts."""
    kept, history = [torch.zeros(NUMEL) for _ in hosts], []
    for step in range(STEPS):
        total = torch.zeros(NUMEL)
        for leader, *others in groups_of(hosts):
            summed = sum((gradient_of(rank, step) for rank in others), gradient_of(leader, step))
            sent, kept[leader] = lose(summed + kept[leader])
            total += sent
        history.append((total / len(hosts), [one.clone() for one in kept]))
    return history


@pytest.mark.parametrize("place", ["2 hosts", "unequal", "by turns", "1 host"])
def test_it_follows_its_algorithm(place: str) -> None:
    require_followed(exchange("topk", "hierarchical", PLACES[place]), restated(PLACES[place]))


def test_three_leaders_take_turns() -> None:
    """AR-Topk sends fewer bytes among three than an all-gather: the leader of host (step mod 3) selects."""
    hosts = PLACES["3 hosts"]
    ranks = exchange("topk", "hierarchical", hosts)
    kept = [torch.zeros(NUMEL) for _ in range(3)]
    for step in range(STEPS):
        corrected = [gradient_of(2 * h, step) + gradient_of(2 * h + 1, step) + kept[h] for h in range(3)]
        mask = largest(corrected[step % 3])
        kept = [torch.where(mask, 0.0, one) for one in corrected]
        torch.testing.assert_close(ranks[0][step].result, torch.where(mask, sum(corrected), 0.0) / 6)


@pytest.mark.parametrize("place", ["2 hosts", "unequal", "1 rank each"])
def test_leaders_add_a_shared_momentum_once(place: str) -> None:
    """Not once for each rank of a host: the result is then the mean gradient, to what rounding to 8 bits takes."""
    hosts, compressor = PLACES[place], CompressedMomentum(0.9, BlockQuantizer(8))
    ranks = run_ranks(len(hosts), lambda engine: train(engine, compressor, "hierarchical"), hosts=hosts)
    for step in range(STEPS):
        expected = sum(gradient_of(rank, step) for rank in range(len(hosts))) / len(hosts)
        torch.testing.assert_close(ranks[0][step].result, expected, rtol=0, atol=0.15)


@pytest.mark.parametrize(
    ("name", "collective"),
    [(n, s) for n, s in CARRIED if n in ("topk", "efsign", "int8", "powersgd") or not COMPRESSORS[n].error_feedback],
)
def test_a_residual_of_an_earlier_decision_is_sent_by_whoever_holds_it(name: str, collective: str) -> None:
    hosts = PLACES["2 hosts"]
    before = [gradient_of(rank, 50) for rank in range(4)]
    ranks = run_ranks(
        4, lambda engine: train(engine, COMPRESSORS[name], collective, first=before[engine.rank]), hosts=hosts
    )
    for step in range(STEPS):
        assert all(torch.equal(history[step].result, ranks[0][step].result) for history in ranks)
    first = [history[0] for history in ranks]
    if collective == "hierarchical":
        assert not first[1].residual.any()
        assert not first[3].residual.any()
    if not COMPRESSORS[name].error_feedback:
        assert not first[0].residual.any()
    if not COMPRESSORS[name].error_feedback and name != "dense":
        assert not any(seen.residual.any() for seen in first), "what is sent whole leaves nothing"
        return
    gradients = sum(gradient_of(rank, 0) + before[rank] for rank in range(4))
    remembered = sum(seen.residual for seen in first)
    torch.testing.assert_close(4 * first[0].result + remembered, gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("collective", [collective for name, collective in CARRIED if name == "topk"])
def test_a_coefficient_shrinks_a_residual_once(collective: str) -> None:
    """Whatever the shard or the leader that it comes back with."""
    hosts, before = PLACES["2 hosts"], [gradient_of(rank, 50) for rank in range(4)]
    ranks = run_ranks(
        4,
        lambda engine: train(engine, TopK(1.0), collective, first=before[engine.rank], coefficient=0.5),
        hosts=hosts,
    )
    expected = sum(gradient_of(rank, 0) + 0.5 * before[rank] for rank in range(4)) / 4
    torch.testing.assert_close(ranks[0][0].result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "collective"), ONCE)
def test_a_nan_of_any_rank_reaches_all(name: str, collective: str) -> None:
    for rank in range(4):
        for element in (0, NUMEL // 2, NUMEL - 1):
            ranks = exchange(name, collective, PLACES["2 hosts"], spoil=(rank, element))
            for history in ranks:
                assert not history[0].finite, (rank, element)
                assert not history[0].result.isfinite().all()
                assert not history[-1].residual.any(), "a residual changed"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "collective"), ONCE)
def test_gradients_of_16_bits(name: str, collective: str, dtype: torch.dtype) -> None:
    exact = exchange(name, collective, PLACES["2 hosts"])
    ranks = exchange(name, collective, PLACES["2 hosts"], dtype=dtype)
    for history in ranks:
        assert history[0].result.dtype == dtype
        assert torch.equal(history[-1].result, ranks[0][-1].result)
    near = (ranks[0][0].result.float() - exact[0][0].result).norm() / exact[0][0].result.norm()
    assert near < 0.5, "rounding may change what is selected, and little else"


def test_across_hosts_leaders_alone_send() -> None:
    ranks = exchange("topk", "hierarchical", PLACES["2 hosts"])
    for rank, history in enumerate(ranks):
        seen = history[1]
        assert seen.sent == seen.sent_within + seen.sent_across
        if rank in (0, 2):
            assert PAYLOAD < seen.sent_across <= PAYLOAD + HEADER
            assert seen.verbs == ["allreduce", "allgather", "broadcast"]
        else:
            assert seen.sent_across == 0
            assert seen.verbs == ["allreduce", "broadcast"]
    assert sum(history[1].sent_within for history in ranks) == 2 * (2 * 4 * NUMEL + 4 * NUMEL)


@pytest.mark.parametrize(("name", "collective"), [pair for pair in CARRIED if pair != ("bf16", "hierarchical")])
def test_what_runs_is_what_is_priced(name: str, collective: str) -> None:
    """The in-process engine sums bf16: an allreduce in the place of two collectives of as many bytes."""
    hosts = PLACES["3 hosts"]
    expected = collectives.stages(COMPRESSORS[name], Path(collective), LAYOUT, 6, hosts)
    assert [stage.verb for stage in expected] == exchange(name, collective, hosts)[0][1].verbs
    in_groups = collectives.build(COMPRESSORS[name], Path(collective)).in_groups
    assert all(stage.ranks in ((2, 3) if in_groups else (None,)) for stage in expected)
    apart = collectives.stages(COMPRESSORS[name], Path(collective), LAYOUT, 6)
    assert all(stage.ranks in (6, None) for stage in apart)
    assert predict(Path(collective), apart, Formulas(1e-3, 1e-9, 6)).seconds > 0
    if in_groups:
        with pytest.raises(ConfigError, match=r"a collective of 2 ranks, and costs are known of 6"):
            predict(Path(collective), expected, Formulas(1e-3, 1e-9, 6))


def test_sums_of_hosts_are_fp32_whatever_the_gradients_are() -> None:
    """An engine that cannot sum bfloat16 sums them as it is."""
    can = Capabilities(("allreduce", "allgather", "alltoall"), (), (torch.float32,))
    layout = Layout(LAYOUT.names, LAYOUT.shapes, torch.bfloat16)
    assert collectives.build(Cast(), Path("hierarchical")).flat(layout, 2, can).path == Path("dense")


def test_groups_are_made_once() -> None:
    def body(engine: InProcessEngine) -> bool:
        first = within_host(engine), leaders(engine)
        messages = engine.sent_messages
        assert (within_host(engine), leaders(engine)) == first
        assert engine.sent_messages == messages
        assert list(first[0].ranks) == neighbours(engine.hosts, engine.rank) == [engine.rank % 2, engine.rank % 2 + 2]
        return first[1] is not None

    assert run_ranks(4, body, hosts=(0, 1, 0, 1)) == [True, True, False, False]


def test_nothing_chooses_them() -> None:
    can = InProcessWorld(4, hosts=(0, 0, 1, 1)).engine(0).capabilities
    for compressor in COMPRESSORS.values():
        chosen = {path.collective for path in collectives.variants(compressor, LAYOUT, can)}
        runnable = {path.collective for path in collectives.runnable(compressor, LAYOUT, can)}
        assert not any(collectives.by_name(name) for name in chosen)
        assert (flat := flat_collective(compressor, LAYOUT, 4, can)) is None or not flat.by_name
        assert runnable - chosen == {n for n in collectives.names_for(compressor) if collectives.by_name(n)}
    assert not leaves_open(Request(TopK(RATIO), "hierarchical"))
    assert decide(Request(TopK(RATIO), "hierarchical"), LAYOUT, 4, can).path == Path("hierarchical")


@pytest.mark.parametrize(("compressor", "collective"), brought("NOT_BY_HOSTS"))
def test_what_a_collective_cannot_carry_is_refused(compressor: Compressor, collective: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown collective '{collective}'; known here are auto, "):
        Request(compressor, collective)


def test_an_engine_without_groups_is_refused() -> None:
    can = Capabilities(("allreduce", "allgather", "broadcast", "reduce_scatter"), (), (torch.float32,))
    with pytest.raises(UnsupportedError, match="'hierarchical' cannot be run: it takes groups of ranks"):
        decide(Request(TopK(RATIO), "hierarchical"), LAYOUT, 4, can)


def test_an_optimizer_learns_the_hosts_from_its_engine() -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, list[str]]:
        parameters, optimizer = on_engine(engine, Request(TopK(1.0), "hierarchical"))
        for step in range(2):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
        (collective,) = {decision.collective for decision in of(optimizer).decisions.values()}
        assert collective == "hierarchical"
        return flat_gradient(parameters), [leaders(engine) is not None, *within_host(engine).ranks]

    found = run_ranks(4, body, hosts=(0, 0, 1, 1))
    assert [groups for _, groups in found] == [[True, 0, 1], [False, 0, 1], [True, 2, 3], [False, 2, 3]]
    expected = run_ranks(4, dense)[0]
    for result, _ in found:
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def dense(engine: InProcessEngine) -> torch.Tensor:
    parameters, optimizer = on_engine(engine, Request(Cast()))
    backward(parameters, engine.rank, 1)
    optimizer.synchronize()
    return flat_gradient(parameters)
