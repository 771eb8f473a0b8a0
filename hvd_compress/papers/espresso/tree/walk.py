"""Options of Espresso's tree, by name: their tasks, and what each rank holds before and after every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile

from hvd_compress.collectives.groups import neighbours, sizes
from hvd_compress.engines.layout import shard
from hvd_compress.errors import ConfigError

LINKS = ("all", "within", "across")
"""Whom a call connects: all ranks, those of a host, or those at the same place of all hosts."""
PLAIN = ("allreduce", "reduce_scatter", "allgather", "reduce", "broadcast")
COMPRESSED = ("allgather", "alltoall", "gather", "broadcast")
"""Calls of tensors, and of payloads."""
ROOT = 0
"""The member of a group that receives what is gathered or reduced, and sends what is broadcast."""


@dataclass(frozen=True)
class Task:
    """A step of an option: "comp", "decomp", or a call over a link, of payloads or not."""

    verb: str
    link: str = ""
    compressed: bool = False

    def __str__(self) -> str:
        return f"{self.verb}{'*' * self.compressed}@{self.link}" if self.link else self.verb


@dataclass(frozen=True)
class Held:
    """A part of the bucket, as a tensor or as a payload that stands for it, and the ranks whose gradients are in it."""

    start: int
    stop: int
    sources: frozenset[int]

    @property
    def part(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def narrowed(self, ranks: int, member: int) -> Holding:
        """Return the shard of it that a member of a group of so many ranks owns; nothing where that is empty."""
        own = shard(self.numel, ranks, member)
        kept = Held(self.start + own.start, self.start + own.stop, self.sources)
        return (kept,) if kept.numel else ()


Holding = tuple[Held, ...]
"""What a rank holds: one part as a tensor, or payloads in the order in which they are added; empty while it waits."""


def parse(name: str) -> tuple[Task, ...]:
    """Read the name of an option, such as "comp alltoall*@all decomp allgather@all". Raises ConfigError."""
    tasks = tuple(map(_task, name.split()))
    compressed = False
    for task in tasks:
        wanted = task.compressed if task.link else task.verb == "decomp"
        if wanted != compressed:
            raise ConfigError(f"option {name!r}: {task} cannot come there, where the tensor is {_form(compressed)}")
        if not task.link:
            compressed = not compressed
    if not tasks or compressed:
        raise ConfigError(f"option {name!r} ends without a tensor")
    return tasks


def _form(compressed: bool) -> str:
    return "compressed" if compressed else "not compressed"


def _task(word: str) -> Task:
    if word in ("comp", "decomp"):
        return Task(word)
    verb, _, link = word.partition("@")
    plain, compressed = verb.removesuffix("*"), verb.endswith("*")
    if link not in LINKS or plain not in (COMPRESSED if compressed else PLAIN):
        raise ConfigError(f"{word!r} is no task of an option: a collective is one such as allgather*@across")
    return Task(plain, link, compressed)


@lru_cache(maxsize=64)
def groups(link: str, hosts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group that a link connects, in their order there."""
    if link == "all":
        return (tuple(range(len(hosts))),)
    local = [tuple(neighbours(hosts, hosts.index(host))) for host in sorted(set(hosts))]
    return tuple(local) if link == "within" else tuple(zip(*local, strict=True))


def members(link: str, hosts: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the ranks that a link connects with `rank`, itself among them, in their order there."""
    return next(group for group in groups(link, hosts) if rank in group)


@lru_cache(maxsize=4096)
def walk(name: str, numel: int, hosts: tuple[int, ...]) -> tuple[tuple[Holding, ...], ...]:
    """Return what each rank holds, by rank, before each task of an option and at the end.

    Args:
        hosts: by rank, the number of its host.

    Raises:
        ConfigError: the tasks do not leave each rank with the sum over all of the whole bucket; or the option goes by
            hosts, and these have different numbers of ranks.
    """
    tasks, ranks = parse(name), range(len(hosts))
    if any(task.link == "across" for task in tasks) and len(set(sizes(hosts))) > 1:
        found = ", ".join(map(str, sizes(hosts)))
        raise ConfigError(f"option {name!r} takes as many ranks on each host, and the hosts of this job have {found}")
    now = tuple(_whole(numel, [rank]) for rank in ranks)
    rows = [now]
    for at, task in enumerate(tasks):
        if task.link:
            after = dict[int, Holding]()
            for group in groups(task.link, hosts):
                after.update(zip(group, _collective(task, [now[rank] for rank in group]), strict=True))
            now = tuple(after[rank] for rank in ranks)
        else:
            payloads = takewhile(lambda task: task.compressed, tasks[at + 1 :])
            widths = [len(members(task.link, hosts, ROOT)) for task in payloads if task.verb == "alltoall"]
            now = tuple(_cut(held, widths) if task.verb == "comp" else _added(name, held) for held in now)
        rows.append(now)
    if any(held != _whole(numel, ranks) for held in now):
        raise ConfigError(f"option {name!r} does not give every rank the sum over all")
    return tuple(rows)


@lru_cache(maxsize=4096)
def holders(name: str, numel: int, hosts: tuple[int, ...], task: int) -> dict[Held, tuple[int, ...]]:
    """Return the ranks that hold each part, the same sum of it, behind a task."""
    found: dict[Held, tuple[int, ...]] = {}
    for rank, holding in enumerate(walk(name, numel, hosts)[task + 1]):
        for held in holding:
            found[held] = (*found.get(held, ()), rank)
    return found


def _whole(numel: int, sources: Iterable[int]) -> Holding:
    return (Held(0, numel, frozenset(sources)),) if numel else ()


def _cut(holding: Holding, widths: Sequence[int]) -> Holding:
    """Cut what is compressed into a payload for each rank that the next calls scatter it to."""
    for width in widths:
        holding = tuple(part for held in holding for member in range(width) for part in held.narrowed(width, member))
    return holding


def _added(name: str, holding: Holding) -> Holding:
    """Return the tensor that payloads add up to: each stands for gradients that no other of its part stands for."""
    parts: dict[tuple[int, int], frozenset[int]] = {}
    for held in holding:
        before = parts.get((held.start, held.stop), frozenset())
        if before & held.sources:
            raise ConfigError(f"option {name!r} adds the gradients of ranks {sorted(before & held.sources)} twice")
        parts[held.start, held.stop] = before | held.sources
    return _joined(Held(start, stop, sources) for (start, stop), sources in parts.items())


def _joined(parts: Iterable[Held]) -> Holding:
    """Return neighbouring parts as one. Raises ConfigError where they are no neighbours, or sums over other ranks."""
    ordered = sorted(parts, key=lambda held: (held.start, held.stop))
    if not ordered:
        return ()
    for left, right in pairwise(ordered):
        if left.stop != right.start or left.sources != right.sources:
            raise ConfigError(f"{left} and {right} are no parts of one sum")
    return (Held(ordered[0].start, ordered[-1].stop, ordered[0].sources),)


def _collective(task: Task, holdings: Sequence[Holding]) -> list[Holding]:
    """Return what the members of a group hold after a call."""
    count, waiting = len(holdings), ()
    if task.verb == "broadcast":
        return [holdings[ROOT]] * count
    if not any(holdings):
        return list(holdings)
    if task.verb == "alltoall":
        return [tuple(h for holding in holdings for h in sent_to(holding, count, member)) for member in range(count)]
    received = tuple(held for holding in holdings for held in holding)
    if task.compressed or task.verb == "allgather":
        everything = received if task.compressed else _joined(received)
    else:
        everything = _added(str(task), received)
    if task.verb == "reduce_scatter":
        return [everything[0].narrowed(count, member) for member in range(count)]
    at_root = task.verb in ("gather", "reduce")
    return [everything if member == ROOT or not at_root else waiting for member in range(count)]


def sent_to(holding: Holding, ranks: int, member: int) -> Holding:
    """Return those of a rank's payloads that lie in the shard of a member of a group: an all-to-all sends it these."""
    if not holding:
        return ()
    start, stop = min(held.start for held in holding), max(held.stop for held in holding)
    own = shard(stop - start, ranks, member)
    return tuple(held for held in holding if start + own.start <= held.start and held.stop <= start + own.stop)
