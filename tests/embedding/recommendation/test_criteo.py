"""The reader of Criteo's files: values, shares of ranks, and lines that are malformed."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import torch
from recommendation import criteo
from recommendation.batch import Batch
from recommendation.criteo import Criteo

from hvd_compress.errors import ConfigError

TABLES = [2, 3, *range(100, 124)]


def random_lines(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        "\t".join(
            [
                str(draw.randint(0, 1)),
                *(draw.choice(["", "-1", "0", str(draw.randrange(10 ** draw.randint(1, 7)))]) for _ in range(13)),
                *(draw.choice(["", f"{draw.getrandbits(32):08x}"]) for _ in range(26)),
            ]
        )
        for _ in range(count)
    ]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    content = ("\n".join(lines) + end).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def expected(lines: list[str]) -> Batch:
    """As DLRM's data loader in plain Python."""
    columns = [line.split("\t") for line in lines]
    return Batch(
        torch.tensor([float(each[0]) for each in columns]),
        torch.tensor([[max(int(field or 0), 0) for field in each[1:14]] for each in columns]).float().log1p(),
        torch.tensor(
            [
                [1 + int(field, 16) % (rows - 1) if field else 0 for field, rows in zip(each[14:], TABLES, strict=True)]
                for each in columns
            ]
        ),
    )


def assert_equal(batch: Batch, other: Batch) -> None:
    for part, wanted in zip(batch, other, strict=True):
        assert part.dtype == wanted.dtype
        torch.testing.assert_close(part, wanted)


def read(path: Path, **change) -> list[Batch]:
    return list(Criteo([path], TABLES, **{"batch_size": 4, **change}))


class TestValues:
    @pytest.mark.parametrize("name", ["train.txt", "day_0.gz"])
    @pytest.mark.parametrize("end", ["\n", ""])
    def test_plain_and_compressed_files(self, tmp_path, name, end):
        lines = random_lines(40)
        (batch,) = read(write(tmp_path / name, lines, end), batch_size=40)
        assert_equal(batch, expected(lines))

    def test_missing_negative_and_capital(self, tmp_path):
        line = "\t".join(["1", "", "-3", "0", "9", *[""] * 9, "", "0000000f", "0000000F", *[""] * 23])
        (batch,) = read(write(tmp_path / "file", [line]), batch_size=1)
        assert batch.dense[0, :4].exp().tolist() == pytest.approx([1, 1, 1, 10])
        assert batch.ids[0, :4].tolist() == [0, 1 + 15 % 2, 1 + 15 % 99, 0]

    def test_all_categories_missing(self, tmp_path):
        (batch,) = read(write(tmp_path / "file", ["\t".join(["0", *["7"] * 13, *[""] * 26])]), batch_size=1)
        assert batch.ids.count_nonzero() == 0

    def test_ids_are_rows_of_their_tables(self, tmp_path):
        ids = torch.cat([batch.ids for batch in read(write(tmp_path / "file", random_lines(200)))])
        assert (ids < torch.tensor(TABLES)).all()
        assert (ids.amin(dim=0) == 0).all()
        assert (ids[:, 0] <= 1).all()

    def test_a_file_without_labels(self, tmp_path):
        lines = random_lines(4)
        path = write(tmp_path / "test.txt", [line[2:] for line in lines])
        (batch,) = read(path, labelled=False)
        assert batch.labels.isnan().all()
        assert_equal(batch._replace(labels=expected(lines).labels), expected(lines))


class TestShares:
    @pytest.mark.parametrize("read_bytes", [100, 1000, 1 << 19])
    @pytest.mark.parametrize("world_size", [1, 2, 3])
    @pytest.mark.parametrize("count", [24, 29, 35])
    def test_ranks_take_lines_in_turn_in_equally_many_batches(
        self, tmp_path, monkeypatch, count, world_size, read_bytes
    ):
        monkeypatch.setattr(criteo, "READ_BYTES", read_bytes)
        lines = random_lines(count)
        path = write(tmp_path / "file", lines)
        whole = count // (4 * world_size)
        for rank in range(world_size):
            batches = read(path, rank=rank, world_size=world_size)
            assert len(batches) == whole
            for number, batch in enumerate(batches):
                assert_equal(batch, expected(lines[rank::world_size][4 * number : 4 * number + 4]))

    def test_files_are_one_stream_that_can_be_read_again(self, tmp_path):
        lines = random_lines(20)
        paths = [write(tmp_path / "day_0", lines[:7]), write(tmp_path / "day_1.gz", lines[7:], end="")]
        reader = Criteo(paths, TABLES, batch_size=5, rank=1, world_size=2)
        for _ in range(2):
            batches = list(reader)
            assert_equal(Batch(*map(torch.cat, zip(*batches, strict=True))), expected(lines[1::2]))

    def test_too_few_lines_are_an_error_on_all_ranks(self, tmp_path):
        path = write(tmp_path / "file", random_lines(7))
        for rank in range(2):
            with pytest.raises(ConfigError, match=r"file: 7 lines are fewer than 4 for each of 2 ranks"):
                read(path, rank=rank, world_size=2)

    @pytest.mark.parametrize("tables", [TABLES[:-1], [1, *TABLES[1:]]])
    def test_tables_that_do_not_fit(self, tables):
        with pytest.raises(ConfigError, match="26 tables of 2 rows or more"):
            Criteo([], tables, batch_size=1)


class TestMalformed:
    @staticmethod
    def with_field(column: int, field: str) -> list[str]:
        """Six lines, whose fifth has this in a column, from 1."""
        lines = random_lines(6)
        fields = lines[4].split("\t")
        fields[column - 1] = field
        return [*lines[:4], "\t".join(fields), lines[5]]

    @pytest.mark.parametrize(
        ("column", "field", "message"),
        [
            (1, "", "a label"),
            (1, "2", "a label"),
            (1, "-1", "a label"),
            (2, "1.5", "an integer"),
            (7, "-", "an integer"),
            (7, "1-", "an integer"),
            (7, "--1", "an integer"),
            (14, "123456789012", "an integer"),
            (14, " 1", "an integer"),
            (15, "0123456g", "a hexadecimal number"),
            (20, "1234567", "a hexadecimal number"),
            (20, "123456789", "a hexadecimal number"),
            (40, "abcdef12\r", "a hexadecimal number"),
            (40, "\xe9\xe9\xe9\xe9", "a hexadecimal number"),
        ],
    )
    def test_a_wrong_field_names_file_line_and_column(self, tmp_path, monkeypatch, column, field, message):
        monkeypatch.setattr(criteo, "READ_BYTES", 300)
        path = write(tmp_path / "file", self.with_field(column, field))
        with pytest.raises(ConfigError, match=message) as caught:
            read(path, batch_size=1)
        assert f"{path}, line 5, column {column}: " in str(caught.value)

    @pytest.mark.parametrize(("change", "columns", "column"), [("cut", 39, 40), ("longer", 41, 41), ("empty", 1, 2)])
    def test_wrong_columns_are_found_on_all_ranks(self, tmp_path, change, columns, column):
        lines = random_lines(6)
        fields = lines[4].split("\t")
        lines[4] = {"cut": "\t".join(fields[:-1]), "longer": "\t".join([*fields, ""]), "empty": ""}[change]
        path = write(tmp_path / "file", lines)
        for rank in range(2):
            with pytest.raises(ConfigError, match=f"line 5, column {column}: the line has {columns} columns"):
                read(path, rank=rank, world_size=2, batch_size=1)

    def test_columns_that_move_to_the_next_line_are_found(self, tmp_path):
        lines = random_lines(3)
        text = "\n".join(lines)
        position = text.index("\n")
        swapped = text[:position] + "\t" + text[position + 1 :].replace("\t", "\n", 1)
        with pytest.raises(ConfigError, match="line 1, column 41: the line has 41 columns"):
            read(write(tmp_path / "file", [swapped]), batch_size=1)

    def test_a_file_cut_off_within_a_line(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes("\n".join(random_lines(3)).encode()[:-120])
        with pytest.raises(ConfigError, match=r"line 3, column \d+"):
            read(path, batch_size=1)

    def test_a_compressed_file_cut_off(self, tmp_path):
        path = write(tmp_path / "file.gz", random_lines(50))
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(ConfigError, match=f"cannot read {path}"):
            read(path)

    @pytest.mark.parametrize("name", ["absent", "absent.gz"])
    def test_a_missing_file(self, tmp_path, name):
        with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
            read(tmp_path / name)

    def test_text_for_gzip(self, tmp_path):
        (tmp_path / "file.gz").write_text("plain")
        with pytest.raises(ConfigError, match="cannot read"):
            read(tmp_path / "file.gz")

    def test_a_line_without_end_is_not_read_to_its_end(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"\0" * (1 << 21))
        with pytest.raises(ConfigError, match="line 1, column 1: no line"):
            read(path)
