"""What `Compression` has of COVAP."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from hvd_compress.compression.choosing import SAMPLE, described
from hvd_compress.compression.part import Part
from hvd_compress.compressors import Cast
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.schedule import ALL_BACK, FeedbackSchedule
from hvd_compress.papers.covap.policy import DEFAULT_INTERVAL
from hvd_compress.papers.covap.settings import Covap
from hvd_compress.request.request import Request


class Filtering(Part):
    """Part of `Compression`."""

    @staticmethod
    def covap(
        interval: int | Literal["auto"] = DEFAULT_INTERVAL,
        *,
        sent: Request | None = None,
        shard: bool = True,
        feedback: tuple[float, int, float] | None = None,
        hold_unsent: bool = False,
    ) -> Request:
        """Send each shard of the gradient in one of `interval` steps, with error feedback: the filter of COVAP.

        In its other steps a shard's result is zero; what it missed is sent with its next one.

        Args:
            interval: shard t is sent in step s iff (t + s) mod interval = 0. "auto" profiles the communication-to-
                computation ratio (CCR) of the training in three of its first steps, and again where the network has
                changed, and takes the next whole number, 8 at most: what is sent hides behind the backward pass. With
                HVD_COMPRESS_ADAPT=0 it is 4.
            sent: what a shard is sent by, such as Compression.int8(); as it is, if not given.
            shard: cut buckets so that each step sends about as much, by the paper's rule; else each is one shard.
            feedback: (initial, every, growth) of the coefficient of error feedback, which is min(1, initial + growth *
                (step // every)); its authors take (0.5, 50, 0.1), and above 8 steps (0.5, 100, 0.2). All of a residual
                comes back, if not given.
            hold_unsent: a parameter of which a step sends nothing is None in `.grad`, so that optimizers leave it as
                it is. Else momentum and weight decay move it, by a gradient of zero.

        Raises:
            ConfigError: a value is out of range, or `sent` chooses by itself, has a feedback of its own, or keeps what
                cannot be cut.
        """
        asked = Request(Cast()) if sent is None else sent
        if not isinstance(asked, Request) or asked.policy is not None or not asked.feedback.keeps_all:
            raise ConfigError(
                f"sent = {described(sent)} must be a compression whose every step is alike, such as int8(); how error "
                "feedback grows is covap's own feedback="
            )
        schedule = ALL_BACK
        if feedback is not None:
            if not isinstance(feedback, tuple) or len(feedback) != 3:
                raise ConfigError(f"feedback = {feedback!r} is not (initial, every, growth), such as (0.5, 50, 0.1)")
            schedule = FeedbackSchedule(feedback[0], feedback[2], feedback[1])
        if shard and asked.compressor.new_state(SAMPLE, torch.device("cpu")):
            raise ConfigError(
                f"{asked.compressor} remembers more than a residual of each parameter, which shards would cut: pass "
                "shard=False"
            )
        return replace(asked, policy=Covap(interval, shard, hold_unsent), feedback=schedule)
