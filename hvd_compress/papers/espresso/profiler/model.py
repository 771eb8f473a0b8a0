"""The profile of a model, from recorded steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from hvd_compress.errors import UsageError
from hvd_compress.profiler.profiles import Dtype, ModelProfile, Tensor
from hvd_compress.session.gradient_times import StepTimes

Shapes = Mapping[str, tuple[int, ...]]


def model_profile(
    name: str,
    shapes: Shapes,
    steps: Sequence[StepTimes],
    sparse: Collection[str] = (),
    source: str = "",
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> ModelProfile:
    """Return the profile of a model.

    Tensors stand in the order of the mean time, over steps, from the beginning of the backward pass until the gradient
    was ready. `backward_us` is the difference of two neighbours' means, so that all of them add up to the mean backward
    pass also where the order varies from step to step; `backward_us_sd` is the standard deviation, over steps, of the
    difference. A parameter that had no gradient in any step comes last, with 0: its zeros travel at the end of a step.

    Args:
        name: of the model, for people.
        shapes: of the parameters that are trained.
        sparse: names of those with sparse gradients, which travel by their rows: they are left out.
        dtypes: of the gradients, where they are known.

    Raises:
        UsageError: no step has a gradient, or all gradients are sparse.
    """
    dense = [each for each in shapes if each not in sparse and 0 not in shapes[each]]
    seen = [each for each in dense if any(each in step.ready_s for step in steps)]
    if not seen:
        raise UsageError(
            f"{len(steps)} steps were recorded, and none of {len(shapes)} parameters has had a dense gradient"
        )
    ready = {each: np.array([step.ready_s.get(each, np.nan) for step in steps]) for each in seen}
    means = {each: float(np.nanmean(times)) for each, times in ready.items()}
    place = {each: number for step in reversed(steps) for number, each in enumerate(step.ready_s)}
    order = sorted(seen, key=lambda each: (means[each], place[each]))
    before = dict(zip(order, [None, *order[:-1]], strict=True))
    tensors = []
    for each in order:
        last = before[each]
        mean = means[each] - (means[last] if last else 0.0)
        deviation = _deviation(ready[each] - (ready[last] if last else 0.0))
        tensors.append(_tensor(each, shapes[each], 1e6 * mean, deviation, dtypes))
    tensors += [_tensor(each, shapes[each], 0.0, 0.0, dtypes) for each in dense if each not in seen]
    forward = [step.forward_s for step in steps if step.forward_s is not None]
    as_here = sum([each for each in step.ready_s if each in ready] == order for step in steps)
    return ModelProfile(
        model=name,
        tensors=tuple(tensors),
        forward_us=max(0.0, 1e6 * float(np.mean(forward))) if forward else 0.0,
        forward_us_sd=_deviation(np.array(forward)),
        steps=len(steps),
        parameters=sum(tensor.numel for tensor in tensors),
        order=f"backward: by the mean time until the gradient was ready; the order of {as_here} of {len(steps)} steps",
        units={
            "backward_us": "microseconds of the backward pass since the gradient before was ready",
            "forward_us": "microseconds from the end of a step to the next backward pass",
        },
        source=source,
    )


def _tensor(
    name: str,
    shape: tuple[int, ...],
    backward_us: float,
    deviation_us: float | None,
    dtypes: Mapping[str, torch.dtype] | None,
) -> Tensor:
    return Tensor(
        name=name,
        numel=int(np.prod(shape, dtype=np.int64)),
        backward_us=backward_us,
        backward_us_sd=deviation_us,
        shape=shape,
        dtype=None if dtypes is None else cast("Dtype", str(dtypes[name]).removeprefix("torch.")),
    )


def _deviation(seconds: NDArray[np.float64]) -> float | None:
    """Return the standard deviation in microseconds, over the steps that have a value; None of fewer than two."""
    known = seconds[~np.isnan(seconds)]
    return 1e6 * float(np.std(known, ddof=1)) if len(known) > 1 else None
