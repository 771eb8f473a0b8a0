"""What the commands of `hvd-compress chai` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvd_compress.cli.numbers import ratio
from hvd_compress.cli.outputs import require_outputs
from hvd_compress.errors import ConfigError

if TYPE_CHECKING:
    import torch

FILE = click.Path(path_type=Path)
DOWNLOAD = click.option("--download", is_flag=True, help="Fetch from the Hub what is not on this machine.")
DEVICE = click.option("--device", default="cpu", show_default=True, help="Where the model runs: cpu, cuda, cuda:1.")


def share_of(text: str) -> float:
    """Read a share of the cache."""
    share = ratio(text)
    if not 0.5 < share <= 1:
        raise click.BadParameter(
            f"{text}: a share of the cache's bytes, such as 0.8 or 80%; values stay, which are half"
        )
    return share


def plateau_of(text: str) -> float:
    """Read a plateau."""
    plateau = ratio(text)
    if not 0 <= plateau <= 1:
        raise click.BadParameter(f"{text}: a share of the error of one cluster, such as 0.05 or 5%")
    return plateau


def device_of(text: str) -> torch.device:
    """Read a device. Raises ConfigError where it is none."""
    import torch

    try:
        return torch.device(text)
    except RuntimeError:
        raise ConfigError(f"--device {text} is none: cpu, cuda, or cuda:1 for the second GPU") from None


def require_files(out: Path | None, plot: Path | None, inputs: list[Path], user: str) -> None:
    """Raise ConfigError where files cannot be written; `user` draws the picture."""
    from hvd_compress.cli.outputs import require_picture

    require_outputs({"--out": out, "--plot": plot}, inputs)
    if plot is not None:
        require_picture(plot, f"{user} --plot")
