"""What sends some elements and their places."""

from __future__ import annotations

import warnings

from hvd_compress.compressors import TopK
from hvd_compress.request.request import Request


class Sparsifiers:
    """Part of `Compression`."""

    @staticmethod
    def topk(
        ratio: float = 0.01,
        scheme: str = "auto",
        algorithm: str = "auto",
        *,
        layerwise: bool = False,
        values: str = "fp32",
        index_coding: str = "none",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send the elements of largest magnitude, with error feedback.

        Args:
            ratio: share of the elements that is sent, in (0, 1]; 0.01 is one per cent.
            scheme: "allgather" (every rank's own top-k), "star" or "var" (AR-Topk: one rank's indices, taken in turn
                or by the largest squared norm), "artopk" (STAR or VAR, whichever gains more, chosen while training),
                or "auto" (any of these or no compression, whichever is fastest). By name alone: "hierarchical" (ranks
                of a host sum their gradients, and the first of them exchanges what is selected of the sum),
                "hierarchical-within" and "hierarchical-both" (what travels within a host is compressed), "hitopk" (each
                rank of a host exchanges a shard: HiTopKComm), "parameter-server" (rank 0 sums for all).
            algorithm: of every allreduce: "ring", "tree", "recursive_doubling", "rabenseifner"; with
                scheme="allgather" of the all-gather: "ring", "bruck"; or "auto", the fastest. Where scheme and
                algorithm are both named, nothing is chosen or measured.
            layerwise: select in each parameter by itself (LWTopk) instead of in the fused bucket.
            values: "fp32", "bf16" or "int8" (8 bits, and a scale for each 64 values): what rounding takes of a value is
                sent with later gradients. Rounded values travel by all-gather.
            index_coding: "none", 4 bytes an index; or "delta", coded without loss: about 1.1 bytes an index at ratio
                0.01.
            engine: "mpi", "horovod", "torch", or "auto": MPI where mpirun launched the job, else Horovod; under PyTorch
                DDP torch.distributed.
            device: what compresses: "cuda", "cpu" (gradients on a GPU are copied to the host and back), or "auto",
                where the gradients are.

        Raises:
            ConfigError: a value is out of range or unknown.

        Warns of ratio=1: one per cent was probably meant.
        """
        compressor = TopK(ratio, layerwise, values=values, index_coding=index_coding)
        request = Request(compressor, scheme, algorithm, engine, device)
        warn_of_everything(ratio, "topk")
        return request


def warn_of_everything(ratio: float, name: str) -> None:
    """Warn the caller of a function of `Compression`: one per cent was probably meant."""
    if ratio == 1 and isinstance(ratio, int):
        warnings.warn(
            f"Compression.{name}(ratio=1) sends every element; one per cent is 0.01, and Compression.dense() sends all "
            "without indices",
            stacklevel=3,
        )
