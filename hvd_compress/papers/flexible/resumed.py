"""Ratios that were chosen while training, in a checkpoint: who goes on with it does not try others again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_whole
from hvd_compress.errors import UsageError
from hvd_compress.policies.plan_in_use import plan_in_use
from hvd_compress.policies.plan_schema import Plan
from hvd_compress.policies.resumed import refused, said_by
from hvd_compress.request.decision import Decision

NAME = "flexible"


@dataclass(frozen=True)
class Ratios:
    """What another process has chosen.

    Attributes:
        plan: how buckets travelled.
        gains: by number of a bucket that has something to choose, those of all candidates.
        step_s: what a step took.
    """

    plan: Plan
    gains: Mapping[int, tuple[float, ...]]
    step_s: float


def saved(
    decisions: Sequence[Decision],
    layouts: Sequence[Layout],
    world_size: int,
    gains: Mapping[int, Sequence[float]],
    step_s: float,
) -> str:
    """Return what loaded() reads, as text; nothing where no file can hold a decision."""
    used = dict(zip((layout.names for layout in layouts), decisions, strict=True))
    try:
        plan = plan_in_use(used, layouts, world_size).model_dump(mode="json")
    except UsageError:
        return ""
    return json.dumps({"policy": NAME, "plan": plan, "gains": list(gains.items()), "step_s": step_s})


def loaded(text: str, candidates: int) -> Ratios | None:
    """Return what was chosen; None where another policy has, or of another number of candidates.

    Raises ConfigError for what saved() has not made.
    """
    with refused():
        said = said_by(NAME, text)
        if said is None:
            return None
        plan = Plan.model_validate_json(json.dumps(said["plan"]), strict=True)
        gains = {check_whole("number of a bucket", number, 0): tuple(map(_gain, of)) for number, of in said["gains"]}
        step_s = said["step_s"]
        if not isinstance(step_s, float) or not 0 < step_s < math.inf:
            raise ValueError(f"a step took {step_s!r} s")
    return Ratios(plan, gains, step_s) if all(len(of) == candidates for of in gains.values()) else None


def _gain(value: Any) -> float:
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no gain")
    return value
