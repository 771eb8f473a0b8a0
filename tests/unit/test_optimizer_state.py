"""Where a broadcast tensor of an optimizer's state is put; a device without memory stands for a GPU."""

from __future__ import annotations

import torch

from hvd_compress.torch.optimizer_state import _Place

DEVICE = torch.device("meta")


def test_state_lies_where_its_parameter_does() -> None:
    place = _Place(torch.empty(2, 3, dtype=torch.bfloat16, device="meta"), on_host=False)
    box = place.empty()
    assert (box.device.type, box.shape, box.dtype) == ("cpu", (2, 3), torch.bfloat16)
    assert place.fill(box, DEVICE).device == DEVICE


def test_what_lies_on_the_host_of_the_root_does_so_everywhere() -> None:
    """Such as the step counter of Adam for parameters on a GPU, with or without strides of its own."""
    for like in (torch.empty((), device="meta"), torch.empty(3, 2, device="meta").t()):
        place = _Place(like, on_host=True)
        filled = place.fill(torch.ones(like.shape), DEVICE)
        assert filled.device.type == "cpu"
        assert filled.stride() == like.stride()
        assert (filled == 1).all()
