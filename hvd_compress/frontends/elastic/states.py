"""What a rank that comes gets from the others: a program's model, its optimizer, and what it counts."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from hvd_compress import __version__
from hvd_compress.buckets.real import gradient_shape
from hvd_compress.errors import CommunicationError, UnsupportedError
from hvd_compress.frontends.elastic.copies import Copies, may_start_again
from hvd_compress.frontends.elastic.sampler import ElasticSampler
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.horovod.broadcasts import broadcast_
from hvd_compress.frontends.horovod.distributed import renew
from hvd_compress.frontends.horovod.optimizer_state import broadcast_optimizer_state
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.frontends.horovod.uncompressed import UncompressedOptimizer
from hvd_compress.frontends.known import find
from hvd_compress.frontends.local.steps import takes_local_steps
from hvd_compress.frontends.optimizer.watchers import watching
from hvd_compress.frontends.optimizers import load_in_place
from hvd_compress.membership.member import known
from hvd_compress.session.checkpoint import name_of


class State:
    """What a rank that comes gets from the others, and ranks that are behind from one that is not.

    Attributes:
        copies: what commit() keeps under torchrun; None elsewhere.
    """

    def __init__(self) -> None:
        self._resets: list[Callable[[], object]] = []
        self.copies: Copies | None = None

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Call these after ranks have met anew, before training goes on: to change a learning rate, for example."""
        self._resets.extend(callbacks)

    def on_reset(self) -> None:
        """Ranks have met anew: reset(), then the callbacks."""
        self.reset()
        for call in self._resets:
            call()

    def commit(self) -> None:
        """Between two steps: where ranks are to meet anew, do so now, instead of within the next step.

        Under torchrun all ranks call it alike, and it keeps copies in memory, as often as takes a hundredth of the
        time. Elsewhere nothing is copied, as nothing is taken back: a step that fails has changed nothing.

        Raises ConfigError where there is no memory for a copy.
        """
        if self.copies is not None:
            self.copies.commit(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Where ranks are to meet anew, do so now."""
        own = known()
        if own is not None and own.over:
            raise CommunicationError(own.over)

    def reset(self) -> None:
        """For states of a program's own: ranks have met anew."""

    def position(self) -> int:
        """Return how far this rank is; -1 where it has not begun. Whoever is furthest gives what others take."""
        return 0

    def about(self) -> str:
        """Return, in words, what must be the same on all ranks."""
        return f"hvd_compress {__version__}"

    def renew(self, counts: bool) -> None:
        """Ranks have met anew. `counts`: whether a step that has failed here has ended on another rank."""

    def hand_over(self, heirs: Mapping[int, int]) -> None:
        """Give what this rank owes to another, which keeps it. Collective. `heirs`: of ranks that leave, to whom."""

    def keep(self) -> Callable[[], object]:
        """Return what brings back all that sync() changes."""
        return lambda: None

    def packed(self, whole: bool) -> dict[str, Any]:
        """Return what is this rank's own, and with `whole` also what is the same on all ranks: for a copy."""
        return {}

    def unpack(self, whole: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what packed() has returned on some rank of this host, with what some ranks had of their own."""

    @property
    def is_old(self) -> bool:
        """Whether ranks have met anew since it was made."""
        return False

    def sync(self, root: int = 0, whole: bool = True) -> None:
        """Take over what rank `root` has, where a program's own state has anything. Collective.

        Args:
            whole: also what is the same on ranks that are as far.
        """


class ObjectState(State):
    """Attributes of any kind that pickle takes, such as counters."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self._names = sorted(attributes)
        vars(self).update(attributes)

    def keep(self) -> Callable[[], object]:
        attributes = copy.deepcopy({name: getattr(self, name) for name in self._names})
        return lambda: vars(self).update(attributes)

    def packed(self, whole: bool) -> dict[str, Any]:
        return {"attributes": {name: getattr(self, name) for name in self._names}} if whole else {}

    def unpack(self, whole: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        vars(self).update({name: whole["attributes"][name] for name in self._names})

    def sync(self, root: int = 0, whole: bool = True) -> None:
        """Take over the attributes of rank `root`. Collective."""
        own = {name: getattr(self, name) for name in self._names}
        vars(self).update(hvd.broadcast_object(own, root, name="elastic state"))


class TorchState(ObjectState):
    """A model, its distributed optimizer, what has state_dict() and load_state_dict(), and attributes.

    Attributes:
        model, optimizer: as given.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **attributes: Any
    ) -> None:
        """Nothing is communicated.

        Args:
            model: a plain one, or in DistributedDataParallel, with hvd_compress.ddp.compress() or without.
            attributes: samplers, schedulers and such are asked for their state_dict(); others are taken over whole.

        Raises UnsupportedError for what cannot go on where ranks come and go, as docs/elastic.md lists it.
        """
        _require_whole(model, optimizer)
        if known() is not None or may_start_again():
            _require_one(optimizer)
        stateful = {name for name, each in attributes.items() if hasattr(each, "load_state_dict")}
        super().__init__(**{name: each for name, each in attributes.items() if name not in stateful})
        vars(self).update({name: attributes[name] for name in stateful})
        self._stateful, self.model, self.optimizer = sorted(stateful), model, optimizer
        self._taken, self._has_synced = 0, False  # residuals of one that has are its own
        self._made_at = 0 if (own := known()) is None else own.generation
        if optimizer is not None:
            optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._taken += 1

    def position(self) -> int:
        return self._taken

    def about(self) -> str:
        if self.model is None:
            return super().about()
        shapes = [f"{name} {tuple(each.shape)} {each.dtype}" for name, each in self.model.named_parameters()]
        return f"{super().about()}, a model with {len(shapes)} parameters ({zlib.crc32(repr(shapes).encode()):08x})"

    def renew(self, counts: bool) -> None:
        if self.optimizer is not None:
            renew(self.optimizer, counts)

    @property
    def is_old(self) -> bool:
        own = known()
        return own is not None and own.generation != self._made_at

    def keep(self) -> Callable[[], object]:
        taken, bring_attributes = self._taken, super().keep()
        stateful = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._stateful}
        model = {} if self.model is None else {n: each.clone() for n, each in self.model.state_dict().items()}
        state = None if self.optimizer is None else copy.deepcopy(torch.optim.Optimizer.state_dict(self.optimizer))

        def bring_back() -> None:
            self._taken = taken
            bring_attributes()
            for name, each in stateful.items():
                getattr(self, name).load_state_dict(each)
            if self.model is not None:
                self.model.load_state_dict(model)
            if self.optimizer is not None and state is not None:
                _load(self.optimizer, state)

        return bring_back

    def reset(self) -> None:
        for name in self._stateful:
            if isinstance(each := getattr(self, name), ElasticSampler):
                each.reset()

    def sync(self, root: int = 0, whole: bool = True) -> None:
        """Take over what rank `root` has: parameters, buffers, the optimizer's state, all others. Collective."""
        super().sync(root)
        self._taken = hvd.broadcast_object(self._taken, root, name="elastic steps")
        if whole and self.model is not None:
            for name, tensor in self.model.state_dict().items():
                broadcast_(tensor, root, name=f"elastic model {name}")
        if whole and self.optimizer is not None:
            broadcast_optimizer_state(self.optimizer, root)
            self._sync_memory(root)
        elif self.optimizer is not None:  # a scheduler may have changed them on some ranks alone
            options = [{key: group[key] for key in group if key != "params"} for group in self.optimizer.param_groups]
            options = hvd.broadcast_object(options, root, name="elastic options")
            for group, each in zip(self.optimizer.param_groups, options, strict=True):
                group.update(each)
        for name in self._stateful:
            each = getattr(self, name)
            if isinstance(each, ElasticSampler):
                each.merge(hvd.allgather_object(each.state_dict(), name=f"elastic {name}"), root)
            else:
                each.load_state_dict(hvd.broadcast_object(each.state_dict(), root, name=f"elastic {name}"))
        self._has_synced = True

    def _sync_memory(self, root: int) -> None:
        """Give ranks that have come what compression has settled on; of residuals each keeps its own."""
        if (handle := self._handle()) is None:
            return
        saved = handle.state_dict() if hvd.rank() == root and handle.session.step else None
        if saved is not None:
            saved = _together([], saved, handle)
        saved = hvd.broadcast_object(saved, root, name="elastic compression")
        if saved is not None and not self._has_synced:
            handle.load_state_dict(saved)

    def hand_over(self, heirs: Mapping[int, int]) -> None:
        if (handle := self._handle()) is None:
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

    def _handle(self) -> Handle | None:
        """Return that of what compresses; None where nothing does."""
        return next((handle for each in (self.optimizer, self.model) if (handle := find(each)) is not None), None)

    def packed(self, whole: bool) -> dict[str, Any]:
        handle = self._handle()
        found = super().packed(whole)
        found["compression"] = None if handle is None else handle.state_dict()
        found["stateful"] = {name: getattr(self, name).state_dict() for name in self._stateful}
        if whole:
            found["taken"] = self._taken
            found["model"] = None if self.model is None else self.model.state_dict()
            found["optimizer"] = None if self.optimizer is None else torch.optim.Optimizer.state_dict(self.optimizer)
        return found

    def unpack(self, whole: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        super().unpack(whole, own)
        self._taken = whole["taken"]
        for name in self._stateful:
            each, states = getattr(self, name), [one["stateful"][name] for one in (*own, whole)]
            if isinstance(each, ElasticSampler):
                each.merge(states, 0)
            else:
                each.load_state_dict(states[0])
        if self.model is not None:
            self.model.load_state_dict(whole["model"])
        if self.optimizer is not None:
            _load(self.optimizer, whole["optimizer"])
        if (handle := self._handle()) is not None:
            handle.load_state_dict(_together([one["compression"] for one in own], whole["compression"], handle))
        self._has_synced = True


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state that a distributed optimizer, too, has returned as the plain one would."""
    load_in_place(optimizer, partial(torch.optim.Optimizer.load_state_dict, optimizer, state))


def _together(states: Sequence[Mapping[str, Any]], other: Mapping[str, Any], handle: Handle) -> dict[str, Any]:
    """Return what this rank's compression remembers: what all these ranks owe, and the rest of one.

    Args:
        states: of ranks whose residuals, and other debts such as DGC's velocity, are this rank's now. Without any it
            has none.
        other: of any rank.
    """
    parts = [next(iter(each["ranks"].values())) for each in (*states, other)]
    own, kinds = parts[: len(states)], parts[0]["states"]
    debts = [kind for kind in kinds if handle.is_debt(kind) and all(each.dim() for each in kinds[kind].values())]
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


def _require_whole(model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise UnsupportedError for what is not the same on all ranks after each step."""
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
    if optimizer is not None and takes_local_steps(optimizer):
        raise UnsupportedError(
            "local steps leave each rank with a model of its own, which hvd_compress.elastic does not take: save "
            "checkpoints, one a rank"
        )


def _require_one(optimizer: torch.optim.Optimizer | None) -> None:
    """Raise UnsupportedError for what renew() does not reach."""
    if any(id(each) != id(optimizer) for each in watching()):
        raise UnsupportedError(
            "hvd_compress.elastic trains by one distributed optimizer: pass it as TorchState(model, optimizer)"
        )
    if isinstance(optimizer, UncompressedOptimizer) and optimizer.is_by_adasum:
        raise UnsupportedError("op=Adasum takes its step before it exchanges: take hvd.Average where ranks come and go")
