"""Which policy carries a request out."""

from __future__ import annotations

from hvd_compress.policies.adaptive import AdaptivePolicy, is_adaptive
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings


def policy_for(request: Request, settings: Settings, world_size: int) -> DecisionPolicy:
    """Return the policy that the request names; else the controller where it leaves something open."""
    measures = settings.adapt and settings.profile is None and world_size > 1
    if request.policy is None and measures and is_adaptive(request):
        return AdaptivePolicy(request, settings)
    policy = FixedPolicy(request) if request.policy is None else request.policy.make(request, settings)
    assert isinstance(policy, DecisionPolicy)
    policy.measuring_s = settings.calibration_s if measures else None
    return policy
