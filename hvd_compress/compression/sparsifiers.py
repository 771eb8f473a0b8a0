"""What sends some elements and their places."""

from __future__ import annotations

import warnings

from hvd_compress.compressors import DGC, MSTopK, OkTopk, RandomK, SIDCo, Threshold, TopK
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
        values: str = "fp32",
        index_coding: str = "none",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send about the elements of largest magnitude, with error feedback: MSTopk (Shi et al. 2021).

        Bisection looks for the threshold that as many elements reach.

        Args:
            ratio, scheme, algorithm, layerwise, values, index_coding, engine, device: as topk().
            bisections: in search of the threshold, 1 to 48.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        compressor = MSTopK(ratio, layerwise, bisections, values=values, index_coding=index_coding)
        request = Request(compressor, scheme, algorithm, engine, device)
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
        values: str = "fp32",
        index_coding: str = "none",
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
            values, index_coding, engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        compressor = DGC(ratio, momentum, warmup_steps, clip, layerwise, values=values, index_coding=index_coding)
        return Request(compressor, scheme, engine=engine, device=device)

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
        _warn_of_everything(ratio, "oktopk")
        return request

    @staticmethod
    def threshold(
        tau: float,
        *,
        values: str = "fp32",
        index_coding: str = "none",
        scheme: str = "auto",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send the elements whose magnitude is `tau` or more, by all-gather, with error feedback.

        How many that is, none or all, is up to the gradient: a tau that is right at first may be far from it later.

        Args:
            tau: in units of the gradient, above 0. It does not follow a loss scale.
            scheme: "allgather", which is "auto", or one that runs by name alone, as topk(); not "hitopk".
            values, index_coding, engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(Threshold(tau, values=values, index_coding=index_coding), scheme, engine=engine, device=device)

    @staticmethod
    def sidco(
        ratio: float = 0.01,
        distribution: str = "exponential",
        *,
        values: str = "fp32",
        index_coding: str = "none",
        scheme: str = "auto",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send what lies above a threshold that a fitted distribution gives, with error feedback: SIDCo (Abdelmoniem
        et al. 2021).

        The threshold is found in stages, whose number adapts until about `ratio` of the elements are sent.

        Args:
            ratio: share of the elements that is sent, about, in (0, 1]; 0.01 is one per cent.
            distribution: of magnitudes: "exponential"; "gamma", and generalised Pareto beyond the first threshold; or
                "pareto", the generalised one, for all stages.
            scheme: as threshold().
            values, index_coding, engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        compressor = SIDCo(ratio, distribution, values=values, index_coding=index_coding)
        return Request(compressor, scheme, engine=engine, device=device)

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
        """Send random elements, the same on all ranks: their values alone.

        Args:
            ratio: share of the elements that is sent, in (0, 1]; 0.01 is one per cent.
            scheme: "allreduce", "allgather", or "auto", as int8(); or "hierarchical", as topk().
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
