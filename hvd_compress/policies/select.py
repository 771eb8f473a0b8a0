"""Which policy carries a request out."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress import collectives
from hvd_compress.policies.artopk import ARTopkPolicy
from hvd_compress.policies.auto.arms import Named, leaves_open
from hvd_compress.policies.auto.policy import AutoPolicy
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.settings import Settings


@dataclass(frozen=True)
class AsAsked(PolicySettings):
    """What a request names stays; the path that it leaves open is chosen by real steps."""

    def make(self, request: Request, settings: Settings) -> DecisionPolicy:
        if len(collectives.meanings(request.collective)) > 1:  # whose indices AR-Topk uses is a matter of gain
            return ARTopkPolicy(request)
        return AutoPolicy(request, Named(request)) if leaves_open(request) else FixedPolicy(request)


def policy_for(request: Request, settings: Settings, world_size: int) -> DecisionPolicy:
    """Return the policy that the request names; it measures where it may, and ranks are several."""
    policy = (request.policy or AsAsked()).make(request, settings)
    assert isinstance(policy, DecisionPolicy)
    measures = settings.adapt and all(each.adapts for each in settings.recordings) and world_size > 1
    policy.measuring_s = settings.calibration_s if measures else None
    return policy
