"""One iteration over a loader: step t trains on batch t, while rows move for those around it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from hvd_compress.embedding.coming import Gathered, Kind
from hvd_compress.embedding.exchange import Exchanger
from hvd_compress.embedding.modules import CachedEmbedding, Used
from hvd_compress.embedding.residuals import HeldBack
from hvd_compress.embedding.threads import Threads
from hvd_compress.errors import ConfigError, UsageError

T = TypeVar("T")
Gathering = Future[list[Gathered] | Kind]
Rows = Callable[[Any, int, str], tuple[list[torch.Tensor], list[torch.Tensor]]]
"""As Sources.rows()."""


class Batch:
    """A batch of the user's loader.

    Attributes:
        given: the batch itself.
        used: what it uses of each embedding; there when that is gathered.
        gathering: what all ranks use; or why there is no batch.
    """

    gathering: Gathering

    def __init__(
        self,
        given: Any,
        ids: Sequence[tuple[list[torch.Tensor], list[torch.Tensor]]],
        modules: Sequence[CachedEmbedding] = (),
    ) -> None:
        """`ids`: of each embedding, as Sources.rows() gives them."""
        self.given, self._ids = given, ids
        self._untrained = [module.layout.untrained for module in modules]
        self.used: list[Used] = []

    def rows(self) -> list[torch.Tensor]:
        """Find what the batch uses, and return the distinct rows of each embedding."""
        self.used = [Used(*each, rows) for each, rows in zip(self._ids, self._untrained, strict=True)]
        return [each.rows for each in self.used]


class Steps:
    """What happens between batches, in the order that all ranks follow.

    A gradient of a batch's rows is that of `Used.values`: a hook on it counts backward passes, and behind the last one
    hands over the exchange, in which it is applied, by this rank or by the row's owner. So nothing waits for the
    program to come back for the next batch.

    The exchange behind step t is planned with the batches up to t + L, so batch t + L is told to all ranks while step t
    is trained on, and before exchange t.

    What is handed over to threads does not hold this, so that a loader can be dropped while they are at it.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        rows: Rows,
        modules: list[CachedEmbedding],
        exchanger: Exchanger,
        threads: Threads,
        backward_passes: int,
        trains: bool,
    ) -> None:
        self._batches, self._rows, self._modules = batches, rows, modules
        self.exchanger, self._threads = exchanger, threads
        self._backward_passes, self._trains = backward_passes, trains
        self._step = -1  # that is trained on
        self._coming: list[Batch] = []
        self._last: Gathering | None = None
        self._unplanned: list[Gathering] = []
        self._planning: list[Future[None]] = []  # since the last exchange was handed over
        self._ended = self._over = False
        self._exchanged = -2  # the last exchange that was handed over
        self._critical: list[Future[None]] = []  # that nobody has waited for, and so on
        self._later: list[Future[None]] = []
        self._current: Batch | None = None
        self._passes_left: list[int] = []  # of each embedding

    def look_ahead(self, most: int, until_full: bool) -> int:
        """Pull the first batches: `most` of them, or fewer where caches are full. Return how many."""
        while not self._ended and len(self._coming) < most:
            self._tell()
            if self._told_last() is not Kind.BATCH:
                break
            if until_full and self._wait(self._submit("critical", self._fill())) < len(self._coming) - 1:
                break
        return len(self._coming)

    def next_batch(self) -> Batch | None:
        """Return the batch of the next step, once its rows are there; None behind the last one."""
        self._exchange()
        self._look_further()
        self._begin_planning()  # beside the forward and backward passes, as the next exchange waits for it
        self._wait_for(self._critical, 0)
        self._wait_for(self._later, 1)  # that of this exchange may take as long as the next step
        self._end_step()
        self._step += 1
        if not self._coming or isinstance(self._wait(self._coming[0].gathering), Kind):
            return None
        self._current = self._coming.pop(0)
        self._begin(self._current)
        return self._current

    @property
    def is_last(self) -> bool:
        """Whether no batch follows the one that next_batch() has returned."""
        return not self._coming

    def _look_further(self) -> None:
        """Tell of one batch more, or once a step that no more come: so ranks that do different things find out."""
        if self._last is None or self._told_last() is Kind.BATCH:
            self._tell()
        else:
            self._last = self._submit("control", partial(self.exchanger.gather, Kind.END))

    def end(self) -> UsageError | None:
        """All batches have been trained on. Return why some were not, where ranks have different numbers of them."""
        self._over = True
        if self._last is not None:  # close() would cancel it on a rank whose thread has not come to it
            self._told_last()
        self._wait_for(self._later, 0)
        return self.exchanger.coming.failure

    def synchronize(self) -> list[HeldBack]:
        """Let owners have all rows as the batch has left them that is trained on; the next one follows. Return what is
        held back of gradients, of each embedding, where precision is lost."""
        if self._over:
            return []
        self._wait(self._submit("control", partial(self.exchanger.gather, Kind.COLLECT)))
        return self._collect()

    def _collect(self) -> list[HeldBack]:
        if self._current is not None:
            self._exchange()
        self._wait_for(self._critical, 0)
        self._wait_for(self._later, 0)
        held_back: list[HeldBack] = []
        if self._exchanged >= -1:
            held_back = self._wait(self._submit("critical", self.exchanger.collect))
        self._end_step()
        return held_back

    def _collect_all(self) -> None:
        """Let owners have all rows, with what is held back of gradients, where no batch follows."""
        held_back = self._collect()
        for module, part, each in zip(self._modules, self.exchanger.parts, held_back, strict=bool(held_back)):
            each.apply(part.shard, module.steps)

    def leave(self) -> None:
        """The program is behind the loop, wherever it has left it."""
        if self._over:
            return
        self._over = True
        if self._current is not None:
            self._exchange()
        if self._last is not None:
            self._told_last()
            self._wait(self._submit("control", partial(self.exchanger.gather, Kind.LEFT)))
        self._collect_all()

    def _tell(self) -> None:
        """Pull a batch, and tell all ranks what it uses; or that there is none, and why."""
        where = f"rank {self.exchanger.rank}, batch {self._step + 1 + len(self._coming)}"
        try:
            given = next(self._batches)
            ids = [self._rows(given, at, where) for at in range(len(self._modules))]
        except StopIteration:
            self._last = self._submit("control", partial(self.exchanger.gather, Kind.END))
            return
        except Exception as error:
            why = str(error) if isinstance(error, ConfigError) else f"{where}: {type(error).__name__}: {error}"
            with suppress(ConfigError):  # what all others get is the words of this one
                self._wait(self._submit("control", partial(self.exchanger.gather, Kind.FAILED, why=why)))
            raise
        batch = Batch(given, ids, self._modules)
        exchanger = self.exchanger
        batch.gathering = self._last = self._submit("control", lambda: exchanger.gather(Kind.BATCH, batch.rows()))
        self._coming.append(batch)
        self._unplanned.append(batch.gathering)

    def _told_last(self) -> Kind:
        """Return what was told last: a batch of all ranks, or that no more come."""
        assert self._last is not None
        told = self._wait(self._last)
        kind = told if isinstance(told, Kind) else Kind.BATCH
        self._ended = kind is not Kind.BATCH
        return kind

    def _begin(self, batch: Batch) -> None:
        """Let the forward pass read the batch's rows, and the exchange begin behind its backward passes."""
        self._passes_left = [self._backward_passes] * len(batch.used)
        for at, (module, used, part) in enumerate(zip(self._modules, batch.used, self.exchanger.parts, strict=True)):
            if part.versions is not None:
                versions = part.layout.versions(part.cache.read(part.slots))
                part.versions.check(part.layout, used.rows, versions, module.steps)
            used.values = part.cache.rows(part.slots)
            if self._trains:
                used.values.requires_grad_()
                used.values.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(_backward_pass, weakref.ref(self), at)
                )
            module.use(used)

    def backward_pass(self, at: int) -> None:
        """One of those of the batch has reached the embedding at this place."""
        self._passes_left[at] -= 1
        if max(self._passes_left) <= 0:
            self._exchange()

    def _exchange(self) -> None:
        """Hand over the exchange behind the step that is trained on, once."""
        if self._exchanged >= self._step:
            return
        self._exchanged = self._step
        used = self._current.used if self._current is not None and self._trains else []
        gradients = [each.gradient for each in used] or [None] * len(self._modules)
        self._begin_planning()
        planning, self._planning = self._planning, []
        before = self._later[-1].result if self._later else lambda: None
        exchanger = self.exchanger

        def critical() -> None:
            for each in planning:
                each.result()
            exchanger.critical(gradients, before)

        through = self._submit("critical", critical)

        def later() -> None:
            through.result()
            exchanger.later()

        self._critical.append(through)
        self._later.append(self._submit("later", later))

    def _fill(self) -> Callable[[], int]:
        told, self._unplanned = self._unplanned, []
        exchanger = self.exchanger

        def fill() -> int:
            _plan(exchanger, told)
            return exchanger.fill()

        return fill

    def _begin_planning(self) -> None:
        """Hand over what was told since, to be planned before the next exchange."""
        told, self._unplanned = self._unplanned, []
        if told:
            self._planning.append(self._submit("critical", partial(_plan, self.exchanger, told)))

    def _end_step(self) -> None:
        """The step's exchange is on its way, and its rows are not used any more."""
        if any(left < 0 for left in self._passes_left):
            raise UsageError(
                f"step {self._step}: an embedding had another backward pass behind the {self._backward_passes} that "
                "were announced, when its gradients had left: pass backward_passes= to Lookahead"
            )
        for module in self._modules:
            module.steps += self._trains and self._current is not None
            module.use(None)
        self._current = None

    def _submit(self, thread: str, call: Callable[[], T]) -> Future[T]:
        return self._threads.submit(thread, call)

    def _wait(self, future: Future[T]) -> T:
        return self._threads.wait(future, self._step)

    def _wait_for(self, futures: list[Future[None]], left: int) -> None:
        """Wait for all but the last ones."""
        while len(futures) > left:
            self._wait(futures[0])
            futures.pop(0)  # not before: Ctrl-C may end the wait


def _plan(exchanger: Exchanger, gatherings: Sequence[Gathering]) -> None:
    for each in gatherings:
        gathered = each.result()
        if not isinstance(gathered, Kind):
            exchanger.add(gathered)


def _backward_pass(reference: weakref.ref[Steps], at: int, _: torch.Tensor) -> None:
    """A hook, which Python's collector does not see on a tensor that autograd holds, too: it must hold nothing."""
    steps = reference()
    if steps is not None:
        steps.backward_pass(at)
