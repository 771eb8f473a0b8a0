"""Who sends what, in which rounds?"""

from hvd_compress.collectives.allgather import AllGather
from hvd_compress.collectives.allreduce import AllReduce, Dense
from hvd_compress.collectives.alltoall import AllToAll
from hvd_compress.collectives.artopk import ARTopk
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.collectives.flat import chain_bytes, cheapest, undominated
from hvd_compress.collectives.hierarchical import Hierarchical
from hvd_compress.collectives.observed import Observed
from hvd_compress.collectives.probe import Probe, ProbeReport
from hvd_compress.collectives.reduce_scatter import ReduceScatter
from hvd_compress.collectives.registry import (
    COLLECTIVES,
    build,
    by_name,
    carries,
    for_gain,
    in_fp32,
    is_of_guest,
    labels,
    meanings,
    names_for,
    obstacle,
    parse,
    requests_for,
    runnable,
    runs,
    stages,
    sums,
    variants,
    verb_of,
)
from hvd_compress.collectives.requantize import Requantize

__all__ = [
    "COLLECTIVES",
    "ARTopk",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Collective",
    "Dense",
    "Exchange",
    "Hierarchical",
    "Observed",
    "Probe",
    "ProbeReport",
    "ReduceScatter",
    "Requantize",
    "Work",
    "build",
    "by_name",
    "carries",
    "chain_bytes",
    "cheapest",
    "for_gain",
    "in_fp32",
    "is_of_guest",
    "labels",
    "meanings",
    "names_for",
    "obstacle",
    "parse",
    "requests_for",
    "runnable",
    "runs",
    "stages",
    "sums",
    "undominated",
    "variants",
    "verb_of",
]
