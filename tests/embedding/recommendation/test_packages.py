"""Debian's package index: records, bags, shares; and the statistics of this machine's, where it has one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recommendation import packages
from recommendation.packages import APT_HELPER, APT_LISTS, Bags, load_packages, parse_index, read_index
from torch.nn import EmbeddingBag

from hvd_compress.errors import ConfigError

pytestmark = pytest.mark.level2

BOOKWORM = "deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages*"
INDEX = """\
Package: one
Depends: libc6 (>= 2.34), python3:any (<< 3.12), python3:any (>= 3.9),
 exim4 | mail-transport-agent
Pre-Depends: dpkg
Recommends: ignored
Section: non-free/games
Installed-Size: 12

Package: two
Section: net
Description: Depends: on nothing
"""


@pytest.fixture
def apt_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in apt-helper's place that prints files as they are."""
    helper = tmp_path / "apt-helper"
    helper.write_text('#!/bin/sh\nshift\nexec cat "$@"\n')
    helper.chmod(0o755)
    monkeypatch.setattr(packages, "APT_HELPER", str(helper))


class TestIndex:
    def test_records(self):
        one, two = parse_index(INDEX.splitlines(keepends=True))
        assert one.tokens == ("libc6", "python3:any", "python3:any", "exim4", "mail-transport-agent", "dpkg")
        assert (one.name, one.section, one.installed_kib) == ("one", "games", 12)
        assert (two.name, two.section, two.tokens, two.installed_kib) == ("two", "net", (), 0)

    def test_no_line_and_no_record(self):
        assert list(parse_index([])) == []
        assert list(parse_index(["\n", " continued\n"])) == []

    def test_files_of_several_sources_are_one_index(self, tmp_path, apt_helper):
        for name in ("b_Packages", "a_Packages.xz", "c_Sources", "d_Packages.diff"):
            (tmp_path / name).write_text(f"Package: {name[0]}\nSection: net\n")  # no empty line at the end
        assert [package.name for package in parse_index(read_index(tmp_path))] == ["a", "b"]

    @pytest.mark.parametrize("command", ["false", "true", "echo", "absent"])
    def test_without_an_index_the_error_says_what_to_do(self, tmp_path, monkeypatch, command):
        (tmp_path / "bin").mkdir()
        if command != "absent":
            script = {"echo": "#!/bin/sh\necho partly\nexit 3\n"}.get(command, f"#!/bin/sh\nexec /bin/{command}\n")
            (tmp_path / "bin" / "apt-cache").write_text(script)
            (tmp_path / "bin" / "apt-cache").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(ConfigError, match="apt-get update"):
            load_packages(tmp_path)

    def test_apt_cache_is_asked_where_there_are_no_files(self, tmp_path, monkeypatch):
        (tmp_path / "bin").mkdir()
        script = tmp_path / "bin" / "apt-cache"
        script.write_text('#!/bin/sh\n[ "$1" = dumpavail ] && printf "Package: from-cache\\n"\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        assert [package.name for package in parse_index(read_index(tmp_path))] == ["from-cache"]


class TestBags:
    bags = Bags(
        torch.tensor([7, 8, 9]),
        torch.arange(6.0).view(3, 2),
        torch.tensor([10, 11, 12, 13, 14]),
        torch.tensor([0, 2, 2]),
    )

    def test_chosen_bags_have_their_tokens(self):
        labels, dense, ids, offsets = self.bags.take(torch.tensor([2, 1, 0, 2]))
        assert labels.tolist() == [9, 8, 7, 9]
        assert torch.equal(dense, self.bags.dense[[2, 1, 0, 2]])
        assert ids.tolist() == [12, 13, 14, 10, 11, 12, 13, 14]
        assert offsets.tolist() == [0, 3, 3, 5]

    def test_they_are_arguments_of_an_embedding_bag(self):
        table = EmbeddingBag(20, 4, mode="mean")
        _, _, ids, offsets = self.bags.take(torch.tensor([1, 2]))
        torch.testing.assert_close(table(ids, offsets), torch.stack([torch.zeros(4), table.weight[12:15].mean(0)]))

    def test_no_tokens_at_all(self):
        _, _, ids, offsets = self.bags.take(torch.tensor([1, 1]))
        assert (ids.tolist(), offsets.tolist()) == ([], [0, 0])

    def test_vocabulary_and_parts(self, tmp_path, apt_helper):
        names = [f"package-{number}" for number in range(200)]
        records = [f"Package: {name}\nSection: s{len(name)}\nDepends: lib-{name}, libc6\n" for name in names]
        (tmp_path / "x_Packages").write_text("\n".join(records))
        data = load_packages(tmp_path)
        assert data.names == tuple(sorted(data.names))
        assert set(data.names) == {"libc6", *(f"lib-{name}" for name in names)}
        assert data.sections == ("s10", "s11", "s9")
        assert len(data.train.labels) + len(data.test.labels) == 200
        assert 20 < len(data.test.labels) < 60
        assert sorted(torch.cat([data.train.ids, data.test.ids]).unique().tolist()) == list(range(201))
        again = load_packages(tmp_path)
        assert torch.equal(again.test.ids, data.test.ids)


def test_the_statistics_of_debian_12():
    """Popularity as of natural data: Depends and Pre-Depends, all alternatives, with duplicates."""
    if not list(APT_LISTS.glob(BOOKWORM)) or not Path(APT_HELPER).exists():
        pytest.skip("the statistics are of Debian 12's package index for amd64, which is not here (apt-get update)")
    data = load_packages()
    counts = torch.bincount(torch.cat([data.train.ids, data.test.ids])).sort(descending=True).values
    assert len(data.train.labels) + len(data.test.labels) == pytest.approx(63_666, rel=0.02)
    assert counts.sum().item() == pytest.approx(286_869, rel=0.02)
    assert len(counts) == len(data.names) == pytest.approx(35_515, rel=0.02)
    assert counts[: len(counts) // 100].sum() / counts.sum() == pytest.approx(0.498, abs=0.01)
    assert len(data.sections) > 50
    assert len(data.test.labels) / 63_666 == pytest.approx(0.2, abs=0.01)
