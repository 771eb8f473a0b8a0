"""What names no compressor: what chooses while training runs, or by a plan, and one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression.part import Part
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.compressors.base import is_frozen_dataclass
from hvd_compress.errors import ConfigError, known_are
from hvd_compress.policies import Auto, PlanFile
from hvd_compress.policies.auto.quality import QUALITIES, Quality, checked
from hvd_compress.policies.noop import NoOp
from hvd_compress.policies.per_bucket import PerBucket
from hvd_compress.request.request import Request

SAMPLE = Layout.of((1024, 1024))
"""By which compressors are looked at before there are gradients."""


class Choosing(Part):
    """Part of `Compression`."""

    @staticmethod
    def auto(quality: Quality = "near", *, factors: Mapping[str, float] | None = None) -> Request:
        """Send gradients in whichever way makes training fastest on this network, or as they are where nothing pays.

        Some twenty real steps, after a short measurement of the network, decide between compressors, each by its
        fastest path. When steps take another time than before, the network is measured and steps are tried again.
        `hvd_compress.of(optimizer).decisions` and HVD_COMPRESS_LOG say what was chosen, and why. docs/controller.md.

        Args:
            quality: "near": what trains as without compression (within 0.02 nats after 240 steps on two tasks): dense,
                bf16, int8, int4 and, where that clearly pays, coded int3, whose time counts 1.04 times. "dense": no
                compression; by which path is all that is chosen. "any": also what needs more steps to the same loss
                (natural; with SGD int2, powersgd and topk): its time counts times those steps, and its reasons estimate
                what local steps would take. hvd_compress.torch sees the kind of optimizer; unknown counts as Adam-like.
            factors: for quality="any", by name, the steps that your training needs over those of dense, such as
                {"int4": 1.0, "powersgd": 1.2}: what is not named is not chosen.

        With HVD_COMPRESS_ADAPT=0 nothing is measured, and what sends the fewest bytes is taken of what is not coded.

        Raises:
            ConfigError: there is no such quality, or a factor is none.
        """
        if not isinstance(quality, str) or quality not in QUALITIES:
            hint = "; ratios of top-k are chosen by Compression.flexible()" if not isinstance(quality, str) else ""
            raise ConfigError(f"unknown quality {quality!r}{known_are(QUALITIES, quality)}{hint}")
        if factors is not None and quality != "any":
            raise ConfigError(f'factors= belongs to quality="any", and this is {quality!r}')
        known = None if factors is None else checked(factors)
        return Request(Cast(), policy=Auto(quality, known))

    @staticmethod
    def plan(path: str | Path) -> Request:
        """Send each bucket as a plan says: a JSON file by hand, or what save_plan() has written.

        It says per bucket, or per pattern of parameter names, compressor, collective, algorithms and device, and which
        parameters share a bucket. `hvd-compress plan check FILE` reads it without a model.

        Raises:
            PlanError: it cannot be read or is no plan. In the first step, on every rank and with the differences, where
                it does not fit the model, the number of ranks or the engine.
        """
        return Request(Cast(), policy=PlanFile.read(path))

    @staticmethod
    def per_bucket(choose: Callable[[Layout], Request]) -> Request:
        """Send each bucket as a function says: by size, by the names of its parameters, or by dtype.

            def choose(layout):
                return Compression.int4() if layout.numel >= 1_000_000 else Compression.dense()

        It is asked for each parameter by itself, once: hvd_compress.torch puts those into one bucket of which it says
        the same. A bucket whose parameters agree travels as they do; of others, such as DDP's, it is asked itself.

        Args:
            choose: takes a layout, which has `names`, `shapes`, `dtype`, `numel` and `nbytes`, and returns what another
                function of `Compression` returns whose every step is alike. It must say the same on every rank.

        Raises:
            ConfigError: it cannot be called. In the first step, on every rank: it fails, returns something else, or
                differs between ranks.
        """
        if not callable(choose):
            raise ConfigError(f"choose = {choose!r} cannot be called: pass a function that takes a layout")
        return Request(Cast(), policy=PerBucket(choose))

    @staticmethod
    def noop() -> Request:
        """Exchange no gradient: each rank trains by its own, to see how long a step takes without their exchange.

        That is what the best compression could give, and no way to train: replicas part, and are not compared. A
        warning says so. Sparse gradients travel by their rows, as with any compression.
        """
        return Request(Cast(), policy=NoOp())

    @staticmethod
    def of(compressor: Compressor) -> Request:
        """Send what a compressor of your own selects: docs/add_a_compressor.md. No plan can name it.

        Raises:
            ConfigError: it is no compressor.
        """
        if not isinstance(compressor, Compressor):
            raise ConfigError(f"{compressor!r} is not a compressor: an object of a subclass of Compressor is needed")
        if not is_frozen_dataclass(type(compressor)):
            raise ConfigError(
                f"{type(compressor).__name__} is no frozen dataclass, so ranks could not compare its settings: put "
                "@dataclass(frozen=True) above the class"
            )
        return Request(compressor)


def described(level: object) -> str:
    """Return in words what was given as a compression that does not choose by itself."""
    if not isinstance(level, Request):
        return repr(level)
    return str(level.compressor) if level.policy is None else f"what chooses by itself, {type(level.policy).__name__}"
