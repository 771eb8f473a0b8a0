"""What a front end alone knows of what it compresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class RemembersGathers(Protocol):
    """What is remembered of parameters that are gathered in few bits."""

    def saved(self) -> dict[str, torch.Tensor]:
        """Return what this rank remembers, by module."""

    def require_fits(self, saved: Mapping[str, Any]) -> None:
        """Raise ConfigError for what saved() has not returned."""

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on from what saved() returned."""


@dataclass(frozen=True)
class FrontEnd:
    """What a front end alone knows of what it compresses. It holds no model, as a handle may not keep one alive.

    Attributes:
        rank: among those that exchange gradients.
        world_size: their number.
        shard: of which part of the parameters residuals are, after the rank's name in a checkpoint.
        parameters: returns all that there are by name, frozen ones too; None for those that are exchanged.
        trained: returns those that optimizers are given; None for `parameters`.
        named: returns the parameters of a bucket, by the names in its layout.
        require_rest: raises UsageError where a call may not come now.
        group: the process group of torch.distributed in which they have met already; None where there is none.
        refuses: what a handle cannot do here, by the name of its method, and why, in words.
        gathers: returns what a checkpoint has to hold of gathered parameters; None where that is nothing.
        is_alone: whether this rank exchanges nothing, and never will.
    """

    rank: int = 0
    world_size: int = 1
    shard: str = ""
    parameters: Callable[[], Mapping[str, torch.Tensor]] | None = None
    trained: Callable[[], Iterable[torch.Tensor]] | None = None
    named: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple
    require_rest: Callable[[str], None] = lambda call: None
    group: Any = None
    refuses: Mapping[str, str] = field(default_factory=dict)
    gathers: Callable[[], RemembersGathers | None] = lambda: None
    is_alone: bool = False
