"""Each function that replaces one of horovod.torch is held against the original, with the same arguments.

What both take has the same result. Where the original refuses a tensor, the test says what is right.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.errors import ConfigError
from tests.parallel.training import batch, flat, small_model

stock = pytest.importorskip("horovod.torch", reason="what it does is compared")

pytestmark = pytest.mark.level2

HOROVODS = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
]
OURS = [torch.bool, torch.bfloat16, torch.uint16, torch.float8_e5m2, torch.complex64, torch.complex128]

Make = Callable[[torch.Tensor], torch.Tensor]

CONTIGUOUS: dict[str, Make] = {
    "whole": lambda values: values.clone(),
    "scalar": lambda values: values[5].clone(),
    "empty": lambda values: values[:0].reshape(0, 3).clone(),
}
STRIDED: dict[str, Make] = {
    "transposed": lambda values: values.clone().reshape(3, 8).t(),
    "channels_last": lambda values: values.reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "column": lambda values: torch.stack([values, values], 1)[:, 0],
}
"""Views of memory of their own."""

FUNCTIONS = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def waiting(name: str, namespace: Any) -> Callable[..., Any]:
    """Return a broadcast of a namespace, which waits for its result."""
    function = getattr(namespace, name)
    return (lambda *given, **named: namespace.synchronize(function(*given, **named))) if "async" in name else function


def values_of(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """24 elements, which differ between ranks."""
    values = (torch.arange(24) * (rank + 2)) % 7
    return values > 2 if dtype == torch.bool else values.float().to(dtype)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist()


def looks(tensor: torch.Tensor) -> tuple[object, ...]:
    return (type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return looks(one) == looks(other) and bits(one) == bits(other)


@pytest.mark.parametrize("shape", CONTIGUOUS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_horovod_takes(name: str, shape: str) -> None:
    root = hvd.size() - 1
    for dtype in HOROVODS:
        for wrap in (torch.clone, nn.Parameter) if dtype.is_floating_point else (torch.clone,):
            given = [wrap(CONTIGUOUS[shape](values_of(hvd.rank(), dtype))) for _ in range(2)]
            results = [
                waiting(name, namespace)(tensor, root, f"{name}.{dtype}")
                for namespace, tensor in zip((stock, hvd), given, strict=True)
            ]
            assert same(*results), dtype
            assert same(*given), dtype
            assert [result is tensor for result, tensor in zip(results, given, strict=True)] == [name[-1] == "_"] * 2


@pytest.mark.parametrize("shape", [*CONTIGUOUS, *STRIDED])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_horovod_refuses(name: str, shape: str) -> None:
    """Other dtypes, and what is not contiguous. Strides are kept where they are dense, as torch.clone() does."""
    make, root = (CONTIGUOUS | STRIDED)[shape], hvd.size() - 1
    for dtype in [*OURS, *(HOROVODS if shape in STRIDED else [])]:
        tensor, right = (make(values_of(rank, dtype)) for rank in (hvd.rank(), root))
        before = bits(tensor)
        with pytest.raises(ValueError, match=r"is not supported|to be contiguous"):
            getattr(stock, name)(tensor, root, "refused")
        result = waiting(name, hvd)(tensor, root, f"{name}.{dtype}")
        if name[-1] == "_":
            assert result is tensor
            assert same(result, right), dtype
        else:
            assert same(result, right.clone()), dtype
            assert bits(tensor) == before, "the input was written to"
        if shape == "column":
            assert bits(tensor._base[:, 1]) == before, "what lies between was written to"


@pytest.mark.parametrize("name", ["broadcast_", "broadcast_async_"])
@pytest.mark.parametrize("shape", STRIDED)
def test_a_parameter_is_written_in_place(name: str, shape: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        parameter = nn.Parameter(STRIDED[shape](values_of(hvd.rank(), dtype)))
        assert waiting(name, hvd)(parameter, 0, name) is parameter
        assert same(parameter, nn.Parameter(STRIDED[shape](values_of(0, dtype)))), dtype


@pytest.mark.parametrize("name", FUNCTIONS)
def test_views_with_a_bit_for_conjugate_or_negative(name: str) -> None:
    values = torch.complex(values_of(hvd.rank(), torch.float32), values_of(hvd.rank() + 5, torch.float32))
    root = torch.complex(values_of(0, torch.float32), values_of(5, torch.float32))
    for view in (torch.conj, lambda numbers: torch.conj(numbers).imag, lambda numbers: torch.conj(numbers[:1]).imag):
        result = waiting(name, hvd)(view(values.clone()), 0, name)
        assert result.tolist() == view(root).tolist()


def test_ranks_may_lay_out_a_tensor_in_other_strides() -> None:
    """Elements travel in their logical order."""
    tensor = values_of(hvd.rank(), torch.float32).reshape(2, 3, 2, 2)
    tensor = tensor.contiguous(memory_format=torch.channels_last) if hvd.rank() == 0 else tensor.clone()
    strides = tensor.stride()
    hvd.broadcast_(tensor, 0, "strides")
    assert torch.equal(tensor, values_of(0, torch.float32).reshape(2, 3, 2, 2))
    assert tensor.stride() == strides


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_keywords_and_process_sets(name: str, dtype: torch.dtype, some_ranks: Any) -> None:
    tensor = values_of(hvd.rank(), dtype)
    call, everyone = waiting(name, hvd), hvd.global_process_set
    for result in (
        call(tensor.clone(), 0, "named"),
        call(tensor.clone(), 0, "named", everyone),
        call(tensor=tensor.clone(), root_rank=0, name="named", process_set=everyone),
        call(name="named", tensor=tensor.clone(), root_rank=False),
    ):
        assert same(result, values_of(0, dtype))
    root = max(some_ranks.ranks)
    if some_ranks.included():
        assert same(call(tensor, root, "part", process_set=some_ranks), values_of(root, dtype))
    else:
        assert same(tensor, values_of(hvd.rank(), dtype))


@pytest.mark.unnamed_collectives
@pytest.mark.parametrize("shape", [*CONTIGUOUS, *STRIDED])
@pytest.mark.filterwarnings("ignore:Parameter `average`:DeprecationWarning")
def test_gradients(shape: str) -> None:
    """As in Horovod: the root gets the mean and the others zero. It sums them without a name."""

    def gradient(namespace: Any, dtype: torch.dtype, make: Make) -> torch.Tensor:
        leaf = make(values_of(hvd.rank(), torch.float64)).to(dtype).requires_grad_()
        result = namespace.broadcast(leaf * 2, 0, "forward")
        result.backward(torch.full_like(result, hvd.rank() + 1))
        assert leaf.grad.dtype == dtype
        assert leaf.grad.stride() == leaf.stride() or not leaf.numel()
        return leaf.grad

    make = (CONTIGUOUS | STRIDED)[shape]
    expected = gradient(stock, torch.float64, lambda values: make(values).contiguous())
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        assert torch.equal(gradient(hvd, dtype, lambda values: make(values).clone()), expected.to(dtype)), dtype


@pytest.mark.unnamed_collectives
@pytest.mark.filterwarnings("ignore:Parameter `average`:DeprecationWarning")
def test_gradients_that_horovod_refuses() -> None:
    """That of a sum is expanded. What is infinite on one rank must not become NaN where zero is right."""
    with pytest.raises(ValueError, match="to be contiguous"):
        stock.broadcast(torch.ones(3, requires_grad=True), 0, "forward").sum().backward()
    leaf = torch.ones(3, requires_grad=True)
    (hvd.broadcast(leaf, 0, "forward").sum() * float("inf")).backward()
    assert leaf.grad.tolist() == [float("inf") if hvd.rank() == 0 else 0.0] * 3


NO_TENSORS = {"None": None, "number": 1.5, "list": [1.0], "numpy": numpy.ones(3)}


@pytest.mark.parametrize("what", NO_TENSORS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_tensor(name: str, what: str) -> None:
    """Horovod fails by accident: it asks for a method."""
    with pytest.raises(AttributeError):
        getattr(stock, name)(NO_TENSORS[what], 0)
    told = rf"takes a tensor, not a {type(NO_TENSORS[what]).__name__}: a gradient is None before"
    with pytest.raises(ConfigError, match=told):
        getattr(hvd, name)(NO_TENSORS[what], root_rank=0)


REFUSED: dict[str, tuple[Callable[[torch.dtype], tuple[Any, ...]], str]] = {
    "sparse": (lambda dtype: (torch.eye(2, dtype=dtype).to_sparse(), 0), r"to_dense"),
    "elsewhere": (lambda dtype: (torch.empty(2, device="meta", dtype=dtype), 0), r"not on meta: tensor\.cpu\(\)"),
    "root that is none": (lambda dtype: (torch.ones(2, dtype=dtype), 99), "invalid root rank 99"),
    "negative root": (lambda dtype: (torch.ones(2, dtype=dtype), -1), "invalid root rank -1"),
    "root of another type": (lambda dtype: (torch.ones(2, dtype=dtype), None), "incompatible function arguments"),
    "name of another type": (lambda dtype: (torch.ones(2, dtype=dtype), 0, 3), "encode"),
    "no process set": (lambda dtype: (torch.ones(2, dtype=dtype), 0, "n", None), "process_set_id"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_of_horovods_types(name: str, what: str, dtype: torch.dtype) -> None:
    arguments, told = REFUSED[what]
    with pytest.raises(Exception) as theirs:  # noqa: PT011 (its type is what is compared)
        getattr(stock, name)(*arguments(torch.float32))
    with pytest.raises(theirs.type, match=told):
        getattr(hvd, name)(*arguments(dtype))


def test_expanded_tensors_are_sent_but_not_written() -> None:
    tensor = torch.tensor([[1.0 + hvd.rank()]]).expand(2, 3)
    assert same(hvd.broadcast(tensor, 0, "expanded"), torch.full((2, 3), 1.0))
    assert same(hvd.synchronize(hvd.broadcast_async(tensor, 0, "expanded")), torch.full((2, 3), 1.0))
    for call in (hvd.broadcast_, hvd.broadcast_async_):
        with pytest.raises(ConfigError, match=r"shape \(2, 3\) and strides \(0, 0\), as its elements share memory"):
            call(tensor, 0, "expanded")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_shapes_and_roots_that_differ_between_ranks(dtype: torch.dtype) -> None:
    """Also those of as many elements."""
    shape, root = ((2, 3), 0) if hvd.rank() == 0 else ((3, 2), 1)
    with pytest.raises(stock.HorovodInternalError, match="shapes"):
        hvd.broadcast_(torch.ones(shape).to(dtype), 0, "other shapes")
    with pytest.raises(stock.HorovodInternalError, match="root ranks"):
        hvd.broadcast_(torch.ones(2).to(dtype), root, "other roots")


def test_synchronize_waits_for_all_that_horovod_starts() -> None:
    tensor = torch.arange(4.0) + hvd.rank()
    splits = torch.full((hvd.size(),), 4 // hvd.size(), dtype=torch.int32)
    splits[0] += 4 - splits.sum()
    for number, start in enumerate(
        (
            lambda name: stock.allreduce_async(tensor, name=name, op=stock.Sum),
            lambda name: stock.grouped_allreduce_async([tensor, tensor], name=name, op=stock.Max),
            lambda name: stock.allgather_async(tensor, name=name),
            lambda name: stock.alltoall_async(tensor, splits, name=name),
            lambda name: stock.broadcast_async(tensor, 0, name=name),
        )
    ):
        theirs = stock.synchronize(start(f"theirs.{number}"))
        handle = start(f"ours.{number}")
        ours = hvd.synchronize(handle)
        assert type(ours) is type(theirs)
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, theirs)), strict=True):
            assert same(one, other)
        assert hvd.synchronize(handle) is None
        assert stock.synchronize(handle) is None


def test_synchronize_of_no_handle() -> None:
    for namespace in (stock, hvd):
        assert namespace.synchronize(None) is None
        assert namespace.synchronize(12345) is None
        with pytest.raises(TypeError, match="unhashable"):
            namespace.synchronize([])


PAIRS = [("b", torch.float32), ("a", torch.int64)]

BOTH_TAKE: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "ordered dict": OrderedDict,
    "pairs": list,
    "tensors": lambda pairs: [tensor for _, tensor in pairs],
    "pairs without names": lambda pairs: [(None, tensor) for _, tensor in pairs],
    "some with names": lambda pairs: [pairs[0], pairs[1][1]],
    "nothing": lambda pairs: [],
    "no entries": lambda pairs: {},
}
OURS_TAKES: dict[str, Callable[[list[Any]], Any]] = {
    "iterator of pairs": iter,
    "iterator of tensors": lambda pairs: (tensor for _, tensor in pairs),
    "items of a dict": lambda pairs: dict(pairs).items(),
    "values of a dict": lambda pairs: dict(pairs).values(),
    "tuple": tuple,
}


def entries() -> list[Any]:
    return [(name, values_of(hvd.rank(), dtype)) for name, dtype in PAIRS]


@pytest.mark.unnamed_collectives
@pytest.mark.parametrize("form", BOTH_TAKE)
def test_parameters_in_forms_that_horovod_takes(form: str) -> None:
    theirs, ours = entries(), entries()
    assert stock.broadcast_parameters(BOTH_TAKE[form](theirs), 0) is None
    assert hvd.broadcast_parameters(params=BOTH_TAKE[form](ours), root_rank=0) is None
    assert all(same(one, other) for (_, one), (_, other) in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("form", OURS_TAKES)
def test_parameters_in_forms_that_horovod_refuses(form: str) -> None:
    """Among them what its own documentation names: model.parameters()."""
    with pytest.raises(ValueError, match="invalid params of type"):
        stock.broadcast_parameters(OURS_TAKES[form](entries()), 0)
    given = entries()
    hvd.broadcast_parameters(OURS_TAKES[form](given), 0)
    sent = [same(tensor, values_of(0, dtype)) for (_, tensor), (_, dtype) in zip(given, PAIRS, strict=True)]
    assert sent == [True, True]


ONE = torch.ones(2)
NO_PARAMETERS: dict[str, tuple[Any, str]] = {
    "None": (None, "not a NoneType: pass model.state_dict"),
    "a tensor": (torch.ones(2, 2), "not a Tensor: pass model.state_dict"),
    "a model": (nn.Linear(2, 2), "not a Linear: pass model.state_dict"),
    "text": ("weight", "not a str: pass model.state_dict"),
    "a set": ({ONE}, "not a set: pass model.state_dict"),
    "a gradient that is None": ([ONE, None], r"entry 'broadcast_parameters\.1', takes a tensor, not a NoneType"),
    "an extra state": ({"layer._extra_state": b"x"}, "entry 'layer._extra_state', takes a tensor, not a bytes"),
    "nested": ({"model": {"weight": ONE}}, "entry 'model', takes a tensor, not a OrderedDict|not a dict"),
    "a pair too long": ([("weight", ONE, 1)], r"entry 'broadcast_parameters\.0', takes a tensor, not a tuple"),
    "a name of another type": ({3: ONE}, "entry 0, has the name 3: names are text"),
    "names of several types": ({3: ONE, "weight": ONE}, "entry 0, has the name 3: names are text"),
    "a name twice": ([("weight", ONE), ("weight", ONE)], "two entries have the name 'weight'"),
    "sparse": ({"weight": torch.eye(2).to_sparse()}, r"entry 'weight', takes no torch\.sparse\.FloatTensor"),
    "expanded": ({"mask": torch.ones(1).expand(3)}, "entry 'mask', cannot write a tensor of shape"),
}


@pytest.mark.parametrize("what", NO_PARAMETERS)
def test_what_are_no_parameters(what: str) -> None:
    """Refused before anything is sent, as what comes before them in the list would be waited for by nobody."""
    params, told = NO_PARAMETERS[what]
    with pytest.raises(ConfigError, match=told):
        hvd.broadcast_parameters(params, root_rank=0)
    sent = torch.full((2,), hvd.rank() + 1.0)
    hvd.broadcast_parameters([("weight", sent), ("broadcast_parameters.0", sent.clone())], root_rank=0)
    assert (sent == 1).all()


class Everything(nn.Module):
    """A state that Horovod's broadcast_parameters refuses for five reasons."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(hvd.rank())
        self.images = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.half, self.brain = nn.Linear(3, 3).half(), nn.Linear(3, 3).bfloat16()
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.tied = self.turned
        self.waves = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("mask", torch.rand(3, 5) > 0.5)
        self.register_buffer("part", torch.randn(4, 6)[:, ::2])
        self.register_buffer("count", torch.tensor(hvd.rank()))
        self.register_buffer("nothing", torch.empty(0, dtype=torch.bool))


@pytest.mark.parametrize("form", ["state_dict", "parameters"])
def test_the_state_of_a_model_of_all_sorts(form: str) -> None:
    model, root = Everything(), hvd.size() - 1
    before = {name: looks(tensor) for name, tensor in model.state_dict().items()}
    expected = hvd.broadcast_object({name: t.clone() for name, t in model.state_dict().items()}, root, "all sorts")
    pieces = {name: id(parameter) for name, parameter in model.named_parameters()}
    hvd.broadcast_parameters(getattr(model, form)(), root)
    compared = model.state_dict() if form == "state_dict" else dict(model.named_parameters())
    for name, tensor in compared.items():
        assert bits(tensor) == bits(expected[name]), name
    assert {name: looks(tensor) for name, tensor in model.state_dict().items()} == before
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == pieces


def stepped(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer that every rank has trained by itself, as Horovod's makes state with a step."""
    model = small_model()
    optimizer = {
        "SGD": lambda: torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9),
        "Adam": lambda: torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1), amsgrad=True),
        "RMSprop": lambda: torch.optim.RMSprop(model.parameters(), lr=0.1 * (hvd.rank() + 1), centered=True),
        "Adagrad": lambda: torch.optim.Adagrad(model.parameters(), lr=0.1 * (hvd.rank() + 1)),
    }[kind]()
    model(batch(0)).square().mean().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop", "Adagrad"])
def test_optimizer_state_that_horovod_sends(kind: str) -> None:
    states = []
    for namespace, named in ((stock, {}), (hvd, {}), (hvd, {"model": None})):
        model, optimizer = stepped(kind)
        before = flat(model.parameters())
        assert namespace.broadcast_optimizer_state(optimizer, root_rank=0, **named) is None
        assert torch.equal(flat(model.parameters()), before)
        states.append(optimizer.state_dict())
    for ours in states[1:]:
        assert str(ours) == str(states[0])
    assert states[0]["param_groups"][0]["lr"] == 0.1


def test_no_optimizer() -> None:
    with pytest.raises(ConfigError, match="takes an optimizer, not a NoneType"):
        hvd.broadcast_optimizer_state(None, root_rank=0)


@pytest.mark.parametrize("has_model", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "SparseAdam"])
def test_horovods_optimizers_without_state_get_zero_gradients_as_from_horovod(kind: str, has_model: bool) -> None:
    """Horovod leaves them when it takes a step to make state; the step itself is not taken."""
    gradients = []
    for namespace in (stock, hvd):
        model = nn.ModuleDict({"rows": nn.Embedding(4, 3, sparse=True), "kept": nn.Embedding(4, 3, sparse=True)})
        if kind == "SGD":
            model["dense"] = nn.Linear(3, 2)
            model["dense"].bias.requires_grad_(False)
        model["kept"].weight.requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        plain = torch.optim.SparseAdam(trained, lr=0.1) if kind == "SparseAdam" else torch.optim.SGD(trained, lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        namespace.broadcast_optimizer_state(optimizer, 0, model if has_model else None)
        gradients.append([parameter.grad for parameter in model.parameters()])
    for theirs, ours in zip(*gradients, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            assert ours.layout == theirs.layout
            assert not ours.to_dense().any()


def test_a_gradient_that_is_there_stays() -> None:
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model.weight.grad = torch.ones(2, 3)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert (model.weight.grad == 1).all()
    assert not model.bias.grad.any()


def test_other_optimizers_get_no_gradients() -> None:
    for wrap in (lambda plain, model: plain, lambda plain, model: hvd.DistributedOptimizer(
        plain, model.named_parameters(), hvd.Compression.topk(0.1)
    )):  # fmt: skip
        model = nn.Linear(3, 2)
        hvd.broadcast_optimizer_state(wrap(torch.optim.SGD(model.parameters(), lr=0.1), model), 0)
        assert [parameter.grad for parameter in model.parameters()] == [None, None]


class Marked(torch.Tensor):
    """A class of tensors, as low-precision optimizers keep their state in."""


def test_optimizer_state_that_is_sparse_or_of_another_class() -> None:
    """On the root alone an error would keep the others waiting."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter] = {
        "rows": (torch.eye(3) * (hvd.rank() + 1)).to_sparse(),
        "marked": torch.full((3,), hvd.rank() + 1.0).as_subclass(Marked),
        "turned": torch.full((3, 2), hvd.rank() + 1j).t().conj(),
        "expanded": torch.full((1,), hvd.rank() + 1.0).expand(3),
    }
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state[parameter]
    assert torch.equal(state["rows"].to_dense(), torch.eye(3))
    assert isinstance(state["marked"], Marked)
    assert (state["marked"] == 1).all()
    assert torch.equal(state["turned"], torch.full((2, 3), -1j))
    assert (state["expanded"] == 1).all()
