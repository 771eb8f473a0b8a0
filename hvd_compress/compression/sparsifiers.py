"""What sends some elements and their places."""

from __future__ import annotations

import warnings

from hvd_compress.compressors import OkTopk, TopK
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

    @staticmethod
    def oktopk(
        ratio: float = 0.01,
        scheme: str = "auto",
        *,
        threshold_steps: int = 32,
        region_steps: int = 64,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send about the elements of largest magnitude, and receive the largest sums: Ok-Topk (Li and Hoefler 2022).

        Selected elements are added by the owner of their region, and only sums above a global threshold reach all
        ranks, so that no rank sends more with more ranks. Error feedback remembers what was not part of that.

        Args:
            ratio: as topk(), about.
            scheme: "oktopk"; "allgather" (every rank's selection counts); or "auto", as int8().
            threshold_steps: steps in which a threshold is used before it is found again.
            region_steps: steps in which regions are used before ranks balance them again.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.

        Warns of ratio=1: one per cent was probably meant.
        """
        request = Request(OkTopk(ratio, threshold_steps, region_steps), scheme, engine=engine, device=device)
        warn_of_everything(ratio, "oktopk")
        return request


def warn_of_everything(ratio: float, name: str) -> None:
    """Warn the caller of a function of `Compression`: one per cent was probably meant."""
    if ratio == 1 and isinstance(ratio, int):
        warnings.warn(
            f"Compression.{name}(ratio=1) sends every element; one per cent is 0.01, and Compression.dense() sends all "
            "without indices",
            stacklevel=3,
        )
