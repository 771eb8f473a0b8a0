"""What the network does: calibrated curves of the calls that options use, within a host and across hosts."""

from __future__ import annotations

from hvd_compress.collectives.groups import leaders, no_groups, sizes, within_host
from hvd_compress.cost.calibrate import KIB, Calibrator
from hvd_compress.cost.curves import Curves, Key
from hvd_compress.cost.formulas import VERBS
from hvd_compress.engines.base import Engine
from hvd_compress.errors import UnsupportedError
from hvd_compress.profiler.curves import fit
from hvd_compress.profiler.profiles import LONGEST_US, MOST_BYTES_PER_S, CurveRow, Link, SystemProfile, engine_name

SIZES = tuple(size * KIB for size in (1, 256, 1024, 64, 4096, 8, 16384))
"""Bytes of a rank's tensor, in the order of measuring."""
SAMPLES = 5
BUDGET_S = 3.0


def require_measurable(engine: Engine) -> None:
    """Raise UnsupportedError, on all ranks alike, where a profile cannot describe the ranks of an engine.

    That is where hosts have unequal numbers of ranks, or the engine has no smaller groups, and needs them.
    """
    on_each = sizes(engine.locate())
    if len(set(on_each)) > 1:
        raise UnsupportedError(
            f"a profile is of hosts with as many ranks on each, and there are {on_each}: launch as many on each host"
        )
    if len(on_each) > 1 and on_each[0] > 1 and (obstacle := no_groups(engine.capabilities)):
        raise UnsupportedError(f"the network within hosts and across cannot be measured: {obstacle}")


def measure_system(engine: Engine, budget_s: float = BUDGET_S, source: str = "") -> SystemProfile:
    """Measure the network of an engine. Collective; what rank 0 returns counts.

    Within each host its ranks measure at the same time; across hosts one rank of each, as the link of a host is what
    its ranks share. With one host there is nothing across, and with one rank a host nothing within: that link is then a
    copy of the other one without curves, which no option of such a system uses.

    Args:
        budget_s: seconds for each link, as Calibrator keeps them.

    Raises:
        UnsupportedError: there is one rank, hosts have unequal numbers of ranks, or the engine has no smaller groups.
    """
    if engine.world_size == 1:
        raise UnsupportedError("one rank has no network: launch several, or write the profile of a system by hand")
    require_measurable(engine)
    on_each = sizes(engine.hosts)
    hosts, ranks_per_host = len(on_each), on_each[0]
    if hosts == 1 or ranks_per_host == 1:
        link = _link(_measured(engine, budget_s))
        other = link.model_copy(update={"curves": ()})
        within, across = (link, other) if hosts == 1 else (other, link)
    else:
        within = _link(_measured(within_host(engine), budget_s))
        engine.allgather_json(None)  # no host measures within while others measure across
        leading = leaders(engine)
        across = within if leading is None else _link(_measured(leading, budget_s))
        engine.allgather_json(None)
    return SystemProfile(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        within=within,
        across=across,
        engine=engine_name(engine.name),
        in_flight=engine.tracks,
        source=source,
    )


def _measured(engine: Engine, budget_s: float) -> Curves:
    can = engine.capabilities
    keys: list[Key] = [(verb, "auto") for verb in VERBS if verb in can.verbs]
    keys += [("allreduce", name) for name in can.forcible("allreduce")]  # of which the formulas know what they do
    return Calibrator(engine, keys, budget_s, SIZES, SAMPLES).run()


def _link(curves: Curves) -> Link:
    """Return alpha and beta nearest to the curves of algorithms that were forced, or of all where none was.

    Of "auto" the formulas know what is usual, and not what the library does: alpha and beta are coarser then.
    """
    alpha, beta = fit(curves)
    if not beta:
        alpha, beta = fit(curves, forced=False)
    if not beta:  # all of it is latency: no faster than the largest message
        beta = min(curve.times[-1] / curve.sizes[-1] for curve in curves.by_key.values())
    rows = tuple(CurveRow.model_validate(row) for row in curves.to_json())
    return Link(
        alpha_us=min(1e6 * alpha, LONGEST_US), bytes_per_s=min(max(1.0, 1 / beta), MOST_BYTES_PER_S), curves=rows
    )
