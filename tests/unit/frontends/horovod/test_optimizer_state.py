"""Where a tensor of an optimizer's state is put when it has come; a device without memory stands for a GPU."""

from __future__ import annotations

import torch

from hvd_compress.frontends.horovod.optimizer_state import _placed, _taken_apart, _TensorSpec

PARAMETERS = [torch.empty(2), torch.empty(2, device="meta")]


def test_state_lies_where_a_parameter_beside_it_on_the_root_does() -> None:
    like = torch.empty(2, 3, dtype=torch.bfloat16, device="meta")
    assert _placed(torch.ones(2, 3, dtype=torch.bfloat16), _TensorSpec(like, 1), PARAMETERS).device.type == "meta"


def test_what_lies_on_the_host_of_the_root_does_so_everywhere() -> None:
    """Such as the step counter of Adam for parameters on a GPU, with or without strides of its own."""
    for like in (torch.empty((), device="meta"), torch.empty(3, 2, device="meta").t()):
        placed = _placed(torch.ones(like.shape), _TensorSpec(like, None), PARAMETERS)
        assert placed.device.type == "cpu"
        assert placed.stride() == like.stride()
        assert (placed == 1).all()


def test_the_root_says_beside_which_parameter_its_tensors_lie() -> None:
    parameters = [torch.nn.Parameter(parameter) for parameter in PARAMETERS]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.state[parameters[0]]["step"] = torch.zeros(())
    optimizer.state[parameters[1]]["momentum"] = torch.empty(2, device="meta")
    _, specs, tensors, obstacle = _taken_apart(optimizer, parameters)
    assert obstacle == ""
    assert [spec.beside for spec in specs] == [None, 1]
    assert len(tensors) == 2
