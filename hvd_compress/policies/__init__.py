"""Which decision, for each bucket and step? `policy_for` gives the policy of a request."""

from hvd_compress.engines.launch import Launch
from hvd_compress.policies.auto.policy import Auto
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import FixedPolicy, decide
from hvd_compress.policies.plan import PlanFile
from hvd_compress.policies.select import policy_for
from hvd_compress.policies.warmup import Warmup

__all__ = [
    "Auto",
    "DecisionPolicy",
    "FixedPolicy",
    "Launch",
    "PlanFile",
    "Warmup",
    "decide",
    "policy_for",
]
