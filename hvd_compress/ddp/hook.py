"""The front end of DDP: a communication hook that hands DDP's buckets to an exchange session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import slots_of
from hvd_compress.decision import Request, check_devices
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, UnsupportedError
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
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: those that DDP reduces, by name, in the same order on all ranks.
            connect: creates the engine, in the first backward pass.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.

        Raises:
            ConfigError, UnsupportedError: as check_devices().
        """
        check_devices(parameters, request)
        self._parameters = dict(parameters)  # holds what _names tells apart by id
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._slots, self._devices = slots_of(parameters)
        self.session = ExchangeSession(request, settings, connect, arrivals=arrivals)
        self._layouts: dict[tuple[int, ...], Layout] = {}  # by the ids of their parameters
        self._step: list[tuple[Layout, torch.Tensor, Result]] = []  # the buckets of this step so far
        self._held = False  # whether one of them was not known
        self._opened = False
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
            self._failure = str(error)
            raise

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
        if not self._held:
            self.session.mark_ready(number)
            self.session.submit(number, flat)
        if bucket.is_last():
            self._finish()
        return future

    def _begin(self) -> None:
        """A backward pass begins: one that an error ended has left nothing behind."""
        self._step, self._held = [], False
        self.session.loss_scale.update()
        self.session.mark_begun()

    def _finish(self) -> None:
        """All buckets are there: send what was held, wait for all, and give DDP the results."""
        if self._held or len(self._step) != len(self.session.layouts):
            self._plan([layout for layout, _, _ in self._step])
        self.session.end_step()
        for _, flat, future in self._step:
            future.set_result(flat)
        self._step = []

    def _plan(self, layouts: Sequence[Layout]) -> None:
        if not self._opened:
            self.session.open(self._slots, [name for layout in layouts for name in layout.names], options="DDP")
            self._opened = True
        self.session.plan(layouts, self._devices)
        for number, (_, flat, _) in enumerate(self._step):
            if not self.session.is_launched(number):
                self.session.mark_ready(number)
                self.session.submit(number, flat)

    def _layout(self, bucket: GradBucket) -> Layout:
        """Return which parameters lie in a bucket."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._layouts:
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
