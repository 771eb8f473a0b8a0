"""The tables of what `hvd-compress chai bench --json` has measured.

    hvd-compress chai bench --threads 1 --json > build/attention-gpt2.json
    python benchmarks/attention/speed_page.py build/attention-gpt2.json [MORE.json]

Writes its part of benchmarks/results/attention.md. Ratios are medians of rounds in which the kinds took turns, with the
95 % interval of the median.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

sys.path.append(str(Path(__file__).resolve().parent))
from sections import PAGE, renew, table

WITHIN = 1.15
"""Of the bytes, at 4096 tokens, a step may take."""
AT = 4096
SLOWEST = 1.03
"""Of the model's own, a step may take at any length."""


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(files: tuple[Path, ...], page: Path) -> None:
    renew(page, "speed", "\n\n".join(section(json.loads(file.read_text())) for file in files))


def section(found: dict[str, Any]) -> str:
    """Return the tables of one report."""
    kinds = list(dict.fromkeys(figure["kind"] for figure in found["figures"]))
    heads = f"{found['layers']} layers of {found['heads']} heads"
    shared = f" on {found['key_heads']} of keys" if found["key_heads"] < found["heads"] else ""
    title = (
        f"**{found['model']}**: {heads}{shared}, {found['dtype']}, batch {found['batch']}, {found['threads']} thread; "
        f"{found['rounds']} next tokens and {found['prefills']} first tokens of each kind in turns. The weights are "
        f"{found['weight_bytes'] / 1e6:,.0f} MB."
    )
    own, ours = kinds[0], kinds[1]
    first = ["tokens", "kind", "cache", "first token", "next token", "bytes", f"next, of {ours}", "bytes", "asked"]
    base = {figure["length"]: figure for figure in found["figures"] if figure["kind"] == ours}
    rows = [
        row(figure, base[figure["length"]], figure["kind"] not in (own, ours))
        for figure in found["figures"]
        if figure["kind"] != own
    ]
    return f"{title}\n\n{table(first, rows)}"


def row(figure: dict[str, Any], all_keys: dict[str, Any], is_clustered: bool) -> Sequence[object]:
    floor = figure["step_bytes"] / all_keys["step_bytes"]
    kept = figure["next_ratio"][0] <= SLOWEST
    if is_clustered and figure["length"] == AT:
        kept = kept and figure["next_of_all_keys"][0] <= WITHIN * floor
    return [
        f"{figure['length']:,}",
        figure["kind"],
        f"{figure['cache_share']:.3f}",
        told(figure["first_ratio"]),
        told(figure["next_ratio"]),
        f"{figure['floor']:.3f}",
        told(figure["next_of_all_keys"]) if is_clustered else "",
        f"{floor:.3f}" if is_clustered else "",
        "kept" if kept else "missed",
    ]


def told(ratio: Sequence[float]) -> str:
    return f"{ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})"


if __name__ == "__main__":
    main()
