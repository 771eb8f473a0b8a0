"""How ranks meet: what each brings to the handshake, and how the policy prepares for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_compress import __version__
from hvd_compress.buckets.plan import Slot
from hvd_compress.engines.base import Engine
from hvd_compress.policies import DecisionPolicy, policy_for
from hvd_compress.request.request import Request
from hvd_compress.session.buckets import Buckets
from hvd_compress.session.handshake import Agreement, Offer, agree
from hvd_compress.session.notices import tell_other_choice, tell_unused
from hvd_compress.session.services import Services
from hvd_compress.settings import Settings


@dataclass(frozen=True)
class Resuming:
    """With what a rank goes on.

    Attributes:
        step: the coming one.
        cuts: names by bucket, as a checkpoint has them; empty without one.
        choice: of the policy, then.
    """

    step: int
    cuts: tuple[tuple[str, ...], ...] = ()
    choice: str = ""


@dataclass
class Loaded:
    """What a checkpoint has brought that was loaded before ranks have met.

    Attributes:
        cuts: names by bucket, as they were cut when it was saved; empty where none was loaded, and once ranks have met
            where others have loaded another.
        choice: what the policy had chosen then, as `DecisionPolicy.chosen`.
        kinds: of what was remembered then, and is not zero: "residual", and kinds of compressors' states.
    """

    cuts: tuple[tuple[str, ...], ...] = ()
    choice: str = ""
    kinds: frozenset[str] = frozenset()

    def tell_unused(self, buckets: Buckets, controller: DecisionPolicy | None) -> None:
        """Say once what it remembers, and this compression has no use for.

        Where a policy chooses, another one of its compressors may have.
        """
        kinds, self.kinds = self.kinds, frozenset()
        if kinds and controller is None and (unused := buckets.unused(kinds)):
            tell_unused(unused)


@dataclass(frozen=True)
class Met:
    """What came of it, the same on all ranks.

    Attributes:
        goes_on: whether the policy goes on with what another process has chosen.
    """

    engine: Engine
    agreement: Agreement
    policy: DecisionPolicy
    goes_on: bool


@dataclass(frozen=True)
class Opening:
    """What the front end of a session brings.

    Attributes:
        order: names in the order in which gradients became ready; that of rank 0 counts.
        sparse: names of those whose gradient was sparse here.
        options: of the front end, compared between ranks.
        by_rows: whether sparse gradients will travel by their rows.
    """

    request: Request
    settings: Settings
    parameters: Mapping[str, Slot]
    order: Sequence[str]
    sparse: Sequence[str]
    options: str
    by_rows: bool

    def meet(self, engine: Engine, resuming: Resuming, services: Services) -> Met:
        """Shake hands, and prepare the policy. Collective, in the engine's thread.

        Raises:
            ConfigError, UnsupportedError: ranks differ, or the engine cannot do what all have asked for; on every rank
                alike.
        """
        engine.tracks_asked = self.settings.in_flight
        policy = policy_for(self.request, self.settings, engine.world_size)
        services.take(policy)
        words = self._words(engine, services)
        described = [slot.describe(name) for name, slot in self.parameters.items()]
        obstacle = self.settings.obstacle(engine.rank)
        with engine.aside():  # the handshake belongs to no step
            resumes = repr((resuming.cuts, resuming.choice)) if resuming.cuts or resuming.choice else ""
            offer = Offer(words, described, self.order, self.sparse, resuming.step, obstacle, resumes, resuming.choice)
            agreement = agree(engine, offer)
        engine.locate()
        services.met(engine)
        goes_on = bool(agreement.choice) and policy.go_on(agreement.choice)
        if agreement.choice and not goes_on and engine.rank == 0 and engine.world_size > 1:
            tell_other_choice(agreement.choice)
        rows = set(agreement.sparse) if self.by_rows else set()
        policy.prepare(engine, [slot.layout(name, sparse=name in rows) for name, slot in self.parameters.items()])
        return Met(engine, agreement, policy, goes_on)

    def _words(self, engine: Engine, services: Services) -> dict[str, str]:
        """Return what must be equal on all ranks."""
        return {
            "the version of hvd_compress": __version__,
            "options": self.options,
            "memory that the engine takes": " and ".join(engine.capabilities.devices),
            **asked(self.request, self.settings),
            **services.fingerprint(),
        }


def asked(request: Request, settings: Settings) -> dict[str, str]:
    """Return what users ask for and ranks must have alike, each in words."""
    return {
        "compression": repr(request),
        "HOROVOD_FUSION_THRESHOLD": f"{settings.fusion_threshold_bytes}{' by default' * settings.cuts}",
        "HVD_COMPRESS_ADAPT": str(int(settings.adapt)),
        "HVD_COMPRESS_CALIBRATION_S": str(settings.calibration_s),  # says what is measured
        "HVD_COMPRESS_CHECK_EVERY": str(settings.check_every),
        "HVD_COMPRESS_IN_FLIGHT": str(settings.in_flight or "auto"),
    }
