"""A server: a process of its own that owns rows, and follows what the trainers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_compress.embedding.journal import Journal
from hvd_compress.embedding.loader import Lookahead
from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.embedding.options import Rules
from hvd_compress.embedding.servers import Servers
from hvd_compress.errors import UsageError


def serve(servers: Servers, embeddings: Sequence[CachedEmbedding], journal: Journal | None = None) -> None:
    """Own rows of these embeddings until the trainers close the servers.

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
        number, verb, message = servers.wait()
        if verb == "open":
            servers.refuse(_lacks(by_name, journal, *message[:2]))
            opened[number] = _made(servers, by_name, journal, *message)
            opened[number].open()
        elif verb == "restore":
            opened[number].restore()
        elif verb == "iterate over":
            opened[number].follow()
        elif verb == "close":
            opened.pop(number).close()
        else:
            return


def _lacks(
    by_name: dict[str, CachedEmbedding], own_journal: Journal | None, names: Sequence[str], journal: bool
) -> str:
    """Return what this server must have been given."""
    if missing := [name for name in names if name not in by_name]:
        return f"trainers use the embedding {missing[0]!r}, and serve() was given {sorted(by_name)}"
    return "trainers have a journal: pass one in the same folder to serve()" if journal and own_journal is None else ""


def _made(
    servers: Servers,
    by_name: dict[str, CachedEmbedding],
    own_journal: Journal | None,
    names: Sequence[str],
    journal: bool,
    options: dict[str, Any],
) -> Lookahead:
    return Lookahead(
        (),
        {name: by_name[name] for name in names},
        servers=servers,
        journal=own_journal if journal else None,
        **options | {"rules": Rules(**options["rules"])},
    )
