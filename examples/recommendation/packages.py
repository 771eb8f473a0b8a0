"""Debian's package index as a data set: predict a package's section from the names that it depends on.

Every machine with Debian or Ubuntu has one. The dependencies are tokens of a bag. Their popularity is skewed as that of
words: Debian 12 (main, amd64) has 63,440 records with 287,172 tokens. 35,514 of these are distinct. The most popular
1 % of them are 49.8 % of all tokens. A token is the name of an alternative in Depends or Pre-Depends, with its ":any",
as often as it stands there. With Recommends there are 317,770 tokens.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch

from hvd_compress.errors import ConfigError

APT_LISTS = Path("/var/lib/apt/lists")
APT_HELPER = "/usr/lib/apt/apt-helper"  # reads whatever apt has compressed
COMPRESSIONS = ("", ".lz4", ".gz", ".xz", ".bz2", ".zst")
DEPENDENCIES = ("Depends", "Pre-Depends")
FIELDS = ("Package", "Section", "Installed-Size", *DEPENDENCIES)
NUMERICAL = 2
TEST_SHARE = 5  # one package in five
_SEPARATOR = re.compile(r"[,|]")


class Bags(NamedTuple):
    """Packages.

    Attributes:
        labels: index of the section, int64 (batch,).
        dense: log(x + 1) of the number of tokens and of the installed size in KiB, float32 (batch, 2).
        ids: of all tokens, int64 (tokens,).
        offsets: where in `ids` each package's begin, int64 (batch,).
    """

    labels: torch.Tensor
    dense: torch.Tensor
    ids: torch.Tensor
    offsets: torch.Tensor

    def take(self, indices: torch.Tensor) -> Bags:
        """Return the chosen packages."""
        ends = torch.cat([self.offsets[1:], torch.tensor([len(self.ids)])])
        starts, lengths = self.offsets[indices], (ends - self.offsets)[indices]
        offsets = lengths.cumsum(0) - lengths
        places = torch.arange(int(lengths.sum())) + (starts - offsets).repeat_interleave(lengths)
        return Bags(self.labels[indices], self.dense[indices], self.ids[places], offsets)


@dataclass(frozen=True)
class Package:
    """What a record of the index says."""

    name: str
    section: str
    tokens: tuple[str, ...]
    installed_kib: int


@dataclass(frozen=True)
class PackageData:
    """All packages.

    Attributes:
        names: the token of each id, sorted.
        sections: the section of each label, sorted.
    """

    names: tuple[str, ...]
    sections: tuple[str, ...]
    train: Bags
    test: Bags


def load_packages(lists: Path = APT_LISTS) -> PackageData:
    """Load the machine's index. A hash of a package's name tells whether it is for training or for testing.

    Raises:
        ConfigError: there is no index.
    """
    packages = list(parse_index(read_index(lists)))
    names = tuple(sorted({token for package in packages for token in package.tokens}))
    sections = tuple(sorted({package.section for package in packages}))
    id_of, label_of = ({name: index for index, name in enumerate(each)} for each in (names, sections))
    train, test = (
        _bags([package for package in packages if is_test(package.name) == chosen], id_of, label_of)
        for chosen in (False, True)
    )
    return PackageData(names, sections, train, test)


def is_test(name: str) -> bool:
    return crc32(name.encode()) % TEST_SHARE == 0


def read_index(lists: Path = APT_LISTS) -> Iterator[str]:
    """Yield the lines of all index files there, else of what apt-cache knows.

    Raises:
        ConfigError: there is no index.
    """
    files = sorted(str(path) for ending in COMPRESSIONS for path in lists.glob(f"*_Packages{ending}"))
    command = [APT_HELPER, "cat-file", *files] if files and Path(APT_HELPER).exists() else ["apt-cache", "dumpavail"]
    lines = 0
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", errors="replace") as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines += 1
                yield line
        failure = f"{' '.join(command)} ended with status {process.returncode}" if process.returncode else ""
    except OSError as error:
        failure = str(error)
    if failure or not lines:
        raise ConfigError(
            f"no index of packages: {failure or f'nothing in {lists}, and apt-cache knows none'}. On Debian or Ubuntu, "
            "`apt-get update` (as root) downloads it"
        )


def parse_index(lines: Iterable[str]) -> Iterator[Package]:
    """Yield the records of an index: fields "Name: value", Package the first; a line with a blank first goes on."""
    record: dict[str, str] = {}
    field = ""
    for line in lines:
        if line.startswith((" ", "\t")):
            if field:
                record[field] += line.strip()
        else:
            name, _, value = line.partition(":")
            if name == "Package":
                yield from _package(record)
                record = {}
            field = name if name in FIELDS else ""
            if field:
                record[field] = value.strip()
    yield from _package(record)


def _package(record: dict[str, str]) -> Iterator[Package]:
    if "Package" in record:
        alternatives = _SEPARATOR.split(",".join(record.get(field, "") for field in DEPENDENCIES))
        tokens = tuple(words[0] for words in map(str.split, alternatives) if words)
        size = record.get("Installed-Size", "")
        section = record.get("Section", "unknown").rpartition("/")[2]
        yield Package(record["Package"], section, tokens, int(size) if size.isdecimal() else 0)


def _bags(packages: list[Package], id_of: dict[str, int], label_of: dict[str, int]) -> Bags:
    lengths = torch.tensor([len(package.tokens) for package in packages], dtype=torch.int64)
    sizes = torch.tensor([package.installed_kib for package in packages])
    return Bags(
        torch.tensor([label_of[package.section] for package in packages], dtype=torch.int64),
        torch.stack([lengths, sizes], dim=1).float().log1p() if packages else torch.zeros(0, NUMERICAL),
        torch.tensor([id_of[token] for package in packages for token in package.tokens], dtype=torch.int64),
        lengths.cumsum(0) - lengths,
    )
