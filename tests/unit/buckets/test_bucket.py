from __future__ import annotations

import torch

from hvd_compress.buckets.bucket import Bucket
from hvd_compress.buckets.layout import Layout


def make() -> tuple[Bucket, dict[str, torch.nn.Parameter]]:
    parameters = {"a": torch.nn.Parameter(torch.ones(2, 3)), "b": torch.nn.Parameter(torch.ones(4))}
    return Bucket(Layout(("a", "b"), ((2, 3), (4,))), parameters), parameters


def test_gradients_move_into_the_bucket_once_and_stay_there() -> None:
    bucket, parameters = make()
    (parameters["a"] * 2).sum().backward()
    (parameters["b"] * 3).sum().backward()
    assert not bucket.arrive("a")
    assert bucket.missing == ["b"]
    assert bucket.arrive("b")
    assert bucket.flat.tolist() == [2.0] * 6 + [3.0] * 4
    bucket.reset()
    assert bucket.missing == ["a", "b"]
    # The steady state: autograd accumulates into the bucket, and nothing has to be copied.
    for parameter in parameters.values():
        parameter.grad.zero_()
    address = parameters["a"].grad.data_ptr()
    (parameters["a"] * 5).sum().backward()
    assert parameters["a"].grad.data_ptr() == address == bucket.flat.data_ptr()
    assert bucket.flat[:6].tolist() == [5.0] * 6


def test_a_gradient_that_is_elsewhere_is_copied_and_adopted() -> None:
    bucket, parameters = make()
    (parameters["b"] * 3).sum().backward()
    bucket.adopt("b")
    parameters["b"].grad = None  # zero_grad(set_to_none=True)
    (parameters["b"] * 7).sum().backward()
    bucket.adopt("b")
    assert parameters["b"].grad.data_ptr() == bucket.views["b"].data_ptr()
    assert bucket.flat[6:].tolist() == [7.0] * 4


def test_a_parameter_without_gradient_counts_as_zero() -> None:
    bucket, parameters = make()
    bucket.flat.fill_(9)
    bucket.adopt("a")
    assert bucket.flat.tolist() == [0.0] * 6 + [9.0] * 4
    assert parameters["a"].grad is None


def test_a_strided_gradient_is_taken_in_by_its_elements() -> None:
    parameter = torch.nn.Parameter(torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
    bucket = Bucket(Layout(("p",), ((96,),)), {"p": parameter})
    weight = torch.randn(2, 3, 4, 4)
    (parameter * weight).sum().backward()
    bucket.adopt("p")
    assert torch.equal(bucket.views["p"], weight)
    assert torch.equal(parameter.grad, weight)
