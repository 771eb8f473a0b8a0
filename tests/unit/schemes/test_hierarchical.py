"""Schemes that heed hosts, and the parameter server, against plain restatements on whole tensors."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hvd_compress import of, schemes
from hvd_compress.buckets.layout import Layout
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
from hvd_compress.feedback.states import GRADIENT_UNITS, BucketState, Residual
from hvd_compress.policies.auto.arms import leaves_open
from hvd_compress.policies.fixed import decide
from hvd_compress.request.request import Request
from hvd_compress.schemes import Work
from hvd_compress.schemes.groups import leaders, neighbours, same_place, within_host
from hvd_compress.schemes.parameter_server import ParameterServer
from tests.brought import brought
from tests.covering import combinations
from tests.harness import COMPRESSORS as FAMILY
from tests.harness import backward, flat_gradient, on_engine
from tests.unit.schemes.steps import LAYOUT, NUMEL, Step, gradient_of, steps

STEPS, RATIO = 4, 0.1
CPU = torch.device("cpu")
PLACES = {
    "2 hosts": (0, 0, 1, 1),
    "unequal": (0, 0, 0, 1, 1),
    "3 hosts": (0, 0, 1, 1, 2, 2),
    "by turns": (0, 1, 0, 1),
    "1 host": (0, 0, 0),
    "1 rank each": (0, 1, 2),
}
EQUAL = [name for name in PLACES if name != "unequal"]
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
    (name, scheme)
    for name, compressor in COMPRESSORS.items()
    for scheme in schemes.names_for(compressor)
    if schemes.by_name(scheme)
]
RUN = combinations(
    False,
    lambda name, scheme, place: (name, scheme) in CARRIED and (scheme != "hitopk" or place in EQUAL),
    list(COMPRESSORS),
    sorted({scheme for _, scheme in CARRIED}),
    list(PLACES),
)
ONCE = [next((name, scheme) for name, scheme in CARRIED if scheme == each) for each in sorted({s for _, s in CARRIED})]
"""Each scheme with one compressor; with others, in fp32, it is in tests/conformance."""


@dataclass(frozen=True)
class Seen(Step):
    """One step of one rank, and what it sent: over its host, across hosts, over all."""

    verbs: list[str]
    sent_within: int
    sent_across: int
    sent: int


def train(engine: InProcessEngine, compressor: Compressor, scheme: str, **arguments: object) -> list[Seen]:
    """Exchange one bucket for some steps; arguments as `steps`."""
    across = same_place(engine) if scheme == "hitopk" else leaders(engine)
    groups = [within_host(engine), across, engine]

    def sent() -> list[int]:
        return [group.sent_bytes if group is not None else 0 for group in groups]

    engine.take_calls()
    before, history = sent(), []
    for step in steps(engine, compressor, scheme, STEPS, **arguments):
        after, verbs = sent(), [call.verb for call in engine.take_calls()]
        moved = [b - a for a, b in zip(before, after, strict=True)]
        history.append(Seen(step.result, step.residual, step.finite, verbs, *moved))
        before = after
    return history


def exchange(name: str, scheme: str, hosts: tuple[int, ...], **arguments: object) -> list[list[Seen]]:
    return run_ranks(len(hosts), lambda engine: train(engine, COMPRESSORS[name], scheme, **arguments), hosts=hosts)


@pytest.mark.parametrize(("name", "scheme", "place"), RUN)
def test_all_ranks_hold_the_same_bits_and_nothing_is_lost(name: str, scheme: str, place: str) -> None:
    """What was applied and what is remembered make up all gradients, whoever remembers it."""
    hosts, compressor = PLACES[place], COMPRESSORS[name]
    ranks = exchange(name, scheme, hosts)
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


def largest(x: torch.Tensor) -> torch.Tensor:
    """Mask of the k largest magnitudes."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[torch.argsort(x.abs(), descending=True, stable=True)[: max(1, round(RATIO * x.numel()))]] = True
    return mask


def lose(corrected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is transmitted, and what is remembered."""
    sent = torch.where(largest(corrected), corrected, 0.0)
    return sent, corrected - sent


def restated(scheme: str, hosts: tuple[int, ...]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """The result of each step, and the residual of each rank after it, with top-k and one or two hosts."""
    size, groups = len(hosts), [[r for r, h in enumerate(hosts) if h == host] for host in sorted(set(hosts))]
    kept, history = [torch.zeros(NUMEL) for _ in hosts], []
    for step in range(STEPS):
        own, total = [gradient_of(rank, step) for rank in range(size)], torch.zeros(NUMEL)
        if scheme == "parameter-server":
            for rank in range(size):
                sent, kept[rank] = lose(own[rank] + kept[rank])
                total += sent
        elif scheme == "hitopk":
            for group in groups:
                summed, begin = sum(own[rank] for rank in group), 0
                for rank, part in zip(group, torch.tensor_split(summed, len(group)), strict=True):
                    place = slice(begin, begin + part.numel())
                    sent, kept[rank][place] = lose(part + kept[rank][place])
                    total[place] += sent
                    begin = place.stop
        else:
            for leader, *others in groups:
                summed = own[leader]
                for rank in others:
                    if scheme == "hierarchical":
                        summed = summed + own[rank]
                    else:
                        sent, kept[rank] = lose(own[rank] + kept[rank])
                        summed = summed + sent
                if scheme != "hierarchical-within":
                    summed, kept[leader] = lose(summed + kept[leader])
                total += summed
        history.append((total / size, [one.clone() for one in kept]))
    return history


@pytest.mark.parametrize("place", ["2 hosts", "unequal", "by turns", "1 host"])
@pytest.mark.parametrize(
    "scheme", ["hierarchical", "hierarchical-within", "hierarchical-both", "hitopk", "parameter-server"]
)
def test_a_scheme_follows_its_algorithm(scheme: str, place: str) -> None:
    if (scheme, place) == ("hitopk", "unequal"):
        with pytest.raises(UnsupportedError, match="as many ranks on each host, and the hosts of this job have 3, 2"):
            decide(
                Request(TopK(RATIO), scheme), LAYOUT, 5, InProcessWorld(5, hosts=PLACES[place]).engine(0).capabilities
            )
        return
    ranks = exchange("topk", scheme, PLACES[place])
    for step, (result, kept) in enumerate(restated(scheme, PLACES[place])):
        for rank, history in enumerate(ranks):
            torch.testing.assert_close(history[step].result, result, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(history[step].residual, kept[rank], rtol=1e-5, atol=1e-6)


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
    ("name", "scheme"),
    [(n, s) for n, s in CARRIED if n in ("topk", "efsign", "int8", "powersgd") or not COMPRESSORS[n].error_feedback],
)
def test_a_residual_of_an_earlier_decision_is_sent_by_whoever_holds_it(name: str, scheme: str) -> None:
    hosts = PLACES["2 hosts"]
    before = [gradient_of(rank, 50) for rank in range(4)]
    ranks = run_ranks(
        4, lambda engine: train(engine, COMPRESSORS[name], scheme, first=before[engine.rank]), hosts=hosts
    )
    for step in range(STEPS):
        assert all(torch.equal(history[step].result, ranks[0][step].result) for history in ranks)
    first = [history[0] for history in ranks]
    if scheme == "hierarchical":
        assert not first[1].residual.any()
        assert not first[3].residual.any()
    if scheme == "hierarchical-within" or not COMPRESSORS[name].error_feedback:
        assert not first[0].residual.any()
    if not COMPRESSORS[name].error_feedback and name != "dense":
        assert not any(seen.residual.any() for seen in first), "what is sent whole leaves nothing"
        return
    gradients = sum(gradient_of(rank, 0) + before[rank] for rank in range(4))
    remembered = sum(seen.residual for seen in first)
    torch.testing.assert_close(4 * first[0].result + remembered, gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", [scheme for name, scheme in CARRIED if name == "topk"])
def test_a_coefficient_shrinks_a_residual_once(scheme: str) -> None:
    """Whatever the shard or the leader that it comes back with."""
    hosts, before = PLACES["2 hosts"], [gradient_of(rank, 50) for rank in range(4)]
    ranks = run_ranks(
        4,
        lambda engine: train(engine, TopK(1.0), scheme, first=before[engine.rank], coefficient=0.5),
        hosts=hosts,
    )
    expected = sum(gradient_of(rank, 0) + 0.5 * before[rank] for rank in range(4)) / 4
    torch.testing.assert_close(ranks[0][0].result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "scheme"), ONCE)
def test_a_nan_of_any_rank_reaches_all(name: str, scheme: str) -> None:
    for rank in range(4):
        for element in (0, NUMEL // 2, NUMEL - 1):
            ranks = exchange(name, scheme, PLACES["2 hosts"], spoil=(rank, element))
            for history in ranks:
                assert not history[0].finite, (rank, element)
                assert not history[0].result.isfinite().all()
                assert not history[-1].residual.any(), "a residual changed"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "scheme"), ONCE)
def test_gradients_of_16_bits(name: str, scheme: str, dtype: torch.dtype) -> None:
    exact = exchange(name, scheme, PLACES["2 hosts"])
    ranks = exchange(name, scheme, PLACES["2 hosts"], dtype=dtype)
    for history in ranks:
        assert history[0].result.dtype == dtype
        assert torch.equal(history[-1].result, ranks[0][-1].result)
    near = (ranks[0][0].result.float() - exact[0][0].result).norm() / exact[0][0].result.norm()
    assert near < 0.5, "rounding may change what is selected, and little else"


PAYLOAD = 8 * round(RATIO * NUMEL)
HEADER = 96
"""Of a packed payload, at most."""


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


def test_within_a_host_payloads_go_to_the_leader() -> None:
    for scheme, across in (("hierarchical-within", 4 * NUMEL), ("hierarchical-both", PAYLOAD)):
        ranks = exchange("topk", scheme, PLACES["2 hosts"])
        for rank, history in enumerate(ranks):
            seen, leads = history[1], rank in (0, 2)
            up = 0 if leads else PAYLOAD
            down = 4 * NUMEL if leads else 0
            assert up + down <= seen.sent_within <= up + down + HEADER
            assert seen.sent_across == 0 or leads
        sent = sum(history[1].sent_across for history in ranks)
        assert 2 * across <= sent <= 2 * (across + HEADER)


def test_hitopk_sends_a_shard_across() -> None:
    ranks = exchange("topk", "hitopk", PLACES["2 hosts"])
    for history in ranks:
        assert history[1].verbs == ["reduce_scatter", "allgather", "allgather"]
        assert PAYLOAD // 2 - 8 <= history[1].sent_across <= PAYLOAD // 2 + 8 + HEADER
    assert sum(history[1].sent_within for history in ranks) == 2 * 2 * 4 * NUMEL


def test_a_server_receives_payloads_and_sends_the_sum() -> None:
    ranks = exchange("topk", "parameter-server", PLACES["2 hosts"])
    total = sum(history[1].sent for history in ranks)
    assert 3 * (PAYLOAD + 4 * NUMEL) <= total <= 3 * (PAYLOAD + HEADER + 4 * NUMEL)
    assert all(history[1].verbs == ["gather", "broadcast"] for history in ranks)


@pytest.mark.parametrize("name", [n for n, c in FAMILY.items() if ParameterServer.carries(c) and c.compresses])
def test_a_server_gives_what_an_all_gather_does(name: str) -> None:
    """It never runs a compressor's own last round."""

    def body(engine: InProcessEngine, scheme: str) -> list[torch.Tensor]:
        parameters, optimizer = on_engine(engine, Request(FAMILY[name], scheme))
        found = []
        for step in range(2):
            backward(parameters, engine.rank, step)
            optimizer.step()
            found.append(flat_gradient(parameters).clone())
            optimizer.zero_grad()
        return found

    (served, *_), (gathered, *_) = (run_ranks(3, lambda e, s=s: body(e, s)) for s in ("parameter-server", "allgather"))
    torch.testing.assert_close(served, gathered, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "scheme"), [pair for pair in CARRIED if pair != ("bf16", "hierarchical")])
def test_what_runs_is_what_is_priced(name: str, scheme: str) -> None:
    """The in-process engine sums bf16: an allreduce in the place of two collectives of as many bytes."""
    hosts = PLACES["3 hosts"]
    expected = schemes.stages(COMPRESSORS[name], Path(scheme), LAYOUT, 6, hosts)
    assert [stage.verb for stage in expected] == exchange(name, scheme, hosts)[0][1].verbs
    assert all(stage.ranks in ((None,) if scheme == "parameter-server" else (2, 3)) for stage in expected)
    apart = schemes.stages(COMPRESSORS[name], Path(scheme), LAYOUT, 6)
    assert all(stage.ranks in (6, None) for stage in apart)
    assert predict(Path(scheme), apart, Formulas(1e-3, 1e-9, 6)).seconds > 0
    if scheme != "parameter-server":
        with pytest.raises(ConfigError, match=r"a collective of 2 ranks, and costs are known of 6"):
            predict(Path(scheme), expected, Formulas(1e-3, 1e-9, 6))


def test_sums_of_hosts_are_fp32_whatever_the_gradients_are() -> None:
    """An engine that cannot sum bfloat16 sums them as it is."""
    can = Capabilities(("allreduce", "allgather", "alltoall"), (), (torch.float32,))
    layout = Layout(LAYOUT.names, LAYOUT.shapes, torch.bfloat16)
    for compressor, scheme in ((TopK(RATIO), "hierarchical-within"), (Cast(), "hierarchical")):
        assert schemes.build(compressor, Path(scheme)).flat(layout, 2, can).path == Path("dense")


def test_empty_shards() -> None:
    """More ranks on a host than elements."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        gradient = torch.tensor([1.0 + engine.rank])
        state = BucketState(Residual(torch.zeros(1), torch.empty(1)))
        work = Work(gradient, Layout.of(1), 0, 0, 1.0, state, engine.rank, hosts=engine.hosts)
        found = schemes.build(TopK(RATIO), Path("hitopk")).exchange(work, engine.rank, 6)
        found.encode()
        found.communicate(engine)
        assert found.decode()
        assert not work.pending.any()
        across = same_place(engine)
        assert (across.sent_bytes > 0) == (engine.rank in (0, 3)), "ranks without a shard have nothing to say"
        return gradient

    assert run_ranks(6, body, hosts=(0, 0, 0, 1, 1, 1)) == [torch.tensor([21.0])] * 6


def test_groups_are_made_once() -> None:
    def body(engine: InProcessEngine) -> bool:
        first = within_host(engine), leaders(engine), same_place(engine)
        messages = engine.sent_messages
        assert (within_host(engine), leaders(engine), same_place(engine)) == first
        assert engine.sent_messages == messages
        assert list(first[0].ranks) == neighbours(engine.hosts, engine.rank) == [engine.rank % 2, engine.rank % 2 + 2]
        assert list(first[2].ranks) == [engine.rank // 2 * 2, engine.rank // 2 * 2 + 1]
        return first[1] is not None

    assert run_ranks(4, body, hosts=(0, 1, 0, 1)) == [True, True, False, False]


def test_nothing_chooses_them() -> None:
    can = InProcessWorld(4, hosts=(0, 0, 1, 1)).engine(0).capabilities
    for compressor in COMPRESSORS.values():
        chosen = {path.scheme for path in schemes.variants(compressor, LAYOUT, can)}
        runnable = {path.scheme for path in schemes.runnable(compressor, LAYOUT, can)}
        assert not any(schemes.by_name(name) for name in chosen)
        assert runnable - chosen == {n for n in schemes.names_for(compressor) if schemes.by_name(n)}
    assert not leaves_open(Request(TopK(RATIO), "hierarchical"))
    assert decide(Request(TopK(RATIO), "hitopk"), LAYOUT, 4, can).path == Path("hitopk")


@pytest.mark.parametrize(
    ("compressor", "scheme"),
    [
        (PowerSGD(2), "hierarchical-within"),
        (CompressedMomentum(), "parameter-server"),  # what the server adds is a momentum
        (EFSign(), "hitopk"),
        (Cast(), "hierarchical-within"),
        *brought("NOT_BY_HOSTS"),
    ],
)
def test_what_a_scheme_cannot_carry_is_refused(compressor: Compressor, scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown collective '{scheme}'; known here are auto, "):
        Request(compressor, scheme)


def test_an_engine_without_groups_is_refused() -> None:
    can = Capabilities(("allreduce", "allgather", "broadcast", "reduce_scatter"), (), (torch.float32,))
    for scheme in ("hierarchical", "hitopk"):
        with pytest.raises(UnsupportedError, match=f"'{scheme}' cannot be run: it takes groups of ranks"):
            decide(Request(TopK(RATIO), scheme), LAYOUT, 4, can)
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


def test_an_optimizer_learns_the_hosts_from_its_engine() -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, list[str]]:
        parameters, optimizer = on_engine(engine, Request(TopK(1.0), "hierarchical"))
        for step in range(2):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
        (scheme,) = {decision.scheme for decision in of(optimizer).decisions.values()}
        assert scheme == "hierarchical"
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
