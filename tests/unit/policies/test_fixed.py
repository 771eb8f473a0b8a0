"""Paths that a fixed request leaves open: by arithmetic, or by what a short measurement says of the network."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path as FilePath

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.compressors import BlockQuantizer, Cast, EFSign, OneBit, PowerSGD, TopK
from hvd_compress.cost.calibrate import SIZES
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import predict
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.policies import FixedPolicy, PlanFile, Warmup, decide, policy_for
from hvd_compress.policies.artopk import ARTopkPolicy
from hvd_compress.policies.auto.policy import TRIED, AutoPolicy
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import MARGIN
from hvd_compress.policies.plan_schema import Plan, Treatment
from hvd_compress.policies.plan_settings import settings_of
from hvd_compress.policies.prices import Prices
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.recorded import Recorded
from tests.unit.cost.played import follow

INT4 = Request(BlockQuantizer(4))
OWNERS, GATHERED = Path("alltoall-allgather"), Path("allgather")
MEGABYTE = Layout.of(1 << 18)
RANKS = 4


def priced(alpha: float, bits_per_s: float, ranks: int = RANKS) -> Prices:
    """What a measurement finds on a network of which formulas hold."""
    costs = Formulas(alpha, 8 / bits_per_s, ranks)
    keys = (("alltoall", "auto"), ("allgather", "auto"))
    sizes = tuple(sorted(SIZES))
    curves = {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes)) for key in keys}
    return Prices(Curves(ranks, curves), "this job")


def can(ranks: int = RANKS) -> Capabilities:
    return InProcessWorld(ranks).engine(0).capabilities


def test_the_same_bucket_travels_otherwise_on_another_network() -> None:
    """A megabyte of int4 at 100 Mbit/s, the one that issue 32 is about."""
    near, far = (decide(INT4, MEGABYTE, RANKS, can(), priced(alpha, 1e8)) for alpha in (1e-3, 2e-2))
    assert (near.path, far.path) == (OWNERS, GATHERED)
    assert near.reason == "21.71 ms by curves of this job, next allgather with 35.42"


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_with_prices_no_bucket_takes_much_longer_than_by_the_fastest_path(bits: int, ranks: int) -> None:
    networks = itertools.product((1e-4, 1e-3, 5e-3, 2e-2), (2e7, 1e8, 1e9))
    for (alpha, bits_per_s), exponent in itertools.product(networks, range(10, 25)):
        compressor, layout = BlockQuantizer(bits), Layout.of(1 << exponent)
        costs = Formulas(alpha, 8 / bits_per_s, ranks)
        taken = {
            p: predict(p, collectives.stages(compressor, p, layout, ranks), costs).seconds for p in (OWNERS, GATHERED)
        }
        chosen = decide(Request(compressor), layout, ranks, can(ranks), priced(alpha, bits_per_s, ranks)).path
        assert taken[chosen] <= min(taken.values()) / (1 - MARGIN) + 1e-9, (layout.numel, alpha, bits_per_s)


@pytest.mark.parametrize(
    ("saved", "path", "reason"),
    [
        (0.9 * MARGIN, OWNERS, "2000.00 ms by curves of this job, within 10% of allgather with 1820.00"),
        (1.1 * MARGIN, GATHERED, "1780.00 ms by curves of this job, next alltoall-allgather with 2000.00"),
    ],
)
def test_what_is_saved_must_be_more_than_noise(saved: float, path: Path, reason: str) -> None:
    """Arithmetic sends a megabyte to the owners of its shards; there it stays where an all-gather saves less."""
    assert decide(INT4, MEGABYTE, RANKS, can()).path == OWNERS
    payload = MEGABYTE.numel * 4.25 / 8
    gathered_s = (1 - saved) * (1.0 + 1.0)
    curves = {
        ("alltoall", "auto"): Curve((1024, 1 << 20), (1.0, 1.0)),
        ("allgather", "auto"): Curve((int(payload / RANKS), int(payload)), (1.0, gathered_s)),
    }
    decision = decide(INT4, MEGABYTE, RANKS, can(), Prices(Curves(RANKS, curves), "this job"))
    assert (decision.path, decision.reason) == (path, reason)


def test_without_prices_of_a_path_it_goes_by_arithmetic() -> None:
    curves = {key: curve for key, curve in priced(1e-3, 1e8).curves.by_key.items() if key[0] == "allgather"}
    decision = decide(INT4, MEGABYTE, RANKS, can(), Prices(Curves(RANKS, curves), "this job"))
    assert decision.reason == "fewest bytes with 4 ranks, a message counting as 16 KiB"


def launched_by(request: Request, settings: Settings, ranks: int, layouts: list[Layout]) -> list[tuple[set[str], list]]:
    """By rank, what preparing launches beside its own exchanges of numbers, and the decisions on a far network."""

    def body(engine: InProcessEngine):
        costs = Formulas(2e-2, 8e-8, ranks)
        launched = follow(engine, costs)
        engine.locate()
        policy = policy_for(request, settings, ranks)
        policy.prepare(engine, layouts)
        measured = {verb for verb, _, size in launched if size >= 64 * 1024}
        return measured, policy.setup(0, layouts, lambda call, label, measuring_s=0.0: lambda: call(engine))

    return run_ranks(ranks, body)


ADAPTS = Settings(600, 60, adapt=True, calibration_s=0.0)


@pytest.mark.parametrize(
    ("make", "verbs"),
    [
        (lambda: INT4, {"alltoall", "allgather"}),
        (lambda: Request(OneBit(64)), {"alltoall", "allgather"}),
        (lambda: Request(PowerSGD(2)), {"allreduce", "allgather"}),
        (lambda: Request(OneBit(64), policy=Warmup(Cast(), 3)), {"alltoall", "allgather"}),
        (lambda: planned("auto"), {"alltoall", "allgather"}),
        (lambda: planned("alltoall-allgather"), set()),
        (lambda: Request(BlockQuantizer(4), "allgather"), set()),
        (lambda: Request(EFSign()), set()),
        (lambda: Request(Cast()), set()),
        *((lambda request=request: request, set()) for _, request in brought("FIXED")),
        (lambda: Request(TopK(0.1)), {"allreduce", "allgather", "broadcast"}),
        (lambda: Request(TopK(0.1), "allgather"), {"allgather"}),
        (lambda: Request(TopK(0.1), "allgather", "bruck"), set()),
    ],
)
def test_what_is_open_is_measured_and_nothing_else(
    make: Callable[[], Request], verbs: set[str], tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    found = launched_by(make(), ADAPTS, RANKS, [Layout.of((512, 512))])
    assert [measured for measured, _ in found] == [verbs] * RANKS
    assert all(decisions == found[0][1] for _, decisions in found)
    (decision,) = found[0][1]
    assert (decision.reason == TRIED) == (bool(verbs) and make().policy is None), "real steps choose, and not curves"
    assert ("by curves of this job" in decision.reason) == (bool(verbs) and isinstance(make().policy, PlanFile))


def planned(collective: str) -> Request:
    plan = Plan(version=1, default=Treatment(compressor=settings_of(BlockQuantizer(4)), collective=collective))
    return Request(Cast(), policy=PlanFile("digest", plan))


def test_what_a_plan_leaves_open_goes_by_curves_on_a_far_network(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    for _, (decision,) in launched_by(planned("auto"), ADAPTS, RANKS, [MEGABYTE]):
        assert decision.path == GATHERED
        assert decision.reason.startswith("planned: ")
        assert "by curves of " in decision.reason


@pytest.mark.parametrize(
    ("settings", "ranks", "layout"),
    [
        (Settings(600, 60), RANKS, MEGABYTE),  # HVD_COMPRESS_ADAPT=0: two runs send the same
        (Settings(600, 60, adapt=True, recordings=(Recorded(),)), RANKS, MEGABYTE),
        (ADAPTS, 2, MEGABYTE),  # the all-gather sends as many bytes in fewer messages, on every network
        (ADAPTS, 1, MEGABYTE),
        (ADAPTS, RANKS, Layout.of(100, dtype=torch.float64)),
    ],
)
def test_nothing_is_measured_where_it_would_decide_nothing(settings: Settings, ranks: int, layout: Layout) -> None:
    for measured, (decision,) in launched_by(INT4, settings, ranks, [layout]):
        assert measured == set()
        assert "curves" not in decision.reason


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request(TopK(0.1)), AutoPolicy),
        (Request(TopK(0.1), "star"), AutoPolicy),
        (Request(TopK(0.1), "star", "ring"), FixedPolicy),
        (Request(TopK(0.1), "artopk", "ring"), ARTopkPolicy),  # whose indices are used is a matter of gain
        (Request(TopK(0.1), "hierarchical"), FixedPolicy),
        (INT4, AutoPolicy),
        (Request(BlockQuantizer(4), "allgather"), FixedPolicy),
        (Request(Cast(torch.bfloat16)), FixedPolicy),
        (Compression.auto(), AutoPolicy),
    ],
)
def test_which_policy_carries_a_request_out(request_: Request, kind: type[DecisionPolicy]) -> None:
    policy = policy_for(request_, ADAPTS, RANKS)
    assert type(policy) is kind
    assert policy.measuring_s == ADAPTS.calibration_s
    assert policy_for(request_, ADAPTS, 1).measuring_s is None
