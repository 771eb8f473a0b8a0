"""What a rank has of the tables, saved and loaded: rows that were used, with the states of their optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.errors import ConfigError

State = Mapping[str, Any]


def state_of(module: CachedEmbedding) -> dict[str, Any]:
    """Return rows of this rank's shard that were used, by their ids, with states; a copy."""
    shard = module.own_shard
    rows = shard.used.nonzero().flatten()
    records, layout = shard.read(rows), module.layout
    return {
        "tables": module.layout.identity,
        "steps": module.steps,
        "owners": shard.owners,
        "number": shard.number,
        "rows": shard.ids(rows),
        "values": layout.row(records).clone(),
        "states": layout.state(records).clone(),
    }


def load(module: CachedEmbedding, states: Sequence[State]) -> None:
    """Load what state_of() gave. Of as many owners as now, the own state is enough; else all of them are needed.

    Raises:
        ConfigError: a state is of other tables, of another step than the others, or missing.
    """
    name, shard = module.layout.name, module.own_shard
    for state in states:
        if state["tables"] != module.layout.identity:
            raise ConfigError(f"the state of {name} is of {state['tables']}, and this is {module.layout.identity}")
        if state["steps"] != states[0]["steps"]:
            raise ConfigError(
                f"states of {name} are of steps {states[0]['steps']} and {state['steps']}: load those of one"
            )
    numbers, owners = {state["number"] for state in states}, states[0]["owners"] if states else 0
    alike = owners == shard.owners
    missing = {shard.number} - numbers if alike else set(range(owners)) - numbers
    if missing or not states:
        raise ConfigError(
            f"rank {shard.number} of {shard.owners} needs the states of {name} of rank "
            f"{', '.join(map(str, sorted(missing or {shard.number})))}"
            + ("" if alike else f": they were saved by {owners} ranks, so load those of all")
        )
    module.steps = states[0]["steps"]
    shard.used.zero_()
    for state in states:
        records = torch.zeros(state["rows"].numel(), module.layout.record_width)
        module.layout.row(records).copy_(state["values"])
        module.layout.state(records).copy_(state["states"])
        shard.load(state["rows"], records)
    module.versions.forget()
    module.lost = ""
