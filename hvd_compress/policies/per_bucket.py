"""A function of the program says how each bucket travels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import decide
from hvd_compress.policies.open_paths import left_open
from hvd_compress.policies.prices import Prices, measure
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.services.agreement import gathered
from hvd_compress.settings import Settings

Choose = Callable[[Layout], Request]
DIGITS = 12
"""Hexadecimal ones of a digest, which a float64 holds."""


@dataclass(frozen=True)
class PerBucket(PolicySettings):
    """What Compression.per_bucket() was given. Ranks compare what the function returns, not the function."""

    choose: Choose = field(repr=False)

    def make(self, request: Request, settings: Settings) -> PerBucketPolicy:
        return PerBucketPolicy(self.choose)


class PerBucketPolicy(DecisionPolicy):
    """Asks for each parameter by itself, once; those of which the same is said may share a bucket.

    A bucket whose parameters agree travels as they do. Of one in which they do not, such as DDP's, the function is
    asked itself.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._by_name: dict[str, Request] = {}
        self._prices: Prices | None = None

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        """Raise ConfigError, on every rank, where the function fails or ranks differ."""
        super().prepare(engine, parameters)
        found = self._agreed(parameters, engine)
        self._by_name = {layout.names[0]: request for layout, request in zip(parameters, found, strict=True)}
        for layout, request in zip(parameters, found, strict=True):
            if request.algorithm != "auto" and request.verb is not None:
                engine.require(request.verb, request.algorithm)
            self._decide(layout)
        if self.measuring_s is not None:
            asked = zip(found, parameters, strict=True)
            self._prices = measure(engine, left_open(asked, self.capabilities), self.measuring_s)

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(repr(self._by_name[name]), []).append(name)
        return [Part(tuple(group)) for group in groups.values()] if len(groups) > 1 else ()

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        mixed = [layout for layout in buckets if self._of_parameters(layout) is None]
        asked: dict[tuple[str, ...], Request] = {}
        if mixed:
            found = launch(partial(self._agreed, mixed), f"step {step}, comparing what choose() returns")()
            asked = {layout.names: request for layout, request in zip(mixed, found, strict=True)}
        return [self._decide(layout, asked.get(layout.names)) for layout in buckets]

    def _of_parameters(self, layout: Layout) -> Request | None:
        """Return what is said of each parameter of a bucket; None where that differs."""
        first, *others = (self._by_name[name] for name in layout.names)
        return first if all(repr(other) == repr(first) for other in others) else None

    def _decide(self, layout: Layout, asked: Request | None = None) -> Decision:
        request = asked or self._of_parameters(layout)
        assert request is not None
        return decide(request, layout, self.world_size, self.capabilities, self._prices)

    def _agreed(self, layouts: Sequence[Layout], engine: Engine) -> list[Request]:
        """Return what the function says of each. Collective. Raises ConfigError on every rank where one must."""
        found: list[Request] = []
        obstacle: ConfigError | None = None
        try:
            found = [_chosen(self._choose, layout) for layout in layouts]
        except ConfigError as error:
            obstacle = error
        digests = [_digest(request) for request in found] if obstacle is None else [-1.0] * len(layouts)
        ranks = gathered(digests, engine)
        if obstacle is not None:
            raise obstacle
        for number, layout in enumerate(layouts):
            apart = [rank for rank, of_rank in enumerate(ranks) if of_rank[number] != digests[number]]
            if apart and ranks[apart[0]][number] < 0:
                raise ConfigError(f"choose() of Compression.per_bucket() has failed on rank {apart[0]}: see there")
            if apart:
                raise ConfigError(
                    f"choose() of Compression.per_bucket() says {found[number].compressor} of {layout.called} on rank "
                    f"{engine.rank}, and something else on rank {apart[0]}: let it depend on the layout alone"
                )
        return found


def _chosen(choose: Choose, layout: Layout) -> Request:
    """Return what the function says. Raises ConfigError for what is no compression, or chooses by itself."""
    try:
        found = choose(layout)
    except Exception as error:
        raise ConfigError(
            f"choose() of Compression.per_bucket() has failed for {layout.called}: {type(error).__name__}: {error}"
        ) from error
    is_alike = isinstance(found, Request) and found.policy is None and found.feedback.keeps_all
    if (
        not is_alike
        or found.compressor.refuses_momentum(0.9, adapts=True)
        or len(collectives.meanings(found.collective)) > 1
    ):
        raise ConfigError(
            f"choose() of Compression.per_bucket() returns {found!r} for {layout.called}: it must be a compression of "
            "gradients, without a momentum, whose every step is alike, such as Compression.int4() or dense()"
        )
    if found.engine != "auto":
        raise ConfigError(
            f"choose() of Compression.per_bucket() names engine {found.engine!r} for {layout.called}, and all buckets "
            "travel by one: say .by(engine=...) of per_bucket()"
        )
    return found


def _digest(request: Request) -> float:
    return float(int(hashlib.sha256(repr(request).encode()).hexdigest()[:DIGITS], 16))
