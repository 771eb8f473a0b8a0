"""What ranks must have in common: the parameters where rounds begin, the optimizer's state where they end."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hvd_compress.errors import ReplicaError
from hvd_compress.frontends.optimizers import state_tensors
from hvd_compress.session.gathering import Gathering
from hvd_compress.session.replicas import bit_sum


def require_one_model(parameters: Mapping[str, torch.Tensor], gathering: Gathering) -> None:
    """Raise ReplicaError, on all ranks, where these parameters are not the same on all."""
    sums = [int(bit_sum(each)) % 2**53 for each in parameters.values()]  # what a float holds
    first, *others = gathering.of_all(sums, "what ranks begin with")
    for rank, other in enumerate(others, start=1):
        differ = [name for name, mine, its in zip(parameters, first, other, strict=True) if mine != its]
        if differ:
            raise ReplicaError(
                f"local steps begin with parameters of rank {rank} that are not those of rank 0, {differ[0]!r} the "
                f"first of {len(differ)}: call broadcast_parameters(model.state_dict(), root_rank=0) before; of a "
                "checkpoint in the middle of a round load what local.state_dict() gave on each rank, too"
            )


def settle(optimizer: torch.optim.Optimizer, gathering: Gathering) -> None:
    """Replace what optimizers remember by its mean over all ranks, between two steps. All ranks call it.

    What some have never trained, so that they remember nothing of it, all forget. Raises as Gathering.mean().
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numels = [sum(each.numel() for each in state_tensors(optimizer, [parameter])) for parameter in parameters]
    for parameter, known in zip(parameters, zip(*gathering.figures(numels), strict=True), strict=True):
        if len(set(known)) > 1:
            optimizer.state.pop(parameter, None)
    remembered = state_tensors(optimizer, parameters)
    if remembered:
        gathering.mean(remembered)
