"""What `Compression` has of Accordion."""

from __future__ import annotations

from dataclasses import replace

from hvd_compress.compression.choosing import SAMPLE, described
from hvd_compress.compression.part import Part
from hvd_compress.errors import ConfigError
from hvd_compress.papers.accordion.policy import Accordion
from hvd_compress.request.request import Request


class Switching(Part):
    """Part of `Compression`."""

    @staticmethod
    def accordion(
        low: Request,
        high: Request,
        *,
        eta: float = 0.5,
        every: int = 10,
        epoch_steps: int | None = None,
        per_parameter: bool = False,
    ) -> Request:
        """Compress little in critical regimes of the training and much in the rest: Accordion.

        Every `every` epochs ranks compare the norm of each bucket's gradient, summed over an epoch, with that of the
        last comparison: where it has changed by `eta` or more, a bucket travels by `low`, else by `high`. All travel by
        `low` until two epochs have been compared, and from a decay of the learning rate until the next comparison.
        Residuals, and the warm start of powersgd, go on. Sums take 4 bytes an element.

        A program says at the end of each epoch `hvd.of(optimizer).end_epoch()`, or `hc.of(model).end_epoch()`, after
        the step of a learning-rate scheduler; where it never does, all is sent by `low`. A rate has decayed where it
        falls to half or less from one epoch to the next; under DDP hc.of(model).follow_learning_rate(optimizer) shows
        it.

        Args:
            low: little compression, such as powersgd(4) or topk(0.1).
            high: the same with other settings: powersgd(1), topk(0.01).
            eta: a share, above 0 and 1 at most; math.inf leaves it to learning rates alone.
            every: epochs from one comparison to the next.
            epoch_steps: how many steps are an epoch, and what the program says of epochs is ignored; not given, the
                program says when one ends.
            per_parameter: each parameter travels, and is judged, by itself; not under DDP, whose buckets are its own.

        Raises:
            ConfigError: a value is out of range; or the two are not of one compressor, in this order, of one engine and
                device, or choose by themselves.
        """
        for name, level in (("low", low), ("high", high)):
            if not isinstance(level, Request) or level.policy is not None:
                raise ConfigError(
                    f"{name} = {described(level)} must be a compression of this package whose every step is alike, "
                    "such as topk(0.1), or dense() instead of none"
                )
        if type(low.compressor) is not type(high.compressor):
            raise ConfigError(
                f"low sends {low.compressor} and high {high.compressor}: they must be two levels of one compressor"
            )
        alike = [(each.engine, each.device, each.feedback) for each in (low, high)]
        if alike[0] != alike[1]:
            raise ConfigError("low and high must have the same engine, device and feedback")
        if low.compressor == high.compressor:
            raise ConfigError(f"low and high both send {low.compressor}: there is nothing to switch between")
        sent = [sum(each.priced for each in level.compressor.wire(SAMPLE)) for level in (low, high)]
        if sent[0] < sent[1]:
            raise ConfigError(
                f"low = {low.compressor} sends less than high = {high.compressor}: low is the lower compression, and "
                "comes first"
            )
        return replace(low, policy=Accordion(high, eta, every, epoch_steps, per_parameter))
