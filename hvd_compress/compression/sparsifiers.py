"""What sends some elements and their places."""

from __future__ import annotations

import warnings

from hvd_compress.compressors import DGC, MSTopK, RandomK, Threshold, TopK
from hvd_compress.decision import Request


class Sparsifiers:
    """Part of `Compression`."""

    @staticmethod
    def topk(
        ratio: float = 0.01,
        scheme: str = "auto",
        algorithm: str = "auto",
        *,
        layerwise: bool = False,
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
            engine: "mpi", "horovod", "torch", or "auto": MPI where mpirun launched the job, else Horovod; under PyTorch
                DDP torch.distributed.
            device: what compresses: "cuda", "cpu" (gradients on a GPU are copied to the host and back), or "auto",
                where the gradients are.

        Raises:
            ConfigError: a value is out of range or unknown.

        Warns of ratio=1: one per cent was probably meant.
        """
        request = Request(TopK(ratio, layerwise), scheme, algorithm, engine, device)
        _warn_of_everything(ratio, "topk")
        return request

    @staticmethod
    def mstopk(
        ratio: float = 0.01,
        scheme: str = "auto",
        algorithm: str = "auto",
        *,
        bisections: int = 25,
        layerwise: bool = False,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send about the elements of largest magnitude, with error feedback: MSTopk (Shi et al. 2021).

        Bisection looks for the threshold that as many elements reach.

        Args:
            ratio, scheme, algorithm, layerwise, engine, device: as topk().
            bisections: in search of the threshold, 1 to 48.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        request = Request(MSTopK(ratio, layerwise, bisections), scheme, algorithm, engine, device)
        _warn_of_everything(ratio, "mstopk")
        return request

    @staticmethod
    def dgc(
        ratio: float = 0.01,
        momentum: float = 0.9,
        warmup_steps: int = 0,
        *,
        clip: float | None = None,
        layerwise: bool = False,
        scheme: str = "auto",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send the elements of largest magnitude of a velocity that each rank sums up (Lin et al. 2018).

        The momentum is here: the optimizer is to be SGD without momentum of its own.

        Args:
            ratio: share of the elements that is sent, about, in (0, 1]; 0.01 is one per cent.
            momentum: of SGD, from 0 on, below 1.
            warmup_steps: over which the ratio falls from 0.25.
            clip: the largest Euclidean norm of a bucket's gradient on a rank. It does not follow a loss scale.
            layerwise: a threshold for each parameter instead of one for the bucket.
            scheme: "allgather", which is "auto", "hierarchical" or "parameter-server", as topk().
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(DGC(ratio, momentum, warmup_steps, clip, layerwise), scheme, engine=engine, device=device)

    @staticmethod
    def threshold(tau: float, *, scheme: str = "auto", engine: str = "auto", device: str = "auto") -> Request:
        """Send the elements whose magnitude is `tau` or more, with error feedback.

        How many that is, none or all, is up to the gradient: a tau that is right at first may be far from it later.

        Args:
            tau: in units of the gradient, above 0. It does not follow a loss scale.
            scheme: "allgather", which is "auto", or one that runs by name alone, as topk(); not "hitopk".
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(Threshold(tau), scheme, engine=engine, device=device)

    @staticmethod
    def randomk(
        ratio: float = 0.01,
        scheme: str = "auto",
        algorithm: str = "auto",
        *,
        error_feedback: bool = True,
        seed: int = 0,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send random elements, the same on all ranks, by one allreduce of their values.

        Args:
            ratio: share of the elements that is sent, in (0, 1]; 0.01 is one per cent.
            scheme: "allgather", "allreduce", which is "auto", or "hierarchical", as topk().
            algorithm: of it, as topk().
            error_feedback: remember what is not sent. Without it the elements are multiplied by about 1 / ratio, so
                that the result is right on average, with much noise.
            seed: of the random numbers, the same on all ranks.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        request = Request(RandomK(ratio, error_feedback, seed), scheme, algorithm, engine, device)
        _warn_of_everything(ratio, "randomk")
        return request


def _warn_of_everything(ratio: float, name: str) -> None:
    if ratio == 1 and isinstance(ratio, int):
        warnings.warn(
            f"Compression.{name}(ratio=1) sends every element; one per cent is 0.01, and Compression.dense() sends all "
            "without indices",
            stacklevel=3,
        )
