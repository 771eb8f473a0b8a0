"""All collectives, in one list; what can be asked of it by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hvd_compress import guests
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_choice
from hvd_compress.collectives.artopk import ARTopk
from hvd_compress.collectives.base import Collective
from hvd_compress.collectives.flat import FLAT, flat_for
from hvd_compress.collectives.hierarchical import Hierarchical
from hvd_compress.collectives.reduce_scatter import ReduceScatter
from hvd_compress.collectives.sparse_rows import SparseRows
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.names import BROADCASTS, KNOWN
from hvd_compress.errors import ConfigError, did_you_mean, known_are

OTHERS: tuple[type[Collective], ...] = (Hierarchical, SparseRows, ReduceScatter)
COLLECTIVES: tuple[type[Collective], ...] = (*FLAT, *OTHERS)
"""Those that a user may ask for, and those that a gradient or a policy asks for; guests have others."""
ARTOPK = "artopk"
"""Leaves open whose indices are used."""


def build(compressor: Compressor, path: Path) -> Collective:
    """Return the collective of a path. Raises ConfigError for names that are unknown or do not go together."""
    collective = _collective_of(checked(path))
    if not collective.carries(compressor):
        raise ConfigError(
            f"collective {path.collective!r} cannot carry {compressor}; {', '.join(names_for(compressor))} can"
        )
    return collective(compressor, path)  # type: ignore[call-arg]


def of_guests() -> tuple[type[Collective], ...]:
    """Return the collectives of guests that are here and run by name alone."""
    return tuple(collective for collective in guests.collectives() if collective.by_name)


def variants(compressor: Compressor, layout: Layout, can: Capabilities) -> tuple[Path, ...]:
    """Return every path to choose from, by which an engine can carry a compressor. The same order on every rank."""
    chosen = (collective for collective in (*flat_for(compressor), *OTHERS) if not collective.by_name)
    return tuple(path for collective in chosen for path in collective.variants(compressor, layout, can))


def runnable(compressor: Compressor, layout: Layout, can: Capabilities) -> tuple[Path, ...]:
    """Return every path by which an engine can carry a compressor, also those that run by name alone.

    Those of guests that a plan alone can name are not among them: `runs` tells whether it can carry out one.
    """
    known = (*flat_for(compressor), *OTHERS, *of_guests())
    return tuple(path for collective in known for path in collective.variants(compressor, layout, can))


def runs(compressor: Compressor, path: Path, layout: Layout, can: Capabilities) -> bool:
    """Whether an engine can carry a compressor by a path. Raises ConfigError where there is more to say than no."""
    return _collective_of(path).runs(compressor, path, layout, can)


def obstacle(name: str, can: Capabilities) -> str:
    """Say what a collective misses in an engine, beside verbs, or return nothing."""
    return _collective_of(Path(name)).obstacle(can)


def stages(
    compressor: Compressor, path: Path, layout: Layout, world_size: int, hosts: Sequence[int] = ()
) -> tuple[Stage, ...]:
    """Return the collectives of one step of a bucket in the order in which they run, for pricing.

    A collective need not carry a compressor to be priced with it, as the papers do.

    Args:
        hosts: by rank, the number of the host that it runs on; without it each has one of its own.
    """
    collective = _collective_of(checked(path))
    return collective(compressor, path).stages_on(layout, hosts or range(world_size))  # type: ignore[call-arg]


def labels() -> tuple[str, ...]:
    """Return the names of all collectives."""
    return tuple(name for collective in (*COLLECTIVES, *of_guests()) for name in collective.names)


def names_for(compressor: Compressor) -> tuple[str, ...]:
    """Return the names of what carries a compressor, whatever the engine; those by name alone come last."""
    known: tuple[type[Collective], ...] = (
        *flat_for(compressor),
        *(each for each in OTHERS if each.named),
        *of_guests(),
    )
    carrying = [collective for collective in known if collective.carries(compressor)]
    return tuple(n for last in (False, True) for n in sorted(n for s in carrying if s.by_name == last for n in s.names))


def requests_for(compressor: Compressor) -> tuple[str, ...]:
    """Return those that a request may name: for what loses nothing only collectives that run by name alone."""
    return tuple(name for name in names_for(compressor) if compressor.compresses or by_name(name))


def by_name(name: str) -> bool:
    """Whether a collective runs by name alone: nothing chooses it."""
    return any(collective.by_name and collective.means(name) for collective in _known(name))


def meanings(name: str) -> tuple[str, ...]:
    """Return the collectives that a name leaves open; itself where it leaves none."""
    return tuple(n for n in ARTopk.names if n != ARTOPK) if name == ARTOPK else (name,)


def for_gain() -> tuple[str, ...]:
    """Return the collectives for which no time speaks: each does what another one does, and a collective more."""
    return meanings(ARTOPK)[1:]


def carries(compressor: Compressor, path: Path) -> bool:
    """Whether a path's collective carries a compressor."""
    return _collective_of(path).carries(compressor)


def sums(compressor: Compressor) -> bool:
    """Whether any collective that carries a compressor has an allreduce."""
    return any(collective.verb == "allreduce" and collective.carries(compressor) for collective in flat_for(compressor))


def verb_of(name: str) -> str | None:
    """Return the collective whose algorithm a path with this collective names."""
    return _collective_of(Path(name)).verb


def checked(path: Path) -> Path:
    """Return the path. Raises ConfigError for names that are unknown or do not go together."""
    collective = _collective_of(path)
    check_choice(f"algorithm of {path.collective}", path.algorithm, ("auto", *KNOWN.get(collective.verb or "", ())))
    check_choice(
        f"broadcast of {path.collective}", path.broadcast, ("auto", *(BROADCASTS if collective.broadcasts else ()))
    )
    return path


def parse(label: str) -> Path:
    """Read what `str(path)` writes: "allgather", "star-ring", "star-ring+pipeline_16k". Raises ConfigError."""
    if is_of_guest(label):
        return Path(label)
    for name in sorted(labels(), key=len, reverse=True):  # alltoall-allgather is not an algorithm of alltoall
        if label == name or label.startswith((name + "-", name + "+")):
            algorithm, _, broadcast = label.removeprefix(name).removeprefix("-").partition("+")
            return checked(Path(name, algorithm or "auto", broadcast or "auto"))
    raise ConfigError(f"unknown path {label!r}; collectives are {', '.join(labels())}{did_you_mean(label, _common())}")


def _common() -> list[str]:
    """Return the labels of paths without a broadcast's algorithm."""
    return [
        *labels(),
        *(f"{name}-{algorithm}" for name in labels() for algorithm in KNOWN.get(verb_of(name) or "", ())),
    ]


def is_of_guest(name: str) -> bool:
    """Whether a guest's collective has this name. Raises ConfigError where it would, and the guest is not here."""
    return _of_guest(name) is not None


def in_fp32(name: str) -> bool:
    """Whether a collective sums in fp32, whatever the gradient's dtype."""
    return any(collective.in_fp32 and collective.means(name) for collective in _known(name))


def _of_guest(name: str) -> type[Collective] | None:
    found: type[Collective] | None = guests.collective(name)
    return found if found is not None and found.means(name) else None


def _known(name: str) -> Iterator[type[Collective]]:
    """Iterate over all collectives, and that of a guest which this name may mean."""
    yield from COLLECTIVES
    if (found := _of_guest(name)) is not None:
        yield found


def _collective_of(path: Path) -> type[Collective]:
    for collective in _known(path.collective):
        if collective.means(path.collective):
            return collective
    raise ConfigError(f"unknown collective {path.collective!r}{known_are(labels(), path.collective)}")
