"""`hvd-compress whatif`: would compression pay for a model on a network? From formulas, without either."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from hvd_compress.cli.numbers import RANKS, elements
from hvd_compress.cli.numbers import ratio as ratio_of
from hvd_compress.cli.outputs import PICTURES
from hvd_compress.cli.suggesting import Choice
from hvd_compress.cost.formulas import Formulas
from hvd_compress.errors import ConfigError
from hvd_compress.papers.utility.cli.report import answers, show
from hvd_compress.papers.utility.inputs import compression_of, network_of, training_of
from hvd_compress.papers.utility.model import GAMMA, Case, Compression, Payload, Training
from hvd_compress.profiler import profiles
from hvd_compress.profiler.profiles import CompressorProfile, Device, ModelProfile, SystemProfile
from hvd_compress.units import parse_bandwidth, parse_latency

if TYPE_CHECKING:
    from hvd_compress.compressors import Compressor

FILE = click.Path(path_type=Path)
_FILES = {ModelProfile: profiles.MODEL, SystemProfile: profiles.SYSTEM, CompressorProfile: profiles.COMPRESSOR}


@click.command("whatif")
@click.argument("model", type=FILE)
@click.option("--world-size", type=RANKS, help="Number of ranks.")
@click.option(
    "--bandwidth",
    metavar="BITS_PER_S",
    help="Of the slowest link of a ring of all ranks, in bits a second: 10gbit, 400mbit. 1gbit is 125 MB/s.",
)
@click.option("--latency", metavar="TIME", help="Of one message on average: 10us, 1ms.  [default: 0s]")
@click.option("--system", type=FILE, help="A profile of the system, in the place of these three.")
@click.option(
    "--compressor",
    metavar="NAME[:SETTING=VALUE,...]",
    help="A name of `hvd-compress list` or of a plan, and settings: topk:ratio=0.01, int4.",
)
@click.option("--payload", metavar="BYTES", help="What a rank sends: 1.78M bytes, or a share of the gradient, 1%.")
@click.option(
    "--gather", is_flag=True, help="The payload cannot be summed: every rank's travels to all, and is decoded."
)
@click.option("--encode", metavar="TIME", help="To compress a whole gradient: 45ms.  [default: 0s]")
@click.option("--decode", metavar="TIME", help="To decompress one payload, or the sum: 5ms.  [default: 0s]")
@click.option("--compressor-profile", type=FILE, help="A measured compressor, in the place of these five.")
@click.option("--device", type=Choice(get_args(Device)), default="training", help="Of that profile.", show_default=True)
@click.option("--backward", metavar="TIME", help="Of the backward pass, where it is not the profile's: 240ms.")
@click.option(
    "--gamma",
    type=float,
    default=GAMMA,
    show_default=True,
    help="How many times as long the backward pass takes with communication beside it.",
)
@click.option("--bucket-mb", type=float, default=25.0, show_default=True, help="MiB of a bucket, as in DDP.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--plots", type=FILE, metavar="FOLDER", help=f"Write five pictures into a folder. {PICTURES}")
def command(model: Path, as_json: bool, plots: Path | None, **options: Any) -> None:
    """Say whether compression would pay for MODEL, a profile of a model, on a network.

    The model is that of Agarwal et al., section 4.2.4: dense gradients travel beside the backward pass, compressed ones
    behind it, in rings. No GPU, cluster or network is needed.
    """
    read: dict[Path, profiles.AnyProfile] = {}
    profile = _read(model, ModelProfile, read)
    backward = parse_latency(options["backward"], "backward", "240ms") if options["backward"] else None
    training = training_of(profile, backward, options["bucket_mb"] * (1 << 20), options["gamma"])
    name, compression = _compression(profile, training, options, read)
    case = Case(training, _network(options, read), compression)
    profiles.require_one_run(read)
    pictures = []
    if plots is not None:
        from hvd_compress.papers.utility.plot import draw

        pictures = draw({f"{profile.model}, {name}": case}, plots)
    if as_json:
        click.echo(json.dumps(answers(profile.model, name, case), indent=1))
        return
    show(profile.model, name, case)
    for picture in pictures:
        click.echo(f"wrote {picture}")


def _read(path: Path, kind: type[profiles.Profile], read: dict[Path, profiles.AnyProfile]) -> profiles.Profile:
    """Return the profile in a file, or of its kind in a profile's folder, and add it to what was `read`."""
    file = path / _FILES[kind] if os.path.isdir(path) else path
    read[file] = found = profiles.read(file, kind)
    return found


def _network(options: dict[str, Any], read: dict[Path, profiles.AnyProfile]) -> Formulas:
    given = [
        f"--{each.replace('_', '-')}" for each in ("world_size", "bandwidth", "latency") if options[each] is not None
    ]
    if options["system"] is not None:
        if given:
            raise click.UsageError(f"--system says what {given[0]} says: give one of them")
        return network_of(_read(options["system"], SystemProfile, read))
    if options["world_size"] is None or options["bandwidth"] is None:
        raise click.UsageError("which network? Give --world-size and --bandwidth, or --system")
    return Formulas(
        parse_latency(options["latency"] or "0s"), 1 / parse_bandwidth(options["bandwidth"]), options["world_size"]
    )


def _compression(
    profile: ModelProfile, training: Training, options: dict[str, Any], read: dict[Path, profiles.AnyProfile]
) -> tuple[str, Compression]:
    """Return its name and what it does."""
    asked = [each for each in ("compressor", "payload", "compressor_profile") if options[each] is not None]
    if len(asked) != 1:
        raise click.UsageError("which compression? Give one of --compressor, --payload and --compressor-profile")
    if options["gather"] and options["payload"] is None:
        raise click.UsageError("--gather is for --payload; a compressor says itself whether its payloads can be summed")
    encode, decode = (parse_latency(options[each] or "0s", each, "45ms") for each in ("encode", "decode"))
    if options["payload"] is not None:
        payload = _payload_bytes(options["payload"], training)
        return f"a payload of {options['payload']}", Compression(
            (Payload(payload, not options["gather"]),), encode, decode
        )
    from hvd_compress.papers.utility.named import is_summable, is_summed_by_owners, payloads_of  # imports torch

    if options["compressor"] is not None:
        from hvd_compress.compression.named import compressor_named

        compressor = compressor_named(options["compressor"])
        payloads = payloads_of(compressor, profile)
        if not compressor.compresses and sum(each.nbytes for each in payloads) >= training.gradient_bytes:
            raise click.UsageError(f"--compressor {options['compressor']} compresses nothing: name one that does, int4")
        if is_summed_by_owners(compressor):
            payloads = tuple(Payload(each.nbytes) for each in payloads)
        return options["compressor"], Compression(payloads, encode, decode)
    if options["encode"] or options["decode"]:
        raise click.UsageError("--compressor-profile has the times: leave out --encode and --decode")
    measured = _read(options["compressor_profile"], CompressorProfile, read)
    numel = sum(tensor.numel for tensor in profile.tensors)
    compressor = _built(measured.compressor, options["compressor_profile"])
    summable = is_summable(compressor) or is_summed_by_owners(compressor)
    return measured.compressor["name"], compression_of(measured, numel, summable, options["device"])


def _payload_bytes(text: str, training: Training) -> float:
    return ratio_of(text) * training.gradient_bytes if text.endswith("%") else float(elements(text))


def _built(settings: dict[str, Any], path: Path) -> Compressor:
    from hvd_compress.policies.plan_settings import compressor_of

    try:
        return compressor_of(settings)
    except ValueError as error:
        raise ConfigError(f"{path}: compressor: {error}") from None
