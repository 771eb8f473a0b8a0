"""In which form parameters are gathered soonest: tried by few real steps, in turns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import distributed as dist

Agree = Callable[[Sequence[float]], Sequence[float]]

log = logging.getLogger("hvd_compress")

WINDOW = 4
"""Steps of a form at a time, the first of which does not count: the last optimizer step was another form's."""
MARGIN = 0.03
"""What a step must save, as a share, to be worth a loss of accuracy: windows of the same form differ by as much."""


class GatherSearch:
    """Tries forms in turns, forward and then backward, so that what drifts affects all alike; then keeps the best.

    Times are agreed on once, at the end: the slowest of all ranks counts, so all choose alike.

    Attributes:
        reason: why the form was chosen, in words; empty until then.
        found_s: the median seconds of a step with each form, by its name; empty until then.
    """

    def __init__(
        self,
        forms: Sequence[str],
        use: Callable[[int], None],
        group: dist.ProcessGroup,
        device: torch.device,
        after: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            forms: what they are called, the exact one first, then those that lose more and more.
            use: has parameters gathered by one of them from now on, by its number.
            group: whose ranks gather together.
            device: where its collectives take tensors.
            after: steps before the first one that is tried.
        """
        self._forms, self._use, self._group, self._device, self._clock = forms, use, group, device, clock
        order = [*range(len(forms)), *reversed(range(len(forms)))]
        self._steps = [0] * after + [form for form in order for _ in range(WINDOW)]
        self._counts = [False] * after + [place > 0 for _ in order for place in range(WINDOW)]
        self._taken_s: list[float] = []
        self._began_s = 0.0
        self.choice: int | None = None
        self.reason = ""
        self.found_s: dict[str, float] = {}
        use(self._steps[0])

    def end_step(self, agree: Agree) -> None:
        """A step is over, on all ranks: go on with the next one's form.

        Args:
            agree: returns the largest of each of some figures over the ranks that gather apart, as replicas do.
        """
        if self.choice is not None:
            return
        now_s = self._clock()
        self._taken_s.append(now_s - self._began_s)
        self._began_s = now_s
        done = len(self._taken_s)
        if done < len(self._steps):
            self._use(self._steps[done])
            return
        self._choose(agree)

    def _choose(self, agree: Agree) -> None:
        slowest = torch.tensor(self._taken_s, dtype=torch.float32, device=self._device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._group)
        by_form: list[list[float]] = [[] for _ in self._forms]
        for form, counts, taken_s in zip(self._steps, self._counts, agree(slowest.tolist()), strict=True):
            if counts:
                by_form[form].append(taken_s)
        found_s = [median(each) for each in by_form]
        best_s = min(found_s)
        near = next(form for form, each_s in enumerate(found_s) if each_s <= (1 + MARGIN) * best_s)
        self.choice = near
        self._use(near)
        self.found_s = dict(zip(self._forms, found_s, strict=True))
        told = ", ".join(f"{name} {each_s:.3g} s" for name, each_s in self.found_s.items())
        self.reason = f"{self._forms[near]}: the first within {MARGIN:.0%} of the shortest step ({told})"
        if dist.get_rank() == 0:
            log.info("parameters are gathered as %s", self.reason)
