"""Collectives that papers compare, against plain restatements on whole tensors."""

from __future__ import annotations

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.collectives.groups import leaders
from hvd_compress.compressors import Cast, Compressor, TopK
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import predict
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import PlanError, UnsupportedError
from hvd_compress.feedback.states import BucketState, Residual
from hvd_compress.papers.espresso.collectives.parameter_server import ParameterServer
from hvd_compress.papers.espresso.groups import same_place
from hvd_compress.policies.fixed import decide
from hvd_compress.request.request import Request
from tests.harness import COMPRESSORS, backward, flat_gradient, on_engine, planned
from tests.unit.collectives.by_hosts import (
    HEADER,
    PAYLOAD,
    PLACES,
    RATIO,
    STEPS,
    Seen,
    exchanged,
    groups_of,
    lose,
    require_followed,
    train,
)
from tests.unit.collectives.steps import LAYOUT, NUMEL, gradient_of

Restated = list[tuple[torch.Tensor, list[torch.Tensor]]]
"""The result of each step, and the residual of each rank after it, with top-k and one or two hosts."""


def exchange(collective: str, hosts: tuple[int, ...]) -> list[list[Seen]]:
    across = same_place if collective == "hitopk" else leaders
    return exchanged(TopK(RATIO), collective, hosts, across=across)


def restated(collective: str, hosts: tuple[int, ...]) -> Restated:
    step_of = {"parameter-server": by_server, "hitopk": by_shards}.get(collective, by_leaders)
    kept, history = [torch.zeros(NUMEL) for _ in hosts], []
    for step in range(STEPS):
        own = [gradient_of(rank, step) for rank in range(len(hosts))]
        total = step_of(own, kept, groups_of(hosts), collective == "hierarchical-both")
        history.append((total / len(hosts), [one.clone() for one in kept]))
    return history


def by_server(own: list[torch.Tensor], kept: list[torch.Tensor], groups: object, both: bool) -> torch.Tensor:
    total = torch.zeros(NUMEL)
    for rank, gradient in enumerate(own):
        sent, kept[rank] = lose(gradient + kept[rank])
        total += sent
    return total


def by_shards(own: list[torch.Tensor], kept: list[torch.Tensor], groups: list[list[int]], both: bool) -> torch.Tensor:
    total = torch.zeros(NUMEL)
    for group in groups:
        summed, begin = sum(own[rank] for rank in group), 0
        for rank, part in zip(group, torch.tensor_split(summed, len(group)), strict=True):
            place = slice(begin, begin + part.numel())
            sent, kept[rank][place] = lose(part + kept[rank][place])
            total[place] += sent
            begin = place.stop
    return total


def by_leaders(own: list[torch.Tensor], kept: list[torch.Tensor], groups: list[list[int]], both: bool) -> torch.Tensor:
    total = torch.zeros(NUMEL)
    for leader, *others in groups:
        summed = own[leader]
        for rank in others:
            sent, kept[rank] = lose(own[rank] + kept[rank])
            summed = summed + sent
        if both:
            summed, kept[leader] = lose(summed + kept[leader])
        total += summed
    return total


@pytest.mark.parametrize("place", ["2 hosts", "unequal", "by turns", "1 host"])
@pytest.mark.parametrize("collective", ["hierarchical-within", "hierarchical-both", "hitopk", "parameter-server"])
def test_a_collective_follows_its_algorithm(collective: str, place: str) -> None:
    if (collective, place) == ("hitopk", "unequal"):
        can = InProcessWorld(5, hosts=PLACES[place]).engine(0).capabilities
        with pytest.raises(UnsupportedError, match="as many ranks on each host, and the hosts of this job have 3, 2"):
            decide(Request(TopK(RATIO), collective), LAYOUT, 5, can)
        return
    require_followed(exchange(collective, PLACES[place]), restated(collective, PLACES[place]))


@pytest.mark.parametrize("name", ["topk", "efsign", "int8"])
def test_a_leader_that_loses_nothing_sends_its_residual(name: str) -> None:
    before = [gradient_of(rank, 50) for rank in range(4)]
    ranks = run_ranks(
        4,
        lambda engine: train(engine, COMPRESSORS[name], "hierarchical-within", first=before[engine.rank]),
        hosts=PLACES["2 hosts"],
    )
    assert not ranks[0][0].residual.any()


def test_within_a_host_payloads_go_to_the_leader() -> None:
    for collective, across in (("hierarchical-within", 4 * NUMEL), ("hierarchical-both", PAYLOAD)):
        ranks = exchange(collective, PLACES["2 hosts"])
        for rank, history in enumerate(ranks):
            seen, leads = history[1], rank in (0, 2)
            up = 0 if leads else PAYLOAD
            down = 4 * NUMEL if leads else 0
            assert up + down <= seen.sent_within <= up + down + HEADER
            assert seen.sent_across == 0 or leads
        sent = sum(history[1].sent_across for history in ranks)
        assert 2 * across <= sent <= 2 * (across + HEADER)


def test_hitopk_sends_a_shard_across() -> None:
    ranks = exchange("hitopk", PLACES["2 hosts"])
    for history in ranks:
        assert history[1].verbs == ["reduce_scatter", "allgather", "allgather"]
        assert PAYLOAD // 2 - 8 <= history[1].sent_across <= PAYLOAD // 2 + 8 + HEADER
    assert sum(history[1].sent_within for history in ranks) == 2 * 2 * 4 * NUMEL


def test_a_server_receives_payloads_and_sends_the_sum() -> None:
    ranks = exchange("parameter-server", PLACES["2 hosts"])
    total = sum(history[1].sent for history in ranks)
    assert 3 * (PAYLOAD + 4 * NUMEL) <= total <= 3 * (PAYLOAD + HEADER + 4 * NUMEL)
    assert all(history[1].verbs == ["gather", "broadcast"] for history in ranks)


@pytest.mark.parametrize("name", [n for n, c in COMPRESSORS.items() if ParameterServer.carries(c) and c.compresses])
def test_a_server_gives_what_an_all_gather_does(name: str) -> None:
    """It never runs a compressor's own last round."""

    def body(engine: InProcessEngine, collective: str) -> list[torch.Tensor]:
        parameters, optimizer = on_engine(engine, Request(COMPRESSORS[name], collective))
        found = []
        for step in range(2):
            backward(parameters, engine.rank, step)
            optimizer.step()
            found.append(flat_gradient(parameters).clone())
            optimizer.zero_grad()
        return found

    (served, *_), (gathered, *_) = (run_ranks(3, lambda e, s=s: body(e, s)) for s in ("parameter-server", "allgather"))
    torch.testing.assert_close(served, gathered, rtol=1e-5, atol=1e-6)


def test_a_server_costs_what_table_i_says() -> None:
    path, costs = Path("parameter-server"), Formulas(1.0, 1e-3, 8)
    seconds = predict(path, collectives.stages(Cast(), path, Layout.of(1000), 8), costs).seconds
    assert seconds == pytest.approx(2 + 2 * 7 * 4000 * 1e-3)


@pytest.mark.parametrize(("sent", "gathered"), [(Cast(), 2000), (TopK(0.1), 800)])
def test_a_server_has_two_collectives(sent: Compressor, gathered: int) -> None:
    found = collectives.stages(sent, Path("parameter-server"), Layout.of(1000, dtype=torch.float16), 4)
    launched = [(stage.verb, stage.algorithm, stage.size) for stage in found]
    assert launched == [("gather", "auto", gathered), ("broadcast", "linear", 2000)]


def test_sums_of_hosts_are_fp32_whatever_the_gradients_are() -> None:
    can = Capabilities(("allreduce", "allgather", "alltoall"), (), (torch.float32,))
    layout = Layout(LAYOUT.names, LAYOUT.shapes, torch.bfloat16)
    assert collectives.build(TopK(RATIO), Path("hierarchical-within")).flat(layout, 2, can).path == Path("dense")


def test_empty_shards() -> None:
    """More ranks on a host than elements."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        gradient = torch.tensor([1.0 + engine.rank])
        state = BucketState(Residual(torch.zeros(1), torch.empty(1)))
        work = Work(gradient, Layout.of(1), 0, 0, 1.0, state, engine.rank, hosts=engine.hosts)
        found = collectives.build(TopK(RATIO), Path("hitopk")).exchange(work, engine.rank, 6)
        found.encode()
        found.communicate(engine)
        assert found.decode()
        assert not work.pending.any()
        across = same_place(engine)
        assert (across.sent_bytes > 0) == (engine.rank in (0, 3)), "ranks without a shard have nothing to say"
        return gradient

    assert run_ranks(6, body, hosts=(0, 0, 0, 1, 1, 1)) == [torch.tensor([21.0])] * 6


def test_groups_across_are_made_once() -> None:
    def body(engine: InProcessEngine) -> list[int]:
        first = same_place(engine)
        messages = engine.sent_messages
        assert same_place(engine) == first
        assert engine.sent_messages == messages
        return list(first.ranks)

    assert run_ranks(4, body, hosts=(0, 1, 0, 1)) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_what_is_asked_for_is_decided() -> None:
    can = InProcessWorld(4, hosts=(0, 0, 1, 1)).engine(0).capabilities
    assert decide(Request(TopK(RATIO), "hitopk"), LAYOUT, 4, can).path == Path("hitopk")


def test_an_engine_that_cannot_is_refused() -> None:
    can = Capabilities(("allreduce", "allgather", "broadcast", "reduce_scatter"), (), (torch.float32,))
    with pytest.raises(UnsupportedError, match="'hitopk' cannot be run: it takes groups of ranks"):
        decide(Request(TopK(RATIO), "hitopk"), LAYOUT, 4, can)
    with pytest.raises(
        UnsupportedError, match=r"'parameter-server' cannot be run over this engine, which has allreduce"
    ):
        decide(Request(TopK(RATIO), "parameter-server"), LAYOUT, 4, can)


def test_unequal_hosts_are_refused_by_all_ranks_alike() -> None:
    def body(engine: InProcessEngine) -> str:
        parameters, optimizer = on_engine(engine, Request(TopK(RATIO), "hitopk"))
        backward(parameters, engine.rank, 0)
        with pytest.raises(UnsupportedError) as found:
            optimizer.synchronize()
        return str(found.value).split("cannot be run: ")[1]

    assert len(set(run_ranks(3, body, hosts=(0, 0, 1)))) == 1


def test_a_plan_is_refused_too() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, planned(TopK(0.05), "hitopk"))
        backward(parameters, engine.rank, 0)
        optimizer.step()

    with pytest.raises(PlanError, match=r"hitopk cannot be run: it takes as many ranks on each host, .* have 2, 1"):
        run_ranks(3, body, hosts=(0, 0, 1))
