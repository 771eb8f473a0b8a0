"""What ranks bring together outside of a step: collectives in the engine's thread."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError, UsageError

PIECE = 2**30
"""Bytes of all ranks that one collective moves."""


class Meeting(Protocol):
    """A session, as far as its ranks meet between steps.

    Attributes:
        step: the coming one.
        closed: whether it exchanges nothing any more.
    """

    step: int
    closed: bool

    @property
    def policy(self) -> object: ...


class Gathering:
    """Has all ranks of a session bring something, between two steps. Each call is collective.

    Raises CommunicationError, which names the ranks that have not come.
    """

    def __init__(self, session: Meeting, launch: Launch) -> None:
        self._session: Meeting = weakref.proxy(session)  # no circle: what is dropped is free at once
        self._launch = launch

    def of_all(self, figures: Sequence[float], what: str) -> list[list[float]]:
        """Return the figures of all ranks, which may bring more or fewer. `what` they are, a timeout says."""
        return self.begin(figures, what)()

    def begin(self, figures: Sequence[float], what: str) -> Callable[[], list[list[float]]]:
        """As of_all(), and call what is returned to wait: also in a step whose last bucket was handed over."""
        return self._launch(partial(_gathered, figures), f"step {self._session.step}, {what}")

    def figures(self, figures: Sequence[float], what: str = "figures of the program") -> list[list[float]]:
        """Return the figures of all ranks, which bring as many.

        Raises UsageError before the first step, when ranks have not met; ConfigError where figures are no numbers, and
        on all ranks alike where one brings more than another.
        """
        mine = _numbers(figures)
        if self._session.policy is None:
            raise UsageError("ranks have not met before their first step: call it after that")
        if self._session.closed:
            raise UsageError("this optimizer or model exchanges nothing any more, so ranks do not meet")
        ranks = self.of_all(mine, what)
        if len({len(rank) for rank in ranks}) > 1:
            brought = ", ".join(str(len(rank)) for rank in ranks)
            raise ConfigError(f"ranks bring {brought} figures: bring as many on each")
        return ranks

    def mean(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace floating-point tensors by their mean over all ranks, uncompressed, by way of the host.

        One that is not finite on some ranks becomes the mean of the others; on all, it is not finite.

        Raises as figures(), and ConfigError where ranks bring other numbers of elements.
        """
        numels = self.figures([sum(each.numel() for each in tensors)], "a mean")
        if len({numel for (numel,) in numels}) > 1:
            brought = ", ".join(f"{numel:.0f}" for (numel,) in numels)
            raise ConfigError(f"ranks bring {brought} elements, of which there is no mean: let all do the same steps")
        self._launch(partial(_mean, tensors), f"step {self._session.step}, a mean")()

    def on_first(self, value: Any) -> list[Any] | None:
        """Return on the first rank what all ranks bring, which pickle takes; None on others."""
        return self._launch(partial(_on_first, value), f"step {self._session.step}, what is saved")()


def _numbers(figures: Sequence[float]) -> list[float]:
    """Return figures of a program as numbers. Raises ConfigError for anything else."""
    try:
        return [float(figure) for figure in figures]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"figures must be numbers: {error}") from None


def _gathered(figures: Sequence[float], engine: Engine) -> list[list[float]]:
    """Return the figures of all ranks, which may bring more or fewer."""
    with engine.aside():
        ranks: list[list[float]] = engine.allgather_json(figures)
    return ranks


@torch.no_grad()
def _mean(tensors: Sequence[torch.Tensor], engine: Engine) -> None:
    for dtype in (torch.float32, torch.float64):
        those = [each for each in tensors if torch.promote_types(each.dtype, torch.float32) == dtype]
        if those:
            flats = [each.detach().to("cpu", dtype).flatten() for each in those]
            counts = torch.tensor([bool(each.isfinite().all()) for each in flats], dtype=dtype)
            brought = [flat if count else torch.zeros_like(flat) for flat, count in zip(flats, counts, strict=True)]
            total = torch.cat([*brought, counts])
            with engine.aside():
                engine.control.allreduce(total)
            *sums, counts = torch.split(total, [*(each.numel() for each in those), len(those)])
            for tensor, part, count in zip(those, sums, counts, strict=True):
                tensor.copy_((part / count).view(tensor.shape))


def _on_first(value: Any, engine: Engine) -> list[Any] | None:
    """Return on the first rank what all ranks bring, which pickle takes; None on others.

    In pieces, as some transports count no more than 2^31 - 1 bytes of all ranks.
    """
    mine, control = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), engine.control
    lengths = engine.allgather_json(mine.numel())
    is_first, pieces = control.rank == 0, [[mine[:0]] for _ in lengths]
    with engine.aside():
        for start in range(0, max(lengths), PIECE // len(lengths)):
            taken = [max(0, min(PIECE // len(lengths), length - start)) for length in lengths]
            piece = mine[start : start + taken[control.rank]]
            if "gather" in control.capabilities.verbs:
                found = control.gather(piece, 0, taken)
            else:  # Horovod's engine
                found = control.allgather(piece, taken)
            for kept, each in zip(pieces, found if is_first and found is not None else (), strict=False):
                kept.append(each)
    return [pickle.loads(torch.cat(each).numpy().data) for each in pieces] if is_first else None
