"""From profiles to what the model is asked."""

from __future__ import annotations

import pytest

from hvd_compress.compressors import QSGD, Cast, PowerSGD, SignSGD, TopK
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.papers.utility.inputs import compression_of, network_of, training_of
from hvd_compress.papers.utility.model import Payload
from hvd_compress.papers.utility.named import is_summable, payloads_of
from hvd_compress.profiler.profiles import (
    CompressorProfile,
    DeviceTimes,
    Link,
    ModelProfile,
    PayloadSize,
    SystemProfile,
    Tensor,
    Times,
)

MODEL = ModelProfile(
    model="tiny",
    forward_us=300.0,
    tensors=(
        Tensor(name="bias", numel=1000, backward_us=100.0, shape=(1000,)),
        Tensor(name="weight", numel=200_000, backward_us=500.0, shape=(1000, 200)),
    ),
)
FLAT = MODEL.model_copy(update={"tensors": (MODEL.tensors[0], MODEL.tensors[1].model_copy(update={"shape": None}))})


def test_a_training_is_the_sum_of_its_tensors() -> None:
    found = training_of(MODEL)
    assert (found.backward_s, found.forward_s) == pytest.approx((600e-6, 300e-6))
    assert found.gradient_bytes == 4 * 201_000


def test_another_time_of_the_backward_pass_scales_the_forward_pass() -> None:
    found = training_of(MODEL, backward_s=1.2e-3)
    assert (found.backward_s, found.forward_s) == pytest.approx((1.2e-3, 600e-6))


def test_a_profile_without_times_needs_one() -> None:
    silent = MODEL.model_copy(update={"tensors": (MODEL.tensors[0].model_copy(update={"backward_us": 0.0}),)})
    with pytest.raises(ConfigError, match=r"backward_us of the profile are 0: .*--backward"):
        training_of(silent)
    assert training_of(silent, backward_s=0.1).backward_s == 0.1


def test_a_ring_goes_through_each_host_once() -> None:
    within, across = Link(alpha_us=2.0, bytes_per_s=1e11), Link(alpha_us=50.0, bytes_per_s=1e9)
    found = network_of(SystemProfile(hosts=3, ranks_per_host=4, within=within, across=across))
    assert found.world_size == 12
    assert found.alpha == pytest.approx((3 * 50e-6 + 9 * 2e-6) / 12)
    assert found.beta == pytest.approx(1e-9)
    alone = network_of(SystemProfile(hosts=1, ranks_per_host=4, within=within, across=across))
    assert (alone.alpha, alone.beta) == pytest.approx((2e-6, 1e-11))


def test_a_measured_compressor() -> None:
    times = DeviceTimes(
        compress=Times(numel=(1000, 10_000), us=(10.0, 100.0)), decompress=Times(numel=(1000, 10_000), us=(1.0, 10.0))
    )
    size = PayloadSize(per_tensor_bytes=8.0, per_element_bytes=0.5)
    profile = CompressorProfile(compressor={"name": "topk", "ratio": 0.01}, payload=size, devices={"host": times})
    found = compression_of(profile, 10_000, summable=False, device="host")
    assert found.payloads == (Payload(5008.0, summable=False),)
    assert (found.encode_s, found.decode_s) == pytest.approx((100e-6, 10e-6))
    with pytest.raises(PlanError, match=r"devices\.training: is missing in the profile .*, which has host"):
        compression_of(profile, 10_000, summable=False)


def test_payloads_are_those_of_wire() -> None:
    """Rank 2: factors of (1000 + 200) * 2 elements in two rounds, and the bias beside the first."""
    assert payloads_of(PowerSGD(rank=2), MODEL) == (Payload(4 * (1000 * 2 + 1000)), Payload(4 * 200 * 2))
    assert payloads_of(Cast(), MODEL) == (Payload(4 * 201_000),)
    (kept,) = payloads_of(TopK(0.01), FLAT)
    assert kept == Payload(8 * 2010, summable=False)


def test_shapes_are_needed_where_bytes_depend_on_them() -> None:
    with pytest.raises(ConfigError, match=r"depends on shapes, .*tensors\.1\.shape of 'weight'.*--payload 1%"):
        payloads_of(PowerSGD(rank=2), FLAT)


def test_what_can_be_summed() -> None:
    assert is_summable(PowerSGD())
    assert not is_summable(PowerSGD(factors="int8"))
    assert not any(map(is_summable, (TopK(0.01), SignSGD(), QSGD())))
