"""A loader that looks ahead: it brings each batch when the rows that it uses are in the cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from hvd_compress.embedding.cache import Cache
from hvd_compress.embedding.coming import Kind
from hvd_compress.embedding.exchange import Exchanger, Part, Roles
from hvd_compress.embedding.modules import CachedEmbedding, Used
from hvd_compress.embedding.servers import Shard
from hvd_compress.engines.base import Engine
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import CommunicationError, ConfigError, UsageError, located
from hvd_compress.native.embedding import Counts, NativeLookahead
from hvd_compress.session.worker import Worker
from hvd_compress.settings import Settings

T = TypeVar("T")
MOST_AHEAD = 200
"""Batches, where the cache would hold more: beyond it nothing is gained (Bagpipe, table 5.3)."""
MOST_LOOKAHEAD = 10_000
"""Batches that can be asked for; the planner counts them in 16 bits."""


@dataclass(frozen=True)
class Rules:
    """How rows are kept equal between steps. Other rules than the default are for comparisons.

    Attributes:
        delayed: what the next step does not need is synchronised behind it.
        replicated: each rank holds all rows that any rank uses.
    """

    delayed: bool = True
    replicated: bool = False


class Lookahead:
    """Wraps a loader so that the rows of coming batches are fetched, kept and synchronised before they are needed
    (Bagpipe, 5.2).

    All ranks iterate over it together, each over its own batches, and equally many. Each batch is one step of the
    embeddings' optimizers: by the mean over ranks of the gradients that its backward passes gave. The results are those
    of a synchronous table, to the bit.

    Attributes:
        counts: of the last exchange, for each embedding by its name; empty before the first.
        lookahead: L, batches that are looked ahead; None before it is known.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        embeddings: Mapping[Hashable | Callable[[Any], Any], CachedEmbedding],
        *,
        cache_rows: int | Mapping[str, int],
        lookahead: int | None = None,
        backward_passes: int = 1,
        engine: str | Engine = "auto",
        debug: bool = False,
        rules: Rules = Rules(),
    ) -> None:
        """Nothing is communicated before the first iteration.

        Args:
            loader: gives this rank's batches, and ends behind equally many on all ranks.
            embeddings: by what tells the ids in a batch: a key or an index of it, or a function of the batch.
            cache_rows: slots of this rank's cache, of each embedding, or by their names; the rows of a batch at least.
            lookahead: L, 1 or more; by default as many as the cache holds when training begins, up to MOST_AHEAD.
            backward_passes: of each batch; rows start to move when that many have been.
            engine: its name, or one that exists.
            debug: check that no row is read as it was before its last update, at the cost of a look at each in Python.

        Raises:
            ConfigError: an argument has no meaning.
        """
        self._loader, self._keys, self.modules = loader, list(embeddings), list(embeddings.values())
        self._wanted, self._debug, self._rules, self._asked = lookahead, debug, rules, engine
        self._backward_passes = backward_passes
        _check(embeddings, cache_rows, lookahead, backward_passes)
        names = [module.layout.name for module in self.modules]
        self._cache_rows = [cache_rows[name] if isinstance(cache_rows, Mapping) else cache_rows for name in names]
        self._engine: Engine | None = None
        self._worker: Worker | None = None
        self._caches: list[Cache] = []
        self._pass: _Pass | None = None
        self._settings = Settings.from_environment()
        self.lookahead = lookahead

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def counts(self) -> dict[str, Counts]:
        parts = [] if self._pass is None else self._pass.exchanger.parts
        return {part.layout.name: part.exchanged for part in parts if part.exchanged is not None}

    @property
    def engine(self) -> Engine | None:
        """What moves rows; None before the first iteration."""
        return self._engine

    def __iter__(self) -> Iterator[Any]:
        self.collect()
        self._open()
        self._pass = current = _Pass(self, self._exchanger())
        while (batch := self._guarded(current.next_batch)) is not None:
            yield batch.given
        self._guarded(current.end)

    def collect(self) -> None:
        """Let owners have all rows as the last batch has left them, and end an iteration that was left early.

        Collective, behind a batch; it is called before each iteration.

        Raises:
            UsageError: the loop was left behind different batches.
        """
        for module in self.modules:
            if module.lost:
                raise UsageError(
                    f"{module.layout.name} lacks rows that were in caches when training failed ({module.lost}): load a "
                    "checkpoint"
                )
        if self._pass is not None:
            self._guarded(self._pass.leave)
            self._pass = None

    def _guarded(self, call: Callable[[], T]) -> T:
        """After an error nobody knows where the latest rows are."""
        try:
            return call()
        except Exception as error:
            for module in self.modules:
                module.lost = str(error)
            self._pass = None
            raise

    def close(self) -> None:
        """End the thread of exchanges. Collective; no iteration is possible any more."""
        self.collect()
        if self._worker is not None:
            self._worker.stop(10.0)
        if self._engine is not None and not isinstance(self._asked, Engine):
            self._engine.close()
        self._loader = _Closed()

    def _open(self) -> None:
        if self._engine is not None:
            return
        engine = self._asked if isinstance(self._asked, Engine) else _connect(self._asked)
        layouts = [replace(module.layout, debug=self._debug) for module in self.modules]
        _agree(engine, self._offer())
        for module, layout in zip(self.modules, layouts, strict=True):
            if module.shard is None:
                module.layout = layout
                module.shard = Shard(layout, engine.rank, engine.world_size, module.folder)
        self._caches = [Cache(module.layout, rows) for module, rows in zip(self.modules, self._cache_rows, strict=True)]
        engine.locate()
        self._engine, self._worker = engine, Worker("hvd_compress embedding")
        at_end(self, self._worker.stop, 10.0)

    def _offer(self) -> dict[str, Any]:
        """What must be the same on all ranks, by its name in messages."""
        found: dict[str, Any] = {
            "lookahead": self._wanted,
            "debug": self._debug,
            "rules": repr(self._rules),
            "cache_rows": self._cache_rows,
        }
        for module in self.modules:
            layout = module.layout
            found[f"{layout.name}"] = [
                list(layout.sizes),
                layout.dim,
                repr(layout.optimizer),
                layout.seed,
                module.steps,
            ]
        return found

    def _exchanger(self) -> Exchanger:
        assert self._engine is not None
        roles = Roles.of_all(self._engine.world_size)
        parts = []
        for module, cache in zip(self.modules, self._caches, strict=True):
            assert module.shard is not None
            planner = NativeLookahead(
                self._engine.world_size,
                self._engine.rank,
                roles.owners,
                roles.trainers,
                cache.records.shape[0],
                self._wanted or MOST_AHEAD,
                self._rules.replicated,
                self._rules.delayed,
            )
            parts.append(Part(module.layout, module.shard, cache, planner, module.versions if self._debug else None))
        return Exchanger(self._engine, roles, parts, self.modules[0].steps)

    def ids_of(self, batch: Any, index: int) -> Any:
        key = self._keys[index]
        return key(batch) if callable(key) else batch[key]


@dataclass
class _Batch:
    """A batch of the user's loader, and what it uses of each embedding: there when its rows have been told to all."""

    given: Any
    ids: list[tuple[list[torch.Tensor], list[torch.Tensor]]]
    used: list[Used] | None = None


class _Pass:
    """One iteration over the loader: step t trains on batch t."""

    def __init__(self, owner: Lookahead, exchanger: Exchanger) -> None:
        self._owner, self.exchanger = owner, exchanger
        self._batches = iter(owner._loader)
        self._pulled: list[_Batch] = []
        self._ahead = self._ended = False
        self._step = -1  # that is trained on
        self._gathered: Future[bool] | None = None
        self._critical: Future[None] | None = None
        self._later: Future[None] | None = None
        self._exchanged = -2  # the last exchange that was handed over
        self._passes_left: list[int] = []  # of each embedding
        self._current: _Batch | None = None
        self._over = False

    def next_batch(self) -> _Batch | None:
        """Return the batch of the next step, once its rows are there; None behind the last one."""
        if not self._ahead:
            self._look_ahead()
        self._exchange()
        if not self._ended and (self._gathered is None or self._wait(self._gathered)):
            self._gather()
        else:
            self._ended = True
        assert self._critical is not None
        self._wait(self._critical)
        self._finish_step()
        self._step += 1
        if not self._pulled or self._pulled[0].used is None:
            return None
        self._current = self._pulled.pop(0)
        self._begin(self._current)
        return self._current

    def _look_ahead(self) -> None:
        """Pull the first batches: as many as are asked for, or as the caches hold."""
        self._ahead = True
        most = self._owner._wanted or MOST_AHEAD
        while len(self._pulled) < most:
            self._gather()
            assert self._gathered is not None
            if not self._wait(self._gathered):
                self._ended = True
                break
            if self._owner._wanted is None and self._wait(self._submit(self.exchanger.fill)) < len(self._pulled) - 1:
                break
        if self._owner.lookahead is None:
            self._owner.lookahead = len(self._pulled)

    def _gather(self) -> None:
        """Pull a batch, and tell all ranks what it uses; or that there is none, and why."""
        where = f"rank {self.exchanger.engine.rank}, batch {self._step + 1 + len(self._pulled)}"
        modules = self._owner.modules
        try:
            given = next(self._batches)
            ids = [module.flat_rows(self._owner.ids_of(given, index), where) for index, module in enumerate(modules)]
        except StopIteration:
            self._gathered = self._submit(partial(self.exchanger.gather, Kind.END))
            return
        except Exception as error:
            why = str(error) if isinstance(error, ConfigError) else f"{where}: {type(error).__name__}: {error}"
            with suppress(ConfigError):  # what all others get is the words of this one
                self._wait(self._submit(partial(self.exchanger.gather, Kind.FAILED, why=why)))
            raise
        batch = _Batch(given, ids)
        self._pulled.append(batch)
        self._gathered = self._submit(partial(self._tell, batch))

    def _tell(self, batch: _Batch) -> bool:
        used = [Used(*ids) for ids in batch.ids]
        if self.exchanger.gather(Kind.BATCH, [each.rows for each in used]):
            batch.used = used
            return True
        return False

    def _begin(self, batch: _Batch) -> None:
        """Let the forward pass read the batch's rows, and the exchange begin behind its backward passes."""
        assert batch.used is not None
        self._passes_left = [self._owner._backward_passes] * len(batch.used)
        modules = zip(self._owner.modules, batch.used, self.exchanger.parts, strict=True)
        for index, (module, used, part) in enumerate(modules):
            if part.versions is not None:
                versions = part.layout.versions(part.cache.read(part.slots))
                part.versions.check(part.layout, used.rows, versions, self.exchanger._first_step + self._step)
            used.values = part.cache.rows(part.slots).requires_grad_()
            used.values.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._backward_pass, index)
            )
            module.use(used)

    def _backward_pass(self, index: int, _: torch.Tensor) -> None:
        self._passes_left[index] -= 1
        if max(self._passes_left) <= 0:
            self._exchange()

    def _exchange(self) -> None:
        """Hand over the exchange behind the step that is trained on, once."""
        if self._exchanged >= self._step:
            return
        self._exchanged = self._step
        used = [None] * len(self._owner.modules) if self._current is None else self._current.used
        assert used is not None
        gradients = [None if each is None or each.values is None else each.values.grad for each in used]
        self._critical = self._submit(partial(self.exchanger.critical, gradients))
        self._later = self._submit(self.exchanger.later)

    def _finish_step(self) -> None:
        """The step's exchange has begun, and its rows are not used any more."""
        if any(left < 0 for left in self._passes_left):
            raise UsageError(
                f"step {self._step}: an embedding had another backward pass behind the {self._owner._backward_passes} "
                "that were announced, when its gradients had left: pass backward_passes= to Lookahead"
            )
        for module in self._owner.modules:
            if self._current is not None:
                module.steps += 1
            module.use(None)
        self._current = None

    def end(self) -> None:
        """All batches have been trained on."""
        self._over = True
        assert self._later is not None
        self._wait(self._later)
        if self.exchanger.coming.failure is not None:
            raise self.exchanger.coming.failure

    def leave(self) -> None:
        """The program is behind the loop, wherever it has left it."""
        if self._over or not self._ahead:
            return  # nothing has begun, or all is over
        self._over = True
        if self._current is not None and self._step >= 0:
            self._exchange()
        if not self._ended and (self._gathered is None or self._wait(self._gathered)):
            self._wait(self._submit(partial(self.exchanger.gather, Kind.LEFT)))
        self._wait(self._submit(self.exchanger.collect))
        self._finish_step()

    def _submit(self, call: Callable[[], Any]) -> Future[Any]:
        assert self._owner._worker is not None
        return self._owner._worker.submit(partial(_run, self.exchanger.engine, call))

    def _wait(self, future: Future[Any]) -> Any:
        engine, limit_s = self.exchanger.engine, self._owner._settings.timeout_s
        with located(lambda: f"rank {engine.rank}, step {self._step}, embedding rows"):
            try:
                return future.result(limit_s)
            except FutureTimeoutError:
                engine.abandon()
                raise CommunicationError(
                    f"no answer from other ranks within {limit_s:g} s, in {engine.pending or 'no collective'} "
                    "(HVD_COMPRESS_TIMEOUT_S)"
                ) from None


class _Closed:
    def __iter__(self) -> Iterator[Any]:
        raise UsageError("this Lookahead is closed")


def _run(engine: Engine, call: Callable[[], Any]) -> Any:
    """What all ranks refuse alike leaves the engine as it is; anything else may have left a collective unfinished."""
    if engine.lost is not None:
        raise CommunicationError(engine.lost)
    try:
        return call()
    except (ConfigError, UsageError):
        raise
    except Exception as error:
        engine.lost = engine.lost or f"an earlier exchange of embedding rows failed: {error}"
        engine.abandon()
        raise


def _check(
    embeddings: Mapping[Any, CachedEmbedding], cache_rows: Any, lookahead: int | None, backward_passes: int
) -> None:
    if not embeddings or not all(isinstance(each, CachedEmbedding) for each in embeddings.values()):
        raise ConfigError(
            "Lookahead needs embeddings: a mapping from what tells the ids in a batch to a CachedEmbedding"
        )
    names = [module.layout.name for module in embeddings.values()]
    if len(set(names)) < len(names):
        raise ConfigError(f"embeddings must have different names, not {names}")
    numbers = {"backward_passes": backward_passes, "lookahead": 1 if lookahead is None else lookahead}
    if isinstance(cache_rows, Mapping):
        if set(cache_rows) != set(names):
            raise ConfigError(f"cache_rows is for {sorted(cache_rows)}, and the embeddings are {sorted(names)}")
        numbers |= {f"cache_rows of {name}": rows for name, rows in cache_rows.items()}
    else:
        numbers["cache_rows"] = cache_rows
    for name, number in numbers.items():
        most = MOST_LOOKAHEAD if name == "lookahead" else 2**31 - 1
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
            raise ConfigError(f"{name} = {number!r} is not a whole number from 1 to {most}")


def _connect(name: str) -> Engine:
    """Return an engine of our own over all ranks of the job: of torch.distributed, else of Horovod, else alone."""
    from hvd_compress.engines.select import choose_engine, choose_torch_engine

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return choose_torch_engine(name).control
    return choose_engine(name).control


def _agree(engine: Engine, offer: dict[str, Any]) -> None:
    offers: Sequence[dict[str, Any]] = engine.allgather_json(offer)
    for rank, other in enumerate(offers):
        for name in offers[0].keys() | other.keys():
            if offers[0].get(name) != other.get(name):
                raise ConfigError(
                    f"all ranks must ask for the same embeddings: {name} is {offers[0].get(name)} on rank 0 and "
                    f"{other.get(name)} on rank {rank}"
                )
