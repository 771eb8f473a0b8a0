"""An exchange that is watched: how much of the corrected gradient does it send, and how much would others?"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from hvd_compress import native
from hvd_compress.collectives.base import Exchange, Work
from hvd_compress.engines.base import Engine


class Observed(Exchange):
    """Does what another exchange does, and looks at the corrected gradient before and after, as the work's probe says.

    Before the exchange encodes, `work.pending` holds nothing that is needed: there the corrected gradient is built for
    a moment, whatever the collective does to it later. Costs one `native.accumulate`, two norms, and for any k one
    `native.gain_curve`; where there is no residual, a norm less and no accumulation. Nothing here waits for a GPU;
    gains() and energies() do, which are asked when the step is over.

    Attributes:
        before_s, after_s: seconds of the host that encode() and decode() took longer for it.
    """

    def __init__(self, exchange: Exchange, work: Work, remembers: bool) -> None:
        """`remembers`: whether what is not sent becomes the residual; else nothing says how much that is."""
        self._exchange, self._work, self._ks = exchange, work, work.probe.ks
        self._remembers, self.sends = remembers, exchange.sends
        self._gains = torch.empty(0)
        self._all: torch.Tensor
        self._left: torch.Tensor
        self.before_s = self.after_s = 0.0

    def encode(self) -> None:
        if self._ks is not None:
            start = time.perf_counter()
            corrected = self._corrected()
            if self._ks:
                self._gains = native.gain_curve(corrected).gain(self._ks)
            self._all = torch.linalg.vector_norm(corrected)
            self.before_s = time.perf_counter() - start
        self._exchange.encode()

    def _corrected(self) -> torch.Tensor:
        work, residual, pending = self._work, self._work.residual, self._work.pending
        if residual is None or pending is None:
            return work.gradient.float()
        native.accumulate(work.gradient, residual, out=pending)
        return pending

    def communicate(self, engine: Engine) -> None:
        self._exchange.communicate(engine)

    def decode(self) -> torch.Tensor:
        finite = self._exchange.decode()
        self.result, self.report = self._exchange.result, self._exchange.report
        start, work = time.perf_counter(), self._work
        if self._ks is not None:
            if self._remembers:
                assert work.pending is not None
                self._left = torch.linalg.vector_norm(work.pending)
            self.report = replace(self.report, sample=self)
        if work.probe.norm and self.result is None:
            self.report = replace(self.report, norm=torch.linalg.vector_norm(work.gradient, dtype=torch.float32))
        self.after_s = time.perf_counter() - start
        return finite

    def gains(self) -> list[float]:
        """Return the share of ||corrected||^2 that this rank's k largest elements hold, for each k.

        NaN where the corrected gradient is not finite; 1 where all of it is zero.
        """
        found: list[float] = self._gains.tolist()
        return found

    def energies(self) -> tuple[float, float] | None:
        """Return ||corrected||^2 and ||corrected - transmitted||^2; None where no residual is the latter."""
        return (float(self._all) ** 2, float(self._left) ** 2) if self._remembers else None
