"""The `Compression` namespace: what a user may ask for."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from hvd_compress.compressors import (
    DGC,
    QSGD,
    BlockQuantizer,
    Cast,
    Compressor,
    EFSign,
    MSTopK,
    PowerSGD,
    RandomK,
    Threshold,
    TopK,
)
from hvd_compress.compressors.base import is_frozen_dataclass
from hvd_compress.controller.goal import HIGH, AutoRatio, Target, default_low
from hvd_compress.decision import Request
from hvd_compress.errors import ConfigError
from hvd_compress.policies import Covap, PlanFile

LITTLE_GAIN = 0.05
"""The largest elements hold more than this of nearly any gradient: who asks for it probably means a ratio."""


class Compression:
    """What to pass as `compression=` to a front end. Each function returns a request."""

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
                or "auto" (any of these or no compression, whichever is fastest).
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
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range.
        """
        return Request(DGC(ratio, momentum, warmup_steps, clip, layerwise), engine=engine, device=device)

    @staticmethod
    def threshold(tau: float, *, engine: str = "auto", device: str = "auto") -> Request:
        """Send the elements whose magnitude is `tau` or more, by all-gather, with error feedback.

        How many that is, none or all, is up to the gradient: a tau that is right at first may be far from it later.

        Args:
            tau: in units of the gradient, above 0. It does not follow a loss scale.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range.
        """
        return Request(Threshold(tau), engine=engine, device=device)

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
            scheme: "allgather", or "allreduce", which is "auto".
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

    @staticmethod
    def auto(
        target: Target = "knee",
        *,
        low: float | None = None,
        high: float = HIGH,
        gain_change: float = 0.1,
        gain: str = "curve",
        solver: str = "exact",
        layerwise: bool = False,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send the elements of largest magnitude, as many as pay, in the way that is fastest; or all, where none pays.

        Scheme, algorithm and ratio of each bucket are chosen while training (Eq. 6 of Tyagi and Swany, "Flexible
        Communication for Optimal Distributed Learning"): from what all ranks measured, and from the gain, the share of
        the corrected gradient's squared norm that is sent. With HVD_COMPRESS_ADAPT=0 the ratio in the middle is kept.

        Args:
            target: "knee", the best compromise between compression time, communication time and gain; "pace", the most
                gain a second of training, so that more is sent where the network is fast (with high=1.0 everything, if
                that is best); a gain in (0, 1], to be reached with the smallest ratio that does; or three weights of
                the two times and of 1 / gain.
            low, high: bounds of the ratio, in (0, 1]. AR-Topk needs a larger one than an all-gather for the same gain.
                The knee lies between them: a lower one brings more speed and less accuracy. Without `low` it is 0.02,
                or 0.001 where a gain is wanted, which is the bound then.
            gain_change: the relative change of the gain at which the ratio is chosen anew; 0.1 is ten per cent.
            gain: "curve" reads it from the gradient for all ratios at once; "rollout" trains some steps with each of a
                few ratios and takes them back (see optimizer.rollout), as the paper does.
            solver: "exact" compares all ratios of a grid; "nsga2" searches, as the paper does (needs pymoo).
            layerwise: select in each parameter by itself instead of in the fused bucket.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.

        Warns of a gain so small that a ratio was probably meant.
        """
        low = default_low(target, high) if low is None else low
        goal = AutoRatio(target, low, high, gain_change, gain, solver)
        if goal.wanted_gain is not None and goal.wanted_gain <= LITTLE_GAIN:
            warnings.warn(
                f"Compression.auto({target}) asks for {goal.wanted_gain:.3g} of the gradient's squared norm, which is "
                f"very little; to send so many of its elements, it is Compression.topk(ratio={target})",
                stacklevel=2,
            )
        return Request(TopK(goal.start, layerwise), engine=engine, device=device, ratio=goal)

    @staticmethod
    def efsign(*, layerwise: bool = True, engine: str = "auto", device: str = "auto") -> Request:
        """Send one bit an element and one scale a parameter (or a bucket), with error feedback."""
        return Request(EFSign(layerwise), engine=engine, device=device)

    @staticmethod
    def qsgd(
        bits: int = 4,
        norm: str = "l2",
        *,
        layerwise: bool = True,
        seed: int = 0,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send 8, 4 or 2 bits an element, rounded at random, right on average, without error feedback (QSGD).

        Many elements share a norm, so that most of them become 0: int8(stochastic=True) and int4(stochastic=True), with
        a scale for each block of elements, lose less, and their sums are rounded again by owners of shards.

        Args:
            bits: of an element.
            norm: what they are multiples of: the Euclidean norm, "l2", or the largest magnitude, "max".
            layerwise: one norm for each parameter instead of one for the bucket.
            seed: of the random numbers.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(QSGD(bits, norm, layerwise=layerwise, seed=seed), engine=engine, device=device)

    @staticmethod
    def terngrad(*, clip: float | None = 2.5, seed: int = 0, engine: str = "auto", device: str = "auto") -> Request:
        """Send -1, 0 or 1 an element and the largest magnitude of each parameter (Wen et al. 2017).

        There is no error feedback. Rounding is random, and right on average; clipping is not.

        Args:
            clip: the bound of a magnitude, in standard deviations of its parameter; None clips none.
            seed: of the random numbers.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range.
        """
        return Request(QSGD(2, "max", clip, seed=seed), engine=engine, device=device)

    @staticmethod
    def int8(
        block: int = 64,
        stochastic: bool = False,
        *,
        seed: int = 0,
        scheme: str = "auto",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send 8 bits an element and a bf16 scale for each block of elements: a quarter of the bytes of dense.

        The sum over ranks is rounded again, by the rank that owns that shard of the bucket.

        Args:
            block: elements that share a scale: a power of two from 64 to 1024. With 64 it takes 1/4 of a bit an
                element.
            stochastic: round at random, right on average, without error feedback. Else round to nearest; what that
                loses is sent with the next gradient.
            seed: of the random numbers.
            scheme: "alltoall-allgather" (each rank owns a shard), "allgather" (nobody rounds again),
                "gather-broadcast" (one rank owns everything), or "auto": by number of ranks and bytes of the bucket.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(BlockQuantizer(8, block, stochastic, seed), scheme, engine=engine, device=device)

    @staticmethod
    def int4(
        block: int = 64,
        stochastic: bool = False,
        *,
        seed: int = 0,
        scheme: str = "auto",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send 4 bits an element and a bf16 scale a block, as int8(): an eighth of the bytes of dense."""
        return Request(BlockQuantizer(4, block, stochastic, seed), scheme, engine=engine, device=device)

    @staticmethod
    def int2(
        block: int = 64,
        stochastic: bool = False,
        *,
        seed: int = 0,
        scheme: str = "auto",
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send -1, 0 or 1 an element and a bf16 scale a block, as int8(): a fourteenth of the bytes of dense.

        It loses so much that training takes more steps.
        """
        return Request(BlockQuantizer(2, block, stochastic, seed), scheme, engine=engine, device=device)

    @staticmethod
    def powersgd(
        rank: int = 4,
        start_step: int = 0,
        min_compression_rate: float = 2.0,
        *,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send a low-rank approximation of each matrix, with error feedback and a warm start (Vogels et al. 2019).

        Vectors, and matrices that would not shrink enough, travel dense beside it.

        Args:
            rank: columns of the two factors, 1 or more. More keeps more of the gradient, and takes more bytes.
            start_step: the first step that is compressed; all elements are sent before, which helps where gradients
                change fast at first.
            min_compression_rate: a matrix is approximated where it has more than this many times the elements of its
                factors.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range.
        """
        return Request(PowerSGD(rank, start_step, min_compression_rate), engine=engine, device=device)

    @staticmethod
    def of(
        compressor: Compressor,
        scheme: str = "auto",
        algorithm: str = "auto",
        *,
        engine: str = "auto",
        device: str = "auto",
    ) -> Request:
        """Send what a compressor of your own selects: docs/add_a_compressor.md. No plan can name it.

        Args:
            scheme: one that carries it, or "auto": the fewest bytes; with a ratio, as topk().
            algorithm: of it.
            engine, device: as topk().

        Raises:
            ConfigError: it is no compressor, or no such scheme carries it.
        """
        if not isinstance(compressor, Compressor):
            raise ConfigError(f"{compressor!r} is not a compressor: an object of a subclass of Compressor is needed")
        if not is_frozen_dataclass(type(compressor)):
            raise ConfigError(
                f"{type(compressor).__name__} is no frozen dataclass, so ranks could not compare its settings: put "
                "@dataclass(frozen=True) above the class"
            )
        return Request(compressor, scheme, algorithm, engine, device)

    @staticmethod
    def covap(interval: int = 4, *, engine: str = "auto", device: str = "auto") -> Request:
        """Send each bucket in one of `interval` steps, whole, with error feedback: the filter of COVAP.

        In its other steps a bucket's result is zero; what it missed is sent with its next one. With several times
        `interval` buckets (HOROVOD_FUSION_THRESHOLD; bucket_cap_mb of DDP) each step sends about as much.

        Args:
            interval: bucket t is sent in step s iff (t + s) mod interval = 0.
            engine, device: as topk().

        Raises:
            ConfigError: a value is out of range.
        """
        return Request(Cast(), engine=engine, device=device, policy=Covap(interval))

    @staticmethod
    def plan(path: str | Path, *, engine: str = "auto") -> Request:
        """Send each bucket as a plan says: a JSON file by hand, or what `optimizer.save_plan(path)` has written.

        It says per bucket, or per pattern of parameter names, compressor, scheme, algorithms and device, and which
        parameters share a bucket. `hvd-compress plan check FILE` reads it without a model.

        Args:
            engine: as topk().

        Raises:
            PlanError: it cannot be read or is no plan. In the first step, on every rank and with the differences, where
                it does not fit the model, the number of ranks or the engine.
        """
        return Request(Cast(), engine=engine, policy=PlanFile.read(path))

    @staticmethod
    def bf16(*, engine: str = "auto", device: str = "auto") -> Request:
        """Send every element as bfloat16.

        Sums are made in fp32 where the engine cannot sum bfloat16 (MPI, Horovod), by as many bytes; torch.distributed
        sums in bfloat16.
        """
        return Request(Cast(torch.bfloat16), engine=engine, device=device)

    @staticmethod
    def dense(algorithm: str = "auto", *, engine: str = "auto", device: str = "auto") -> Request:
        """Send every element as it is, through this package's pipeline: what the others are measured against."""
        return Request(Cast(), algorithm=algorithm, engine=engine, device=device)


def _warn_of_everything(ratio: float, name: str) -> None:
    if ratio == 1 and isinstance(ratio, int):
        warnings.warn(
            f"Compression.{name}(ratio=1) sends every element; one per cent is 0.01, and Compression.dense() sends all "
            "without indices",
            stacklevel=3,
        )
