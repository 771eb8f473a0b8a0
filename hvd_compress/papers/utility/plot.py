"""Pictures like Figures 4.8 to 4.14 of Agarwal: a file a question, a panel a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvd_compress.cli.outputs import new_figure, save_figure
from hvd_compress.errors import ConfigError
from hvd_compress.papers.utility.answers import needed_compression, pays
from hvd_compress.papers.utility.model import Case

DENSE, COMPRESSED = "C0", "C1"
POINTS = 120


def draw(cases: Mapping[str, Case], folder: Path) -> list[Path]:
    """Write PNGs of all questions into a folder, which is made; return their paths.

    Raises ConfigError where they cannot be written, MissingPackageError where matplotlib is missing.
    """
    written = []
    for name, panel in PANELS.items():
        figure = new_figure("hvd-compress whatif --plots", figsize=(0.8 + 4.2 * len(cases), 3.7))
        for axes, (title, case) in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases.items(), strict=True):
            panel(axes, case)
            axes.set_title(f"{title}\n{_network(case, name)}", fontsize=10, parse_math=False)
            axes.legend(fontsize=8)
            axes.grid(alpha=0.3)
        path = folder / f"{name}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        save_figure(figure, path)
        written.append(path)
    return written


def _network(case: Case, panel: str) -> str:
    """Return in words the network of a panel, but for what varies in it."""
    facts = {
        "ranks": f"{case.network.world_size} ranks",
        "bandwidth": f"{_gbit(1 / case.network.beta):.3g} Gbit/s",
        "latency": f"latency {1e6 * case.network.alpha:.3g} us",
    }
    return ", ".join(words for name, words in facts.items() if name != VARIES.get(panel, panel))


def _ranks(axes: Any, case: Case) -> None:
    """Figure 4.9: time against the number of ranks."""
    most = max(case.network.world_size, 32)
    counts = sorted({case.network.world_size, *(1 << exponent for exponent in range(1, 1 + most.bit_length()))})
    _two_curves(axes, counts, [case.of(ranks) for ranks in counts], marker="o-")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("ranks")


def _needed(axes: Any, case: Case) -> None:
    """Figures 4.8 and 4.11: compression for linear scaling, against the backward pass, which grows with the batch."""
    times = [0.1 + 1.9 * number / POINTS for number in range(POINTS + 1)]
    for share in (0.5, 1.0, 2.0, 4.0):
        network = case.at(share / case.network.beta)
        slower = [replace(network, training=network.training.faster(1 / each)) for each in times]
        ratios = [needed_compression(each) for each in slower]
        label = f"{_gbit(1 / network.network.beta):.3g} Gbit/s"
        axes.plot([1e3 * each.training.backward_s for each in slower], ratios, label=label)
    axes.axhline(4, color="0.5", linestyle=":", label="4 times fewer bytes")
    axes.axvline(1e3 * case.training.backward_s, color="0.5", linewidth=1)
    axes.set_ylim(0.8, 20)
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.set_xlabel("backward pass, ms (grey: this model's)")
    axes.set_ylabel("compression needed, times")


def _bandwidth(axes: Any, case: Case) -> None:
    """Figures 4.10 and 4.12: time against bandwidth, and where compression stops paying."""
    here, crossing = 1 / case.network.beta, pays(case).below
    most = 3 * max(here, crossing if crossing < 10 * here else here)
    bandwidths = [most * (0.03 + 0.97 * number / POINTS) for number in range(POINTS + 1)]
    _two_curves(axes, [_gbit(each) for each in bandwidths], [case.at(each) for each in bandwidths])
    if 0 < crossing < most:
        axes.axvline(_gbit(crossing), color="0.4", linestyle=":", label=f"equal at {_gbit(crossing):.3g} Gbit/s")
    top = 1e3 * case.at(most / 12).dense().total_s
    axes.set_ylim(0, max(top, 1.3e3 * case.compressed().total_s))
    axes.set_xlabel("bandwidth, Gbit/s")


def _compute(axes: Any, case: Case) -> None:
    """Figure 4.13: time against how much faster devices compute, which code faster, too."""
    times = [1 + 3 * number / POINTS for number in range(POINTS + 1)]
    _two_curves(axes, times, [case.faster(each) for each in times])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices, times as fast")


def _tradeoff(axes: Any, case: Case) -> None:
    """Figure 4.14: coding k times faster and sending l k times the bytes."""
    ks = (1, 2, 3, 4)
    for number, larger in enumerate((1, 2, 3)):
        times = [1e3 * case.traded(k, larger).compressed().total_s for k in ks]
        axes.plot(ks, times, marker="os^"[number], color=f"C{number + 1}", label=f"compressed, l = {larger}")
    axes.axhline(1e3 * case.dense().total_s, color=DENSE, label="dense")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_xticks(ks)
    axes.set_xlabel("k: coding in 1/k of the time, l k times the bytes")
    axes.set_ylabel("ms a step")


def _gbit(bytes_per_s: float) -> float:
    return bytes_per_s * 8 / 1e9


def _two_curves(axes: Any, xs: Sequence[float], cases: Sequence[Case], marker: str = "-") -> None:
    axes.plot(xs, [1e3 * case.dense().total_s for case in cases], marker, color=DENSE, label="dense")
    axes.plot(xs, [1e3 * case.compressed().total_s for case in cases], marker, color=COMPRESSED, label="compressed")
    axes.set_ylabel("ms a step")


PANELS: Mapping[str, Callable[[Any, Case], None]] = {
    "ranks": _ranks,
    "needed": _needed,
    "bandwidth": _bandwidth,
    "compute": _compute,
    "tradeoff": _tradeoff,
}
"""By the name of the file."""
VARIES = {"needed": "bandwidth"}
"""What of the network varies in a panel, where its name does not say so."""
