"""What was chosen while training, in a checkpoint: so that who goes on with it does not search again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from hvd_compress.buckets.layout import Layout
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.policies.plan_in_use import plan_in_use
from hvd_compress.policies.plan_schema import Plan
from hvd_compress.request.decision import Decision


@dataclass(frozen=True)
class Resumed:
    """What another process has chosen.

    Attributes:
        name: of the arm that was chosen.
        exchanging_s: what its exchanges took in a step, by which another network is noticed.
    """

    name: str
    plan: Plan
    exchanging_s: float


def saved(
    name: str, decisions: Sequence[Decision], layouts: Sequence[Layout], world_size: int, exchanging_s: float
) -> str:
    """Return what `loaded` reads, as text; nothing where no file can hold a decision, as of a compressor of one's own.

    Args:
        name, exchanging_s: as Resumed has them.
        decisions: by bucket.
    """
    used = dict(zip((layout.names for layout in layouts), decisions, strict=True))
    try:
        plan = plan_in_use(used, layouts, world_size)
    except UsageError:
        return ""
    return json.dumps({"arm": name, "exchanging_s": exchanging_s, "plan": plan.model_dump(mode="json")})


def loaded(text: str) -> Resumed | None:
    """Return what was chosen; None where another policy has chosen it.

    Raises ConfigError for what `saved` has not made.
    """
    with refused():
        said = said_by("", text)
        if said is None:
            return None
        name, plan = said["arm"], Plan.model_validate_json(json.dumps(said["plan"]), strict=True)
        exchanging_s = said["exchanging_s"]
        if not isinstance(name, str):
            raise TypeError(f"the name of an arm is {name!r}")
        if not isinstance(exchanging_s, float) or not 0 < exchanging_s < math.inf:
            raise ValueError(f"its exchanges took {exchanging_s!r} s")
    return Resumed(name, plan, exchanging_s)


def said_by(policy: str, text: str) -> Mapping[str, Any] | None:
    """Return a choice that a policy of this name has written; None where another one has. Raises ValueError."""
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError("it is no object")
    return said if said.get("policy", "") == policy else None


@contextmanager
def refused() -> Iterator[None]:
    """What cannot be read of a choice in the block is a ConfigError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ValidationError) as error:
        raise ConfigError(
            f"the choice in this state of a compression is not valid ({_briefly(error)}): load what state_dict() "
            "returned"
        ) from None


def _briefly(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def decided(plan: Plan, layouts: Sequence[Layout], world_size: int) -> list[Decision] | None:
    """Return the decisions of a plan for these buckets; None where the plan is of others, or of another job."""
    entries = {entry.parameters: entry for entry in plan.buckets}
    if plan.world_size != world_size or [layout.names for layout in layouts] != list(entries):
        return None
    return [Decision(entry.built(), entry.path, entry.device) for entry in entries.values()]
