"""A Lookahead's place among the ranks: engines, threads, and what this rank has of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hvd_compress.embedding.cache import Cache
from hvd_compress.embedding.exchange import Exchanger, Part
from hvd_compress.embedding.group import Engines, Roles, agree
from hvd_compress.embedding.journal import Journal
from hvd_compress.embedding.kernels import NativeLookahead
from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.embedding.options import Options
from hvd_compress.embedding.residuals import Residuals
from hvd_compress.embedding.servers import Servers
from hvd_compress.embedding.shard import Shard
from hvd_compress.embedding.threads import Threads
from hvd_compress.engines.base import Engine
from hvd_compress.engines.torch_timeout import own_timeout_s
from hvd_compress.errors import ConfigError
from hvd_compress.settings import Settings


class Opened:
    """What a Lookahead has once all ranks have agreed on it."""

    def __init__(
        self,
        options: Options,
        modules: Sequence[CachedEmbedding],
        asked: str | Engine,
        servers: Servers | None,
        journal: Journal | None,
        settings: Settings,
    ) -> None:
        """Find the engines, agree on everything with all ranks, and make what this one has of the tables. Collective.

        Raises:
            ConfigError: ranks differ.
        """
        self._options, self._modules, self._journal = options, modules, journal
        engines = Engines.connect(asked)
        every = {} if journal is None else {"journal": journal.every}
        agree(engines.control, options.offer(modules) | every)
        rank, world = engines.control.rank, engines.control.world_size
        self._roles = Roles.of_all(world) if servers is None else servers.roles
        for module in modules:
            if module.shard is None:
                module.layout = replace(module.layout, debug=options.debug)
                module.shard = Shard.of(module.layout, rank, self._roles.owners, module.folder)
                module.servers = servers
            elif module.layout.debug != options.debug:
                raise ConfigError(
                    f"the rows of {module.layout.name} were made with debug={module.layout.debug}: all Lookaheads "
                    "of an embedding need the same"
                )
        trains = rank in self._roles.trainers
        rows = [options.rows_of(module.layout.name) if trains else 0 for module in modules]
        self._caches = [Cache(module.layout, each) for module, each in zip(modules, rows, strict=True)]
        if journal is not None:
            journal.open(rank, world, self._roles.trainers, [module.layout for module in modules])
        own_s = own_timeout_s() if engines.control.name == "torch" else 0.0
        self.threads = Threads(engines, settings.waiting(own_s).timeout_s if trains else None)

    def exchanger(self) -> Exchanger:
        """Return one for an iteration."""
        trains, parts, control = self._options.trains, [], self.threads.engines.control
        for module, cache in zip(self._modules, self._caches, strict=True):
            precision = self._options.precision
            planner = NativeLookahead(
                control.world_size,
                control.rank,
                self._roles.owners,
                self._roles.trainers,
                self._options.rows_of(module.layout.name),
                self._options.most_ahead,
                self._options.rules.replicated,
                self._options.rules.delayed,
                precision.lossy,
            )
            rows, dim = cache.records.shape[0], module.layout.dim
            parts.append(
                Part(
                    module.layout,
                    module.own_shard,
                    cache,
                    planner,
                    precision,
                    first_step=module.steps if trains else None,
                    versions=module.versions if module.layout.debug else None,
                    residuals=Residuals(precision, dim, rows) if precision.lossy and trains else None,
                )
            )
        return Exchanger(self.threads.engines, self._roles, parts, self._journal)

    def close(self) -> None:
        """End the threads, and let later engines have what ours hold. Local."""
        self.threads.stop()
        for engine in self.threads.engines:
            engine.close()
