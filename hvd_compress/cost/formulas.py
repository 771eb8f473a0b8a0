"""How long a collective takes on a network with latency alpha and time per byte beta: the alpha-beta model.

Time = steps * alpha + bytes * beta, where `steps` and `bytes` are the messages and bytes that follow one after the
other along the longest chain. alpha is in seconds, beta in seconds per byte (`units.py` reads "1ms" and "5gbit"; beta
is 1 / parse_bandwidth). N is the number of ranks, M the bytes of one rank's tensor, L = ceil(log2 N). Links are full
duplex: a rank sends one message and receives another at the same time. What each rank sends on average, the load on
the network, is in
`engines/wire.py`. A test plays the algorithms of the in-process engine on a clock, and finds these terms.

The readings by which Table VI of Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning", follows
from their Table I and Eq. 4 (a test holds all 36 rows): log is the base-2 logarithm; one alpha a message, not a round
trip; 1 Gbps is 10^9 bits, or 1.25 * 10^8 bytes, a second; a model has 4 bytes a parameter; all-gather moves 8 bytes a
kept element (4 of value, 4 of index), AR-Topk 4 bytes in each of its two collectives; the broadcast of the indices
sends the whole message along a binomial tree, L * M * beta, without segments. Only where N is no power of two do we
differ: log N is rounded up to whole rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hvd_compress.checks import check_choice, check_number, check_whole
from hvd_compress.engines.layout import largest_power_of_two
from hvd_compress.engines.names import SEGMENT_BYTES
from hvd_compress.errors import ConfigError


@dataclass(frozen=True)
class Terms:
    """The latency term in messages and the bandwidth term in bytes, both along the longest chain."""

    steps: float
    bytes: float

    def __add__(self, other: Terms) -> Terms:
        return Terms(self.steps + other.steps, self.bytes + other.bytes)

    def seconds(self, alpha: float, beta: float) -> float:
        return self.steps * alpha + self.bytes * beta


def allreduce(size: float, n: int, algorithm: str = "auto") -> Terms:
    """Sum `size` bytes over n ranks.

    | algorithm          | steps   | bytes         | source                     |
    | ring, auto         | 2(N-1)  | 2(N-1)/N M    | Table I                    |
    | tree               | 2L      | 2L M          | Table I                    |
    | recursive_doubling | log2 N  | log2(N) M     | Thakur et al. 2005         |
    | rabenseifner       | 2log2 N | 2(N-1)/N M    | Thakur et al. 2005         |

    Where N is no power of two, the last two stand for the largest one below, and 2 steps of M bytes come on top.
    """
    core = largest_power_of_two(n)
    doublings = core.bit_length() - 1
    folds = Terms(2, 2 * size) if n > core else Terms(0, 0)
    if algorithm in ("auto", "ring"):
        return Terms(2 * (n - 1), 2 * (n - 1) / n * size)
    if algorithm == "tree":
        return Terms(2 * rounds(n), 2 * rounds(n) * size)
    if algorithm == "recursive_doubling":
        return Terms(doublings, doublings * size) + folds
    if algorithm == "rabenseifner":
        return Terms(2 * doublings, 2 * (core - 1) / core * size) + folds
    raise ConfigError(f"unknown allreduce algorithm {algorithm!r}")


def broadcast(size: float, n: int, algorithm: str = "auto") -> Terms:
    """Bring `size` bytes from one rank to all.

    | algorithm         | steps | bytes           | source                       |
    | binomial, auto    | L     | L M             | Table I                      |
    | pipeline_SEGMENT  | N-1   | M + (N-2) S     | segments of S bytes, streamed along a chain |
    | scatter_allgather | 2L    | 2(N-1)/N M      | Thakur et al. 2005           |
    | linear            | 1     | (N-1) M         | the root to each; half of Table I's parameter server |
    """
    if n == 1:
        return Terms(0, 0)
    if algorithm in ("auto", "binomial"):
        return Terms(rounds(n), rounds(n) * size)
    if algorithm in SEGMENT_BYTES:
        return Terms(n - 1, size + (n - 2) * min(size, SEGMENT_BYTES[algorithm]))
    if algorithm == "scatter_allgather":
        return Terms(2 * rounds(n), 2 * (n - 1) / n * size)
    if algorithm == "linear":
        return Terms(1, (n - 1) * size)
    raise ConfigError(f"unknown broadcast algorithm {algorithm!r}")


def allgather(size: float, n: int, algorithm: str = "auto") -> Terms:
    """Bring `size` bytes of every rank to all: L steps with Bruck's algorithm (auto; Table I), N-1 as a ring.

    Both receive (N-1) M bytes.
    """
    check_choice("allgather algorithm", algorithm, ("auto", "bruck", "ring"))
    return Terms(n - 1 if algorithm == "ring" else rounds(n), (n - 1) * size)


def alltoall(size: float, n: int, algorithm: str = "auto") -> Terms:
    """Exchange the N parts that make up `size` bytes, pairwise: N-1 steps, (N-1)/N M bytes."""
    return _only_way("alltoall", algorithm, Terms(n - 1, (n - 1) / n * size))


def reduce_scatter(size: float, n: int, algorithm: str = "auto") -> Terms:
    """Sum `size` bytes, each rank one shard: N-1 steps around the ring, (N-1)/N M bytes."""
    return _only_way("reduce_scatter", algorithm, Terms(n - 1, (n - 1) / n * size))


def gather(size: float, n: int, algorithm: str = "auto") -> Terms:
    """Bring `size` bytes of every rank to one: 1 step, as all send at once, and (N-1) M bytes into the root's link."""
    return _only_way("gather", algorithm, Terms(min(1, n - 1), (n - 1) * size))


def rounds(n: int) -> int:
    """Return ceil(log2 n): how often n ranks must double to be all."""
    return (n - 1).bit_length()


def crossover(first: Terms, second: Terms) -> float:
    """Return the alpha / beta, in bytes, below which `first` is faster than `second`.

    Eq. 5 of Tyagi and Swany, for any two costs of which `first` has more steps and fewer bytes: (5a) AR-Topk ring over
    tree, (5b) ring over all-gather, (5c) tree over all-gather. Infinite where `first` is faster on every network, 0
    where it is on none.
    """
    steps, saved = first.steps - second.steps, second.bytes - first.bytes
    if steps <= 0 <= saved:
        return math.inf
    if steps >= 0 >= saved:
        return 0.0
    if steps < 0:
        raise ConfigError(f"{first} is faster than {second} above a threshold, not below: swap them")
    return saved / steps


def _only_way(verb: str, algorithm: str, terms: Terms) -> Terms:
    if algorithm != "auto":
        raise ConfigError(f"unknown algorithm {algorithm!r} of {verb}: there is only 'auto'")
    return terms


VERBS: dict[str, Callable[[float, int, str], Terms]] = {
    "allreduce": allreduce,
    "broadcast": broadcast,
    "allgather": allgather,
    "alltoall": alltoall,
    "reduce_scatter": reduce_scatter,
    "gather": gather,
}


@dataclass(frozen=True)
class Formulas:
    """Prices collectives by the formulas alone, for a network that was not measured.

    Attributes:
        alpha: latency of a message in seconds.
        beta: seconds per byte.
        world_size: number of ranks.
    """

    alpha: float
    beta: float
    world_size: int

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0, hint="in seconds")
        check_number("beta", self.beta, 0, hint="in seconds per byte")
        check_whole("world_size", self.world_size, 1)

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        """Return the seconds that `verb` takes with `size` bytes in each rank's tensor."""
        check_choice("collective", verb, VERBS)
        return VERBS[verb](size, self.world_size, algorithm).seconds(self.alpha, self.beta)
