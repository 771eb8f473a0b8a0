"""What the model is asked about, from the profiles of a model, a compressor and a system."""

from __future__ import annotations

from hvd_compress.cost.formulas import Formulas
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.papers.utility.model import BUCKET_BYTES, GAMMA, Compression, Payload, Training
from hvd_compress.profiler.profiles import ELEMENT_BYTES, CompressorProfile, Device, ModelProfile, SystemProfile


def training_of(
    model: ModelProfile,
    backward_s: float | None = None,
    bucket_bytes: float = BUCKET_BYTES,
    gamma: float = GAMMA,
) -> Training:
    """Return what a step of a model is.

    Args:
        backward_s: of the backward pass, where it is another batch or device; the forward pass is scaled alike.

    Raises:
        ConfigError: a time or size is out of its range, or the profile has no times and `backward_s` is not given.
    """
    numel = sum(tensor.numel for tensor in model.tensors)
    measured_s = sum(tensor.backward_us for tensor in model.tensors) * 1e-6
    if measured_s == 0 and backward_s is None:
        raise ConfigError("all backward_us of the profile are 0: give the time of the backward pass, --backward 120ms")
    forward_s = model.forward_us * 1e-6
    if backward_s is not None and measured_s > 0:
        forward_s *= backward_s / measured_s
    return Training(
        measured_s if backward_s is None else backward_s, ELEMENT_BYTES * numel, forward_s, bucket_bytes, gamma
    )


def network_of(system: SystemProfile) -> Formulas:
    """Return the network that a ring of all ranks sees.

    It enters and leaves each host once, so the slower link sets its pace; alpha is the mean over the hops of the ring.
    """
    ranks, across = system.hosts * system.ranks_per_host, system.hosts if system.hosts > 1 else 0
    alpha_us = (across * system.across.alpha_us + (ranks - across) * system.within.alpha_us) / ranks
    links = [system.across] * (system.hosts > 1) + [system.within] * (system.ranks_per_host > 1)
    return Formulas(alpha_us * 1e-6, 1 / min((link.bytes_per_s for link in links), default=1.0), ranks)


def compression_of(profile: CompressorProfile, numel: int, summable: bool, device: Device = "training") -> Compression:
    """Return what a compressor does with a gradient of `numel` elements, by what was measured.

    Raises PlanError where the profile has no times of `device`.
    """
    if device not in profile.devices:
        raise PlanError(
            f"devices.{device}: is missing in the profile of the compressor, which has {', '.join(profile.devices)}"
        )
    times = profile.devices[device]
    payload = Payload(profile.payload.nbytes(numel), summable)
    return Compression((payload,), times.compress.curve().seconds(numel), times.decompress.curve().seconds(numel))
