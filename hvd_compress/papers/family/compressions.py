"""What `Compression` has of them."""

from __future__ import annotations

from hvd_compress.compression.part import Part
from hvd_compress.compression.sparsifiers import warn_of_everything
from hvd_compress.papers.family.atomo import ATOMO
from hvd_compress.papers.family.dgc import DGC
from hvd_compress.papers.family.mstopk import MSTopK
from hvd_compress.papers.family.oktopk import OkTopk
from hvd_compress.papers.family.qsgd import QSGD
from hvd_compress.papers.family.randomk import RandomK
from hvd_compress.papers.family.sidco import SIDCo
from hvd_compress.papers.family.signsgd import SignSGD
from hvd_compress.papers.family.threshold import Threshold
from hvd_compress.request.request import Request


class Family(Part):
    """Part of `Compression`."""

    @staticmethod
    def mstopk(
        ratio: float = 0.01,
        *,
        bisections: int = 25,
        layerwise: bool = False,
        values: str = "fp32",
        index_coding: str = "none",
    ) -> Request:
        """Send about the elements of largest magnitude, with error feedback: MSTopk (Shi et al. 2021).

        Bisection looks for the threshold that as many elements reach.

        Args:
            ratio, layerwise, values, index_coding: as topk().
            bisections: in search of the threshold, 1 to 48.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        compressor = MSTopK(ratio, layerwise, bisections, values=values, index_coding=index_coding)
        request = Request(compressor)
        warn_of_everything(ratio, "mstopk")
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
    ) -> Request:
        """Send the elements of largest magnitude of a velocity that each rank sums up (Lin et al. 2018).

        The momentum is here: the optimizer is to be SGD without momentum of its own.

        Args:
            ratio: share of the elements that is sent, about, in (0, 1]; 0.01 is one per cent.
            momentum: of SGD, from 0 on, below 1.
            warmup_steps: over which the ratio falls from 0.25.
            clip: the largest Euclidean norm of a bucket's gradient on a rank. It does not follow a loss scale.
            layerwise: a threshold for each parameter instead of one for the bucket.
            values, index_coding: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        compressor = DGC(ratio, momentum, warmup_steps, clip, layerwise, values=values, index_coding=index_coding)
        return Request(compressor)

    @staticmethod
    def oktopk(ratio: float = 0.01, *, threshold_steps: int = 32, region_steps: int = 64) -> Request:
        """Send about the elements of largest magnitude, and receive the largest sums: Ok-Topk (Li and Hoefler 2022).

        Selected elements are added by the owner of their region, and only sums above a global threshold reach all
        ranks, so that no rank sends more with more ranks. Error feedback remembers what was not part of that.

        Args:
            ratio: as topk(), about.
            threshold_steps: steps in which a threshold is used before it is found again.
            region_steps: steps in which regions are used before ranks balance them again.

        Raises:
            ConfigError: a value is out of range or unknown.

        Warns of ratio=1: one per cent was probably meant.
        """
        request = Request(OkTopk(ratio, threshold_steps, region_steps))
        warn_of_everything(ratio, "oktopk")
        return request

    @staticmethod
    def threshold(tau: float, *, values: str = "fp32", index_coding: str = "none") -> Request:
        """Send the elements whose magnitude is `tau` or more, by all-gather, with error feedback.

        How many that is, none or all, is up to the gradient: a tau that is right at first may be far from it later.

        Args:
            tau: in units of the gradient, above 0. It does not follow a loss scale.
            values, index_coding: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(Threshold(tau, values=values, index_coding=index_coding))

    @staticmethod
    def sidco(
        ratio: float = 0.01, distribution: str = "exponential", *, values: str = "fp32", index_coding: str = "none"
    ) -> Request:
        """Send what lies above a threshold that a fitted distribution gives, with error feedback: SIDCo (Abdelmoniem
        et al. 2021).

        The threshold is found in stages, whose number adapts until about `ratio` of the elements are sent.

        Args:
            ratio: share of the elements that is sent, about, in (0, 1]; 0.01 is one per cent.
            distribution: of magnitudes: "exponential"; "gamma", and generalised Pareto beyond the first threshold; or
                "pareto", the generalised one, for all stages.
            values, index_coding: as topk().

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        compressor = SIDCo(ratio, distribution, values=values, index_coding=index_coding)
        return Request(compressor)

    @staticmethod
    def randomk(ratio: float = 0.01, *, error_feedback: bool = True, seed: int = 0) -> Request:
        """Send random elements, the same on all ranks: their values alone.

        Args:
            ratio: share of the elements that is sent, in (0, 1]; 0.01 is one per cent.
            error_feedback: remember what is not sent. Without it the elements are multiplied by about 1 / ratio, so
                that the result is right on average, with much noise.
            seed: of the random numbers, the same on all ranks.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        request = Request(RandomK(ratio, error_feedback, seed))
        warn_of_everything(ratio, "randomk")
        return request

    @staticmethod
    def signsgd() -> Request:
        """Send one bit an element; the result is +1 or -1, the sign that most ranks have (signSGD, Bernstein et al.).

        There is neither a scale nor error feedback: the learning rate says how far each parameter moves in a step, and
        must be far smaller than that of SGD. Whether ranks are averaged or summed makes no difference. What divides or
        clips gradients after the exchange, as a torch.amp.GradScaler does, shrinks the signs. Zeros and ties become +1
        and -1 in turn. With owners of shards (collective="alltoall-allgather") it is one bit both ways.
        """
        return Request(SignSGD())

    @staticmethod
    def qsgd(
        bits: int = 4, norm: str = "l2", *, layerwise: bool = True, error_feedback: bool = False, seed: int = 0
    ) -> Request:
        """Send 8, 4 or 2 bits an element, rounded at random, right on average, without error feedback (QSGD).

        Many elements share a norm, so that most of them become 0: int8(stochastic=True) and int4(stochastic=True), with
        a scale for each block of elements, lose less, and their sums are rounded again by owners of shards.

        Args:
            bits: of an element.
            norm: what they are multiples of: the Euclidean norm, "l2", or the largest magnitude, "max".
            layerwise: one norm for each parameter instead of one for the bucket.
            error_feedback: remember what rounding loses; with 8 or 4 bits and norm="max", else it would grow.
            seed: of the random numbers.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        quantizer = QSGD(bits, norm, layerwise=layerwise, seed=seed, error_feedback=error_feedback)
        return Request(quantizer)

    @staticmethod
    def terngrad(*, clip: float | None = 2.5, seed: int = 0) -> Request:
        """Send -1, 0 or 1 an element and the largest magnitude of each parameter (Wen et al. 2017).

        There is no error feedback. Rounding is random, and right on average; clipping is not.

        Args:
            clip: the bound of a magnitude, in standard deviations of its parameter; None clips none.
            seed: of the random numbers.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(QSGD(2, "max", clip, seed=seed))

    @staticmethod
    def atomo(rank: int = 4, *, seed: int = 0) -> Request:
        """Send singular vectors of each matrix, drawn at random, right on average, without error feedback (Wang et al.
        2018).

        Each step decomposes each matrix, which is slow: it is a reference for powersgd(). Vectors, and matrices that
        would not shrink to half, travel dense beside it.

        Args:
            rank: triplets of a singular value and its two vectors that are sent of a matrix, 1 or more: the budget of
                the paper. More means less noise, and more bytes.
            seed: of the random numbers.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(ATOMO(rank, seed))
