"""The front end of DDP: a communication hook that hands DDP's buckets to an exchange session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import slots_of
from hvd_compress.decision import Request, check_devices
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from hvd_compress.profiler.job import JobProfile
from hvd_compress.session import ExchangeSession
from hvd_compress.settings import Settings


class GradBucket(Protocol):
    """What torch.distributed.GradBucket promises, which torch does not declare."""

    def index(self) -> int: ...

    def is_last(self) -> bool: ...

    def buffer(self) -> torch.Tensor: ...

    def parameters(self) -> list[torch.Tensor]: ...


Result = torch.futures.Future[torch.Tensor]


class GradientHook:
    """Exchanges the buckets of a DDP model, which calls it in each backward pass for each bucket, in their order.

    A step whose buckets are known travels bucket by bucket, beside the backward pass. DDP does not say beforehand how
    it cuts them, and cuts them anew after the first step: such a step is held until its last bucket has come.

    Attributes:
        session: what exchanges the buckets.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        settings: Settings,
        connect: Callable[[], Engine],
        arrivals: Arrivals | None = None,
        leaves_out: Callable[[], bool] = bool,
        options: str = "DDP",
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: those that DDP reduces, by name, in the same order on all ranks.
            connect: creates the engine, in the first backward pass.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.
            leaves_out: whether DDP gives no gradient to a parameter that no rank has used.
            options: of DDP, compared between ranks.

        Raises:
            ConfigError, UnsupportedError, UsageError: as check_devices().
        """
        check_devices(parameters, request)
        self._parameters = dict(parameters)  # holds what _names tells apart by id
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._slots, self._devices = slots_of(parameters)
        self.session = ExchangeSession(request, settings, connect, arrivals=arrivals)
        if settings.profile is not None:
            self.session.profiling = JobProfile(self._parameters, settings.profile, request, settings.calibration_s)
        self._layouts: dict[tuple[int, ...], Layout] = {}  # by the ids of their parameters
        self._step: list[tuple[Layout, torch.Tensor, Result]] = []  # the buckets of this step so far
        self._held = False  # whether one of them was not known
        self._opened, self._leaves_out, self._options = False, leaves_out, options
        self._failure: str | None = None

    def __call__(self, bucket: GradBucket) -> Result:
        """Take one bucket; the future holds the average over ranks, which lies in the bucket, when the step is over.

        Raises:
            ConfigError: in the first step, if ranks differ.
            CommunicationError, PayloadError: the exchange failed. Residuals are as they were before the step.
        """
        try:
            return self._take(bucket)
        except BaseException as error:  # other ranks may wait for this one: it must be able to end
            self.session.fail(error)
            self._failure = str(error) or type(error).__name__
            raise

    def __reduce_ex__(self, protocol: object) -> Any:
        """Not supported: it holds threads and connections."""
        raise UsageError(
            "a compressed DistributedDataParallel cannot be pickled or copied: copy or save model.module, as in "
            "AveragedModel(model.module), and what state_dict(model) of hvd_compress.ddp returns"
        )

    def require_working(self) -> None:
        """Raise CommunicationError after an error: DDP's own state is that of a step that was taken by halves."""
        if self._failure is not None:
            raise CommunicationError(
                f"nothing is exchanged any more, since an earlier exchange failed: {self._failure}"
            )

    def _take(self, bucket: GradBucket) -> Result:
        number, flat = bucket.index(), bucket.buffer()
        if number == 0:
            self._begin()
        layout, known = self._layout(bucket), self.session.layouts
        future = Result(devices=[flat.device] if flat.is_cuda else [])
        self._step.append((layout, flat, future))
        self._held = self._held or number >= len(known) or known[number] != layout
        if not self._held and not self.session.holds_back:
            self._submit(number, flat)
        if bucket.is_last():
            self._finish()
        return future

    def _begin(self) -> None:
        self._step, self._held = [], False
        self.session.begin_step()

    def _finish(self) -> None:
        """All buckets are there: send what was held, wait for all, and give DDP the results."""
        if self._held or len(self._step) != len(self.session.layouts):
            self._plan([layout for layout, _, _ in self._step])
        for number, (_, flat, _) in enumerate(self._step):
            if not self.session.is_launched(number):
                self._submit(number, flat)
        self.session.end_step()
        for _, flat, future in self._step:
            future.set_result(flat)
        in_backward = torch._C._current_graph_task_id() != -1  # not where join() lets a rank that is done take part
        if in_backward and self._leaves_out():
            results = [(layout, flat) for layout, flat, _ in self._step]
            engine = torch.autograd.Variable._execution_engine
            # DDP ends the backward pass in a callback that is queued after this one: another one follows it.
            engine.queue_callback(lambda: engine.queue_callback(lambda: self._give(results)))
        self._step = []

    @torch.no_grad()
    def _give(self, results: Sequence[tuple[Layout, torch.Tensor]]) -> None:
        """Give parameters their results where DDP does not, the same on all ranks, as results are.

        It leaves the gradient of a parameter that no rank has used as it is, and what earlier steps have not sent of it
        would be lost.
        """
        for layout, flat in results:
            for name, part in zip(layout.names, torch.split(flat, list(layout.segments)), strict=True):
                parameter = self._parameters[name]
                result = _shaped(part, parameter)
                if parameter.grad is None and bool(result.any()):
                    parameter.grad = result.clone()
                elif parameter.grad is not None and not torch.equal(parameter.grad, result):
                    parameter.grad.copy_(result)

    def _plan(self, layouts: Sequence[Layout]) -> None:
        if not self._opened:
            self.session.open(self._slots, [name for layout in layouts for name in layout.names], options=self._options)
            self._opened = True
        self.session.set_buckets(layouts, self._devices)

    def _submit(self, number: int, flat: torch.Tensor) -> None:
        self.session.mark_ready(number)
        self.session.submit(number, flat)

    def _layout(self, bucket: GradBucket) -> Layout:
        """Return which parameters lie in a bucket."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._layouts:
            if unknown := [tuple(p.shape) for p in parameters if id(p) not in self._names]:
                raise ConfigError(
                    f"DDP reduces a parameter of shape {unknown[0]} that was frozen when compress() was called: freeze "
                    "and unfreeze parameters before the model is wrapped"
                )
            names = tuple(self._names[each] for each in key)
            shapes = tuple(tuple(parameter.shape) for parameter in parameters)
            layout = Layout(names, shapes, bucket.buffer().dtype, self._slots[names[0]].place)
            if bucket.buffer().numel() != layout.numel:
                raise UnsupportedError(
                    f"DDP's bucket of {layout.called} has {bucket.buffer().numel()} elements and its parameters have "
                    f"{layout.numel}: this version of torch, {torch.__version__}, packs them in another way"
                )
            self._layouts[key] = layout
        return self._layouts[key]


def _shaped(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a part of DDP's bucket as the gradient of a parameter, which it holds in the order of its memory."""
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    if not dense:
        return part.view(parameter.shape)
    return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
