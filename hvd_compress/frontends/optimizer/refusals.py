"""What a program may not do with a distributed optimizer, and what it does instead: the errors, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from hvd_compress.errors import UnsupportedError, UsageError

OTHER_LOSS = (
    "; where the loss of another optimizer reaches this one's parameters, as a generator's does through the "
    "discriminator of a GAN, call requires_grad_(False) on them before its forward pass, and requires_grad_(True) after"
)


def exchanging(call: str, hint: str = "") -> UsageError:
    """Return what a call raises while gradients are on their way."""
    return UsageError(
        f"{call} after backward() and before step() or synchronize(): gradients are being exchanged; "
        f"call synchronize() first, on every rank, if this step is to be dropped{hint}"
    )


def computed_again(name: str, passes: int) -> UsageError:
    """Return what a gradient raises that comes once more than `passes` times before a step."""
    return UsageError(
        f"the gradient of {name!r} was computed more than backward_passes_per_step = {passes} times before step(): "
        f"increase it to accumulate gradients, or call step() after each backward pass{OTHER_LOSS}"
    )


def exchanged_again() -> UsageError:
    """Return what a step raises that would exchange results together with what compression remembers."""
    return UsageError(
        "step() after synchronize() would exchange gradients again, perhaps clipped or unscaled by now, "
        "together with what compression remembers of them as they were: call step(), or "
        "scaler.step(optimizer), within `with optimizer.skip_synchronize():`, on every rank"
    )


def several_gradients() -> UnsupportedError:
    """Return what wrapping LBFGS raises."""
    return UnsupportedError(
        "LBFGS computes several gradients a step, and its line search compares losses: leave it unwrapped, and "
        "average both in its closure, with hvd.grouped_allreduce_() and hvd.allreduce(); or take an optimizer of "
        "one gradient a step, such as SGD or Adam"
    )


def copied() -> UnsupportedError:
    """Return what pickling and copying raise."""
    return UnsupportedError(
        "a distributed optimizer cannot be pickled or copied, by torch.save(optimizer) or copy.deepcopy(): save "
        "optimizer.state_dict(), and load it with load_state_dict() into an optimizer that was wrapped anew"
    )


def parameters_added() -> UnsupportedError:
    """Return what add_param_group() raises."""
    return UnsupportedError(
        "parameters cannot be added to a distributed optimizer: add them to the torch optimizer before it is "
        "wrapped; while training, make a new torch optimizer over the old parameters, load this one's state_dict() "
        "into it, add the new ones, and wrap that"
    )


def require_exchanged(
    groups: Iterable[Mapping[str, Any]],
    exchanged: Collection[torch.Tensor],
    names: Mapping[torch.Tensor, str],
    kind: str,
) -> None:
    """Raise UnsupportedError for a gradient that would be applied and is not exchanged: replicas would drift apart.

    Args:
        groups: of parameters, of an optimizer of this kind.
    """
    for group in groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter not in exchanged:
                name = names.get(parameter)
                which = f"a parameter of shape {tuple(parameter.shape)}" if name is None else f"parameter {name!r}"
                raise UnsupportedError(
                    f"{which} is trained now, and was frozen or absent when the optimizer was wrapped: its "
                    "gradient would not be exchanged. On every rank, after requires_grad_(True): keep state = "
                    f"optimizer.state_dict(); make a new {kind} over the same parameter groups, and "
                    "pass it to hvd.DistributedOptimizer() with the same arguments; make learning-rate schedulers "
                    "anew over what that returns; call load_state_dict(state) of it, and load the old schedulers' "
                    "state_dict() into the new ones"
                )
