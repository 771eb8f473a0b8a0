"""The parameters on which all ranks agree, those of this rank beside them, and what moves the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.local import fragments
from hvd_compress.frontends.local.outer import Make


class Agreed:
    """Anchors, in fragments, each with an outer optimizer of its own.

    Attributes:
        anchors: the parameters on which all ranks agree, by name: equal to the bit on all of them.
        parameters: this rank's.
        names: of each fragment.
        settings: what ranks compare, in words.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        outer: Make,
        count: int,
        mix: float | None,
    ) -> None:
        """Ranks agree on these parameters.

        Args:
            sizes: of parameters, by which fragments are cut.
            outer: returns the optimizer of the anchors.
            count: of fragments.
            mix: of what lands late, the share of a rank's own parameters in what it goes on with, in [0, 1); None has
                it go on from the anchors with all that it has learned meanwhile.
        """
        self.parameters, self._mix = dict(parameters), mix
        self.anchors = {name: each.detach().clone().requires_grad_() for name, each in parameters.items()}
        self.names = fragments.cut(sizes, count)
        self._outer = [outer([self.anchors[name] for name in names]) for names in self.names]
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self._outer[0].param_groups]
        self.settings = f"{len(self.names)} fragments, mix={mix}, outer={type(self._outer[0]).__name__} {groups}"

    @torch.no_grad()
    def reset(self) -> None:
        """Ranks have the same parameters, and these are the anchors from now on."""
        for name, anchor in self.anchors.items():
            anchor.copy_(self.parameters[name])

    @torch.no_grad()
    def return_to(self) -> None:
        """Go on from the anchors, without what this rank alone has learned."""
        for name, anchor in self.anchors.items():
            self.parameters[name].copy_(anchor)

    def require_where_they_were(self) -> None:
        """Raise UsageError where the model was moved or converted."""
        for name, anchor in self.anchors.items():
            now = self.parameters[name]
            if (now.device, now.dtype) != (anchor.device, anchor.dtype):
                raise UsageError(
                    f"{name!r} was moved or converted, to {now.device} and {now.dtype}, after LocalSteps was made: do "
                    "that before"
                )

    @torch.no_grad()
    def step(self, fragment: int, means: Mapping[str, torch.Tensor]) -> None:
        """Move the anchors of a fragment. `means`: of all ranks' pseudo-gradients."""
        for name, each in means.items():
            self.anchors[name].grad = each
        self._outer[fragment].step()
        for name in self.names[fragment]:
            self.anchors[name].grad = None

    @torch.no_grad()
    def go_on(self, fragment: int, launched: Mapping[str, torch.Tensor], is_last: bool) -> None:
        """Go on from anchors that have moved.

        Args:
            launched: parameters before steps of which the anchors know nothing; none where there are no such steps.
            is_last: whether this rank takes no step any more.
        """
        for name in self.names[fragment]:
            parameter = self.parameters[name].detach()
            if not launched:
                parameter.copy_(self.anchors[name])
            elif self._mix is None or is_last:
                parameter.sub_(launched[name]).add_(self.anchors[name])
            else:
                parameter.lerp_(self.anchors[name], 1 - self._mix)  # Streaming DiLoCo, Algorithm 2

    @torch.no_grad()
    def give_up_infinite(self, fragment: int) -> None:
        """Go on from the anchors with parameters that are not finite, or else no later round would count, either."""
        for name in self.names[fragment]:
            if not self.parameters[name].isfinite().all():
                self.parameters[name].detach().copy_(self.anchors[name])

    def state_dict(self) -> dict[str, Any]:
        """Return anchors and what moves them."""
        return {
            "anchors": {name: anchor.detach().clone() for name, anchor in self.anchors.items()},
            "outer": [each.state_dict() for each in self._outer],
            "fragments": [list(names) for names in self.names],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what state_dict() gave. Raises ConfigError for a state of other parameters or fragments."""
        if state["fragments"] != [list(names) for names in self.names]:
            raise ConfigError(
                f"this checkpoint has {len(state['fragments'])} fragments, {state['fragments'][0][:1]} and so on, and "
                f"there are {len(self.names)}, {list(self.names[0][:1])} and so on: take the same model and fragments="
                f"{len(state['fragments'])}"
            )
        shapes = {name: tuple(anchor.shape) for name, anchor in self.anchors.items()}
        if {name: tuple(each.shape) for name, each in state["anchors"].items()} != shapes:
            raise ConfigError("this checkpoint has parameters of other shapes: take the same model, and as many shards")
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
        for optimizer, each in zip(self._outer, state["outer"], strict=True):
            optimizer.load_state_dict({**each, "param_groups": optimizer.state_dict()["param_groups"]})
