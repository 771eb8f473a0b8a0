"""Embeddings whose rows come from a cache: modules that a model uses as those of torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from hvd_compress.checks import check_choice
from hvd_compress.embedding.cache import Versions
from hvd_compress.embedding.kernels import UniqueRows
from hvd_compress.embedding.layout import Initial, Layout, as_padding, as_sizes
from hvd_compress.embedding.optimizers import SGD, RowOptimizer
from hvd_compress.embedding.shard import Shard
from hvd_compress.errors import ConfigError, UsageError

Ids = torch.Tensor | Sequence[torch.Tensor]


class Used:
    """The rows that a batch uses on this rank.

    Attributes:
        rows: their ids, distinct, int64 (u,).
        values: (u, dim), what the forward pass reads and the backward pass gives a gradient; set while the batch is
            trained on.
    """

    def __init__(
        self, ids: Sequence[torch.Tensor], flat: Sequence[torch.Tensor], untrained: Sequence[int] = ()
    ) -> None:
        """`ids`: tensors of the batch; `flat`: the same as ids of rows, int64, one-dimensional; `untrained`: rows that
        stay as they are."""
        self.rows, positions = UniqueRows().collect(torch.cat(list(flat)))
        self._untrained = torch.isin(self.rows, torch.tensor(untrained)).nonzero().flatten() if untrained else None
        parts = torch.split(positions, [each.numel() for each in flat])
        self._known = [(each, each._version, part.view(each.shape)) for each, part in zip(ids, parts, strict=True)]
        self._finder: UniqueRows | None = None
        self.values: torch.Tensor | None = None

    @property
    def gradient(self) -> torch.Tensor | None:
        """(u, dim), of the backward passes since; None before them."""
        found = None if self.values is None else self.values.grad
        if found is not None and self._untrained is not None:
            found.index_fill_(0, self._untrained, 0.0)
        return found

    def known(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the positions of a tensor of the batch itself, which were found before."""
        for each, version, positions in self._known:
            if each is ids and each._version == version:
                return positions
        return None

    def find(self, rows: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        """Return the positions of any of the batch's rows, and where the first stands that is none of them."""
        if self._finder is None:
            self._finder = UniqueRows()
            self._finder.collect(self.rows)
        return self._finder.find(rows)


OF_TORCH = {"max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}
"""Arguments of torch's modules that there are not, and what asks for nothing."""
WHY = {
    "max_norm": "it changes rows in the forward pass, and owners would not know: normalise what forward() returns",
    "norm_type": "it belongs to max_norm, which there is not",
    "scale_grad_by_freq": "how often all ranks use a row is not known in the backward pass: scale the loss",
    "sparse": "gradients of rows always travel by rows: leave it out",
}


def refuse(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument of torch's modules, TypeError for any other."""
    for argument, given in arguments.items():
        if argument not in OF_TORCH:
            raise TypeError(f"an embedding has no argument {argument!r}")
        if given != OF_TORCH[argument]:
            raise ConfigError(f"there is no {argument} of {name}: {WHY[argument]}")


class CachedEmbedding(torch.nn.Module):
    """Rows by their ids, as torch.nn.Embedding, of tables that need not fit into a rank's memory.

    Several tables of one width are one module: the last dimension of the ids is then that of the tables. It has no
    parameters: a Lookahead brings the rows of each batch and takes their gradients, whose mean over ranks its own
    optimizer applies before the next batch.

    Attributes:
        optimizer: of the rows. Its learning rate is a number, or a function of the step; it cannot be assigned.
        steps: how many batches have been trained on.
        lost: why the tables lack rows, if they do.
        servers: those that own its rows, once a Lookahead has found out; None for the ranks that train.
        user: the Lookahead whose iteration has rows of the tables in its caches, if there is one.
    """

    def __init__(
        self,
        num_embeddings: int | Sequence[int],
        embedding_dim: int,
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        initial: Initial | None = None,
        folder: str | Path | None = None,
        name: str = "embedding",
        padding_idx: int | Sequence[int | None] | None = None,
        **of_torch: Any,
    ) -> None:
        """
        Args:
            num_embeddings: rows of the table, or of each.
            embedding_dim: elements of a row.
            optimizer: SGD(0.01) by default.
            seed: of the initial values, uniform between -1 / sqrt(n) and 1 / sqrt(n) in a table of n rows.
            initial: gives other initial values, from ids of rows (n,) to (n, embedding_dim). Row i of table t has
                the id i plus the rows of all tables before it. It must depend on the ids alone.
            folder: where this rank's rows are files, mapped into memory, instead of memory.
            name: in messages, files and checkpoints; different for each embedding of a model.
            padding_idx: the id in each table, or one a table, of a row that is not trained: it is zero, unless
                `initial` gives it, and a bag counts it neither in its sum nor in its mean.

        Raises:
            ConfigError: an argument has no meaning; or it is one of torch's that there is not, with the reason.
        """
        refuse(name, of_torch)
        super().__init__()
        sizes = as_sizes(num_embeddings)
        padding = as_padding(padding_idx, sizes, name)
        self.layout = Layout(name, sizes, embedding_dim, optimizer or SGD(0.01), seed, initial, padding=padding)
        self.folder = None if folder is None else Path(folder)
        self.shard: Shard | None = None
        self.servers: Any = None
        self.versions = Versions()
        self.lost = ""
        self.user: Any = None
        self.steps = 0
        self._used: Used | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedEmbedding:
        """Return another module; once a Lookahead has brought rows, this one: tables are not part of a model, as they
        are none of its state_dict(), so a copy of a trained model, such as AveragedModel, reads and trains the same."""
        if self.shard is not None:
            return self
        made = self.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    @property
    def optimizer(self) -> RowOptimizer:
        return self.layout.optimizer

    @property
    def own_shard(self) -> Shard:
        """What this rank owns, once a Lookahead has found out."""
        assert self.shard is not None
        return self.shard

    def extra_repr(self) -> str:
        return f"{list(self.layout.sizes)}, {self.layout.dim}, {self.layout.optimizer}"

    def flat_rows(self, ids: Ids, where: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the tensors of the ids in a batch, and for each the ids of rows, int64, one-dimensional.

        Raises:
            ConfigError: they are no ids of these tables; it names `where`, the table and the position.
        """
        if not isinstance(ids, torch.Tensor):
            raise ConfigError(f"{where}: the ids of {self.layout.name} are {type(ids).__name__}, not a tensor")
        return [ids], [self._rows(ids, where)]

    def _rows(self, ids: torch.Tensor, where: str, table: int | None = None) -> torch.Tensor:
        """`table`: the one that all ids are of; else the last dimension tells it."""
        layout = self.layout
        if ids.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"{where}: the ids of {layout.name} are {ids.dtype}: int64 or int32, please")
        if table is None and len(layout.sizes) > 1 and (ids.dim() == 0 or ids.shape[-1] != len(layout.sizes)):
            raise ConfigError(
                f"{where}: the ids of {layout.name} are {tuple(ids.shape)}, and the last dimension is not its "
                f"{len(layout.sizes)} tables"
            )
        ids = ids.detach().to("cpu", torch.int64)
        table = 0 if len(layout.sizes) == 1 else table
        sizes = torch.tensor(layout.sizes if table is None else layout.sizes[table])
        wrong = (ids < 0) | (ids >= sizes)
        if wrong.any():
            position = tuple(wrong.nonzero()[0].tolist())
            of = position[-1] if table is None else table
            raise ConfigError(
                f"{where}: id {int(ids[position])} at {position} is none of table {of} of {layout.name}, which has "
                f"{layout.sizes[of]} rows"
            )
        return (ids + (layout.offsets if table is None else layout.offsets[table])).reshape(-1)

    def use(self, used: Used | None) -> None:
        """Let the forward pass read these rows: called by a Lookahead."""
        self._used = used

    def positions(self, ids: torch.Tensor, table: int | None = None) -> torch.Tensor:
        """Return where in `values` the rows of ids stand, in the shape of the ids, on the CPU.

        Raises:
            UsageError: no Lookahead has brought a batch, or an id is not in it.
        """
        if self._used is None:
            raise UsageError(
                f"{self.layout.name} has no rows: call it within the loop over a Lookahead, for its batches; a copy "
                "that was made before the first batch is another table"
            )
        known = self._used.known(ids)
        if known is not None:
            return known
        positions, missing = self._used.find(self._rows(ids, "forward", table))
        if missing is not None:
            place = tuple(int(each) for each in torch.unravel_index(torch.tensor(missing), ids.shape))
            raise UsageError(
                f"id {int(ids[place])} at {place} of {self.layout.name} is none of those that its Lookahead has seen "
                "in this batch: let it see all ids that the forward pass uses, and do not ask it for the next batch "
                "before (Lightning does where a loader has no length: give it __len__())"
            )
        return positions.view(ids.shape)

    @property
    def values(self) -> torch.Tensor:
        assert self._used is not None
        assert self._used.values is not None
        return self._used.values

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows (*input.shape, dim) of ids, int64 or int32; of several tables (..., tables, dim)."""
        return functional.embedding(self.positions(input), self.values).to(input.device)


class CachedEmbeddingBag(CachedEmbedding):
    """Sums or means of rows, as torch.nn.EmbeddingBag; otherwise as CachedEmbedding."""

    def __init__(
        self,
        num_embeddings: int | Sequence[int],
        embedding_dim: int,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        **settings: Any,
    ) -> None:
        """`mode`: "sum" or "mean"; `settings` as CachedEmbedding's. Raises ConfigError for another mode."""
        super().__init__(num_embeddings, embedding_dim, **settings)
        check_choice(f"mode of {self.layout.name}", mode, ("sum", "mean"))
        self.mode, self.include_last_offset = mode, include_last_offset

    def flat_rows(self, ids: Ids, where: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        tables = len(self.layout.sizes)
        if tables == 1 and isinstance(ids, torch.Tensor):
            return super().flat_rows(ids, where)
        if isinstance(ids, torch.Tensor) or len(ids) != tables:
            raise ConfigError(
                f"{where}: {self.layout.name} takes a sequence of ids, a tensor for each of its {tables} tables"
            )
        return list(ids), [self._rows(each, where, table) for table, each in enumerate(ids)]

    def forward(
        self,
        input: Ids,
        offsets: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
        per_sample_weights: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
    ) -> torch.Tensor:
        """Return (bags, dim) for arguments as those of torch.nn.EmbeddingBag; with several tables each argument is a
        sequence of them, one a table, and the result (bags, tables, dim)."""
        if isinstance(input, torch.Tensor):
            return self._bags(input, offsets, per_sample_weights)
        tables = range(len(input))
        each = [_each(argument, len(input)) for argument in (offsets, per_sample_weights)]
        return torch.stack([self._bags(input[table], each[0][table], each[1][table], table) for table in tables], dim=1)

    def _bags(self, input: torch.Tensor, offsets: Any, weights: Any, table: int | None = None) -> torch.Tensor:
        return functional.embedding_bag(
            self.positions(input, table),
            self.values,
            None if offsets is None else offsets.cpu(),
            mode=self.mode,
            per_sample_weights=None if weights is None else weights.cpu(),
            include_last_offset=self.include_last_offset,
            padding_idx=self._padding(table or 0),
        ).to(input.device)

    def _padding(self, table: int) -> int | None:
        """Return where in `values` the row stands that a table's bags pass over, if the batch uses one."""
        row = self.layout.padding[table] if self.layout.padding else None
        if row is None:
            return None
        assert self._used is not None
        positions, missing = self._used.find(torch.tensor([row]))
        return int(positions[0]) if missing is None else None


def _each(argument: Any, tables: int) -> Sequence[Any]:
    return [None] * tables if argument is None else argument
