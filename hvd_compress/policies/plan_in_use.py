"""The plan that says what a job does now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_compress.buckets.layout import Layout
from hvd_compress.errors import UsageError
from hvd_compress.policies.plan_schema import BucketEntry, Parameter, Plan
from hvd_compress.policies.plan_settings import dtype_name, settings_of
from hvd_compress.request.decision import Decision


def plan_in_use(buckets: Mapping[tuple[str, ...], Decision], layouts: Sequence[Layout], world_size: int) -> Plan:
    """Return the plan that says what is in use.

    Args:
        buckets: the decision of each bucket, by the names of its parameters.
        layouts: of all buckets; those of sparse gradients are left out.

    Raises UsageError where no plan can say how a bucket travels, or it only tries how to.
    """
    dense = [layout for layout in layouts if not layout.sparse]
    for layout, decision in zip(dense, buckets.values(), strict=True):
        if decision.no_plan:
            raise UsageError(f"no plan can say how the bucket of {layout.called} travels: {decision.no_plan}")
        if decision.is_trial:
            raise UsageError(
                f"the bucket of {layout.called} travels by {decision.path} for the time being ({decision.reason}): "
                "train more steps, then save"
            )
    entries = [
        BucketEntry(
            parameters=layout.names,
            compressor=settings_of(decision.compressor),
            collective=decision.path.collective,
            algorithm=decision.path.algorithm,
            broadcast=decision.path.broadcast,
            device=decision.device,
        )
        for layout, decision in zip(dense, buckets.values(), strict=True)
    ]
    model = {
        name: Parameter(shape=shape, dtype=dtype_name(layout.dtype))
        for layout in dense
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    return Plan(version=1, world_size=world_size, model=model, buckets=tuple(entries))
