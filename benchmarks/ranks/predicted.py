"""What auto() would choose on many ranks, by the cost model: the arms that it makes of curves that are formulas."""

from __future__ import annotations

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import VERBS, Formulas
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.policies.auto.arms import Arm, Family, make_arms
from hvd_compress.policies.auto.quality import Quality, candidates
from hvd_compress.policies.prices import Prices
from hvd_compress.request.request import Request

BUCKETS = [Layout.of((2500, 2500)) for _ in range(4)]
"""100 MB of fp32 in four buckets."""
SIZES = (1, 1 << 30)
"""Between which formulas are straight lines."""


def prices(alpha: float, beta: float, ranks: int) -> Prices:
    """Return the formulas of a network as curves, of calls whose algorithm is the engine's."""
    formulas = Formulas(alpha, beta, ranks)
    keys = {
        (verb, "auto"): Curve(SIZES, tuple(formulas.seconds(verb, "auto", size) for size in SIZES)) for verb in VERBS
    }
    return Prices(Curves(ranks, keys), "formulas")


def arms(quality: Quality, alpha: float, beta: float, ranks: int) -> list[Arm]:
    """Return what auto(quality) would try on this number of ranks, with SGD; the first one is without compression."""
    request, can = Request(Cast()), InProcessWorld(2).engine(0).capabilities
    family = Family(request, candidates(quality, "sgd"))
    return make_arms(family, request, BUCKETS, ranks, can, prices(alpha, beta, ranks))


def label(arm: Arm) -> str:
    used = ", ".join(dict.fromkeys(decision.path.collective for decision in arm.decisions))
    return f"{arm.called} by {used}"
