"""Compression.auto() in whole steps: what is chosen is the same on all ranks, and what was not sent is not lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast, PowerSGD
from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.policies.auto.arms import Family, make_arms
from hvd_compress.policies.auto.chooser import Chooser
from hvd_compress.policies.auto.policy import Auto, AutoPolicy
from hvd_compress.policies.auto.quality import candidates
from hvd_compress.request.request import Request
from hvd_compress.services.agreement import StepTimes
from hvd_compress.services.detector import Alarm
from hvd_compress.session.bucket import SessionBucket
from hvd_compress.settings import Settings
from tests.clock import slowed
from tests.harness import (
    alone,
    backward,
    flat_gradient,
    flat_residual,
    gradient,
    make_optimizer,
    make_parameters,
    remembered,
)
from tests.unit.policies.auto.simulated import CAN, Priced

pytestmark = pytest.mark.usefixtures("clock")

RANKS = 3
SHAPES = {"large": (64, 64), "small": (5,), "larger": (96, 64)}
STEPS = 40

Parameters = dict[str, torch.nn.Parameter]


def start(engine: InProcessEngine, quality: str = "near", adapt: bool = True) -> tuple[Parameters, ReducingOptimizer]:
    parameters = make_parameters(SHAPES)
    settings = Settings(600, 60, adapt=adapt, calibration_s=0.2, check_every=5)
    request = Compression.auto(quality)  # type: ignore[arg-type]
    made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
    return parameters, made


def train(engine: InProcessEngine, parameters: Parameters, optimizer: ReducingOptimizer, steps: range) -> list[str]:
    """Return by what the largest bucket travelled in each step."""
    sent = []
    for step in steps:
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        sent.append(str(next((d.compressor for n, d in of(optimizer).decisions.items() if "larger" in n), "")))
        optimizer.step()
    return sent


def test_a_slow_network_gets_fewer_bytes() -> None:
    def body(engine: InProcessEngine) -> tuple[list[str], str, torch.Tensor]:
        slowed(engine, lambda: 5e-6)
        parameters, optimizer = start(engine)
        sent = train(engine, parameters, optimizer, range(STEPS))
        assert of(optimizer).controller.settled
        reason = next(d.reason for n, d in of(optimizer).decisions.items() if "larger" in n)
        return sent, reason, torch.cat([p.detach().reshape(-1) for p in parameters.values()])

    first, *others = run_ranks(RANKS, body)
    sent, reason, values = first
    for other in others:
        assert other[:2] == (sent, reason)
        assert torch.equal(other[2], values)
    assert "bits=3" in sent[-1]
    assert "int3 coded by " in reason
    assert "a step not hidden; " in reason
    assert "dense " in reason
    assert len(set(sent[22:])) == 1, "a search takes at most 20 steps"


def test_nothing_is_compressed_where_nothing_is_waited_for() -> None:
    """And what was not sent by those that were tried has been."""

    def body(engine: InProcessEngine) -> tuple[str, bool]:
        parameters, optimizer = start(engine)
        session = optimizer._reducer.session
        sent = train(engine, parameters, optimizer, range(STEPS))
        kept = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
        exchanges = [bucket.state.residual for bucket in session.buckets.every]
        return sent[-1], not kept and exchanges == [None] * len(exchanges)

    first, *others = run_ranks(2, body)
    assert set(others) == {first}


def test_a_network_that_changes_is_noticed() -> None:
    def body(engine: InProcessEngine) -> tuple[list[str], list[str]]:
        price = [2e-8]
        slowed(engine, lambda: price[0])
        parameters, optimizer = start(engine)
        sent = train(engine, parameters, optimizer, range(60))
        price[0] = 5e-6  # so slow that no busy machine makes 4 bits and 8 alike
        sent += train(engine, parameters, optimizer, range(60, 160))
        return sent, [event.kind for event in of(optimizer).controller.history]

    first, *others = run_ranks(2, body)
    assert others == [first]
    sent, kinds = first
    assert "bits=3" in sent[-1]
    assert "network" in kinds


def test_without_measurements_the_fewest_bytes_travel_and_one_rank_sends_none() -> None:
    def body(engine: InProcessEngine) -> list[str]:
        parameters, optimizer = start(engine, adapt=False)
        return train(engine, parameters, optimizer, range(4))

    for sent in run_ranks(RANKS, body):
        assert "bits=4" in sent[-1]
        assert len(set(sent[1:])) == 1
    parameters = make_parameters(SHAPES)
    optimizer = make_optimizer(parameters, Compression.auto(), alone, 0, 1, settings=Settings(600, 60, adapt=True))
    backward(parameters, 0, 0)
    optimizer.step()
    assert {d.reason for d in of(optimizer).decisions.values()} == {"one rank exchanges nothing"}


def test_where_only_dense_will_do_algorithms_are_compared() -> None:
    def body(engine: InProcessEngine) -> set[str]:
        parameters, optimizer = start(engine, "dense")
        assert set(train(engine, parameters, optimizer, range(STEPS))[1:]) == {"Cast(dtype=None)"}
        assert of(optimizer).controller.settled
        assert all("ms a step not hidden" in d.reason for d in of(optimizer).decisions.values())
        return {str(d.path) for d in of(optimizer).decisions.values()}

    first, second = run_ranks(2, body)
    assert first == second


REQUESTS = {
    "topk": Compression.topk(0.02),
    "topk by ring": Compression.topk(0.02).by(algorithm="ring"),
    "star": Compression.topk(0.02).by(collective="star"),
    "int4": Compression.int4(),
    "allgather of int4": Compression.int4().by(collective="allgather"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_of_a_request_the_path_is_chosen_and_what_it_names_stays(name: str) -> None:
    """And nothing is lost: what was given is what came, and what is left."""
    request = REQUESTS[name]

    def body(engine: InProcessEngine):
        parameters = make_parameters(SHAPES)
        settings = Settings(600, 60, adapt=True, calibration_s=0.1)
        made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
        used: list[list[tuple[str, str]]] = []
        came = given = torch.zeros(0)
        for step in range(STEPS):
            made.zero_grad()
            backward(parameters, engine.rank, step)
            gave = torch.cat(
                [gradient(n, tuple(p.shape), engine.rank, step).reshape(-1) for n, p in parameters.items()]
            )
            made.synchronize()
            got = flat_gradient(parameters)
            came, given = (came + got, given + gave) if step else (got, gave)
            used.append([(str(d.compressor), str(d.path)) for d in of(made).decisions.values()])
            with made.skip_synchronize():
                made.step()
        assert of(made).controller is None or of(made).controller.settled
        return used, came, given, flat_residual(made, parameters)

    ranks = run_ranks(RANKS, body)
    assert all(rank[0] == ranks[0][0] for rank in ranks)
    used = {each for step in ranks[0][0] for each in step}
    named = {str(request.compressor)}
    if request.compressor.has_ratio and request.collective == "auto":
        named.add("Cast(dtype=None)")
    assert {compressor for compressor, _ in used} <= named
    if request.collective != "auto":
        assert all(path.startswith(request.collective) for _, path in used)
    assert not any(path.startswith("var") for _, path in used)
    if request.algorithm != "auto":
        assert all("ring" in path for _, path in used if path.startswith(("star", "dense")))
    if request.compressor.has_ratio:
        given, left = (sum(rank[at] for rank in ranks) / RANKS for at in (2, 3))
        torch.testing.assert_close(ranks[0][1] + left, given, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("quality", [0.6, "knee", None, "Near"])
def test_a_quality_is_one_of_a_few(quality: object) -> None:
    with pytest.raises(ConfigError, match=r"unknown quality .* known are dense, near, any"):
        Compression.auto(quality)  # type: ignore[arg-type]


def test_what_any_quality_means() -> None:
    names = {kind: [each.name for each in candidates("any", kind)] for kind in ("sgd", "adam", None)}
    assert names["sgd"] == ["dense", "bf16", "int8", "int4", "int3", "natural", "int2", "powersgd", "topk"]
    assert names["adam"] == names[None] == ["dense", "bf16", "int8", "int4", "int3", "natural"]
    assert [each.name for each in candidates("near", "sgd")] == ["dense", "bf16", "int8", "int4", "int3"]
    own = candidates("any", "adam", {"topk": 1.2})
    assert [(each.name, each.factor) for each in own] == [("dense", 1.0), ("topk", 1.2)]
    (_, coded) = candidates("any", "adam", {"int3": 1.1})
    assert coded == replace(candidates("near")[4], factor=1.1)


def test_a_reason_counts_the_steps_that_something_else_needs_more() -> None:
    """int3 waits for less, but for nothing certain beyond its 1.04 times the steps."""
    policy = AutoPolicy(Request(Cast()), Family(Request(Cast()), candidates("near")))
    policy.world_size = 4
    prices = Priced(Formulas(20e-3, 8 / 2e7, 4))
    arms = make_arms(policy._choices, policy._request, [Layout.of(2_000_000)], 4, CAN, prices)  # type: ignore[arg-type]
    policy._arms = [arms[0], *(arm for arm in arms if arm.name in ("int4 coded", "int3 coded"))]
    policy._chooser = chooser = Chooser([1.0, 1.0, 1.04], [0.9, 0.09, 0.065], Alarm())
    while not chooser.settled:
        policy._arm = chooser.next()
        waited_s = (0.9, 0.09, 0.08)[policy._arm]
        chooser.record([(policy._arm, StepTimes(0.4 + waited_s, 0.3 + waited_s, waited_s, 0.1))])
    policy._arm = chooser.next()
    words = "is saved by int3 coded, the steps that it needs more included"
    assert policy._arms[policy._arm].name == "int4 coded"
    assert words in policy._reason(chooser)


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"topkk": 1.0}, "unknown compression 'topkk'.*did you mean topk"),
        ({"int4": 0}, "factors: int4 = 0 is not a number above 0: how many times the steps"),
        ({"int4": float("nan")}, "factors: int4 = nan is not"),
        ({"int4": True}, "factors: int4 = True is not"),
        ([1.0], "must say by name"),
    ],
)
def test_factors_are_numbers_by_name(factors: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compression.auto("any", factors=factors)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='belongs to quality="any"'):
        Compression.auto(factors={"int4": 1.0})


def test_more_steps_must_be_worth_it() -> None:
    """On a slow network top-k of 1 % makes steps shortest; whether it is taken is a matter of the steps it needs."""

    def body(engine: InProcessEngine, factor: float) -> tuple[set[str], set[str]]:
        slowed(engine, lambda: 2e-6)
        parameters = make_parameters(SHAPES)
        request = Compression.auto("any", factors={"int4": 1.0, "topk": factor})
        settings = Settings(600, 60, adapt=True, calibration_s=0.2)
        made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
        train(engine, parameters, made, range(STEPS))
        decided = [d for names, d in of(made).decisions.items() if "larger" in names]
        return {d.compressor.kind for d in decided}, {
            part for d in decided for part in d.reason.split("; ") if part.endswith("(table)")
        }

    assert (
        run_ranks(2, lambda engine: body(engine, 1.2))
        == [({"sparsifier"}, {"1.2 times the steps of dense to its loss (table)"})] * 2
    )
    assert run_ranks(2, lambda engine: body(engine, 20.0)) == [({"quantiser"}, {"as dense in loss (table)"})] * 2


def test_states_that_are_alike_are_shared_when_their_arm_first_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may come with others of a checkpoint. Top-k is tried before PowerSGD, whose factors these are."""
    share, shared = SessionBucket.share, []

    def seen(self: SessionBucket, broadcast: Callable[[torch.Tensor], None]) -> None:
        share(self, broadcast)
        shared.append({key: tensor.clone() for key, tensor in self.state.current.items()})

    monkeypatch.setattr(SessionBucket, "share", seen)

    def body(engine: InProcessEngine) -> tuple[list[str], int]:
        slowed(engine, lambda: 1e-6)
        settings = Settings(1 << 20, 60, adapt=True, calibration_s=0.2, check_every=5)
        request = Compression.auto("any", factors={"topk": 3.5, "powersgd": 1.0})
        parameters = make_parameters(SHAPES)
        made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
        sent = train(engine, parameters, made, range(1))
        before = len(shared)
        sent += train(engine, parameters, made, range(1, 30))
        return [each.split("(")[0] for each in sent], before

    (used, before), other = run_ranks(2, body)
    assert other == (used, before)
    assert before == 0
    assert used.index("TopK") < used.index("PowerSGD")
    first, second = shared
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first if key[0] in PowerSGD.alike)


def test_a_reason_says_why_what_waits_for_less_was_not_taken() -> None:
    """By the figures that were compared: 1 % of a step is not worth a loss of accuracy."""
    policy = AutoPolicy(Request(Cast()), Family(Request(Cast()), candidates("near")))
    policy.world_size = 4
    layout = Layout.of(1000)
    policy._arms = make_arms(policy._choices, policy._request, [layout], 4, CAN, None)[:2]
    policy._chooser = chooser = Chooser([1.0, 1.0], [0.0, 0.0], Alarm())
    while not chooser.settled:
        policy._arm = chooser.next()
        waited_s = (0.1, 0.095)[policy._arm]
        chooser.record([(policy._arm, StepTimes(0.4 + waited_s, 0.3 + waited_s, waited_s, 0.1))])
    policy._arm = chooser.next()
    other = policy._arms[1].name
    assert policy._reason(chooser) == (
        f"dense, 100 ms a step not hidden; {other} 95 ms; less than 3% of a step, or nothing for certain, is saved by "
        f"{other}"
    )


@pytest.mark.parametrize(
    ("predicted_s", "waited_s", "words"),
    [
        (0.4, 0.4, "local steps with every=8 (docs/local.md) would take an estimated 0.93 of the time of int4 in each"),
        (0.4, 0.6, "local steps with every=8 (docs/local.md) would take an estimated 0.74 of the time of int4 in each"),
        (0.4, 0.3, "local steps (docs/local.md) are not estimated to be faster"),  # most of it is hidden
        (0.05, 0.05, "local steps (docs/local.md) are not estimated to be faster"),
    ],
)
def test_any_quality_weighs_local_steps(predicted_s: float, waited_s: float, words: str) -> None:
    def reason(asked: Auto) -> str:
        policy = asked.make(Request(Cast()), Settings(adapt=True))
        policy.world_size = 4
        arms = make_arms(policy._choices, policy._request, [Layout.of(1000)], 4, CAN, None)
        arms = [arm for arm in arms if arm.name.split()[0] != "natural"]
        policy._arms = [replace(arm, predicted=predicted_s if arm.name.startswith("int4") else 2.0) for arm in arms]
        policy._chooser = chooser = Chooser(*policy._weights(), Alarm())
        while not chooser.settled:
            policy._arm = chooser.next()
            took_s = waited_s if policy._arms[policy._arm].name.startswith("int4") else 2.0
            chooser.record([(policy._arm, StepTimes(0.4 + took_s, 0.3 + took_s, took_s, 0.1))])
        policy._arm = chooser.next()
        return policy._reason(chooser)

    asked = Auto("any", kind="adam")
    assert words in reason(asked)
    for other in (Auto("near", kind="adam"), replace(asked, weighs_local_steps=False)):
        assert "local steps" not in reason(other)


@pytest.mark.parametrize(("waited_s", "other_s"), [(0.001, 0.12), (0.1, 9.0)])
def test_a_reason_says_why_nothing_else_was_tried(waited_s: float, other_s: float) -> None:
    """Exchanges are hidden, or calls of others alone would take longer."""
    policy = AutoPolicy(Request(Cast()), Family(Request(Cast()), candidates("near")))
    policy.world_size = 4
    layout = Layout.of(1000)
    policy._arms = make_arms(policy._choices, policy._request, [layout], 4, CAN, None)[:2]
    policy._arms = [
        replace(arm, predicted=predicted) for arm, predicted in zip(policy._arms, (0.1, other_s), strict=True)
    ]
    policy._chooser = chooser = Chooser([1.0, 1.0], [0.1, other_s], Alarm())
    while not chooser.settled:
        assert chooser.next() == 0
        chooser.record([(0, StepTimes(0.4 + waited_s, 0.3 + waited_s, waited_s, 0.1))])
    told = f"dense, {1e3 * waited_s:.3g} ms a step not hidden; "
    told += f"{policy._arms[1].name} {1e3 * other_s:.3g} ms by measured curves"
    if waited_s < 0.01:
        told += "; less than 3% of a step: nothing that sends less could save more"
    assert policy._reason(chooser) == told
