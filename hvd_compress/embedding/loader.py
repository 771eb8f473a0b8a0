"""A loader that looks ahead: it brings each batch when the rows that it uses are in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from hvd_compress.embedding.checkpoint import load, state_of
from hvd_compress.embedding.exchange import Moved
from hvd_compress.embedding.follower import Follower
from hvd_compress.embedding.group import meet
from hvd_compress.embedding.journal import Journal, Training
from hvd_compress.embedding.kernels import Counts
from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.embedding.opening import Opened
from hvd_compress.embedding.options import PAPERS, Options, Rules
from hvd_compress.embedding.servers import Servers
from hvd_compress.embedding.sources import Key, Sources
from hvd_compress.embedding.steps import Steps
from hvd_compress.embedding.wrapped import Wrapped
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.settings import Settings

T = TypeVar("T")


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
        embeddings: Mapping[Key, CachedEmbedding],
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
        rules: Rules = PAPERS,
    ) -> None:
        """Nothing is communicated before the first iteration, state_dict(), load_state_dict() or restore().

        Args:
            loader: gives this rank's batches, and ends behind equally many on all ranks.
            embeddings: by what tells the ids in a batch: a key or an index of it, or a function of the batch. One that
                several features share stands under several keys.
            cache_rows: slots of this rank's cache, of each embedding, or by their names; the rows of a batch at least.
            lookahead: L, 1 or more; by default as many as the cache holds when training begins, up to 200.
            backward_passes: of each batch; rows start to move when that many have been.
            trains: whether batches change the rows; an evaluation takes False.
            sync_precision: how rows that several ranks use, and gradients of them, travel: "exact", "bf16", or "int8"
                with a float32 scale a row. What is lost of a gradient is added to the next one of that row (error
                feedback), for which a rank keeps `cache_rows` rows more. Rows with optimizers' states are exact.
            engine: its name, or one that exists; that of servers where there are some.
            servers: ranks that own the rows; by default all that train do.
            journal: where each step of a training is written, so that a job which is killed goes on behind it: see
                restore(). An evaluation writes none.
            debug: check that no row is read as it was before its last update, at the cost of a look at each in Python.

        Raises:
            ConfigError: an argument has no meaning.
        """
        for name, given, kind in (("journal", journal, Journal), ("servers", servers, Servers)):
            if given is not None and not isinstance(given, kind):
                raise ConfigError(f"{name} = {given!r} of a Lookahead is no {kind.__name__}")
        self._loader, self._sources = loader, Sources(embeddings)
        self.modules = self._sources.modules
        self._options = Options(cache_rows, lookahead, backward_passes, trains, sync_precision, debug, rules)
        self._options.check(self._sources.names)
        self._servers, self._asked = servers, engine if servers is None else servers.asked
        self._journal = journal if trains else None
        self._settings = Settings.from_environment()
        self._number = 0  # by which servers know it
        self._opened: Opened | None = None
        self._closed = False
        self._steps: Steps | None = None
        self.lookahead = lookahead

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """What libraries ask a loader for, such as its dataset, sampler and set_epoch(), is that of the wrapped one."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    @property
    def counts(self) -> dict[str, Counts]:
        parts = [] if self._steps is None else self._steps.exchanger.parts
        return {part.layout.name: part.counts for part in parts if part.counts is not None}

    @property
    def moved(self) -> Moved:
        return Moved() if self._steps is None else self._steps.exchanger.moved

    def __iter__(self) -> Iterator[Any]:
        if self._servers is not None and self._servers.here:
            raise UsageError("this rank is a server, and has no batches: let it call serve()")
        self._end_others()
        self.collect()
        opened = self.open()
        self._tell_servers("iterate over")
        self._start_journal()
        steps, wrapped = Steps(iter(self._loader), *self._arguments(opened)), Wrapped(self._loader)
        self._begin(steps)
        try:
            while (batch := self._guarded(steps.next_batch)) is not None:
                trained = self._steps_trained() + 1
                wrapped.trains_on(steps.is_last)
                yield batch.given
                if self._steps is not steps:
                    raise UsageError(
                        "another iteration over the same embeddings has ended this one: run one after the other"
                    )
                self._guarded(partial(self._write_journal, steps, trained))
        finally:
            wrapped.end()
        if (failure := self._guarded(steps.end)) is not None:
            raise failure

    def follow(self) -> None:
        """Do a server's part of an iteration of all trainers: called by serve()."""
        opened = self.open()
        self._start_journal()
        steps = Follower(iter(()), *self._arguments(opened), collected=self._follow_journal)
        self._begin(steps)
        goes_on = True
        while goes_on:
            goes_on = self._guarded(steps.next_batch) is not None
            if self._journal is not None:
                self._journal.write_dense(self._steps_trained())
        self._guarded(steps.end)

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
        states = {module.layout.name: state_of(module) for module in self.modules}
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
            load(module, [state[name] for state in states if name in state])

    def restore(self) -> int:
        """Go on behind the last step that the journals of all ranks have: rows and the dense part are as it has left
        them. Collective, between two iterations. Return how many steps are trained, 0 where there is no journal.

        The loader must begin with the batch that follows.

        Raises:
            UsageError: this Lookahead has no journal.
            ConfigError: it is of other tables, or of another number of ranks.
            JournalError: its files cannot be read, or another job writes them.
        """
        if self._journal is None:
            raise UsageError("restore() needs a journal: pass journal= to a Lookahead that trains")
        self._end_all()
        self._tell_servers("restore")
        found = self._aside("restore", partial(self._journal.restore, self._training()))
        if found is None:
            return 0
        for module in self.modules:
            module.steps, module.lost = found, ""
            module.versions.forget()
        return found

    def close(self) -> None:
        """End the threads of exchanges, and let later ones have their connections. Collective; no iteration is possible
        any more."""
        lost = any(module.lost for module in self.modules)
        if not lost:
            self.collect()
        opened, self._opened, self._closed = self._opened, None, True
        if opened is None:
            return
        try:
            if not lost:
                self._tell_servers("close")
            if self._journal is not None:
                self._journal.close()
        finally:
            opened.close()

    def __enter__(self) -> Lookahead:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """close(), but behind an error of the program, which other ranks need not have."""
        if kind is None:
            self.close()

    def open(self) -> Opened:
        """Agree on everything with all ranks, once."""
        if self._closed:
            raise UsageError("this Lookahead is closed")
        if self._opened is None:
            self._require_servers()
            if self._servers is not None and not self._servers.here:
                self._number = self._servers.add(self)
                settings = asdict(self._options)
                self._tell_servers("open", [self._sources.names, self._journal is not None, settings])
                self._servers.refuse()
            self._opened = Opened(
                self._options, self.modules, self._asked, self._servers, self._journal, self._settings
            )
        return self._opened

    def drain(self) -> None:
        """Wait for what an iteration that has failed has begun, and forget it."""
        if self._opened is not None:
            self._opened.threads.drain()
        self._steps = None

    def _arguments(self, opened: Opened) -> tuple[Any, ...]:
        """What Steps takes besides batches."""
        options = self._options
        return (
            self._sources.rows,
            self.modules,
            opened.exchanger(),
            opened.threads,
            options.backward_passes,
            options.trains,
        )

    def _begin(self, steps: Steps) -> None:
        self._steps, options = steps, self._options
        for module in self.modules:
            module.user = self
        found = self._guarded(partial(steps.look_ahead, options.most_ahead, options.lookahead is None))
        self.lookahead = self.lookahead or found or None

    def _start_journal(self) -> None:
        if self._journal is not None:
            if len({module.steps for module in self.modules}) > 1:
                raise UsageError(
                    "embeddings that share a journal must be trained together: they have trained different steps"
                )
            self._aside("begin to train", partial(self._journal.start, self._training()))

    def _write_journal(self, steps: Steps, trained: int) -> None:
        """Behind a step: its dense part is written, and every so often a base begun."""
        if self._journal is not None:
            self._journal.write_dense(trained)
            if trained % self._journal.every == 0:
                steps.synchronize()
                self._aside("write a base", partial(self._journal.renew_base, trained, self._training()))

    def _follow_journal(self) -> None:
        """The server's part, where trainers may begin a base: owners have all rows."""
        if self._journal is not None:
            self._journal.write_dense(self._steps_trained())
            self._aside("write a base", partial(self._journal.renew_base, self._steps_trained(), self._training()))

    def _training(self) -> Training:
        shards, gather = [module.own_shard for module in self.modules], self.open().threads.engines.control
        return Training(self._steps_trained, shards, gather.allgather_json)

    def _steps_trained(self) -> int:
        return self.modules[0].steps

    def _aside(self, verb: str, call: Callable[[], T]) -> T:
        """Run what ranks do together aside of batches. Once all are there, it may take long."""
        threads, step = self.open().threads, self._steps_trained()
        met = threads.submit("control", partial(meet, threads.engines.control, verb))
        self._guarded(partial(threads.wait, met, step))
        return self._guarded(partial(threads.wait, threads.submit("control", call), step, patient=True))

    def _guarded(self, call: Callable[[], T]) -> T:
        """After an error nobody knows where the latest rows are."""
        try:
            return call()
        except Exception as error:
            for module in self.modules:
                module.lost = str(error)
            self._steps = None
            raise

    def _tell_servers(self, verb: str, message: Any = None) -> None:
        if self._servers is not None and not self._servers.here:
            self._servers.tell(self._number, verb, message)

    def _require_servers(self) -> None:
        """Others than those that have the rows would wait for each other."""
        for module in self.modules:
            if module.shard is not None and module.servers is not self._servers:
                owners = "ranks that train" if module.servers is None else "servers"
                raise UsageError(
                    f"the rows of {module.layout.name} are with {owners}: pass the same servers= to each Lookahead"
                )

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
