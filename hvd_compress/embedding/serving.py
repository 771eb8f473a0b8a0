"""A server: a process of its own that owns rows, and follows what the trainers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_compress.embedding.group import Servers
from hvd_compress.embedding.journal import Journal
from hvd_compress.embedding.loader import Lookahead, Rules
from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.errors import ConfigError, UsageError


def serve(servers: Servers, embeddings: Sequence[CachedEmbedding], journal: Journal | None = None) -> None:
    """Own rows of these embeddings until the trainers have closed each Lookahead that has these servers.

    Args:
        embeddings: all that trainers use, made by the same arguments.
        journal: in the folder of the trainers' one, if they have one.

    Raises:
        UsageError: this rank is no server.
        ConfigError: trainers use an embedding that is not among these, or have a journal and the server none.
    """
    if not servers.here:
        raise UsageError("this rank trains: serve() is for the last ranks of the job, which `servers.here` tells")
    by_name = {each.layout.name: each for each in embeddings}
    opened: dict[int, Lookahead] = {}
    while True:
        number, verb, settings = servers.told()
        if verb == "open":
            opened[number] = _made(servers, by_name, journal, **settings)
            opened[number].open()
        elif verb == "restore":
            opened[number].restore()
        elif verb == "iterate over":
            opened[number].follow()
        elif verb == "close":
            opened.pop(number).close()
            if not opened:
                return


def _made(
    servers: Servers,
    by_name: dict[str, CachedEmbedding],
    own_journal: Journal | None,
    names: list[str],
    journal: bool,
    rules: list[bool],
    **settings: Any,
) -> Lookahead:
    if missing := [name for name in names if name not in by_name]:
        raise ConfigError(f"trainers use the embedding {missing[0]!r}, and serve() was given {sorted(by_name)}")
    if journal and own_journal is None:
        raise ConfigError("trainers have a journal: pass one in the same folder to serve()")
    return Lookahead(
        (),
        {name: by_name[name] for name in names},
        servers=servers,
        journal=own_journal if journal else None,
        rules=Rules(*rules),
        **settings,
    )
