"""Who sends what, in which rounds?"""

from hvd_compress.schemes.allgather import AllGather
from hvd_compress.schemes.allreduce import AllReduce, Dense
from hvd_compress.schemes.alltoall import AllToAll
from hvd_compress.schemes.artopk import ARTopk
from hvd_compress.schemes.base import Exchange, Scheme, Work
from hvd_compress.schemes.flat import chain_bytes, cheapest, undominated
from hvd_compress.schemes.hierarchical import Hierarchical
from hvd_compress.schemes.observed import Observed
from hvd_compress.schemes.probe import Probe, ProbeReport
from hvd_compress.schemes.reduce_scatter import ReduceScatter
from hvd_compress.schemes.registry import (
    SCHEMES,
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
from hvd_compress.schemes.requantize import Requantize

__all__ = [
    "SCHEMES",
    "ARTopk",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Dense",
    "Exchange",
    "Hierarchical",
    "Observed",
    "Probe",
    "ProbeReport",
    "ReduceScatter",
    "Requantize",
    "Scheme",
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
