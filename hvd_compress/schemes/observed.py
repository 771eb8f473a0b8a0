"""An exchange that is watched: how much of the corrected gradient does it send, and how much would others?"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from hvd_compress import native
from hvd_compress.engines.base import Engine
from hvd_compress.schemes.base import Exchange, Work


class Observed(Exchange):
    """Does what another exchange does, and looks at the corrected gradient before and after.

    Before the exchange encodes, `work.pending` holds nothing that is needed: there the corrected gradient is built for
    a moment, whatever the scheme does to it later. Costs one `native.accumulate`, two norms, and for any k one
    `native.gain_curve`. Nothing here waits for a GPU; gains() does, which is asked when the step is over.

    Attributes:
        before_s, after_s: seconds of the host that encode() and decode() took longer for it.
    """

    def __init__(self, exchange: Exchange, work: Work) -> None:
        assert work.pending is not None
        self._exchange, self._work, self._ks = exchange, work, work.probe.ks or ()
        self._pending = work.pending
        self._gains = torch.empty(0)
        self._all: torch.Tensor
        self._left: torch.Tensor
        self.before_s = self.after_s = 0.0

    def encode(self) -> None:
        start, residual = time.perf_counter(), self._work.residual
        assert residual is not None
        native.accumulate(self._work.gradient, residual, out=self._pending)
        if self._ks:
            self._gains = native.gain_curve(self._pending).gain(self._ks)
        self._all = torch.linalg.vector_norm(self._pending)
        self.before_s = time.perf_counter() - start
        self._exchange.encode()

    def communicate(self, engine: Engine) -> None:
        self._exchange.communicate(engine)

    def decode(self) -> torch.Tensor:
        finite = self._exchange.decode()
        start = time.perf_counter()
        self._left = torch.linalg.vector_norm(self._pending)
        self.after_s = time.perf_counter() - start
        self.report = replace(self._exchange.report, sample=self)
        return finite

    def gains(self) -> list[float]:
        """Return the share of ||corrected||^2 that this rank's k largest elements hold, for each k, then what was sent.

        NaN where the corrected gradient is not finite; 1 where all of it is zero.
        """
        everything = float(self._all)
        sent = 1.0 - (float(self._left) / everything) ** 2 if everything != 0.0 else 1.0
        return [*self._gains.tolist(), sent]
