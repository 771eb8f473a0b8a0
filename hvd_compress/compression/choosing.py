"""What chooses while training runs, or by a plan, and compressors of one's own."""

from __future__ import annotations

import warnings
from pathlib import Path

from hvd_compress.compressors import Cast, Compressor, TopK
from hvd_compress.compressors.base import is_frozen_dataclass
from hvd_compress.controller.goal import HIGH, AutoRatio, Target, default_low
from hvd_compress.errors import ConfigError, known_are
from hvd_compress.policies import Auto, Covap, PlanFile
from hvd_compress.policies.auto.quality import OF, Quality
from hvd_compress.request.request import Request

LITTLE_GAIN = 0.05
"""The largest elements hold more than this of nearly any gradient: who asks for it probably means a ratio."""


class Choosing:
    """Part of `Compression`."""

    @staticmethod
    def auto(quality: Quality = "near", *, engine: str = "auto", device: str = "auto") -> Request:
        """Send gradients in whichever way makes training fastest on this network, or as they are where nothing pays.

        Some twenty real steps, after a short measurement of the network, decide between compressors, each by its
        fastest path. When steps take another time than before, the network is measured and steps are tried again.
        `optimizer.decisions` and HVD_COMPRESS_LOG say what was chosen, and why. docs/controller.md.

        Args:
            quality: "near": what trains as without compression (within 0.02 nats after 240 steps on two tasks): dense,
                bf16, int8 and int4. "dense": no compression; by which path is all that is chosen.
            engine, device: as topk().

        With HVD_COMPRESS_ADAPT=0 nothing is measured, and what sends the fewest bytes is taken.

        Raises:
            ConfigError: there is no such quality.
        """
        if not isinstance(quality, str) or quality not in OF:
            hint = "; ratios of top-k are chosen by Compression.flexible()" if not isinstance(quality, str) else ""
            raise ConfigError(f"unknown quality {quality!r}{known_are(OF, quality)}{hint}")
        return Request(Cast(), engine=engine, device=device, policy=Auto(quality))

    @staticmethod
    def flexible(
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
                f"Compression.flexible({target}) asks for {goal.wanted_gain:.3g} of the gradient's squared norm, which "
                f"is very little; to send so many of its elements, it is Compression.topk(ratio={target})",
                stacklevel=2,
            )
        return Request(TopK(goal.start, layerwise), engine=engine, device=device, ratio=goal)

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
            scheme: one that carries it, or "auto": as int8(); with a ratio, as topk().
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
