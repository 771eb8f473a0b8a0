"""Who sends what, in which rounds?"""

from hvd_compress.schemes.allgather import AllGather
from hvd_compress.schemes.allreduce import AllReduce, Dense
from hvd_compress.schemes.alltoall import AllToAll
from hvd_compress.schemes.artopk import ARTopk
from hvd_compress.schemes.base import Exchange, Scheme, Work
from hvd_compress.schemes.observed import Observed
from hvd_compress.schemes.oktopk import OkTopkAllReduce
from hvd_compress.schemes.probe import Probe, ProbeReport
from hvd_compress.schemes.registry import (
    SCHEMES,
    build,
    carries,
    labels,
    meanings,
    names_for,
    parse,
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
    "Observed",
    "OkTopkAllReduce",
    "Probe",
    "ProbeReport",
    "Requantize",
    "Scheme",
    "Work",
    "build",
    "carries",
    "labels",
    "meanings",
    "names_for",
    "parse",
    "stages",
    "sums",
    "variants",
    "verb_of",
]
