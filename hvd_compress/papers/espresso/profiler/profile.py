"""A profile of a plain training loop, under any front end or none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import torch

from hvd_compress import __version__
from hvd_compress.buckets.real import element_dtype, gradient_shape
from hvd_compress.checks import check_whole
from hvd_compress.compressors import Compressor
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.measuring import machine
from hvd_compress.papers.espresso.profiler.compressor import (
    BUDGET_S,
    compressor_named,
    measure_compressor,
    require_payloads,
    sizes_of,
)
from hvd_compress.papers.espresso.profiler.folder import RUN, Claim
from hvd_compress.papers.espresso.profiler.job import DEFAULT, write_profile
from hvd_compress.papers.espresso.profiler.model import model_profile
from hvd_compress.papers.espresso.profiler.settings import DEFAULT_SKIP, DEFAULT_STEPS, command_run
from hvd_compress.profiler.profiles import Device, ModelProfile
from hvd_compress.session.clocks import Clock, clock_of, device_of
from hvd_compress.session.gradient_times import Recorder
from hvd_compress.settings import MOST_STEPS


class Stepping(Protocol):
    """An optimizer: it tells when it has stepped."""

    def register_step_post_hook(self, hook: Callable[..., None]) -> Any: ...


class Profile:
    """Records the backward passes of a training loop, and measures a compressor for its tensors.

        with Profile(model.named_parameters(), optimizer) as profile:
            for images, labels in batches:      # unchanged: zero_grad, backward, step
                ...
                if profile.complete:
                    break
        profile.write("profile")                # model.json, compressor.json

    It needs no job and communicates nothing, so there is no system.json: measure_system(engine) gives one.
    A step ends where the optimizer has stepped. Under DDP without hvd_compress, or Horovod's own optimizer, what is
    exchanged beside the backward pass is part of what is measured: profile one process, or let `hvd-compress profile`
    run the job.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        optimizer: Stepping,
        *,
        steps: int = DEFAULT_STEPS,
        skip: int = DEFAULT_SKIP,
        make_clock: Callable[[torch.device], Clock] = clock_of,
    ) -> None:
        """Nothing is watched before the block.

        Args:
            named_parameters: of the model.
            optimizer: one of torch, distributed or not.
            steps, skip: how many steps are recorded, and how many before them are not.

        Raises:
            ConfigError: a number of steps is out of range, or no parameter is trained.
            UnsupportedError: parameters lie on several devices.
        """
        for name, value, least in (("steps", steps, 1), ("skip", skip, 0)):
            check_whole(name, value, least, MOST_STEPS)
        self._parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        if not self._parameters:
            raise ConfigError("no parameter is trained: pass model.named_parameters()")
        self._device, self._optimizer = device_of(self._parameters.values()), optimizer
        self._steps, self._skip, self._make_clock = steps, skip, make_clock
        self._recorder: Recorder | None = None
        self._count = 0

    @property
    def complete(self) -> bool:
        """Whether enough steps were recorded; later ones are not."""
        return self._count >= self._skip + self._steps

    def __enter__(self) -> Profile:
        self._recorder = Recorder(self._parameters, self._make_clock(self._device), self._steps)
        self._handle = self._optimizer.register_step_post_hook(self._stepped)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._recorder is not None
        self._recorder.close()
        self._handle.remove()

    def _stepped(self, *_: object) -> None:
        if self._recorder is None or self.complete:
            return
        self._recorder.end_step()
        self._count += 1
        if self.complete:
            self._recorder.close()

    def model(self, name: str | None = None) -> ModelProfile:
        """Return the profile of the model. Raises UsageError where no step was recorded."""
        shapes = {each: gradient_shape(parameter) for each, parameter in self._parameters.items()}
        recorded, recorder = self._count - self._skip, self._recorder
        times = recorder.times()[-recorded:] if recorder is not None and recorded > 0 else []
        sparse = recorder.sparse if recorder is not None else ()
        called = name or Path(sys.argv[0]).stem or "model"
        dtypes = {each: element_dtype(parameter) for each, parameter in self._parameters.items()}
        return model_profile(called, shapes, times, sparse, _source(), dtypes)

    def write(self, folder: str | Path, compressor: Compressor | str = DEFAULT, *, budget_s: float = BUDGET_S) -> None:
        """Measure a compressor for these tensors, and write model.json and compressor.json into a folder.

        Args:
            compressor: one of hvd_compress.compressors, or a text such as "topk:ratio=0.01".
            budget_s: seconds of the measurement, on each device.

        Raises:
            ConfigError, UnsupportedError: there is no such compressor, or it has no payload by itself; or another
                profile is recorded into this folder.
            UsageError: no step was recorded.
            PlanError: a file cannot be written.
        """
        measured = compressor_named(compressor) if isinstance(compressor, str) else compressor
        require_payloads(measured)
        model = self.model()
        devices: dict[Device, torch.device] = {"training": self._device}
        if self._device.type != "cpu":
            devices["host"] = torch.device("cpu")
        sizes = sizes_of([tensor.numel for tensor in model.tensors])
        found = measure_compressor(
            measured, sizes, devices, budget_s=budget_s, make_clock=self._make_clock, source=_source()
        )
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"cannot make the folder {folder}: {error.strerror}") from None
        with Claim(Path(folder), RUN, command_run()) as claim:
            write_profile(claim, model, found, None)


def _source() -> str:
    return f"hvd_compress {__version__} profile, one process; {machine()}, {torch.get_num_threads()} thread(s)"
