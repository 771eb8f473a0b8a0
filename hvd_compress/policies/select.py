"""Which policy carries a request out."""

from __future__ import annotations

from hvd_compress.decision import Request
from hvd_compress.policies.adaptive import AdaptivePolicy, is_adaptive
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.settings import Settings


def policy_for(request: Request, settings: Settings, world_size: int) -> DecisionPolicy:
    """Return the policy that the request names; else the controller where it leaves something open."""
    if request.policy is not None:
        policy = request.policy.make(request)
        assert isinstance(policy, DecisionPolicy)
        return policy
    if settings.adapt and settings.profile is None and is_adaptive(request) and world_size > 1:
        return AdaptivePolicy(request, settings)
    return FixedPolicy(request)
