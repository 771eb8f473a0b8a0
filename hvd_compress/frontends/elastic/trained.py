"""What is trained where ranks come and go: a model that is the same on all ranks after each step, and its optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from hvd_compress.buckets.real import gradient_shape
from hvd_compress.errors import UnsupportedError, UsageError
from hvd_compress.frontends.alike import model_in_words
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.horovod.broadcasts import broadcast_
from hvd_compress.frontends.horovod.distributed import asked_of, renew
from hvd_compress.frontends.horovod.optimizer_state import broadcast_optimizer_state
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.frontends.horovod.uncompressed import UncompressedOptimizer
from hvd_compress.frontends.known import find
from hvd_compress.frontends.local.steps import takes_local_steps, taking_local_steps
from hvd_compress.frontends.optimizer.watchers import watching
from hvd_compress.frontends.optimizers import load_in_place
from hvd_compress.session.checkpoint import name_of


class Trained:
    """A model and what trains it, each None where a program has none.

    Attributes:
        taken: steps so far.
    """

    def __init__(self, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> None:
        """Nothing is communicated. Raises UnsupportedError for what is not the same on all ranks after each step."""
        self.model, self.optimizer = model, optimizer
        require_whole(model, optimizer)
        self.taken, self._has_synced = 0, False  # residuals of one that has are its own
        if optimizer is not None:
            optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.taken += 1

    def position(self) -> tuple[int, int]:
        """Return the exchanges that have ended, and steps. Nothing is on its way after this."""
        return self.taken, self.taken

    def about(self) -> dict[str, str]:
        """Return, by name and in words, what must be the same on all ranks."""
        handle = self.handle()
        found = {} if handle is None else handle.session.asked()
        if (asked := asked_of(self.optimizer)) is not None:
            found["compression"] = repr(asked)
        if self.model is None:
            return found
        return {"the model": model_in_words(dict(self.model.named_parameters())), **found}

    def keep(self) -> Callable[[], object]:
        """Return what brings back all that sync() changes before it ends."""
        taken = self.taken
        model = {} if self.model is None else {n: each.clone() for n, each in self.model.state_dict().items()}
        state = None if self.optimizer is None else copy.deepcopy(torch.optim.Optimizer.state_dict(self.optimizer))

        def bring_back() -> None:
            self.taken = taken
            if self.model is not None:
                self.model.load_state_dict(model)
            if self.optimizer is not None and state is not None:
                load(self.optimizer, state)

        return bring_back

    def sync(self, root: int, whole: bool) -> None:
        """Take over what rank `root` has. Collective. `whole`: also what is the same on ranks that are as far.

        Raises UsageError where the optimizer takes local steps by now.
        """
        if self.optimizer is not None and takes_local_steps(self.optimizer):
            raise UsageError(
                "LocalSteps was made after TorchState, which takes ranks to have one model: make it before"
            )
        self.taken = hvd.broadcast_object(self.taken, root, name="elastic steps")
        if whole and self.model is not None:
            for name, tensor in self.model.state_dict().items():
                broadcast_(tensor, root, name=f"elastic model {name}")
        if whole and self.optimizer is not None:
            broadcast_optimizer_state(self.optimizer, root)
            saved = hvd.broadcast_object(self.settled(root), root, name="elastic compression")
            if saved is not None and not self._has_synced and (handle := self.handle()) is not None:
                handle.load_state_dict(saved)
        elif self.optimizer is not None:  # a scheduler may have changed them on some ranks alone
            options = hvd.broadcast_object(options_of(self.optimizer), root, name="elastic options")
            take_options(self.optimizer, options)
        self._has_synced = True

    def settled(self, root: int) -> dict[str, Any] | None:
        """Return on rank `root` what compression has settled on, for a rank that has come; residuals each keeps."""
        handle = self.handle()
        if handle is None or hvd.rank() != root or not handle.session.step:
            return None
        return together([], handle.state_dict(), handle)

    def renew(self, counts: bool) -> None:
        """Ranks have met anew. `counts`: whether a step that has failed here has ended on another rank."""
        if self.optimizer is not None:
            renew(self.optimizer, counts)

    def forget_owed(self) -> None:
        """Others have what this rank owes. Nothing is communicated."""
        if (handle := self.handle()) is not None:
            handle.load_state_dict(together([], handle.state_dict(), handle))

    def end_round(self) -> None:
        """Ranks have met that have trained before. Collective."""

    def hand_over(self, heirs: Mapping[int, int]) -> None:
        """Give what this rank owes to another, which keeps it. Collective. `heirs`: of ranks that leave, to whom."""
        if (handle := self.handle()) is None:
            return
        state = handle.state_dict()
        ((name, own),) = state["ranks"].items()
        residuals, sizes = own["residuals"], [math.prod(gradient_shape(each)) for each in handle.parameters.values()]
        empty = torch.zeros(max(sizes, default=0), dtype=torch.float32, device="cpu")
        parts = [residuals.get(n, empty[:size]).view(-1) for n, size in zip(handle.parameters, sizes, strict=True)]
        owed, splits = torch.cat(parts) if hvd.rank() in heirs else empty[:0], [0] * hvd.size()
        if hvd.rank() in heirs:
            splits[heirs[hvd.rank()]] = owed.numel()
        received, _ = hvd.alltoall(owed, splits, name="elastic residuals")
        if not received.numel():
            return
        more = received.view(-1, sum(sizes)).sum(0).split(sizes)
        sums = {n: part + each for n, part, each in zip(handle.parameters, parts, more, strict=True) if each.any()}
        own = {**own, "residuals": {**residuals, **sums}}
        handle.load_state_dict({**state, "ranks": {name: own}, "remembers": True})

    def handle(self) -> Handle | None:
        """Return that of what compresses; None where nothing does."""
        return next((handle for each in (self.optimizer, self.model) if (handle := find(each)) is not None), None)

    def packed(self, whole: bool) -> dict[str, Any]:
        """Return what is this rank's own, and with `whole` also what is the same on all ranks: for a copy."""
        handle = self.handle()
        found: dict[str, Any] = {"compression": None if handle is None else handle.state_dict()}
        if whole:
            found["taken"] = self.taken
            found["model"] = None if self.model is None else self.model.state_dict()
            found["optimizer"] = None if self.optimizer is None else torch.optim.Optimizer.state_dict(self.optimizer)
        return found

    def unpack(self, whole: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what packed() has returned on some rank of this host, with what some ranks had of their own."""
        self.taken = whole["taken"]
        if self.model is not None:
            self.model.load_state_dict(whole["model"])
        if self.optimizer is not None:
            load(self.optimizer, whole["optimizer"])
        if (handle := self.handle()) is not None:
            handle.load_state_dict(together([one["compression"] for one in own], whole["compression"], handle))
        self._has_synced = True


def load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state that a distributed optimizer, too, has returned as the plain one would."""
    load_in_place(optimizer, partial(torch.optim.Optimizer.load_state_dict, optimizer, state))


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return what the groups of an optimizer have beside parameters."""
    return [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]


def take_options(optimizer: torch.optim.Optimizer, options: Sequence[Mapping[str, Any]]) -> None:
    """Replace them by those of another rank."""
    for group, each in zip(optimizer.param_groups, options, strict=True):
        group.update(each)


def together(states: Sequence[Mapping[str, Any]], other: Mapping[str, Any], handle: Handle) -> dict[str, Any]:
    """Return what this rank's compression remembers: what all these ranks owe, and the rest of one.

    Args:
        states: of ranks whose residuals, and other debts such as DGC's velocity, are this rank's now. Without any it
            has none.
        other: of any rank.
    """
    parts = [next(iter(each["ranks"].values())) for each in (*states, other)]
    own, kinds = parts[: len(states)], parts[0]["states"]
    debts = handle.debts(kinds)
    kept = {
        "residuals": _sums([each["residuals"] for each in own]),
        "states": {kind: kinds[kind] for kind in kinds if kind not in debts}
        | {kind: _sums([each["states"].get(kind, {}) for each in own]) for kind in debts},
    }
    first = (*states, other)[0]
    return {**first, "ranks": {name_of(hvd.rank(), hvd.size()): kept}, "remembers": bool(kept["residuals"])}


def _sums(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        for name, each in part.items():
            found[name] = found[name] + each if name in found else each
    return found


def require_whole(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise UnsupportedError for a model, or an optimizer's state, of which each rank has a part."""
    parts = () if model is None else (*model.parameters(), *model.modules())
    if any(isinstance(each, (DTensor, FullyShardedDataParallel)) for each in parts):
        raise UnsupportedError(
            "this model is sharded, and hvd_compress.elastic takes those that each rank has whole: save checkpoints by "
            "torch.distributed.checkpoint"
        )
    if hasattr(optimizer, "consolidate_state_dict"):
        raise UnsupportedError(
            "ZeroRedundancyOptimizer leaves each rank a part of its state: take the optimizer itself"
        )


def require_one(optimizer: torch.optim.Optimizer | None) -> None:
    """Raise UnsupportedError for what renew() does not reach."""
    if any(id(each) != id(optimizer) for each in (*watching(), *taking_local_steps())):
        raise UnsupportedError(
            "hvd_compress.elastic trains by one distributed optimizer: pass it as TorchState(model, optimizer)"
        )
    if isinstance(optimizer, UncompressedOptimizer) and optimizer.is_by_adasum:
        raise UnsupportedError("op=Adasum takes its step before it exchanges: take hvd.Average where ranks come and go")
