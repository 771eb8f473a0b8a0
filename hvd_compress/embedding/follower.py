"""A server's part of an iteration: it has no batches, and does in each step what the trainers tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hvd_compress.embedding.coming import Kind
from hvd_compress.embedding.steps import Batch, Steps


class Follower(Steps):
    """Steps of a rank that trains nothing. Trainers tell it, once a step and for all else that they do within one."""

    def __init__(self, *arguments: Any, collected: Callable[[], object], **settings: Any) -> None:
        """`collected`: called when owners have all rows within an iteration."""
        super().__init__(*arguments, **settings)
        self._collected = collected

    def _tell(self) -> None:
        while (what := self._follow()) is Kind.COLLECT:
            self._collect()
            self._collected()
        if what is Kind.LEFT:
            self._over = True
            self._collect_all()
            self._coming.clear()

    def _look_further(self) -> None:
        self._tell()

    def _follow(self) -> Kind:
        told = self._submit("control", partial(self.exchanger.gather, Kind.FOLLOWS))
        what = self._wait(told)
        if isinstance(what, Kind):
            if what is Kind.END:
                self._last = told
            return what
        batch = Batch(None, [])
        batch.gathering = self._last = told
        self._coming.append(batch)
        self._unplanned.append(told)
        return Kind.BATCH

    def _begin(self, batch: Batch) -> None:
        """There is nothing to train."""
