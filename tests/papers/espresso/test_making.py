"""Plans made from profiles: never slower than dense by prediction, written and read back, and run."""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost.paths import Path as Way
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso.espresso import Chosen, start
from hvd_compress.papers.espresso.making import NAMES, Inputs, Made, _settled, make
from hvd_compress.papers.espresso.options import Constraints
from hvd_compress.papers.espresso.planning import plan
from hvd_compress.papers.espresso.writing import strategy_of, to_plan
from hvd_compress.policies.plan_schema import BucketEntry, Plan, read
from hvd_compress.policies.plan_settings import compressor_of
from tests.harness import SHAPES, backward, flat_gradient, make_optimizer, make_parameters, on_engine, place
from tests.unit.profiler import profile_files
from tests.unit.profiler.profile_files import said

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"


def inputs_in(folder: Path) -> Inputs:
    return Inputs.read({name: folder / file for name, file in NAMES.items()})


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return inputs_in(profile_files.write(tmp_path / "profile"))


def test_never_slower_than_dense_and_it_says_by_how_much(inputs: Inputs) -> None:
    made = make(inputs, budget_s=5)
    assert made.step_us < made.dense_us
    assert made.step_us == 30.0 + made.planned.end_ns / 1e3
    assert not any(option.compressions for option in made.dense.options)
    assert len(made.saved_ns) == len(made.planned.fused.cuts)
    assert max(made.saved_ns) > 0
    problem, strategy = made.planned.problem, made.planned.chosen.strategy
    last = len(strategy) - 1
    alone = (*strategy[:last], problem.number(made.plain))
    assert made.saved_ns[last] == problem.end_ns(alone) - made.planned.end_ns
    for (plain, planned), option in zip(made.busy_ns, made.planned.options, strict=True):
        assert plain == planned if option == made.plain else plain > 0


def test_on_a_fast_network_all_is_dense(tmp_path: Path) -> None:
    link = {"alpha_us": 0.01, "bytes_per_s": 1e13}
    made = make(inputs_in(profile_files.write(tmp_path, system=said()["system"] | {"within": link, "across": link})))
    assert not any(option.compressions for option in made.planned.options)
    assert made.step_us <= made.dense_us


def test_no_bucket_lengthens_the_step_by_itself(inputs: Inputs) -> None:
    """Also where the budget ended the search early."""
    made = make(inputs, budget_s=0)
    problem = made.planned.problem
    slow = max(range(len(problem.options)), key=lambda number: problem.native.times(0)[number])
    strategy = (slow,) * len(problem.model.tensors)
    chosen = Chosen(strategy, problem.end_ns(strategy), "slow")
    bad = replace(made, planned=replace(made.planned, chosen=chosen))
    assert min(bad.saved_ns) < 0
    settled = _settled(bad)
    assert min(settled.saved_ns) >= 0
    assert settled.planned.end_ns == problem.end_ns(settled.planned.chosen.strategy) < chosen.end_ns


def test_dense_is_searched_for_as_well(inputs: Inputs) -> None:
    made = make(inputs, budget_s=8)
    uniform = plan(
        inputs.model, inputs.system, inputs.profile, Constraints(most_compressions=0, only=tuple(map(str, made.runs))),
        policies=(start,), budget_s=0.0, in_flight=1,
    )  # fmt: skip
    assert made.dense.complete
    assert made.dense.end_ns <= uniform.end_ns
    assert made.planned.end_ns <= made.dense.end_ns


def test_the_same_inputs_give_the_same_plan(inputs: Inputs) -> None:
    first, second = (to_plan(make(inputs, budget_s=60), inputs) for _ in range(2))
    assert first == second


def test_written_is_read_and_predicted_again(inputs: Inputs, tmp_path: Path) -> None:
    made = make(inputs, budget_s=5)
    file = tmp_path / "plan.json"
    to_plan(made, inputs).write(file)
    plan = read(file)
    assert plan.world_size == 4
    assert plan.model is not None
    assert {name: one.shape for name, one in plan.model.items()} == SHAPES
    assert [name for entry in plan.buckets for name in entry.parameters] == list(reversed(SHAPES))
    assert plan.prediction is not None
    assert (plan.prediction.step_us, plan.prediction.dense_us) == (made.step_us, made.dense_us)
    problem, strategy = strategy_of(plan, inputs)
    assert problem.end_ns(strategy) == made.planned.end_ns
    assert all(entry.reason for entry in plan.buckets)


class TestConstraints:
    def test_they_are_heeded(self, inputs: Inputs) -> None:
        made = make(inputs, Constraints(hierarchical=False, devices=("host",)), budget_s=1)
        assert not any(option.hierarchical for option in made.planned.options)
        compressed = [option for option in made.planned.options if option.compressions]
        assert compressed
        assert all(option.devices == {"host"} and made.runs[option].device == "cpu" for option in compressed)

    def test_dense_within(self, inputs: Inputs) -> None:
        made = make(inputs, Constraints(payloads_within=False), budget_s=1)
        tasks = [task for option in made.planned.problem.options for task in option.tasks]
        assert not any(task.compressed and task.link == "within" for task in tasks)

    def test_an_option_that_no_collective_carries_out(self, inputs: Inputs) -> None:
        name = "comp@training allgather*@all decomp@host"
        with pytest.raises(
            PlanError, match=rf"'{re.escape(name)}' cannot be run with TopK.*; .* can, such as 'allreduce@all'"
        ):
            make(inputs, Constraints(only=(name,)))

    def test_a_device_without_times(self, tmp_path: Path) -> None:
        """Not even an option that compresses there can be run, and no plan is made that would be dense for that."""
        files = said()["compressor"]
        alone = files | {"devices": {"training": files["devices"]["training"]}}
        inputs = inputs_in(profile_files.write(tmp_path, compressor=alone))
        assert all("host" not in option.devices for option in inputs.runs("mpi"))
        with pytest.raises(
            PlanError, match=r"compressor.json: devices: no times of host, which alone may compress; it"
        ):
            make(inputs, Constraints(devices=("host",)))
        with pytest.raises(PlanError, match="or on one without times"):
            make(inputs, Constraints(only=("comp@host allgather*@all decomp@host",)))

    def test_none_is_left(self, inputs: Inputs) -> None:
        with pytest.raises(PlanError, match="no option that can be run is left"):
            make(inputs, Constraints(flat=False, hierarchical=False))


def tensors(**changed: Any) -> dict[str, Any]:
    """The model with one tensor changed."""
    model = said()["model"]
    return model | {"tensors": [model["tensors"][0] | changed, *model["tensors"][1:]]}


def compressor(**changed: Any) -> dict[str, Any]:
    return said()["compressor"] | changed


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model", {"model": "x"}, r"model.json is no profile of a model: tensors: is missing"),
        ("model", tensors(backward_us=-1.0), r"model.json .*tensors.0.backward_us: .*greater than or equal to 0"),
        ("model", tensors(name="odd"), r"model.json: tensors.0.name: 'odd' stands 2 times"),
        ("model", tensors(shape=[3, 3]), r"model.json .*tensors.0: shape \[3, 3\] has 9 elements, and numel is 40"),
        ("system", {}, r"system.json is no profile of a system: hosts: is missing; ranks_per_host: is missing"),
        (
            "compressor",
            compressor(compressor={"name": "zip"}),
            "compressor.json: compressor: unknown compressor 'zip'",
        ),
        ("compressor", compressor(compressor={"name": "topk", "ratio": 2.0}), "compressor.json: compressor: .*ratio"),
        ("compressor", compressor(compressor={"name": "cast"}), r"compressor.json: compressor: Cast.* loses nothing"),
        (
            "compressor",
            compressor(payload={"per_element_bytes": 4.0}),
            "payload: 1,440 bytes for 360 elements",
        ),
    ],
)
def test_bad_files_are_told_by_file_and_field(file: str, content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=words):
        inputs_in(profile_files.write(tmp_path, **{file: content}))


def test_a_compressor_that_no_collective_carries_out(tmp_path: Path) -> None:
    said_of_it = compressor(compressor={"name": "powersgd", "rank": 2}, payload={"per_element_bytes": 0.4})
    folder = profile_files.write(tmp_path, compressor=said_of_it)
    (folder / "model.json").write_text(json.dumps({"model": "flat", "tensors": [said()["model"]["tensors"][1]]}))
    content = {**said_of_it, "payload": {"per_element_bytes": 4.0}}  # PowerSGD sends a flat tensor as it is
    (folder / "compressor.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match=r"compressor.json: compressor: no collective carries out .* PowerSGD"):
        make(inputs_in(folder))


class TestReadingBack:
    def plan(self, inputs: Inputs, **changed: Any) -> Plan:
        made = to_plan(make(inputs, budget_s=0.2), inputs)
        return made.model_copy(update=changed)

    def test_a_plan_without_options(self, inputs: Inputs) -> None:
        with pytest.raises(PlanError, match=r"buckets.0.option is missing: `hvd-compress plan make` writes it"):
            strategy_of(self.plan(inputs, buckets=(BucketEntry(parameters=tuple(SHAPES)),)), inputs)

    def test_an_unknown_option(self, inputs: Inputs) -> None:
        entry = BucketEntry(parameters=tuple(SHAPES), option="allreduce@home")
        with pytest.raises(PlanError, match=r"buckets.0.option: unknown option 'allreduce@home'"):
            strategy_of(self.plan(inputs, buckets=(entry,)), inputs)

    def test_other_parameters(self, inputs: Inputs) -> None:
        entry = BucketEntry(parameters=("first.weight",), option="allreduce@all")
        with pytest.raises(PlanError, match=r"different parameters: 'first.bias' and 3 more .*model.json"):
            strategy_of(self.plan(inputs, buckets=(entry,)), inputs)


@pytest.mark.parametrize("trace", ["resnet50", "lstm"])
def test_traces_give_plans_that_check_names_alone(trace: str, tmp_path: Path) -> None:
    if not TRACES.exists():
        pytest.skip("no ../shared/data/traces here")
    link = {"alpha_us": 10.0, "bytes_per_s": 3e9}
    system = {"hosts": 8, "ranks_per_host": 8, "within": {"alpha_us": 5.0, "bytes_per_s": 1e10}, "across": link}
    folder = profile_files.write(tmp_path, system=system, model=json.loads((TRACES / f"{trace}.json").read_text()))
    inputs = inputs_in(folder)
    made = make(inputs, budget_s=0.5)
    assert made.step_us <= made.dense_us
    plan = to_plan(made, inputs)
    assert plan.model is None
    assert sum(len(entry.parameters) for entry in plan.buckets) == len(inputs.model.tensors)
    assert all(entry.option is None or compressor_of(entry.compressor) for entry in plan.buckets)


def on_training(made: Made) -> list[str]:
    """Return the names of the options that can be run without the host."""
    return [str(option) for option in made.runs if option.devices <= {"training"}]


@pytest.mark.parametrize("number", range(0, 174, 9))
def test_a_run_decides_as_planned(number: int, inputs: Inputs, tmp_path: Path) -> None:
    """Options that can be run, on two hosts of two ranks each in process: buckets, decisions, equal results."""
    names = on_training(make(inputs, budget_s=0.0))
    assert len(names) == 174
    file = tmp_path / "plan.json"
    plan = to_plan(make(inputs, Constraints(only=(names[number],)), budget_s=0.2, fusion=number % 2 == 0), inputs)
    plan.write(file)

    def body(engine: InProcessEngine) -> Any:
        place(engine, (0, 0, 1, 1))
        parameters, optimizer = on_engine(engine, Compression.plan(file))
        for step in range(3):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            result = flat_gradient(parameters)
            with optimizer.skip_synchronize():
                optimizer.step()
        return of(optimizer).decisions, result

    found = run_ranks(4, body, hosts=(0, 0, 1, 1))
    for decisions, result in found:
        assert (result == found[0][1]).all()
        assert list(decisions) == [entry.parameters for entry in plan.buckets]
        for decision, entry in zip(decisions.values(), plan.buckets, strict=True):
            assert decision.path == Way(entry.collective, entry.algorithm)
            assert decision.compressor in (Cast(), TopK(profile_files.RATIO))
            assert decision.compressor == compressor_of(entry.compressor)


def test_a_plan_for_another_number_of_ranks_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    to_plan(make(inputs, budget_s=0.2), inputs).write(file)

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, Compression.plan(file))
        backward(parameters, engine.rank, 0)
        optimizer.step()

    with pytest.raises(PlanError, match="it is for 4 ranks, and there are 2"):
        run_ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_and_parameters_without_elements_fit(
    inputs: Inputs, tmp_path: Path, dtype: torch.dtype
) -> None:
    """A profile says neither."""
    file = tmp_path / "plan.json"
    to_plan(make(inputs, budget_s=0.2), inputs).write(file)
    shapes = {tensor.name: tensor.shape for tensor in inputs.model.tensors} | {"empty": (0, 3)}

    def body(engine: InProcessEngine) -> Any:
        place(engine, (0, 0, 1, 1))
        parameters = make_parameters(shapes, dtype)
        request = Compression.plan(file)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size)
        backward(parameters, engine.rank, 0)
        optimizer.step()
        return set(of(optimizer).decisions)

    for found in run_ranks(4, body, hosts=(0, 0, 1, 1)):
        assert {name for names in found for name in names} >= set(shapes) - {"empty"}


@pytest.mark.parametrize(
    ("dtype", "told"),
    [(torch.float32, ""), (torch.float16, r"first.* is \[.*\] float16, and \[.*\] float32 in the plan")],
)
def test_a_plan_is_for_the_dtypes_and_the_engine_of_its_profile(
    inputs: Inputs, tmp_path: Path, dtype: torch.dtype, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another dtype is refused, as of a plan in use; another engine is told of, as it may do as well."""
    tensors = tuple(tensor.model_copy(update={"dtype": "float32"}) for tensor in inputs.model.tensors)
    model = inputs.model.model_copy(update={"tensors": tensors})
    system = inputs.system.model_copy(update={"engine": "mpi"})
    known = replace(inputs, model=model, system=system)
    file = tmp_path / "plan.json"
    to_plan(make(known, budget_s=0.2), known).write(file)
    plan = read(file)
    assert plan.engine == "mpi"
    assert {parameter.dtype for parameter in plan.model.values()} == {"float32"}
    shapes = {tensor.name: tensor.shape for tensor in tensors}

    def body(engine: InProcessEngine) -> None:
        place(engine, (0, 0, 1, 1))
        request = Compression.plan(file)
        parameters = make_parameters(shapes, dtype)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size)
        backward(parameters, engine.rank, 0)
        with pytest.raises(PlanError, match=told) if told else nullcontext():
            optimizer.step()

    with caplog.at_level(logging.WARNING, "hvd_compress"):
        run_ranks(4, body, hosts=(0, 0, 1, 1))
    words = "the plan was made for engine 'mpi', and this job has in-process, over which its times may be others"
    assert caplog.text.count(words) == (0 if told else 1)


def test_buckets_of_several_dtypes_are_planned_apart(inputs: Inputs, tmp_path: Path) -> None:
    """Neighbours of different ones share none, and a job takes the plan as it is."""
    dtypes = ("float32", "float16", "float16", "float32", "float32")
    tensors = tuple(t.model_copy(update={"dtype": d}) for t, d in zip(inputs.model.tensors, dtypes, strict=True))
    mixed = replace(inputs, model=inputs.model.model_copy(update={"tensors": tensors}))
    file = tmp_path / "plan.json"
    to_plan(make(mixed, budget_s=0.2), mixed).write(file)
    known = {tensor.name: tensor.dtype for tensor in tensors}
    entries = read(file).buckets
    assert all(len({known[name] for name in entry.parameters}) == 1 for entry in entries)
    assert {name: parameter.dtype for name, parameter in read(file).model.items()} == known

    def body(engine: InProcessEngine) -> set[tuple[str, ...]]:
        place(engine, (0, 0, 1, 1))
        parameters = {t.name: make_parameters({t.name: t.shape}, getattr(torch, t.dtype))[t.name] for t in tensors}
        request = Compression.plan(file)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size)
        for name, parameter in parameters.items():
            backward({name: parameter}, engine.rank, 0)
        optimizer.step()
        return set(of(optimizer).decisions)

    assert run_ranks(4, body, hosts=(0, 0, 1, 1)) == [{entry.parameters for entry in entries}] * 4


def test_an_earlier_file_stays_where_a_new_one_cannot_be_written(inputs: Inputs, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = to_plan(make(inputs, budget_s=0.1), inputs)
    plan.write(file)
    before = file.read_text()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))  # as on a full disk
    try:
        with pytest.raises(PlanError, match="cannot write the plan"):
            plan.write(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_text() == before
    assert [each.name for each in tmp_path.glob("plan.json*")] == ["plan.json"]
