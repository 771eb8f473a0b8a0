"""What every policy promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.collectives import Probe
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event, History
from hvd_compress.request.decision import Decision
from hvd_compress.services.base import Service


class DecisionPolicy(ABC):
    """Answers: which decision, for each bucket and step? The same on every rank: local figures decide nothing.

    Where something is tried, its decisions are trials (`Decision.is_trial`), dropped() is empty, and history tells of
    each choice once that stands (`events.recorder.choice`); `tells_of` are the buckets of which it does. What it passes
    on to policies of its own, as `measuring_s`, it gives them itself.

    Called in this order: go_on(), prepare(), parts(), setup(); then for each step decide() and probes(). setup() comes
    again where buckets are cut anew. What comes before parts() runs in the engine's thread, the rest in the one that
    trains. What a step was like its `services` see.

    Attributes:
        measuring_s: how long prepare() may measure collectives, in seconds, about; None: nothing, and what a request
            leaves open goes by arithmetic.
        services: what watches steps for it, from when it is made.
        tells_of: numbers of the buckets whose events it tells by itself (`watch`); the session tells of the others.
        history: what was decided when, and why; None where nothing is chosen.
        settled: whether nothing is tried.
        cuttable: whether gradients may be cut into other buckets once nothing is tried.
    """

    measuring_s: float | None = None
    services: Sequence[Service] = ()
    tells_of: Collection[int] = ()
    cuttable: bool = False
    rank: int
    world_size: int
    capabilities: Capabilities

    @property
    def history(self) -> History | None:
        return None

    @property
    def settled(self) -> bool:
        return True

    def watch(self, watcher: Callable[[Event], None]) -> None:  # noqa: B027 (most policies have no events)
        """Tell `watcher` of every event from now on; before setup()."""

    def chosen(self) -> str:
        """Return what was chosen while training, as text for a checkpoint; nothing where something is still tried."""
        return ""

    def go_on(self, chosen: str) -> bool:
        """Go on with what another process of the job has chosen; before prepare(). The same on all ranks.

        Return whether a policy of this kind has chosen it; else it is of no use here. Raises ConfigError for what
        chosen() has not returned, on all ranks alike.
        """
        return False

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        """Ranks have shaken hands: look at the engine, and perhaps measure it. Collective, in the engine's thread.

        Args:
            parameters: the layout of each parameter by itself; sparse where its gradient was sparse on some rank.

        Raises:
            ConfigError, UnsupportedError: what is wanted cannot be done; on every rank alike.
        """
        self.rank, self.world_size, self.capabilities = engine.rank, engine.world_size, engine.capabilities

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        """Return which of these parameters must not share a bucket with others; those that are left may."""
        return ()

    @abstractmethod
    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        """Return how each bucket travels in step `step`, the coming one or the one under way."""

    def decide(self, step: int) -> Mapping[int, Decision]:
        """Return the decisions that change with the coming step, by number of the bucket."""
        return {}

    def probes(self, step: int) -> Mapping[int, Probe]:
        """Return what is wanted of the exchanges of the coming step; nothing of buckets that are left out."""
        return {}

    def dropped(self, step: int) -> Collection[int]:
        """Return the buckets that need no more, from the coming step on, what decisions before this one remember."""
        return ()
