"""What processes leave in memory for those that torchrun starts in their place."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hvd_compress.errors import ConfigError
from hvd_compress.membership import kept
from hvd_compress.membership.kept import VARIABLE, Copy, Kept, Moment, best


def copies(moment: Moment, *ranks: int, whole: tuple[int, ...] = (0,)) -> list[Copy]:
    return [Copy(moment, rank, rank in whole) for rank in ranks]


def by_all(moment: Moment, *ranks: int) -> list[Copy]:
    return [Copy(moment, rank, rank == 0, by_all=True) for rank in ranks]


OLD, NEW = Moment(0, 4, 4), Moment(0, 5, 4)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], (None, [])),
        (copies(OLD, 0, 1, 2, 3), (OLD, [])),
        ([*copies(OLD, 0, 1, 2, 3), *copies(NEW, 0, 1, 2, 3)], (NEW, [])),
        ([*copies(OLD, 0, 1, 2, 3), *copies(NEW, 0, 2)], (OLD, [])),  # ranks ended while they kept it
        (copies(NEW, 0, 2), (None, [])),  # the first copies
        ([*by_all(OLD, 0, 1), *copies(NEW, 0, 1)], (OLD, [2, 3])),  # and a host is gone, too
        (by_all(NEW, 0, 1), (NEW, [2, 3])),
        ([*copies(NEW, 0), *by_all(NEW, 1)], (NEW, [2, 3])),
        (by_all(NEW, 1, 3), (None, [])),
        ([*copies(NEW, 0, 1), *copies(Moment(1, 0, 2), 0, 1)], (Moment(1, 0, 2), [])),
        ([*copies(NEW, 0, 1, 2, 3), *copies(Moment(1, 0, 2), 0)], (NEW, [])),
        ([*copies(Moment(9, 2, 2), 0, 1), *copies(Moment(10, 0, 2), 0, 1)], (Moment(10, 0, 2), [])),
    ],
)
def test_the_newest_of_which_most_is_left(found: list[Copy], expected: tuple[Moment | None, list[int]]) -> None:
    random.Random(1).shuffle(found)
    assert best(found) == expected


def test_what_all_ranks_have_kept_is_never_lost_for_something_older(tmp_path: Path) -> None:
    """Of 200 jobs, in which processes are killed at any moment of keeping; each has its host's memory again."""
    draw = random.Random(7)
    for job in range(200):
        hosts = [Kept(0, [root]) for root in (tmp_path / f"{job}a", tmp_path / f"{job}b") if root.mkdir() is None]
        agreed, attempt = -1, 0
        for _ in range(4):
            ranks = draw.choice((2, 4))
            for number in range(draw.randrange(3)):
                moment = Moment(attempt, number, ranks)
                order = draw.sample(range(ranks), ranks)
                last = draw.choice((ranks, ranks, draw.randrange(ranks)))
                for rank in order[:last]:
                    hosts[rank % 2].keep(Copy(moment, rank, rank < 2), (job, attempt, number, rank), 0)
                if last < ranks:
                    break
                agreed = attempt * 10 + number
                for rank in order[: draw.choice((ranks, draw.randrange(ranks)))]:
                    hosts[rank % 2].drop_before(Copy(moment, rank, rank < 2))
            everything = [copy for host in hosts for copy in host.found()]
            found, lost = best(everything)
            assert (found is None) == (agreed == -1)
            if found is not None:
                assert lost == []
                assert found.attempt * 10 + found.number == agreed
                for host in hosts:
                    for copy in (copy for copy in host.found() if copy.moment == found):
                        assert host.load(copy) == (job, found.attempt, found.number, copy.rank)
            attempt = 1 + max((copy.moment.attempt for copy in everything), default=-1)


def test_tensors_are_kept_and_earlier_ones_dropped(tmp_path: Path) -> None:
    one = Kept(0, [tmp_path])
    state = {"model": torch.arange(5.0), "count": 3}
    for number in range(3):
        one.keep(Copy(Moment(0, number, 1), 0, True), state, 20)
        one.drop_before(Copy(Moment(0, number, 1), 0, True))
    assert one.found() == [Copy(Moment(0, 2, 1), 0, True, by_all=True)]
    again = Kept(0, [tmp_path]).load(one.found()[0])
    assert torch.equal(again["model"], state["model"])
    assert again["count"] == 3
    assert Kept(1, [tmp_path]).found() == [], "another training of the same program"
    one.drop(Copy(Moment(0, 1, 1), 0, True))
    assert len(one.found()) == 1
    one.drop(one.found()[0])
    assert one.found() == []


def test_a_place_that_is_named_twice_is_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    one, copy = Kept(0, [tmp_path, tmp_path / "link"]), Copy(Moment(0, 0, 1), 0, True)
    one.keep(copy, 1, 0)
    one.drop_before(copy)
    assert [one.load(each) for each in one.found()] == [1]


@pytest.mark.level1
def test_copies_go_with_their_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as its_agent:
        monkeypatch.setattr(kept, "agent", lambda: f"{kept._here()}-{kept._identity(its_agent.pid)}")
        one = Kept(0, [tmp_path])
        one.remove_with_agent()
        one.keep(Copy(Moment(0, 0, 1), 0, True), 1, 0)
        time.sleep(1.5)
        assert len(one.found()) == 1
        its_agent.kill()
    end = time.monotonic() + 60
    while list(tmp_path.glob("*/*")):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_is_left_of_an_agent_that_is_gone_is_removed_by_the_next(tmp_path: Path) -> None:
    Kept(0, [tmp_path]).keep(Copy(Moment(0, 0, 1), 0, True), 1, 0)
    (own,) = (tmp_path / f"hvd_compress-{os.getuid()}").iterdir()
    here, number, _ = own.name.rsplit("-", 2)
    shutil.copytree(own, own.with_name(f"{here}-{number}-12"))  # of an earlier process of this number
    shutil.copytree(own, own.with_name(f"{here}-999999999-12"))
    others = [own.with_name("1f-4026531836-999999999-12"), own.with_name("notes")]  # of another host, or nobody's
    for each in others:
        shutil.copytree(own, each)
    Kept(0, [tmp_path])
    assert sorted(own.parent.iterdir()) == sorted([own, *others])


@pytest.mark.level1
def test_an_agent_is_who_has_started_this_process_also_by_a_script() -> None:
    code = "from hvd_compress.membership.kept import agent; print(agent())"
    environment = {**os.environ, VARIABLE: "error.json"}
    direct = [sys.executable, "-c", code]
    by_script = ["sh", "-c", f'"{sys.executable}" -c "{code}"; true']
    found = {subprocess.check_output(words, env=environment, text=True) for words in (direct, by_script)}
    assert found == {f"{kept._here()}-{kept._identity(os.getpid())}\n"}


def test_no_memory_is_an_error_that_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    free = {small: 1 << 20, large: 4 << 20}
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, free[Path(path)]))
    one = Kept(0, [small, large])
    one.keep(Copy(Moment(0, 0, 1), 0, True), torch.zeros(1 << 18), 1 << 20)
    assert [path for path in small.rglob("*") if path.is_file()] == []
    assert len(list(large.rglob("*.pt"))) == 1
    with pytest.raises(ConfigError, match=rf"copies of 6 MiB, and {small} has 1 MiB, {large} has 5 MiB"):
        Kept(0, [small, large]).keep(Copy(Moment(0, 0, 1), 0, True), 1, 3 << 20)
    Kept(0, [small, large]).keep(Copy(Moment(0, 1, 1), 0, True), 1, 2 << 20)  # instead of the other


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    place, other = tmp_path / f"hvd_compress-{os.getuid()}", tmp_path / "other"
    for each in (place, other):
        each.mkdir()
    place.chmod(0o777)
    Kept(0, [tmp_path, other]).keep(Copy(Moment(0, 0, 1), 0, True), 1, 0)
    assert list(place.iterdir()) == []
    assert len(list(other.rglob("*.pt"))) == 1


def test_a_file_system_that_is_full_is_an_error_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Kept(0, [tmp_path])

    def fails(state: object, path: Path) -> None:
        path.write_bytes(b"begun")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(ConfigError, match=r"commit\(\) cannot keep 3 MiB in .*: .*No space left"):
        one.keep(Copy(Moment(0, 0, 1), 0, True), 1, 3 << 20)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
