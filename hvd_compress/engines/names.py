"""What engines and the algorithms of their collectives are called. "auto" leaves the choice to the package."""

from __future__ import annotations

from typing import Literal, get_args

EngineName = Literal["mpi", "horovod", "torch"]
ENGINES = ("auto", *get_args(EngineName))
"""What a user may ask for by name."""

ALGORITHMS = ("ring", "tree", "recursive_doubling", "rabenseifner")
"""Of an allreduce."""

BROADCASTS = ("binomial", "pipeline_16k", "pipeline_60k", "scatter_allgather")
"""Of a broadcast: the whole message along a binomial tree; in segments along a chain of all ranks; or shards from the
root along a binomial tree, which an all-gather then puts together (van de Geijn)."""

ALLGATHERS = ("ring", "bruck")
"""Of an all-gather: N-1 rounds of one block each, or ceil(log2 N) rounds in which the number of blocks doubles."""

SEGMENT_BYTES = {"pipeline_16k": 16 * 1024, "pipeline_60k": 60 * 1024}
"""The segments of a pipeline. Open MPI over TCP sends messages up to 64 KiB, headers included, without first asking the
receiver, unless told otherwise (as by hvd_compress.torch); a longer segment would cost a round trip."""

KNOWN = {"allreduce": ALGORITHMS, "broadcast": BROADCASTS, "allgather": ALLGATHERS}
"""By verb; the other verbs have no algorithms to choose from."""
