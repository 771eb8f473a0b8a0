from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hvd_compress.buckets.bucket import Bucket
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import slots_of
from hvd_compress.errors import UnsupportedError


def make() -> tuple[Bucket, dict[str, torch.nn.Parameter]]:
    parameters = {"a": torch.nn.Parameter(torch.ones(2, 3)), "b": torch.nn.Parameter(torch.ones(4))}
    return Bucket(Layout(("a", "b"), ((2, 3), (4,))), parameters), parameters


def backward(parameters: dict[str, torch.nn.Parameter], **factors: float) -> None:
    for name, factor in factors.items():
        (parameters[name] * factor).sum().backward()


def as_they_are(_: str, result: torch.Tensor) -> torch.Tensor:
    return result


def step(bucket: Bucket, parameters: dict[str, torch.nn.Parameter], **factors: float) -> None:
    """Exchange nothing: the results are the gradients."""
    backward(parameters, **factors)
    for name in parameters:
        bucket.arrive(name)
    bucket.give_back(as_they_are)


def test_gradients_move_into_the_bucket_once_and_stay_there() -> None:
    bucket, parameters = make()
    backward(parameters, a=2, b=3)
    assert not bucket.arrive("a")
    assert bucket.missing == ["b"]
    assert bucket.arrive("b")
    assert bucket.flat.tolist() == [2.0] * 6 + [3.0] * 4
    bucket.give_back(as_they_are)
    assert bucket.missing == ["a", "b"]
    # The steady state: autograd accumulates into the bucket, and nothing has to be copied.
    for parameter in parameters.values():
        parameter.grad.zero_()
    address = parameters["a"].grad.data_ptr()
    backward(parameters, a=5)
    assert parameters["a"].grad.data_ptr() == address == bucket.flat.data_ptr()
    assert bucket.flat[:6].tolist() == [5.0] * 6


def test_a_gradient_that_is_elsewhere_is_copied() -> None:
    bucket, parameters = make()
    step(bucket, parameters, b=3)
    parameters["b"].grad = None  # zero_grad(set_to_none=True)
    backward(parameters, b=7)
    bucket.arrive("b")
    assert bucket.flat[6:].tolist() == [7.0] * 4
    bucket.arrive("a")
    bucket.give_back(as_they_are)
    assert parameters["b"].grad.data_ptr() == bucket.flat[6:].data_ptr()


def test_a_parameter_without_gradient_counts_as_zero() -> None:
    bucket, parameters = make()
    bucket.flat.fill_(9)
    bucket.arrive("a")
    assert bucket.flat.tolist() == [0.0] * 6 + [9.0] * 4
    assert parameters["a"].grad is None


def test_a_strided_gradient_is_taken_in_by_its_elements() -> None:
    parameter = torch.nn.Parameter(torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
    bucket = Bucket(Layout(("p",), ((2, 3, 4, 4),)), {"p": parameter})
    weight = torch.randn(2, 3, 4, 4)
    (parameter * weight).sum().backward()
    bucket.arrive("p")
    assert torch.equal(bucket.flat, weight.reshape(-1))
    bucket.give_back(as_they_are)
    assert torch.equal(parameter.grad, weight)


KEEP = {
    "itself": lambda gradient: gradient,
    "a view": lambda gradient: gradient.view(-1),
    "detached": lambda gradient: gradient.detach(),
    "data": lambda gradient: gradient.data,
    "an array": lambda gradient: gradient.numpy(),
}


@pytest.mark.parametrize("how", KEEP)
def test_gradients_that_the_program_keeps_are_its_own(how: str) -> None:
    """As with plain torch: after zero_grad(set_to_none=True) a new gradient is another tensor."""
    bucket, parameters = make()
    step(bucket, parameters, a=2, b=3)
    kept = KEEP[how](parameters["a"].grad)
    for parameter in parameters.values():
        parameter.grad = None
    step(bucket, parameters, a=5, b=7)
    assert np.asarray(kept).reshape(-1).tolist() == [2.0] * 6
    assert parameters["a"].grad.view(-1).tolist() == [5.0] * 6
    address = bucket.flat.data_ptr()
    for parameter in parameters.values():
        parameter.grad = None
    step(bucket, parameters, a=11)
    assert bucket.flat.data_ptr() == address, "what nobody keeps is used again"
    assert bucket.flat.tolist() == [11.0] * 6 + [0.0] * 4


def test_a_kept_gradient_beside_one_that_is_accumulated_in_place() -> None:
    bucket, parameters = make()
    step(bucket, parameters, a=2, b=3)
    kept, parameters["a"].grad = parameters["a"].grad, None
    step(bucket, parameters, a=5, b=4)
    assert kept.view(-1).tolist() == [2.0] * 6
    assert bucket.flat.tolist() == [5.0] * 6 + [7.0] * 4


def test_a_gradient_that_was_led_elsewhere_is_what_counts() -> None:
    """Module.double() and float() assign to `.data` of gradients, too."""
    bucket, parameters = make()
    step(bucket, parameters, a=2, b=3)
    parameters["a"].grad.data = torch.full((2, 3), 8.0)
    parameters["b"].grad.data = parameters["b"].grad.data.clone()
    step(bucket, parameters, b=4)
    assert bucket.flat.tolist() == [8.0] * 6 + [7.0] * 4
    assert parameters["a"].grad.data_ptr() == bucket.flat.data_ptr()


def test_what_is_done_to_gradients_under_way_is_noticed() -> None:
    bucket, parameters = make()
    backward(parameters, a=2, b=3)
    bucket.arrive("a")
    bucket.arrive("b")
    assert bucket.changed == []
    parameters["b"].grad = None
    parameters["a"].grad = torch.zeros(2, 3)
    assert bucket.changed == ["a", "b"]


@pytest.mark.parametrize(
    "convert", [torch.Tensor.bfloat16, torch.Tensor.double, lambda p: p.repeat(2, 1)], ids=["bf16", "double", "shape"]
)
def test_another_parameter_than_before_is_refused(convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """With and without a gradient: ranks that have none learn it as well."""
    for factors in ({"a": 1.0}, {}):
        bucket, parameters = make()
        parameters["a"].data = convert(parameters["a"].data)
        backward(parameters, **factors)
        with pytest.raises(UnsupportedError, match=r"parameter 'a' is .* now, and its gradient was \(2, 3\)"):
            bucket.arrive("a")


def test_complex_gradients_travel_as_real_ones() -> None:
    parameters = {"c": torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))}
    slots, _ = slots_of(parameters)
    bucket = Bucket(slots["c"].layout("c"), parameters)
    (parameters["c"] * (1 + 2j)).real.sum().backward()
    expected = parameters["c"].grad.clone()
    bucket.arrive("c")
    assert bucket.flat.tolist() == [1.0, -2.0] * 3
    bucket.give_back(as_they_are)
    assert torch.equal(parameters["c"].grad, expected)


def test_gradients_of_another_dtype_than_their_parameter_keep_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    if not hasattr(parameter, "grad_dtype"):
        pytest.skip("this torch holds gradients to the dtype of their parameter")
    parameter.grad_dtype = torch.float32
    slots, _ = slots_of({"p": parameter})
    bucket = Bucket(slots["p"].layout("p"), {"p": parameter})
    parameter.grad = torch.full((3,), 1.00001)
    step(bucket, {"p": parameter})
    assert parameter.grad.dtype == torch.float32 == bucket.flat.dtype
    assert parameter.grad.tolist() == [torch.tensor(1.00001).item()] * 3


def test_a_parameter_without_elements_lies_in_a_bucket() -> None:
    parameters = {"e": torch.nn.Parameter(torch.ones(0, 3))}
    bucket = Bucket(Layout(("e",), ((0, 3),)), parameters)
    step(bucket, parameters, e=2)
    assert parameters["e"].grad.shape == (0, 3)


def test_a_program_may_move_the_storage_of_its_gradients() -> None:
    """As share_memory() does, and a queue to another process: what is exchanged is neither freed nor led elsewhere."""
    bucket, parameters = make()
    step(bucket, parameters, a=2, b=3)
    parameters["a"].grad.share_memory_()  # of "b", too: it is one storage
    assert parameters["b"].grad.tolist() == [3.0] * 4
    for parameter in parameters.values():
        parameter.grad.zero_()
    step(bucket, parameters, a=5, b=6)
    assert bucket.flat.tolist() == [5.0] * 6 + [6.0] * 4
    assert parameters["a"].grad.tolist() == [[5.0] * 3] * 2
    del parameters["a"].grad, parameters["b"].grad
    step(bucket, parameters, a=7, b=8)
    assert bucket.flat.tolist() == [7.0] * 6 + [8.0] * 4
