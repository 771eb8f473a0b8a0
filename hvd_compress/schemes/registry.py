"""All schemes, in one list; what can be asked of it by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hvd_compress import guests
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_choice
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities
from hvd_compress.engines.names import BROADCASTS, KNOWN
from hvd_compress.errors import ConfigError, did_you_mean, known_are
from hvd_compress.schemes.artopk import ARTopk
from hvd_compress.schemes.base import Scheme
from hvd_compress.schemes.flat import FLAT, flat_for
from hvd_compress.schemes.hierarchical import Hierarchical
from hvd_compress.schemes.reduce_scatter import ReduceScatter
from hvd_compress.schemes.sparse_rows import SparseRows

OTHERS: tuple[type[Scheme], ...] = (Hierarchical, SparseRows, ReduceScatter)
SCHEMES: tuple[type[Scheme], ...] = (*FLAT, *OTHERS)
"""Those that a user may ask for, and those that a gradient or a policy asks for; guests have others."""
ARTOPK = "artopk"
"""Leaves open whose indices are used."""


def build(compressor: Compressor, path: Path) -> Scheme:
    """Return the scheme of a path. Raises ConfigError for names that are unknown or do not go together."""
    scheme = _scheme_of(checked(path))
    if not scheme.carries(compressor):
        raise ConfigError(
            f"scheme {path.scheme!r} cannot carry {compressor}, which can go by {', '.join(names_for(compressor))}"
        )
    return scheme(compressor, path)  # type: ignore[call-arg]


def of_guests() -> tuple[type[Scheme], ...]:
    """Return the schemes of guests that are here and run by name alone."""
    return tuple(scheme for scheme in guests.schemes() if scheme.by_name)


def variants(compressor: Compressor, layout: Layout, can: Capabilities) -> tuple[Path, ...]:
    """Return every path to choose from, by which an engine can carry a compressor. The same order on every rank."""
    chosen = (scheme for scheme in (*flat_for(compressor), *OTHERS) if not scheme.by_name)
    return tuple(path for scheme in chosen for path in scheme.variants(compressor, layout, can))


def runnable(compressor: Compressor, layout: Layout, can: Capabilities) -> tuple[Path, ...]:
    """Return every path by which an engine can carry a compressor, also those that run by name alone.

    Those of guests that a plan alone can name are not among them: `runs` tells whether it can carry out one.
    """
    known = (*flat_for(compressor), *OTHERS, *of_guests())
    return tuple(path for scheme in known for path in scheme.variants(compressor, layout, can))


def runs(compressor: Compressor, path: Path, layout: Layout, can: Capabilities) -> bool:
    """Whether an engine can carry a compressor by a path. Raises ConfigError where there is more to say than no."""
    return _scheme_of(path).runs(compressor, path, layout, can)


def obstacle(name: str, can: Capabilities) -> str:
    """Say what a scheme misses in an engine, beside verbs, or return nothing."""
    return _scheme_of(Path(name)).obstacle(can)


def stages(
    compressor: Compressor, path: Path, layout: Layout, world_size: int, hosts: Sequence[int] = ()
) -> tuple[Stage, ...]:
    """Return the collectives of one step of a bucket in the order in which they run, for pricing.

    A scheme need not carry a compressor to be priced with it, as the papers do.

    Args:
        hosts: by rank, the number of the host that it runs on; without it each has one of its own.
    """
    scheme = _scheme_of(checked(path))
    return scheme(compressor, path).stages_on(layout, hosts or range(world_size))  # type: ignore[call-arg]


def labels() -> tuple[str, ...]:
    """Return the names of all schemes."""
    return tuple(name for scheme in (*SCHEMES, *of_guests()) for name in scheme.names)


def names_for(compressor: Compressor) -> tuple[str, ...]:
    """Return the names of the schemes that carry a compressor, whatever the engine; those by name alone come last."""
    known: tuple[type[Scheme], ...] = (*flat_for(compressor), *(each for each in OTHERS if each.named), *of_guests())
    carrying = [scheme for scheme in known if scheme.carries(compressor)]
    return tuple(n for last in (False, True) for n in sorted(n for s in carrying if s.by_name == last for n in s.names))


def requests_for(compressor: Compressor) -> tuple[str, ...]:
    """Return those that a request may name: for what loses nothing only schemes that run by name alone."""
    return tuple(name for name in names_for(compressor) if compressor.compresses or by_name(name))


def by_name(name: str) -> bool:
    """Whether a scheme runs by name alone: nothing chooses it."""
    return any(scheme.by_name and scheme.means(name) for scheme in _known(name))


def meanings(name: str) -> tuple[str, ...]:
    """Return the schemes that a name leaves open; itself where it leaves none."""
    return tuple(n for n in ARTopk.names if n != ARTOPK) if name == ARTOPK else (name,)


def for_gain() -> tuple[str, ...]:
    """Return the schemes for which no time speaks: each does what another one does, and a collective more."""
    return meanings(ARTOPK)[1:]


def carries(compressor: Compressor, path: Path) -> bool:
    """Whether a path's scheme carries a compressor."""
    return _scheme_of(path).carries(compressor)


def sums(compressor: Compressor) -> bool:
    """Whether any scheme that carries a compressor has an allreduce."""
    return any(scheme.verb == "allreduce" and scheme.carries(compressor) for scheme in flat_for(compressor))


def verb_of(name: str) -> str | None:
    """Return the collective whose algorithm a path with this scheme names."""
    return _scheme_of(Path(name)).verb


def checked(path: Path) -> Path:
    """Return the path. Raises ConfigError for names that are unknown or do not go together."""
    scheme = _scheme_of(path)
    check_choice(f"algorithm of {path.scheme}", path.algorithm, ("auto", *KNOWN.get(scheme.verb or "", ())))
    check_choice(f"broadcast of {path.scheme}", path.broadcast, ("auto", *(BROADCASTS if scheme.broadcasts else ())))
    return path


def parse(label: str) -> Path:
    """Read what `str(path)` writes: "allgather", "star-ring", "star-ring+pipeline_16k". Raises ConfigError."""
    if is_of_guest(label):
        return Path(label)
    for name in sorted(labels(), key=len, reverse=True):  # alltoall-allgather is not an algorithm of alltoall
        if label == name or label.startswith((name + "-", name + "+")):
            algorithm, _, broadcast = label.removeprefix(name).removeprefix("-").partition("+")
            return checked(Path(name, algorithm or "auto", broadcast or "auto"))
    raise ConfigError(f"unknown path {label!r}; schemes are {', '.join(labels())}{did_you_mean(label, _common())}")


def _common() -> list[str]:
    """Return the labels of paths without a broadcast's algorithm."""
    return [
        *labels(),
        *(f"{name}-{algorithm}" for name in labels() for algorithm in KNOWN.get(verb_of(name) or "", ())),
    ]


def is_of_guest(name: str) -> bool:
    """Whether a guest's scheme has this name. Raises ConfigError where it would, and the guest is not here."""
    return _of_guest(name) is not None


def in_fp32(name: str) -> bool:
    """Whether a scheme sums in fp32, whatever the gradient's dtype."""
    return any(scheme.in_fp32 and scheme.means(name) for scheme in _known(name))


def _of_guest(name: str) -> type[Scheme] | None:
    found: type[Scheme] | None = guests.scheme(name)
    return found if found is not None and found.means(name) else None


def _known(name: str) -> Iterator[type[Scheme]]:
    """Iterate over all schemes, and that of a guest which this name may mean."""
    yield from SCHEMES
    if (found := _of_guest(name)) is not None:
        yield found


def _scheme_of(path: Path) -> type[Scheme]:
    for scheme in _known(path.scheme):
        if scheme.means(path.scheme):
            return scheme
    raise ConfigError(f"unknown scheme {path.scheme!r}{known_are(labels(), path.scheme)}")
