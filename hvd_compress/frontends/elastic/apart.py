"""What is trained by local steps where ranks come and go: each rank has a model and an optimizer of its own.

Where ranks meet, the round is over: they exchange what each has learned so far, which weighs by its steps, and a new
one begins. So nothing of it is lost but what a rank had learned that was killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from hvd_compress.frontends.elastic.trained import Trained, load, options_of, take_options
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.frontends.local.steps import LocalSteps
from hvd_compress.membership.member import known


class TrainedApart(Trained):
    """A model, an optimizer, and the LocalSteps around it."""

    def __init__(self, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer, local: LocalSteps) -> None:
        super().__init__(model, optimizer)
        self._local = local

    def position(self) -> tuple[int, int]:
        if known() is not None:  # elsewhere ranks never meet anew
            self._local.leave()
        moment = self._local.moment()
        return moment["exchanged"], moment["steps"]

    def about(self) -> dict[str, str]:
        return {**super().about(), "local steps": self._local.settings}

    def keep(self) -> Callable[[], object]:
        return lambda: None  # sync() changes nothing before it ends

    def sync(self, root: int, whole: bool) -> None:
        is_root, local = hvd.rank() == root, self._local
        options = [] if self.optimizer is None else options_of(self.optimizer)
        own, is_new = local.moment(), not self._has_synced
        moment, options, has_begun = hvd.broadcast_object((own, options, not is_new), root, name="elastic moment")
        found: dict[str, Any] = {}
        if whole:
            found = hvd.broadcast_object(self._everything() if is_root else None, root, name="elastic model")
        self._has_synced = True
        if not has_begun or known() is None:  # all begin, perhaps each with its checkpoint of the middle of a round
            if not moment["steps"]:
                self._take_over(found)
                if known() is not None and local.agreed is not None:  # made for other ranks, where some met before
                    local.agreed.reset()
                    local.meet(moment, None, is_new=True)
            return
        is_new = is_new or own["exchanged"] > moment["exchanged"]  # with ranks that are gone
        if is_new or (own["exchanged"] < moment["exchanged"] and moment["length"] <= 1):
            self._take_over(found)  # in synchronous steps optimizers are alike, too
        local.meet(moment, found.get("agreed"), is_new=is_new)
        if self.optimizer is not None:
            take_options(self.optimizer, options)
        if is_new and (saved := found["compression"]) is not None:
            local.handle.load_state_dict(saved)

    def _everything(self) -> dict[str, Any]:
        agreed = self._local.agreed
        found = {
            "model": None if self.model is None else self.model.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "agreed": None if agreed is None else agreed.state_dict(),
            "compression": self.settled(hvd.rank()),
        }
        on_host: dict[str, Any] = tree_map_only(torch.Tensor, torch.Tensor.cpu, found)
        return on_host  # else all would read it on the device of this rank

    def _take_over(self, found: dict[str, Any]) -> None:
        if self.model is not None and found:
            self.model.load_state_dict(found["model"])
        if self.optimizer is not None and found:
            load(self.optimizer, found["optimizer"])

    def renew(self, counts: bool) -> None:
        """Nothing: sync() has done it."""

    def end_round(self) -> None:
        self._local.end_round()

    def handle(self) -> Handle | None:
        return self._local.handle
