"""What a rank that comes gets from the others: a program's model, its optimizer, and what it counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.amp import GradScaler

from hvd_compress import __version__
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.elastic.apart import TrainedApart
from hvd_compress.frontends.elastic.copies import Copies, may_start_again
from hvd_compress.frontends.elastic.sampler import ElasticSampler
from hvd_compress.frontends.elastic.trained import Trained, require_one
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.frontends.local.steps import LocalSteps, local_steps_of
from hvd_compress.membership.member import known, require_together


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
        require_together()

    def reset(self) -> None:
        """For states of a program's own: ranks have met anew."""

    def position(self) -> int:
        """Return how far this rank is; -1 where it has not begun. Whoever is furthest gives what others take."""
        return 0

    def about(self) -> dict[str, str]:
        """Return, by name and in words, what must be the same on all ranks."""
        return {"hvd_compress": __version__}

    def steps(self) -> int:
        """Return how many steps this rank has taken, where some are as far and have taken more."""
        return 0

    def renew(self, counts: bool) -> None:
        """Ranks have met anew. `counts`: whether a step that has failed here has ended on another rank."""

    def forget_owed(self) -> None:
        """Others have what this rank owes. Nothing is communicated."""

    def end_round(self) -> None:
        """Ranks have met that have trained before, and all others have what those had. Collective."""

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
        self._require_free(attributes)
        self._names = sorted(attributes)
        vars(self).update(attributes)

    def _require_free(self, names: Iterable[str]) -> None:
        """Raise ConfigError for names of attributes that a state has already."""
        for name in names:
            if hasattr(self, name):
                raise ConfigError(f"{name!r} is a name that {type(self).__name__} has itself: give it another")

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
            optimizer: also one that takes local steps: make LocalSteps before this.
            attributes: samplers, schedulers and such are asked for their state_dict(); others are taken over whole.

        Raises:
            UnsupportedError: what cannot go on where ranks come and go, as docs/elastic.md lists it.
            ConfigError: an attribute has the name of a method.
            UsageError: LocalSteps was passed, and not its optimizer.
        """
        if any(isinstance(each, LocalSteps) for each in (optimizer, *attributes.values())):
            raise UsageError("LocalSteps goes on with the optimizer that it was made of: pass that, and leave it out")
        local = None if optimizer is None else local_steps_of(optimizer)
        if local is None or optimizer is None:
            self._trained = Trained(model, optimizer)
        else:
            _require_no_restart()
            self._trained = TrainedApart(model, optimizer, local)
        if known() is not None or may_start_again():
            require_one(optimizer)
        stateful = {name for name, each in attributes.items() if hasattr(each, "load_state_dict")}
        super().__init__(**{name: each for name, each in attributes.items() if name not in stateful})
        self._require_free(stateful)
        vars(self).update({name: attributes[name] for name in stateful})
        self._stateful, self.model, self.optimizer = sorted(stateful), model, optimizer
        self._made_at = 0 if (own := known()) is None else own.generation

    def position(self) -> int:
        return self._trained.position()[0]

    def steps(self) -> int:
        return self._trained.position()[1]

    def about(self) -> dict[str, str]:
        return {**super().about(), **self._trained.about()}

    def renew(self, counts: bool) -> None:
        self._trained.renew(counts)

    def forget_owed(self) -> None:
        self._trained.forget_owed()

    def end_round(self) -> None:
        self._trained.end_round()

    @property
    def is_old(self) -> bool:
        own = known()
        return own is not None and own.generation != self._made_at

    def keep(self) -> Callable[[], object]:
        bring_attributes, bring_trained = super().keep(), self._trained.keep()
        stateful = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._stateful}

        def bring_back() -> None:
            bring_attributes()
            for name, each in stateful.items():
                getattr(self, name).load_state_dict(each)
            bring_trained()

        return bring_back

    def reset(self) -> None:
        for name in self._stateful:
            each = getattr(self, name)
            if isinstance(each, ElasticSampler):
                each.reset()
            elif isinstance(each, GradScaler) and each._scale is not None:  # it has scaled a loss
                each.update(each.get_scale())  # else gradients of a step that failed count as unscaled

    def sync(self, root: int = 0, whole: bool = True) -> None:
        """Take over what rank `root` has: parameters, buffers, the optimizer's state, all others. Collective."""
        super().sync(root)
        for name in self._stateful:
            each = getattr(self, name)
            if isinstance(each, ElasticSampler):
                each.merge(hvd.allgather_object(each.state_dict(), name=f"elastic {name}"), root)
            else:
                each.load_state_dict(hvd.broadcast_object(each.state_dict(), root, name=f"elastic {name}"))
        self._trained.sync(root, whole)

    def hand_over(self, heirs: Mapping[int, int]) -> None:
        self._trained.hand_over(heirs)

    def packed(self, whole: bool) -> dict[str, Any]:
        stateful = {name: getattr(self, name).state_dict() for name in self._stateful}
        return {**super().packed(whole), **self._trained.packed(whole), "stateful": stateful}

    def unpack(self, whole: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        super().unpack(whole, own)
        for name in self._stateful:
            each, states = getattr(self, name), [one["stateful"][name] for one in (*own, whole)]
            if isinstance(each, ElasticSampler):
                each.merge(states, 0)
            else:
                each.load_state_dict(states[0])
        self._trained.unpack(whole, own)


def _require_no_restart() -> None:
    """Raise UnsupportedError where processes are started again, from copies of what is the same on all ranks."""
    if may_start_again():
        raise UnsupportedError(
            "local steps leave each rank with a model of its own, which torchrun's restarts do not bring back: start "
            "the job by hvd-compress run --min-np, or with --max-restarts 0 and save checkpoints, one a rank"
        )
