"""What the tests of this family bring to those of the core, which try all compressors there are."""

from __future__ import annotations

import math
from pathlib import Path

from hvd_compress import collectives
from hvd_compress.papers.family import oktopk_allreduce
from hvd_compress.papers.family.atomo import ATOMO
from hvd_compress.papers.family.compressions import Family
from hvd_compress.papers.family.dgc import DGC
from hvd_compress.papers.family.mstopk import MSTopK
from hvd_compress.papers.family.oktopk import OkTopk
from hvd_compress.papers.family.qsgd import QSGD
from hvd_compress.papers.family.randomk import RandomK
from hvd_compress.papers.family.sidco import SIDCo
from hvd_compress.papers.family.signsgd import SignSGD
from hvd_compress.papers.family.threshold import Threshold
from hvd_compress.request.request import Request

COMPRESSORS = {
    "mstopk": MSTopK(0.05),
    "dgc": DGC(0.05),
    "dgc-plain": DGC(0.05, momentum=0.0),
    "oktopk": OkTopk(0.05, threshold_steps=3, region_steps=2),
    "threshold": Threshold(1.5),
    "randomk": RandomK(0.05),
    "randomk-unbiased": RandomK(0.05, error_feedback=False),
    "qsgd": QSGD(4),
    "terngrad": QSGD(2, "max", clip=2.5),
    "signsgd": SignSGD(),
    "qsgd-feedback": QSGD(8, "max", error_feedback=True),
    "atomo": ATOMO(2),
    "mstopk-bf16-delta": MSTopK(0.05, values="bf16", index_coding="delta"),
    "dgc-bf16": DGC(0.05, values="bf16"),
    "threshold-int8-delta": Threshold(1.5, values="int8", index_coding="delta"),
    "sidco": SIDCo(0.05),
    "sidco-gamma-int8-delta": SIDCo(0.05, "gamma", values="int8", index_coding="delta"),
}
"""Those of the conformance suite, with settings for buckets of some hundred elements."""
BIASED = {"terngrad": "large elements are clipped", "signsgd": "a sign has no magnitude"}
"""Of them: those without error feedback that are not right on average, and why."""
NEVER_ZERO = {"signsgd": "zeros vote by their place"}
"""Of them: those whose result is not zero where all gradients are, and why."""

REQUESTS = {
    "mstopk-star": Request(MSTopK(0.05), "star"),
    "dgc": Request(DGC(0.05)),
    "threshold": Request(Threshold(1.5)),
    "randomk": Request(RandomK(0.05), "allreduce"),
    "randomk-allgather": Request(RandomK(0.05, error_feedback=False), "allgather"),
    "qsgd": Request(QSGD(4)),
}
"""Requests that tests call by name."""

DIGESTS = {
    "mstopk": Request(MSTopK(0.05), "allgather"),
    "dgc": Request(DGC(0.05)),
    "threshold": Request(Threshold(0.5)),
    "oktopk": Request(OkTopk(0.05, threshold_steps=3, region_steps=2), "oktopk"),
    "randomk": Request(RandomK(0.05), "allreduce"),
    "randomk-unbiased": Request(RandomK(0.05, error_feedback=False), "allgather"),
    "qsgd": Request(QSGD(4, "max")),
    "signsgd": Request(SignSGD(), "alltoall-allgather"),
}
DIGEST_FILES = [Path(__file__).with_name("digests.json")]
"""What they train is the same from commit to commit: tests/digests.py."""

FLAT = ["oktopk"]
"""Collectives over all ranks alike."""
NOT_PRICED = FLAT
"""Their first step also evaluates thresholds and regions, which `stages` leaves out."""
EVEN = {"oktopk": (oktopk_allreduce, "UNEVEN", math.inf)}
"""What to set so that no collective follows from values."""

SINGLE_ROUND = {
    "mstopk": MSTopK(0.05),
    "threshold": Threshold(1.5),
    "qsgd": QSGD(4),
    "qsgd-bucket": QSGD(8, layerwise=False),
    "terngrad": QSGD(2, "max", 2.5),
    "signsgd": SignSGD(),
}
BY_HOSTS = {
    "mstopk": MSTopK(0.1),
    "dgc": DGC(0.1),
    "threshold": Threshold(1.5),
    "randomk": RandomK(0.1),
    "qsgd": QSGD(4),
}
"""Compressors for collectives that heed hosts."""
_NOT_BY_HOSTS = (
    (DGC(0.1), "hierarchical-both"),  # a payload is a velocity
    (RandomK(0.1), "parameter-server"),
    (SignSGD(), "parameter-server"),  # a vote is no sum
    (SignSGD(), "hierarchical-both"),
)
NOT_BY_HOSTS = [
    (compressor, collective) for compressor, collective in _NOT_BY_HOSTS if collective in collectives.labels()
]
"""What such a collective cannot carry."""
NOT_BY_REDUCE_SCATTER = {"SignSGD": Family.signsgd()}
"""Nor that of FSDP; by the name of the class."""
SPARSIFIERS = {
    "mstopk": Family.mstopk,
    "dgc": Family.dgc,
    "threshold": lambda **named: Family.threshold(1.5, **named),
}
"""Functions of `Compression` that say how elements are coded."""
REQUANTIZERS = [SignSGD()]
WITHOUT_FEEDBACK = [Family.qsgd, Family.terngrad, lambda: Family.randomk(error_feedback=False)]
WITH_MOMENTUM = [Family.dgc(0.1)]
"""Compressions that no function for each bucket may return."""
MOMENTA = {
    "dgc": (Family.dgc(), ["plain", "rmsprop", "demo", "odd"]),
    "dgc-plain": (Family.dgc(momentum=0.0), []),
}
"""What has a momentum, and the optimizers with which it trains rightly; all, if none is named."""
OF_RATIOS = ["mstopk", "oktopk", "randomk"]
"""Functions of `Compression` that warn of a ratio of 1."""
NO_PAYLOADS = [RandomK(0.1)]
"""Compressors whose payloads cannot be added."""
ELEMENT_BYTES = [(DGC(0.1), 0.8)]
ENERGIES = [DGC(0.1), RandomK(0.1, error_feedback=False)]
WITH_VELOCITY = [DGC(0.9, momentum=0.9)]
THRESHOLDS = ["threshold"]
"""What a rank alone sends can be looked at."""

ROWS = {
    "qsgd": "qsgd quantiser 4 no",
    "threshold": "threshold sparsifier <= 64 yes",
    "randomk": "randomk sparsifier 0.32 yes allgather, allreduce Stich et al. 2018",
}
"""Rows of `hvd-compress list`, and how they begin."""
NAMED = {"terngrad:clip=null": Family.terngrad(clip=None)}
"""What command lines may name a compressor."""

SAVED = {
    "dgc": {"compression": Family.dgc(0.1, 0.5)},
    "oktopk": {"compression": Family.oktopk(0.1, threshold_steps=3, region_steps=2).by(collective="oktopk")},
    "sidco": {"compression": Family.sidco(0.1), "tolerance": 1e-4},
}
"""Cases of checkpoints. Logarithms are torch's."""

ALLOWED = {
    "papers/family": {
        "papers.family",
        "buckets.layout",
        "compression.part",
        "compression.sparsifiers",
        "compressors",
        "cost.paths",
        "engines.base",
        "engines.layout",
        "errors",
        "feedback.states",
        "native",
        "payload",
        "request",
        "collectives",
    }
}
"""What the modules of this guest may import of the package."""
