"""How many bytes a collective puts on the wire: the formulas by which engines and the reducer count.

Each function returns the mean over ranks of the payload bytes that one rank sends, as an integer (rounded down).
M is the size in bytes of one rank's tensor, N the number of ranks. Lengths that travel ahead of an exchange of unequal
parts are not counted. The in-process engine sends exactly these bytes, which a test holds; a library may differ in
detail where a formula says so.
"""

from __future__ import annotations

from hvd_compress.checks import check_choice
from hvd_compress.engines.layout import largest_power_of_two
from hvd_compress.engines.names import BROADCASTS
from hvd_compress.errors import ConfigError


def allreduce(tensor_bytes: int, world_size: int, algorithm: str = "auto") -> int:
    """Mean bytes a rank sends in an allreduce. Raises ConfigError for an unknown algorithm.

    | algorithm          | rounds          | bytes in all           |
    | ring               | 2(N-1)          | 2(N-1) M               |
    | tree               | 2 ceil(log2 N)  | 2(N-1) M               |
    | rabenseifner       | 2 log2 N        | 2(N-1) M               |
    | recursive_doubling | log2 N          | N log2(N) M            |
    | auto               | the library's   | counted as ring        |

    Where N is no power of two, the last two fold the N-p ranks beyond the largest power of two p onto others in one
    round before and one after: recursive doubling then sends 2(N-p) M + p log2(p) M, Rabenseifner still 2(N-1) M.
    (Open MPI's Rabenseifner halves the first folding round's latency for (N-p) M / 2 more bytes.)
    """
    if algorithm in ("auto", "ring", "tree", "rabenseifner"):
        return 2 * (world_size - 1) * tensor_bytes // world_size
    if algorithm == "recursive_doubling":
        core = largest_power_of_two(world_size)
        rounds = core.bit_length() - 1
        return (2 * (world_size - core) + core * rounds) * tensor_bytes // world_size
    raise ConfigError(f"unknown allreduce algorithm {algorithm!r}")


def broadcast(tensor_bytes: int, world_size: int, algorithm: str = "auto") -> int:
    """Mean bytes a rank sends in a broadcast. Raises ConfigError for an unknown algorithm.

    | algorithm           | rounds                   | bytes in all                    |
    | binomial, auto      | ceil(log2 N)             | (N-1) M                         |
    | pipeline_SEGMENT    | M / segment + N - 2      | (N-1) M                         |
    | scatter_allgather   | 2 ceil(log2 N)           | (N-1) M + M/N * hops(N)         |
    | linear (no engine)  | 1, all from the root     | (N-1) M                         |

    hops(N) is the sum over ranks of the edges from the root to them in a binomial tree: N/2 log2 N for powers of two.
    It is exact where N divides the tensor.
    """
    total = (world_size - 1) * tensor_bytes
    if algorithm == "scatter_allgather":
        hops = sum(place.bit_count() for place in range(world_size))
        return (total + tensor_bytes * hops // world_size) // world_size
    check_choice("broadcast algorithm", algorithm, ("auto", "linear", *BROADCASTS))
    return total // world_size


def allgather(tensor_bytes: int, world_size: int) -> int:
    """Mean bytes a rank sends in an allgather: each M reaches N-1 others, N (N-1) M in all.

    N-1 rounds as a ring, ceil(log2 N) with Bruck's algorithm, and as many bytes.

    With unequal lengths this is exact for the mean of `tensor_bytes` over the ranks.
    """
    return (world_size - 1) * tensor_bytes


def alltoall(tensor_bytes: int, world_size: int) -> int:
    """Mean bytes a rank sends in an all-to-all of N equal parts that make up M: (N-1)/N M, in N-1 rounds."""
    return (world_size - 1) * tensor_bytes // world_size


def reduce_scatter(tensor_bytes: int, world_size: int) -> int:
    """Mean bytes a rank sends in a reduce-scatter: each shard is sent N-1 times, (N-1) M in all; N-1 ring rounds."""
    return (world_size - 1) * tensor_bytes // world_size


def gather(tensor_bytes: int, world_size: int) -> int:
    """Mean bytes a rank sends in a gather: all ranks but the root send M to it, (N-1) M in all, in one round.

    A library that gathers along a tree sends more, since inner ranks pass on what they received.
    """
    return (world_size - 1) * tensor_bytes // world_size
