"""What was chosen while training, in a checkpoint: so that who goes on with it does not search again."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import ValidationError

from hvd_compress.buckets.layout import Layout
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.policies.plan_in_use import plan_in_use
from hvd_compress.policies.plan_schema import Plan
from hvd_compress.request.decision import Decision


def saved(name: str, decisions: Sequence[Decision], layouts: Sequence[Layout], world_size: int) -> str:
    """Return what `loaded` reads, as text; nothing where no file can hold a decision, as of a compressor of one's own.

    Args:
        name: of the arm that was chosen.
        decisions: by bucket.
    """
    used = dict(zip((layout.names for layout in layouts), decisions, strict=True))
    try:
        plan = plan_in_use(used, layouts, world_size)
    except UsageError:
        return ""
    return json.dumps({"arm": name, "plan": plan.model_dump(mode="json")})


def loaded(text: str) -> tuple[str, Plan]:
    """Return the name of an arm, and its plan. Raises ConfigError for what `saved` has not made."""
    try:
        said = json.loads(text)
        name, plan = said["arm"], Plan.model_validate_json(json.dumps(said["plan"]), strict=True)
        if not isinstance(name, str):
            raise TypeError(f"the name of an arm is {name!r}")
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError) as error:
        raise ConfigError(
            f"the choice in this state of a compression is none ({error}): load what state_dict() returned"
        ) from None
    return name, plan


def decided(plan: Plan, layouts: Sequence[Layout], world_size: int) -> list[Decision] | None:
    """Return the decisions of a plan for these buckets; None where the plan is of others, or of another job."""
    entries = {entry.parameters: entry for entry in plan.buckets}
    if plan.world_size != world_size or [layout.names for layout in layouts] != list(entries):
        return None
    return [Decision(entry.built(), entry.path, entry.device) for entry in entries.values()]
