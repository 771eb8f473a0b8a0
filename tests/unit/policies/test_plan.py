"""Plans: what is one, whether it fits, and that what a controller found can be pinned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from hvd_compress import collectives, of
from hvd_compress.buckets.layout import Layout
from hvd_compress.cli.main import main
from hvd_compress.compression import Compression
from hvd_compress.compressors import BlockQuantizer, Cast, EFSign, PowerSGD, TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import PlanError, UsageError
from hvd_compress.policies.plan import PlanFile, PlannedPolicy
from hvd_compress.policies.plan_schema import Plan, read
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, SHAPES, alone, backward, make_optimizer, make_parameters, on_engine

TOPK = {"name": "topk", "ratio": 0.05}
FULL = {
    "version": 1,
    "buckets": [
        {"parameters": ["second.bias", "first.bias"], "compressor": TOPK, "collective": "star", "algorithm": "ring"},
    ],
    "patterns": [{"pattern": "*.weight", "compressor": {"name": "powersgd", "rank": 2}}],
    "default": {"compressor": {"name": "cast", "dtype": "float16"}},
}


def write(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**FULL, **changes}))
    return path


def first_step(engine: InProcessEngine, request: Request, **arguments: object):
    parameters, optimizer = on_engine(engine, request, **arguments)
    backward(parameters, engine.rank, 0)
    optimizer.step()
    return optimizer


def test_each_bucket_travels_as_the_plan_says(tmp_path: Path) -> None:
    request = Compression.plan(write(tmp_path / "plan.json"))

    def body(engine: InProcessEngine):
        optimizer = first_step(engine, request)
        return {names: (d.compressor, str(d.path)) for names, d in of(optimizer).decisions.items()}

    for found in run_ranks(2, body):
        assert found.pop(("second.bias", "first.bias")) == (TopK(0.05), "star-ring")
        assert found.pop(("odd",)) == (Cast(torch.float16), "dense")
        assert {name for names in found for name in names} == {"first.weight", "second.weight"}
        assert set(found.values()) == {(PowerSGD(2), "allreduce")}


def test_a_plan_names_blocks_of_bits(tmp_path: Path) -> None:
    default = {"compressor": {"name": "blocks", "bits": 4, "block": 128}, "collective": "alltoall-allgather"}
    request = Compression.plan(write(tmp_path / "plan.json", buckets=[], patterns=[], default=default))

    def body(engine: InProcessEngine):
        optimizer = first_step(engine, request)
        return {(d.compressor, str(d.path)) for d in of(optimizer).decisions.values()}

    assert run_ranks(3, body) == [{(BlockQuantizer(4, 128), "alltoall-allgather")}] * 3


def test_a_plan_of_an_earlier_version_says_scheme(tmp_path: Path) -> None:
    path = write(tmp_path / "plan.json", buckets=[], patterns=[], default={"compressor": TOPK, "scheme": "star"})
    assert read(path).default.collective == "star"
    with pytest.raises(PlanError, match="scheme: unknown field"):
        read(write(path, default={"compressor": TOPK, "scheme": "star", "collective": "star"}))


OPTION = "reduce@within comp alltoall*@across decomp comp allgather*@across decomp broadcast@within"


def test_a_plan_names_an_option_of_the_tree(tmp_path: Path) -> None:
    default = {"compressor": TOPK, "collective": OPTION}
    request = Compression.plan(write(tmp_path / "plan.json", buckets=[], patterns=[], default=default))

    def body(engine: InProcessEngine):
        optimizer = first_step(engine, request)
        of(optimizer).save_plan(tmp_path / f"saved-{engine.rank}.json")
        return {(d.compressor, str(d.path)) for d in of(optimizer).decisions.values()}

    assert run_ranks(4, body, hosts=(0, 0, 1, 1)) == [{(TopK(0.05), OPTION)}] * 4
    assert {entry.collective for entry in read(tmp_path / "saved-0.json").buckets} == {OPTION}
    with pytest.raises(PlanError, match="as many ranks on each host, and the hosts of this job have 2, 1"):
        run_ranks(3, body, hosts=(0, 0, 1))


@pytest.mark.parametrize("treatment", [{"collective": "allreduce@all"}, {"compressor": TOPK, "collective": OPTION}])
def test_an_option_does_not_round_float64(tmp_path: Path, treatment: dict[str, object]) -> None:
    request = Compression.plan(write(tmp_path / "plan.json", buckets=[], patterns=[], default=treatment))
    value = 1.0 + 2.0**-40

    def body(engine: InProcessEngine):
        parameters = make_parameters({"only": (8,)}, torch.float64)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size)
        parameters["only"].grad = None
        (parameters["only"] * value).sum().backward()
        optimizer.synchronize()
        return parameters["only"].grad

    for found in run_ranks(4, body, hosts=(0, 0, 1, 1)):
        assert torch.equal(found, torch.full((8,), value, dtype=torch.float64))


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        ("comp allgather*@all", "ends without a tensor"),
        ("allreduce@all", "does not compress"),
        ("comp allgather@some decomp", "'allgather@some' is no task"),
    ],
)
def test_what_is_no_option_is_told_by_its_place(tmp_path: Path, collective: str, words: str) -> None:
    with pytest.raises(PlanError, match=rf"default: .*{words}"):
        read(write(tmp_path / "plan.json", default={"compressor": TOPK, "collective": collective}))


def test_a_plan_names_collectives_that_nothing_chooses(tmp_path: Path) -> None:
    def planned(collective: str) -> Request:
        default = {"compressor": TOPK, "collective": collective}
        return Compression.plan(write(tmp_path / f"{collective}.json", buckets=[], patterns=[], default=default))

    def body(engine: InProcessEngine, request: Request):
        optimizer = first_step(engine, request)
        of(optimizer).save_plan(tmp_path / f"saved-{engine.rank}.json")
        return {(d.compressor, str(d.path)) for d in of(optimizer).decisions.values()}

    for collective in filter(collectives.by_name, collectives.names_for(TopK(0.05))):
        request = planned(collective)
        found = run_ranks(4, lambda engine, request=request: body(engine, request), hosts=(0, 0, 1, 1))
        assert found == [{(TopK(0.05), collective)}] * 4
        assert {entry.collective for entry in read(tmp_path / "saved-0.json").buckets} == {collective}


def test_a_job_that_goes_on_from_a_checkpoint_is_told_of_buckets_as_they_stay(caplog: pytest.LogCaptureFixture) -> None:
    """DDP cuts buckets anew in the second step of a process, whatever number the training gives it."""
    policy = PlannedPolicy(
        Plan.model_validate(
            {"version": 1, "patterns": [{"pattern": "*.weight"}], "default": {"compressor": {"name": "efsign"}}}
        )
    )
    policy.rank = 0
    first, anew = (Layout((f"{name}.weight", f"{name}.bias"), ((4,), (1,))) for name in ("all", "last"))
    policy.setup(1000, [first], lambda *_: pytest.fail("nothing is launched"))
    policy.decide(1000)
    policy.decide(1001)
    policy.setup(1001, [anew], lambda *_: pytest.fail("nothing is launched"))
    assert not caplog.records
    policy.decide(1002)
    policy.decide(1003)
    (record,) = caplog.records
    assert "such as that of last.weight" in record.getMessage()


def test_parameters_of_a_pattern_are_cut_as_usual_and_share_with_no_others(tmp_path: Path) -> None:
    file = write(tmp_path / "plan.json", buckets=[], patterns=[{"pattern": "*.weight", "compressor": TOPK}])

    def buckets(threshold: int) -> set[frozenset[str]]:
        settings = Settings(threshold, 60)
        optimizer = first_step(alone(), Compression.plan(file), settings=settings)
        return {frozenset(names) for names in of(optimizer).decisions}

    assert buckets(10**6) == {
        frozenset(("first.weight", "second.weight")),
        frozenset(("first.bias", "second.bias", "odd")),
    }
    assert len(buckets(0)) == len(SHAPES)


@pytest.mark.parametrize("name", [name for name, request in REQUESTS.items() if request.policy is None])
def test_what_is_in_use_can_be_pinned(name: str, tmp_path: Path) -> None:
    """A run by the plan that was written has the same buckets, decisions and bits."""

    def train(engine: InProcessEngine, request: Request):
        parameters, optimizer = on_engine(engine, request)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        if engine.rank == 0 and request.policy is None:
            of(optimizer).save_plan(tmp_path / "plan.json")
        return [p.detach() for p in parameters.values()], of(optimizer).decisions

    first = run_ranks(2, lambda engine: train(engine, REQUESTS[name]))
    planned = Compression.plan(tmp_path / "plan.json")
    again = run_ranks(2, lambda engine: train(engine, planned))
    assert [list(d) for _, d in first] == [list(d) for _, d in again]
    assert first[0][1] == again[0][1]
    for (before, _), (after, _) in zip(first, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.usefixtures("clock")
def test_what_the_controller_chose_can_be_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))

    def choose(engine: InProcessEngine):
        settings = Settings(600, 60, adapt=True, calibration_s=0.0)
        parameters, optimizer = on_engine(engine, Request(TopK(0.05)), settings=settings)
        step = 0
        while step < 3 or not of(optimizer).controller.settled:
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            assert step < 300
        if engine.rank == 0:
            of(optimizer).save_plan(tmp_path / "plan.json")
        return of(optimizer).decisions

    chosen = run_ranks(2, choose)[0]
    pinned = run_ranks(2, lambda e: of(first_step(e, Compression.plan(tmp_path / "plan.json"))).decisions)[0]
    assert pinned == chosen
    assert all(decision.reason == "planned" for decision in pinned.values())


def saved(tmp_path: Path, ranks: int = 2) -> dict[str, object]:
    """A plan of the small model, as a dictionary."""

    def body(engine: InProcessEngine) -> None:
        optimizer = first_step(engine, REQUESTS["topk-star"])
        if engine.rank == 0:
            of(optimizer).save_plan(tmp_path / "saved.json")

    run_ranks(ranks, body)
    return json.loads((tmp_path / "saved.json").read_text())


def refused(file: Path, ranks: int = 2, **arguments: object) -> str:
    """What all ranks say of a plan in their first step, the same on each; and that they live to say it."""

    def body(engine: InProcessEngine) -> str:
        parameters, optimizer = on_engine(engine, Compression.plan(file), **arguments)
        backward(parameters, engine.rank, 0)
        with pytest.raises(PlanError) as raised:
            optimizer.step()
        return str(raised.value).partition("handshake: ")[2]

    words = set(run_ranks(ranks, body))
    assert len(words) == 1
    return words.pop()


def test_a_plan_of_another_model_is_refused_with_the_differences(tmp_path: Path) -> None:
    plan = saved(tmp_path)
    plan["model"]["gone"] = {"shape": [3], "dtype": "float32"}
    plan["model"]["odd"]["shape"] = [2]
    del plan["model"]["first.bias"]
    plan["buckets"] = [
        {**bucket, "parameters": [n for n in bucket["parameters"] if n != "first.bias"] or ["gone"]}
        for bucket in plan["buckets"]
    ]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    words = refused(file)
    assert "it knows a parameter 'gone', which the model does not have" in words
    assert "'odd' is [1] float32, and [2] float32 in the plan" in words
    assert "'first.bias' is in no entry, and there is no default" in words


def test_a_plan_for_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, ranks=2)
    assert "it is for 2 ranks, and there are 3" in refused(tmp_path / "saved.json", ranks=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patterns": [{"pattern": "third.*", "compressor": TOPK}]}, "pattern 'third.*' matches no parameter"),
        (
            {"patterns": [{"pattern": "*.weight"}, {"pattern": "first.*"}]},
            "'first.weight' is in several entries: pattern '*.weight' and pattern 'first.*'",
        ),
        ({"patterns": [{"pattern": "*.bias"}]}, "'first.bias' is in several entries: the bucket of 'second.bias'"),
        (
            {"buckets": [{"parameters": ["nobody"]}]},
            "a bucket names a parameter 'nobody', which the model does not have",
        ),
        ({"default": None}, "'odd' is in no entry, and there is no default"),
    ],
)
def test_entries_that_match_nothing_or_twice_are_refused(changes: dict, words: str, tmp_path: Path) -> None:
    assert words in refused(write(tmp_path / "plan.json", **changes))


def test_a_path_that_the_engine_lacks_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    def body(engine: InProcessEngine) -> None:
        engine.capabilities = replace(engine.capabilities, algorithms=("tree",))
        parameters, optimizer = on_engine(engine, Compression.plan(write(tmp_path / "plan.json")))
        backward(parameters, engine.rank, 0)
        with pytest.raises(PlanError, match=r"second.bias: star-ring cannot carry it .* which offers .*star-tree"):
            optimizer.step()

    body(alone())


def test_ranks_with_different_plans_are_told(tmp_path: Path) -> None:
    files = [write(tmp_path / "0.json"), write(tmp_path / "1.json", default={})]

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, Compression.plan(files[engine.rank]))
        backward(parameters, engine.rank, 0)
        with pytest.raises(Exception, match="settings differ between ranks: compression is"):
            optimizer.step()

    run_ranks(2, body)


def test_a_bucket_of_two_dtypes_is_refused(tmp_path: Path) -> None:
    parameters = make_parameters()
    parameters["odd"] = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    file = write(tmp_path / "plan.json", buckets=[{"parameters": ["odd", "first.bias"]}])
    optimizer = make_optimizer(parameters, Compression.plan(file), alone, 0, 1)
    backward(parameters, 0, 0)
    with pytest.raises(PlanError, match=r"the bucket of 'odd' has parameters of several dtypes or devices"):
        optimizer.step()


def test_sparse_gradients_travel_by_their_rows_whatever_a_plan_says(tmp_path: Path) -> None:
    def body(engine: InProcessEngine, request: Request, file: Path | None):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2)
        looked_up = torch.nn.functional.embedding(torch.tensor([engine.rank]), parameters["table"], sparse=True)
        (looked_up * parameters["weight"]).sum().backward()
        optimizer.synchronize()
        if file is not None and engine.rank == 0:
            of(optimizer).save_plan(file)
        return parameters["table"].grad.to_dense()

    file = tmp_path / "plan.json"
    first = run_ranks(2, lambda engine: body(engine, Request(Cast()), file))
    again = run_ranks(2, lambda engine: body(engine, Compression.plan(file), None))
    assert torch.equal(first[0], again[0])


BROKEN = {
    "a number for a list": ({"buckets": 3}, "buckets: must be a list"),
    "a name that is none": ({"default": {"compressor": {"name": []}}}, "unknown compressor []"),
    "a world in words": ({"world_size": "3"}, "world_size: Input should be a valid integer"),
    "no version": ({"version": None}, "version: Input should be 1"),
    "buckets that are no list": ({"buckets": {}}, "buckets: must be a list"),
    "a compressor by its name alone": ({"default": {"compressor": "topk"}}, "default.compressor: must be an object"),
    "an unknown key": ({"bucket": []}, "bucket: unknown field"),
    "an unknown version": ({"version": 2}, "version: Input should be 1"),
    "no compressor": (
        {"default": {"compressor": {"name": "zip"}}},
        "unknown compressor 'zip'; known are cast",
    ),
    "a setting nobody knows": (
        {"default": {"compressor": {"name": "topk", "k": 3}}},
        "topk has no setting 'k'; it has values, index_coding, ratio, layerwise",
    ),
    "a ratio out of range": ({"default": {"compressor": {"name": "topk", "ratio": 2}}}, "ratio = 2"),
    "a setting of another kind": (
        {"default": {"compressor": {"name": "topk", "layerwise": "no"}}},
        "layerwise of topk is 'no', which is no bool",
    ),
    "a truth for a number": ({"default": {"compressor": {"name": "topk", "ratio": True}}}, "which is no float"),
    "a dtype nobody knows": ({"default": {"compressor": {"name": "cast", "dtype": "int3"}}}, "unknown dtype 'int3'"),
    "a collective that cannot": (
        {"default": {"compressor": {"name": "efsign"}, "collective": "star"}},
        "collective 'star' cannot carry EFSign(layerwise=True); auto, allgather, hierarchical",
    ),
    "an open collective": (
        {"default": {"compressor": TOPK, "collective": "artopk"}},
        "collective 'artopk' cannot",
    ),
    "a bucket that is skipped": ({"default": {"collective": "skip"}}, "collective 'skip' cannot carry"),
    "an unknown algorithm": ({"default": {"algorithm": "square"}}, "unknown algorithm 'square'"),
    "an unknown device": ({"default": {"device": "tpu"}}, "unknown device 'tpu'"),
    "a broadcast without a collective": (
        {"default": {"compressor": TOPK, "broadcast": "binomial"}},
        "needs a collective",
    ),
    "no parameters": ({"buckets": [{"parameters": []}]}, "buckets.0.parameters: Tuple should have at least 1 item"),
    "a parameter twice": ({"buckets": [{"parameters": ["a"]}, {"parameters": ["a"]}]}, "'a' is in two places"),
    "a pattern twice": ({"patterns": [{"pattern": "a"}, {"pattern": "a"}]}, "pattern 'a' comes twice"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_plan_is_refused_before_training(case: str, tmp_path: Path) -> None:
    changes, words = BROKEN[case]
    file = write(tmp_path / "plan.json", **changes)
    with pytest.raises(PlanError) as raised:
        Compression.plan(file)
    assert str(file) in str(raised.value)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "the plan: must be an object"),
        (None, "cannot read"),
        ('{"version": 1, "default": {}, "default": {}}', "the field 'default' stands twice"),
        ('{"version": 1, "patterns": [{"pattern": "\\ud800"}]}', "not JSON that can be read"),
    ],
)
def test_what_is_no_json_is_refused(text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PlanError, match=words):
        Compression.plan(file)


def test_a_plan_survives_being_written(tmp_path: Path) -> None:
    plan = Plan.model_validate(FULL)
    plan.write(tmp_path / "plan.json")
    assert read(tmp_path / "plan.json") == plan
    assert PlanFile.read(tmp_path / "plan.json") == PlanFile.read(write(tmp_path / "other.json"))


def test_save_plan_says_when_it_cannot(tmp_path: Path) -> None:
    _, optimizer = on_engine(alone(), Request(Cast()))
    with pytest.raises(UsageError, match="before the first step"):
        of(optimizer).save_plan(tmp_path / "plan.json")
    optimizer = first_step(alone(), Request(EFSign()))
    with pytest.raises(PlanError, match="cannot write the plan"):
        of(optimizer).save_plan(tmp_path / "nowhere" / "plan.json")


def check(file: Path):
    return CliRunner().invoke(main, ["plan", "check", str(file)])


def test_the_command_prints_what_a_plan_says(tmp_path: Path) -> None:
    result = check(write(tmp_path / "plan.json", world_size=4))
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "one bucket: second.bias and 1 more topk ratio=0.05 star-ring auto" in shown
    assert "*.weight powersgd rank=2 auto auto" in shown
    assert "all others none, sent as float16" in shown
    assert "a plan for 4 ranks and any model with such names" in shown


def test_the_command_ends_with_2_and_a_sentence(tmp_path: Path) -> None:
    result = check(write(tmp_path / "plan.json", default={"collective": "skip"}))
    assert result.exit_code == 2
    assert "is no plan: default: collective 'skip' cannot carry" in " ".join(result.output.split())
