"""A loader that looks ahead: it brings each batch when the rows that it uses are in the cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from hvd_compress.embedding.cache import Cache
from hvd_compress.embedding.checkpoint import identity_of, load, state_of
from hvd_compress.embedding.exchange import Exchanger, Moved, Part
from hvd_compress.embedding.follower import Follower
from hvd_compress.embedding.group import Engines, Roles, Servers, agree
from hvd_compress.embedding.journal import Gather, Journal
from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.embedding.precision import precision_of
from hvd_compress.embedding.residuals import Residuals
from hvd_compress.embedding.servers import Shard
from hvd_compress.embedding.steps import Steps
from hvd_compress.embedding.threads import Threads
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.native.embedding import Counts, NativeLookahead
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
    of a synchronous table, to the bit, unless `sync_precision` is lossy.

    Attributes:
        counts: of the last exchange, for each embedding by its name; empty before the first. Read it at the begin of a
            step: the exchange behind it begins within its backward pass.
        moved: what this rank has sent in the last exchange, and how long that took. Read it so, too.
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
        trains: bool = True,
        sync_precision: str = "exact",
        engine: str | Engine = "auto",
        servers: Servers | None = None,
        debug: bool = False,
        journal: Journal | None = None,
        rules: Rules = Rules(),
    ) -> None:
        """Nothing is communicated before the first iteration.

        Args:
            loader: gives this rank's batches, and ends behind equally many on all ranks.
            embeddings: by what tells the ids in a batch: a key or an index of it, or a function of the batch.
            cache_rows: slots of this rank's cache, of each embedding, or by their names; the rows of a batch at least.
            lookahead: L, 1 or more; by default as many as the cache holds when training begins, up to MOST_AHEAD.
            backward_passes: of each batch; rows start to move when that many have been.
            trains: whether batches change the rows; an evaluation takes False.
            sync_precision: how rows that several ranks use, and gradients of them, travel: "exact", "bf16", or "int8"
                with a float32 scale a row. What is lost of a gradient is added to the next one of that row (error
                feedback), for which a rank keeps `cache_rows` rows more. Rows with optimizers' states are exact.
            engine: its name, or one that exists; that of servers where there are some.
            servers: ranks that own the rows; by default all that train do.
            journal: where each step is written, so that a job which is killed goes on behind it: see restore().
            debug: check that no row is read as it was before its last update, at the cost of a look at each in Python.

        Raises:
            ConfigError: an argument has no meaning.
        """
        for name, given, kind in (("journal", journal, Journal), ("servers", servers, Servers)):
            if given is not None and not isinstance(given, kind):
                raise ConfigError(f"{name} = {given!r} of a Lookahead is no {kind.__name__}")
        self._loader, self._keys, self.modules = loader, list(embeddings), list(embeddings.values())
        self._wanted, self._debug, self._rules = lookahead, debug, rules
        self._servers, self._asked = servers, engine if servers is None else servers.asked
        self._number = 0  # by which servers know it
        self._closed = False
        self._backward_passes, self._trains, self._journal = backward_passes, trains, journal
        self._sync_precision, self._precision = sync_precision, precision_of(sync_precision)
        _check(embeddings, cache_rows, lookahead, backward_passes)
        names = [module.layout.name for module in self.modules]
        self._cache_rows = [cache_rows[name] if isinstance(cache_rows, Mapping) else cache_rows for name in names]
        self._threads: Threads | None = None
        self._caches: list[Cache] = []
        self._steps: Steps | None = None
        self._settings = Settings.from_environment()
        self.lookahead = lookahead

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def counts(self) -> dict[str, Counts]:
        parts = [] if self._steps is None else self._steps.exchanger.parts
        return {part.layout.name: part.counts for part in parts if part.counts is not None}

    @property
    def moved(self) -> Moved:
        return Moved() if self._steps is None else self._steps.exchanger.moved

    def __iter__(self) -> Iterator[Any]:
        self._end_others()
        self.collect()
        threads = self.open()
        self._tell_servers("iterate over")
        journal = self._start_journal()
        steps = Steps(iter(self._loader), *self._arguments(threads))
        self._begin(steps)
        while (batch := self._guarded(steps.next_batch)) is not None:
            trained = self._steps_trained() + 1
            yield batch.given
            if self._steps is not steps:
                raise UsageError(
                    "another iteration over the same embeddings has ended this one: run one after the other"
                )
            if journal is not None:
                self._guarded(partial(self._keep, journal, steps, trained))
        if (failure := self._guarded(steps.end)) is not None:
            raise failure

    def follow(self) -> None:
        """Do a server's part of an iteration of all trainers: called by serve()."""
        assert self._threads is not None
        journal = self._start_journal()

        def collected() -> None:
            if journal is not None:
                journal.keep(self._steps_trained())
                self._told(partial(journal.turn, self._steps_trained(), *self._journals()))

        steps = Follower(iter(()), *self._arguments(self._threads), collected=collected)
        self._begin(steps)
        goes_on = True
        while goes_on:
            goes_on = self._guarded(steps.next_batch) is not None
            if journal is not None:
                journal.keep(self._steps_trained())
        self._guarded(steps.end)

    def _arguments(self, threads: Threads) -> tuple[Any, ...]:
        """What Steps takes besides batches."""
        exchanger = self._exchanger(threads)
        return self._ids, self.modules, exchanger, threads, self._backward_passes, self._trains

    def _begin(self, steps: Steps) -> None:
        self._steps = steps
        for module in self.modules:
            module.user = self
        found = self._guarded(partial(steps.look_ahead, self._wanted or MOST_AHEAD, self._wanted is None))
        self.lookahead = self.lookahead or found or None

    def _start_journal(self) -> Journal | None:
        journal = self._journal if self._trains else None
        if len({module.steps for module in self.modules}) > 1 and journal is not None:
            raise UsageError(
                "embeddings that share a journal must be trained together: they have trained different steps"
            )
        if journal is not None:
            self._told(partial(journal.start, self._steps_trained(), *self._journals()))
        return journal

    def collect(self) -> None:
        """Let owners have all rows as the last batch has left them, and end an iteration that was left early.

        Collective, behind a batch; it is called before each iteration.

        Raises:
            UsageError: the loop was left behind different batches.
        """
        self._require_rows()
        if self._steps is not None:
            self._guarded(self._steps.leave)
            self._steps = None
        for module in self.modules:
            if module.user is self:
                module.user = None

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank has of the tables, as the batch before has left them. Collective, behind a batch's
        backward passes or between two iterations; the iteration goes on.

        It differs from rank to rank: save one file a rank. The memory for a copy of the rows that were used is needed.
        Where `sync_precision` is lossy, what ranks hold back of gradients is applied to the copy, and the iteration
        goes on as without it.
        """
        self._require_rows()
        self._require_own_rows()
        self._end_others()
        self.open()
        held_back = [] if self._steps is None else self._guarded(self._steps.synchronize)
        states = {module.layout.name: state_of(module, _shard(module)) for module in self.modules}
        for module, each in zip(self.modules, held_back, strict=bool(held_back)):
            each.apply_to_state(states[module.layout.name], module.layout)
        return states

    def load_state_dict(self, *states: Mapping[str, Any]) -> None:
        """Load what state_dict() gave this rank, or, in a job of another size, all ranks. Collective, between two
        iterations.

        Where training goes on within an epoch, the loader must begin with the batch that follows.

        Raises:
            ConfigError: it is of other tables, or states of ranks are missing.
        """
        self._require_own_rows()
        self._end_all()
        if self._journal is not None:
            self._journal.forget()
        for module in self.modules:
            name = module.layout.name
            load(module, _shard(module), [state[name] for state in states if name in state])

    def restore(self) -> int:
        """Go on behind the last step that the journals of all ranks have: rows and the dense part are as it has left
        them. Collective, between two iterations. Return how many steps are trained, 0 where there is no journal.

        The loader must begin with the batch that follows.

        Raises:
            UsageError: this Lookahead has no journal.
            ConfigError: it is of other tables, or of another number of ranks.
            JournalError: its files cannot be read.
        """
        if self._journal is None:
            raise UsageError("restore() needs a journal: pass journal= to Lookahead")
        self._end_all()
        self._tell_servers("restore")
        shards, gather = self._journals()[1:]
        found = self._told(partial(self._journal.restore, shards, gather))
        if found is None:
            return 0
        for module in self.modules:
            module.steps, module.lost = found, ""
            module.versions.forget()
        return found

    def _keep(self, journal: Journal, steps: Steps, trained: int) -> None:
        """Behind a step: its dense part is written, and every so often a base begun."""
        journal.keep(trained)
        if trained % journal.every == 0:
            steps.synchronize()
            self._told(partial(journal.turn, trained, *self._journals()))

    def _steps_trained(self) -> int:
        return self.modules[0].steps

    def _journals(self) -> tuple[Callable[[], int], list[Shard], Gather]:
        """What a journal needs of the tables and of other ranks."""
        assert self._threads is not None
        shards = [_shard(module) for module in self.modules]
        return self._steps_trained, shards, self._threads.engines.told.allgather_json

    def _told(self, call: Callable[[], T]) -> T:
        """Run what ranks tell each other aside of batches."""
        assert self._threads is not None
        future = self._threads.submit("told", call)
        return self._guarded(partial(self._threads.wait, future, self._steps_trained(), patient=True))

    def _tell_servers(self, verb: str, settings: dict[str, Any] | None = None) -> None:
        if self._servers is not None and not self._servers.here:
            self._servers.tell(self._number, verb, settings)

    def _require_own_rows(self) -> None:
        if self._servers is not None:
            raise UsageError(
                "rows are with servers: their state is in a journal (pass journal= to Lookahead and serve())"
            )

    def _require_rows(self) -> None:
        for module in self.modules:
            if module.lost:
                raise UsageError(
                    f"{module.layout.name} lacks rows that were in caches when training failed ({module.lost}): load a "
                    "checkpoint, or start the job again and call restore() of its journal"
                )

    def _end_others(self) -> None:
        """Let owners have the rows that another Lookahead over the same embeddings keeps. Collective."""
        for module in self.modules:
            if module.user not in (None, self):
                module.user.collect()

    def _end_all(self) -> None:
        """What was begun must not come behind what is loaded. Collective."""
        if not any(module.lost for module in self.modules):
            self._end_others()
            self.collect()
        self.open()
        for module in self.modules:
            if module.user is not None:  # and has failed
                module.user.drain()
                module.user = None

    def drain(self) -> None:
        """Wait for what an iteration that has failed has begun, and forget it."""
        if self._threads is not None:
            self._threads.drain()
        self._steps = None

    def close(self) -> None:
        """End the threads of exchanges. Collective; no iteration is possible any more."""
        lost = any(module.lost for module in self.modules)
        if not lost:
            self.collect()
        threads, self._threads, self._closed = self._threads, None, True
        if threads is None:
            return
        try:
            if not lost:
                self._tell_servers("close")
            if self._journal is not None:
                self._journal.close()
        finally:
            threads.stop()
            if not lost and not isinstance(self._asked, Engine):
                for engine in (threads.engines.later, threads.engines.critical, threads.engines.told):
                    engine.close()

    def _guarded(self, call: Callable[[], T]) -> T:
        """After an error nobody knows where the latest rows are."""
        try:
            return call()
        except Exception as error:
            for module in self.modules:
                module.lost = str(error)
            self._steps = None
            raise

    def open(self) -> Threads:
        """Find the engines, agree on everything with all ranks, and make what this one has of the tables, once."""
        if self._closed:
            raise UsageError("this Lookahead is closed")
        if self._threads is None:
            self._threads = self._opened()
        return self._threads

    def _opened(self) -> Threads:
        if self._servers is not None and not self._servers.here:
            self._number = self._servers.number()
            self._tell_servers("open", self._settings_of_servers())
        engines = Engines.connect(self._asked)
        agree(engines.told, self._offer())
        rank, roles = engines.told.rank, self._roles(engines.told.world_size)
        for module in self.modules:
            if module.shard is None:
                module.layout = replace(module.layout, debug=self._debug)
                module.shard = Shard.of(module.layout, rank, roles.owners, module.folder)
        trains = rank in roles.trainers
        sizes = zip(self.modules, self._cache_rows, strict=True)
        self._caches = [Cache(module.layout, rows if trains else 0) for module, rows in sizes]
        if self._journal is not None:
            tables = [identity_of(each) for each in self.modules]
            self._journal.open(rank, engines.told.world_size, roles.trainers, tables)
        return Threads(engines, self._settings.timeout_s if trains else None)

    def _roles(self, world_size: int) -> Roles:
        return Roles.of_all(world_size) if self._servers is None else self._servers.roles

    def _settings_of_servers(self) -> dict[str, Any]:
        """What a server's Lookahead is made with."""
        return {
            "names": [module.layout.name for module in self.modules],
            "journal": self._journal is not None,
            "cache_rows": dict(zip((each.layout.name for each in self.modules), self._cache_rows, strict=True)),
            "lookahead": self._wanted,
            "trains": self._trains,
            "sync_precision": self._sync_precision,
            "debug": self._debug,
            "rules": [self._rules.delayed, self._rules.replicated],
        }

    def _offer(self) -> dict[str, Any]:
        """What must be the same on all ranks, by its name in messages."""
        found: dict[str, Any] = {
            "trains": self._trains,
            "sync_precision": self._sync_precision,
            "lookahead": self._wanted,
            "debug": self._debug,
            "rules": repr(self._rules),
            "cache_rows": self._cache_rows,
            "journal": None if self._journal is None else self._journal.every,
        }
        for module in self.modules:
            layout = module.layout
            found[f"{layout.name}"] = [
                list(layout.sizes),
                layout.dim,
                layout.optimizer.described(module.steps),
                layout.seed,
                module.steps,
            ]
        return found

    def _exchanger(self, threads: Threads) -> Exchanger:
        told = threads.engines.told
        roles = self._roles(told.world_size)
        parts = []
        for module, cache, cache_rows in zip(self.modules, self._caches, self._cache_rows, strict=True):
            planner = NativeLookahead(
                told.world_size,
                told.rank,
                roles.owners,
                roles.trainers,
                cache_rows,
                self._wanted or MOST_AHEAD,
                self._rules.replicated,
                self._rules.delayed,
                self._precision.lossy,
            )
            versions = module.versions if module.layout.debug else None
            rows, dim = cache.records.shape[0], module.layout.dim
            residuals = Residuals(self._precision, dim, rows) if self._precision.lossy and self._trains else None
            parts.append(Part(module.layout, _shard(module), cache, planner, self._precision, versions, residuals))
        return Exchanger(threads.engines, roles, parts, self._steps_trained() if self._trains else None, self._journal)

    def _ids(self, batch: Any, at: int) -> Any:
        key = self._keys[at]
        return key(batch) if callable(key) else batch[key]


def _shard(module: CachedEmbedding) -> Shard:
    assert module.shard is not None
    return module.shard


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
