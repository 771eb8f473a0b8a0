"""`hvd-compress list` knows every compression, and what it says is so."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hvd_compress.cli.list import command
from hvd_compress.compression import Compression
from hvd_compress.compression.named import OTHERS
from hvd_compress.compressors import COMPRESSORS
from tests.brought import brought


def test_every_compression_is_listed() -> None:
    rows = json.loads(CliRunner().invoke(command, ["--json"], catch_exceptions=False).output)
    offered = {name for name in dir(Compression) if not name.startswith("_")}
    assert {row["name"] for row in rows} == offered - set(OTHERS)
    by_name = {row["name"]: row for row in rows}
    of_guests = {"topk": [], "dense": [], **dict(brought("BY_NAME"))}
    assert by_name["int4"]["bits"] == 4.25
    assert by_name["topk"] == {
        **{"name": "topk", "kind": "sparsifier", "fixed": True, "error_feedback": True},
        **{"bits": 64 * 10486 / 2**20, "collectives": ["allgather", "artopk", "star", "var"]},
        "by_name": ["hierarchical", *of_guests["topk"]],
        "source": "Aji and Heafield 2017",
    }
    assert by_name["dense"]["collectives"] == ["alltoall", "dense"]
    assert by_name["dense"]["by_name"] == ["hierarchical", *of_guests["dense"]]
    assert by_name["powersgd"]["by_name"] == ["hierarchical"]


def test_the_table_says_the_same_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = CliRunner().invoke(command, [], catch_exceptions=False).output.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert rows["int4"][1:4] == ["quantiser", "4.25", "yes"]
    assert rows["half"][1:4] == ["cast", "16", "no"]
    for row, start in brought("ROWS"):
        assert " ".join(rows[row]).startswith(start)


@pytest.mark.parametrize("columns", [80, 120])
def test_words_of_the_table_are_whole(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    rows = json.loads(CliRunner().invoke(command, ["--json"], catch_exceptions=False).output)
    monkeypatch.setenv("COLUMNS", str(columns))
    output = CliRunner().invoke(command, [], catch_exceptions=False).output
    assert max(map(len, output.splitlines())) <= columns
    words = {word.strip(",;.") for word in output.split()}
    for row in rows:
        for word in [row["name"], *row["kind"].split(), *row["collectives"], *row["source"].split()]:
            assert word.strip(",;.") in words, word
    assert {"name", "feedback", "collectives", "source"} <= words


def test_every_compressor_says_what_it_is() -> None:
    kinds = {"cast", "sparsifier", "quantiser", "low rank", "transform"}
    for name, kind in COMPRESSORS.items():
        assert kind.kind in kinds, name
        assert kind.source or name == "cast"
