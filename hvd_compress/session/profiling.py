"""What a session lets be measured of a training: the planner's inputs, and its communication-to-computation ratio."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.policies import DecisionPolicy
from hvd_compress.services.ccr import Ccr, WantsCcr
from hvd_compress.settings import DEFAULT_CCR_STEPS, CcrSettings

log = logging.getLogger("hvd_compress")


class Profiling(Protocol):
    """Records the steps of a training, and measures when it has enough: the same on all ranks.

    Attributes:
        active: whether it still records. Meanwhile buckets are to be handed over when the backward pass is over: an
            exchange beside it would take the cores and the memory that are measured.
    """

    active: bool

    def fingerprint(self) -> Mapping[str, str]:
        """Return what must be equal on all ranks, in words."""

    def prepare(self, engine: Engine) -> None:
        """Ranks have shaken hands. Collective.

        Raises UnsupportedError, ConfigError, on all ranks alike, where there can be no profile.
        """

    def end_step(self, launch: Launch) -> None:
        """A step is over, and its results are there: what fails here is told, and raised by the next exchange."""

    def close(self) -> None:
        """Record no more."""


class CcrProfiling(Protocol):
    """Records a few steps, as profiler.ccr.CcrProfiler does."""

    @property
    def active(self) -> bool: ...

    @property
    def obstacle(self) -> str: ...

    def begin(self, steps: int) -> None: ...

    def end_step(self, step: int, exchange_s: float, launch: Launch) -> Ccr | None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


class CcrMeasurement:
    """Has the communication-to-computation ratio profiled where somebody wants it: a policy, a program or the command.

    Attributes:
        profiler: what records; None where nothing knows parameters.
        found: the last ratio that a program or the command has asked for; None before the first.
        give_up: is called where the command gets no ratio from here, so that another optimizer may be profiled.
    """

    def __init__(self, settings: CcrSettings | None) -> None:
        """`settings`: what a command wants, if one does."""
        self._command = settings  # until it has its ratio
        self._asked = 0  # steps, of a program or the command
        self._of_policy: WantsCcr | None = None
        self._for_policy = False  # what is recorded
        self._layouts: Sequence[Layout] = ()  # of the steps that are recorded
        self._steps = 0  # of this process
        self.give_up: Callable[[], None] = lambda: None
        self.profiler: CcrProfiling | None = None
        self.found: Ccr | None = None

    @property
    def active(self) -> bool:
        """Whether buckets are to be handed over when the backward pass is over."""
        return self.profiler is not None and self.profiler.active

    @property
    def obstacle(self) -> str:
        """Why nothing can be profiled here, in words; or nothing."""
        return "nothing knows parameters" if self.profiler is None else self.profiler.obstacle

    def fingerprint(self) -> Mapping[str, str]:
        """Return what must be equal on all ranks, in words."""
        command, words = self._command, {}
        if command is not None:
            words["HVD_COMPRESS_CCR"] = f"{command.skip} + {command.steps} steps"
        if self._of_policy is not None:
            words["what keeps a CCR from being profiled"] = self.obstacle
        return words

    def serve(self, policy: DecisionPolicy) -> None:
        """This policy decides from now on; it may want a ratio."""
        self._of_policy = next((each for each in policy.services if isinstance(each, WantsCcr)), None)
        if self._of_policy is not None:
            self._of_policy.obstacle = self.obstacle

    def ask(self, steps: int) -> None:
        """Have the coming steps recorded, or the first ones in which the policy tries nothing. All ranks call it."""
        self._asked = steps

    def end_step(
        self,
        step: int,
        exchange_s: float,
        policy: DecisionPolicy,
        launch: Launch,
        rank: int,
        layouts: Sequence[Layout],
    ) -> None:
        """A step is over.

        Args:
            exchange_s: from when the front end had nothing to do but to wait, to the end.
            layouts: of its buckets, which may have been cut anew in it.
        """
        if self.profiler is None:
            return
        self._steps += 1
        if not self.profiler.active:
            self._begin(policy, layouts)
        elif layouts != self._layouts:
            self._layouts = layouts
            self.profiler.restart()
        elif (found := self.profiler.end_step(step, exchange_s, launch)) is not None:
            if self._for_policy and self._of_policy is not None:
                self._of_policy.take(step, found)
            else:
                self._take(step, found, rank)

    def _begin(self, policy: DecisionPolicy, layouts: Sequence[Layout]) -> None:
        """Record the coming steps, if somebody wants that."""
        assert self.profiler is not None
        if self._command is not None and self._steps >= self._command.skip and not self._asked:
            self._asked = self._command.steps
        self._for_policy = self._of_policy is not None and self._of_policy.wanted
        steps = DEFAULT_CCR_STEPS if self._for_policy else self._asked * policy.settled
        if steps:
            self._layouts = layouts
            self.profiler.begin(steps)

    def _take(self, step: int, found: Ccr, rank: int) -> None:
        """A program, or the command, has what it asked for."""
        self.found, self._asked = found, 0
        if self._command is not None and self._steps >= self._command.skip:
            if rank == 0:
                _write(self._command.file, {**asdict(found), "ratio": found.ratio, "naive": found.naive, "step": step})
            self._command = None

    def close(self) -> None:
        """Record no more."""
        if self.profiler is not None:
            self.profiler.close()
        if self._command is not None:
            self._command = None
            self.give_up()


def _write(path: Path, figures: Mapping[str, Any]) -> None:
    """Write a file at once. Where that cannot be, training goes on: other ranks wait for this one."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.write_text(json.dumps(figures))
        draft.replace(path)
    except OSError as error:
        log.warning("hvd_compress: cannot write HVD_COMPRESS_CCR = %s: %s", path, error.strerror)
