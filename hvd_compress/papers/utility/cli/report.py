"""What `hvd-compress whatif` says: one screen, or JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.numbers import size
from hvd_compress.papers.utility.answers import Pays, coding_budget_s, needed_compression, pays
from hvd_compress.papers.utility.model import Case

BANDWIDTHS, COMPUTE, TRADED = (0.1, 0.2, 0.5, 1, 2, 5, 10), (1, 1.5, 2, 2.5, 3, 3.5, 4), (1, 2, 3, 4)
LARGER = (1, 2, 3)
PHASES = {
    **{"forward_s": "forward pass", "backward_s": "backward pass", "communication_s": "communication not hidden"},
    **{"encode_s": "encode", "decode_s": "decode", "total_s": "step"},
}


def answers(model: str, name: str, case: Case) -> dict[str, Any]:
    """Return everything as JSON; what is infinite is null."""
    found, here = pays(case), 1 / case.network.beta
    return {
        "model": model,
        "gradient_bytes": case.training.gradient_bytes,
        "buckets": case.training.buckets,
        "gamma": case.training.gamma,
        "network": {"alpha_s": case.network.alpha, "bytes_per_s": here, "world_size": case.network.world_size},
        "compression": {
            "name": name,
            "payload_bytes": case.compression.nbytes,
            "summable": case.compression.summable,
        },
        **_row(case),
        "pays_below_bytes_per_s": _finite(found.below),
        "pays_above_bytes_per_s": _finite(found.above),
        "needed_compression": _finite(needed_compression(case)),
        "coding_budget_s": coding_budget_s(case),
        "bandwidths": [{"bytes_per_s": here * each} | _row(case.at(here * each)) for each in BANDWIDTHS],
        "compute": [{"times": each} | _row(case.faster(each)) for each in COMPUTE],
        "tradeoff": [{"k": k, "l": l_} | _row(case.traded(k, l_)) for k in TRADED for l_ in LARGER],
    }


def _row(case: Case) -> dict[str, Any]:
    dense, compressed = case.dense().to_json(), case.compressed().to_json()
    return {"dense": dense, "compressed": compressed, "speedup": _finite(case.speedup)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show(model: str, name: str, case: Case) -> None:
    network, training, compression = case.network, case.training, case.compression
    dense, compressed = case.dense(), case.compressed()
    console = Console(highlight=False)

    def say(line: str) -> None:
        console.print(Text(line))  # Text, as names may contain what rich takes for markup

    say(
        f"{name} would {'pay' if case.speedup > 1 else 'not pay'} for {model}: {_ms(compressed.total_s)} ms a step "
        f"instead of {_ms(dense.total_s)}, {case.speedup:.2f} times as fast."
    )
    for line in _findings(case):
        say(f"- {line}")
    buckets = "1 bucket" if training.buckets == 1 else f"{training.buckets} buckets"
    ranks = f"{network.world_size} ranks"
    say(f"Network: {ranks}, {_gbit(1 / network.beta)}, latency {1e6 * network.alpha:.4g} us a message.")
    how = "summed on its way" if compression.summable else "gathered by all ranks"
    say(
        f"Gradient: {size(training.gradient_bytes)} in {buckets}. Payload of a rank: {size(compression.nbytes)}, {how}."
    )
    phases = _table("ms", "dense", "compressed")
    for key, label in PHASES.items():
        if (times := (dense.to_json()[key], compressed.to_json()[key])) != (0, 0):
            phases.add_row(label, *map(_ms, times))
    here = 1 / network.beta
    bandwidths = _sweep("bandwidth", {_gbit(here * each): case.at(here * each) for each in BANDWIDTHS})
    compute = _sweep("devices", {f"{each:g}x as fast": case.faster(each) for each in COMPUTE})
    coding = _table("coding time", *(f"l = {larger}" for larger in LARGER))
    for k in TRADED:
        coding.add_row(f"1/{k}", *(f"{case.traded(k, larger).speedup:.2f}" for larger in LARGER))
    console.print(Columns([phases, coding], padding=(0, 4)))
    console.print(Columns([bandwidths, compute], padding=(0, 4)))
    say("dense, compressed: ms of a step. devices: backward pass and coding faster by this factor.")
    say("coding time: the speedup where coding takes 1/k of its time, and sends l k times the bytes.")


def _findings(case: Case) -> Iterator[str]:
    budget_s, times = coding_budget_s(case), needed_compression(case)
    yield f"It pays {_where(pays(case))}."
    if budget_s > 0:
        coding_s = case.compression.coding_s(case.network.world_size)
        yield f"Here it pays if encoding and decoding take less than {_ms(budget_s)} ms; they take {_ms(coding_s)} ms."
    else:
        yield "Here no encoding is fast enough: the payload alone takes too long."
    if times == 1:
        yield "Without compression all buckets but the last travel within the backward pass."
    elif math.isfinite(times):
        yield f"{times:.3g} times fewer bytes are enough for linear scaling: all buckets but the last are hidden."
    else:
        yield "No compression scales linearly: the latency of the buckets alone exceeds the backward pass."


def _where(found: Pays) -> str:
    """Return in words at which bandwidths compression pays."""
    if math.isinf(found.below):
        return "at every bandwidth"
    words = [f"at bandwidths below {_gbit(found.below)}"] * (found.below > 0)
    still = "where dense still has the latency of its buckets and, with --gamma, the slower backward pass"
    words += [f"at bandwidths above {_gbit(found.above)}, {still}"] * math.isfinite(found.above)
    return ", and again ".join(words) or "at no bandwidth"


def _sweep(heading: str, cases: dict[str, Case]) -> Table:
    table = _table(heading, "dense", "compressed", "speedup")
    for label, case in cases.items():
        table.add_row(label, _ms(case.dense().total_s), _ms(case.compressed().total_s), f"{case.speedup:.2f}")
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}" if seconds < 10 else f"{1e3 * seconds:,.0f}"


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:.3g} Gbit/s"
