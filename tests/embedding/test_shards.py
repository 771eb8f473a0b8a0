"""Shards of tables, in memory and in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hvd_compress.embedding import SGD, Adagrad, CachedEmbedding, Lookahead
from hvd_compress.embedding.kernels import initial_values
from hvd_compress.embedding.layout import Layout
from hvd_compress.embedding.shard import Shard
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, HvdCompressError
from tests.embedding.test_loader import batches_of, table, train


def layout(rows: int = 1000, dim: int = 40) -> Layout:
    return Layout("words", (rows,), dim, Adagrad(0.1, initial=0.5))


def test_initial_values_depend_on_the_id_alone() -> None:
    whole = Shard(layout(), 0, 1).read(torch.arange(1000))
    for number in range(3):
        shard = Shard(layout(), number, 3)
        rows = torch.randperm(shard.rows, generator=torch.Generator().manual_seed(1))
        assert torch.equal(shard.read(rows), whole[number::3][rows])
    values = whole[:, :40]
    bound = 1000**-0.5
    assert values.abs().max() <= bound
    assert abs(float(values.mean())) < 0.01 * bound
    assert abs(float(values.std()) / bound - 3**-0.5) < 0.01
    assert (whole[:, 40:] == 0.5).all()
    assert not torch.equal(
        values, Shard(Layout("words", (1000,), 40, Adagrad(0.1), seed=1), 0, 1).read(torch.arange(1000))[:, :40]
    )


def test_initial_values_of_the_user() -> None:
    given = Layout("words", (5, 5), 2, Adagrad(0.1), initial=lambda rows: torch.stack([rows, -rows], 1).float())
    assert Shard(given, 1, 2).read(torch.tensor([0, 4]))[:, :2].tolist() == [[1.0, -1.0], [9.0, -9.0]]
    with pytest.raises(ConfigError, match=r"initial values of words are \(3,\), not \(1, 2\)"):
        Layout("words", (5,), 2, Adagrad(0.1), initial=lambda rows: torch.zeros(3))
    later = Layout("words", (5,), 2, Adagrad(0.1), initial=lambda rows: torch.zeros(1, 2))
    with pytest.raises(HvdCompressError, match=r"initial values of words are \(1, 2\), not \(3, 2\)") as caught:
        Shard(later, 0, 1).read(torch.arange(3))
    assert not isinstance(caught.value, ConfigError), "which ranks raise alike"


def test_a_file_is_what_memory_is_and_is_found_again(tmp_path: Path) -> None:
    rows = torch.tensor([0, 999, 17, 500])
    memory, file = Shard(layout(), 0, 1), Shard(layout(), 0, 1, tmp_path / "deep" / "er")
    for shard in (memory, file):
        shard.update(rows, torch.ones(4, 40), 0)
        shard.write(torch.tensor([3]), torch.full((1, 80), 7.0))
    assert torch.equal(memory.read(torch.arange(1000)), file.read(torch.arange(1000)))
    del file
    again = Shard(layout(), 0, 1, tmp_path / "deep" / "er")
    assert torch.equal(again.records, memory.records)
    assert again.used.all()


def test_a_file_has_holes_where_no_row_was_used(tmp_path: Path) -> None:
    shard = Shard(layout(1_000_000), 0, 1, tmp_path)
    shard.read(torch.tensor([0, 999_999]))
    (rows,) = tmp_path.glob("*.rows")
    assert rows.stat().st_size == 1_000_000 * 80 * 4
    assert rows.stat().st_blocks * 512 < 1_000_000


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    Shard(layout(), 0, 1, tmp_path)
    with pytest.raises(
        ConfigError, match=r"has 320000 bytes where this table's shard has 160000: it is of other tables"
    ):
        Shard(layout(500), 0, 1, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot map .*, 320000 bytes of a table"):
        Shard(layout(), 0, 1, tmp_path / "file")


def test_shards_without_rows(tmp_path: Path) -> None:
    """Three ranks, and a table of two rows."""
    for folder in (None, tmp_path):
        assert Shard(layout(2), 2, 3, folder).read(torch.empty(0, dtype=torch.int64)).shape == (0, 80)


def test_training_on_files(tmp_path: Path) -> None:
    def body(engine: InProcessEngine, folder: Path | None) -> CachedEmbedding:
        module = CachedEmbedding(20, 2, optimizer=Adagrad(0.1), folder=folder)
        loader = Lookahead(batches_of(engine.rank, 9), {lambda ids: ids: module}, cache_rows=20, engine=engine)
        train(loader, module)
        return module

    plain = run_ranks(3, lambda engine: body(engine, None))
    assert torch.equal(table(run_ranks(3, lambda engine: body(engine, tmp_path))), table(plain))


def test_initial_values_of_several_tables() -> None:
    """24 bits of splitmix64 each, by Python's whole numbers: files and checkpoints rely on them."""

    def mixed(state: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ state >> shift) * factor % 2**64
        return state ^ state >> 31

    sizes, dim, seed = (3, 1, 2**40, 7), 5, 2**63 + 11
    tables = Layout("words", sizes, dim, SGD(0.1), seed=seed)
    rows = torch.tensor([0, 2, 3, 4, 2**40, 2**40 + 3, 2**40 + 4, 2**40 + 10])
    records = torch.full((8, 6), 7.0)
    initial_values(rows, tables.offsets, tables._bounds, seed, records[:, :dim])
    for row, values in zip(rows.tolist(), records[:, :dim], strict=True):
        table = max(index for index, offset in enumerate(tables.offsets.tolist()) if offset <= row)
        bound = torch.tensor(sizes[table], dtype=torch.float64).rsqrt().float()
        bits = [mixed((row * dim + at + (seed + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 40 for at in range(dim)]
        assert torch.equal(values, (torch.tensor(bits).float() * 2.0**-23 - 1.0) * bound)
    assert (records[:, dim] == 7.0).all()
