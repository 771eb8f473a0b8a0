"""What a Lookahead is asked for: it is checked, told to servers, and must be the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvd_compress.checks import check_whole
from hvd_compress.embedding.modules import CachedEmbedding
from hvd_compress.embedding.precision import Precision, precision_of
from hvd_compress.errors import ConfigError

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


PAPERS = Rules()
"""Those of its last design (5.2.3)."""


@dataclass(frozen=True)
class Options:
    """Arguments of a Lookahead, as its __init__() describes them."""

    cache_rows: int | Mapping[str, int]
    lookahead: int | None
    backward_passes: int
    trains: bool
    sync_precision: str
    debug: bool
    rules: Rules

    def check(self, names: Sequence[str]) -> None:
        """Raise ConfigError unless they have a meaning for embeddings of these names."""
        precision_of(self.sync_precision)
        numbers = {
            "backward_passes": self.backward_passes,
            "lookahead": 1 if self.lookahead is None else self.lookahead,
        }
        if isinstance(self.cache_rows, Mapping):
            if set(self.cache_rows) != set(names):
                raise ConfigError(
                    f"cache_rows is for {sorted(self.cache_rows)}, and the embeddings are {sorted(names)}"
                )
            numbers |= {f"cache_rows of {name}": rows for name, rows in self.cache_rows.items()}
        else:
            numbers["cache_rows"] = self.cache_rows
        for name, number in numbers.items():
            check_whole(name, number, 1, MOST_LOOKAHEAD if name == "lookahead" else 2**31 - 1)

    @property
    def precision(self) -> Precision:
        return precision_of(self.sync_precision)

    @property
    def most_ahead(self) -> int:
        return self.lookahead or MOST_AHEAD

    def rows_of(self, name: str) -> int:
        """Return the slots of an embedding's cache."""
        return self.cache_rows[name] if isinstance(self.cache_rows, Mapping) else self.cache_rows

    def offer(self, modules: Sequence[CachedEmbedding]) -> dict[str, Any]:
        """Return what must be the same on all ranks, by its name in messages."""
        found = asdict(self) | {"cache_rows": [self.rows_of(module.layout.name) for module in modules]}
        del found["backward_passes"]  # after which each rank hands over its own gradients
        found["embeddings"] = [module.layout.name for module in modules]
        return found | {f"embedding {each.layout.name}": each.layout.described(each.steps) for each in modules}
