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
    policy: object
    if request.policy is not None:
        policy = request.policy.make(request, settings)
    else:
        policy = AdaptivePolicy(request, settings) if measures and is_adaptive(request) else FixedPolicy(request)
    assert isinstance(policy, DecisionPolicy)
    policy.measuring_s = settings.calibration_s if measures else None
    return policy
