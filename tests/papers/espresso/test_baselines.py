"""What other policies choose: by hand on small problems, and as properties of random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hvd_compress.errors import PlanError
from hvd_compress.papers.espresso import spaces
from hvd_compress.papers.espresso.baselines import BYTEPS_COMPRESS, HITOPKCOMM, POLICIES, brute_force, upper_bound
from hvd_compress.papers.espresso.espresso import Chosen, near_optimal, start
from hvd_compress.papers.espresso.options import UNCOMPRESSED, Constraints, Option, by_name, options
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.profiler.profiles import CompressorProfile, Link, ModelProfile, SystemProfile, Tensor
from tests.papers.espresso.test_prices import compressor

SLOW = SystemProfile(
    hosts=4,
    ranks_per_host=2,
    within=Link(alpha_us=1.0, bytes_per_s=1e9),
    across=Link(alpha_us=10.0, bytes_per_s=1e8),
)
FAST_GPU = compressor(training=(5.0, 0.1), host=(20.0, 0.8))

FEW = (
    str(UNCOMPRESSED),
    "reduce_scatter@within allreduce@across allgather@within",
    HITOPKCOMM,
    HITOPKCOMM.replace("training", "host"),
    "reduce_scatter@within comp@training alltoall*@across allgather*@across decomp@training allgather@within",
    BYTEPS_COMPRESS,
    "comp@training allgather*@all decomp@training",
    "comp@training alltoall*@within decomp@training comp@training alltoall*@across allgather*@across "
    "allgather*@within decomp@training",
)


def model(*tensors: tuple[int, float]) -> ModelProfile:
    """Return a model of tensors with these numbers of elements and microseconds of computation."""
    made = (Tensor(name=f"p{n}", numel=numel, backward_us=us) for n, (numel, us) in enumerate(tensors))
    return ModelProfile(model="made", tensors=tuple(made))


def chosen_options(problem: Problem, chosen: Chosen) -> list[Option]:
    assert chosen.end_ns == problem.end_ns(chosen.strategy)
    return [problem.options[number] for number in chosen.strategy]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(model((100_000, 10.0), (1_000, 5.0), (400_000, 50.0)), SLOW, FAST_GPU)


class TestSpaces:
    """Counts by hand, with two devices for each compression and decompression."""

    UNCOMPRESSED_ONES = 9

    @pytest.mark.parametrize(
        ("space", "count"),
        [
            (spaces.inter_allgather(), 2 * 4),  # two pairs within a host
            (spaces.inter_alltoall(), 2 * (4 + 16)),  # without and with a decompression between the two steps
            (spaces.inter(), 2 * (4 + 4 + 16)),
            (spaces.alltoall_alltoall(), 8 * (1 + 4) * (2 + 2 + 8)),  # before, between and after the steps across
        ],
    )
    def test_counts(self, space: Constraints, count: int) -> None:
        assert len(options(space)) == self.UNCOMPRESSED_ONES + count

    def test_a_device_alone(self) -> None:
        found = options(spaces.compressing(spaces.inter_allgather(), "training"))
        assert HITOPKCOMM in map(str, found)
        assert len(found) == 2


class TestByHand:
    def test_hitopkcomm_gives_every_tensor_the_same_option(self, problem: Problem) -> None:
        assert chosen_options(problem, POLICIES["hitopkcomm"](problem)) == [by_name(HITOPKCOMM)] * 3

    def test_byteps_compress_leaves_small_tensors_alone(self, problem: Problem) -> None:
        first, small, last = chosen_options(problem, POLICIES["byteps-compress"](problem))  # 400, 4 and 1600 kB
        assert str(first) == str(last) == BYTEPS_COMPRESS
        assert not small.compressions

    def test_hipress_compresses_what_gains_by_itself(self, problem: Problem) -> None:
        """On the GPU, across hosts: where the best of all-gather and all-to-all takes less than FP32's option."""
        plain = start(problem)
        found = chosen_options(problem, POLICIES["hipress"](problem))
        for tensor, option in enumerate(found):
            assert option.devices <= {"training"}
            alone = problem.native.times(problem.sizes[tensor])
            wanted = problem.where(spaces.compressing(spaces.inter(), "training"))
            best = min(alone[number] for number in wanted)
            assert bool(option.compressions) == (best < alone[plain.strategy[tensor]])
            assert alone[problem.number(option)] == min(best, alone[plain.strategy[tensor]])
        assert found[0].compressions
        assert found[2].compressions

    def test_times_are_sums_of_prices(self, problem: Problem) -> None:
        single = Problem(model((1_000, 0.0)), SLOW, FAST_GPU)
        number = single.number(by_name(BYTEPS_COMPRESS))
        assert single.native.times(0)[number] == single.end_ns([number])

    def test_myopic_ignores_what_is_hidden(self) -> None:
        """The first gradient's synchronisation hides behind the second one's computation; its compression does not.

        By itself the first tensor is synchronised sooner with compression, which delays the second one.
        """
        hidden = Problem(model((100_000, 10.0), (1, 100_000.0)), SLOW, compressor(training=(200.0, 1.0)))
        myopic = POLICIES["myopic"](hidden)
        plain = start(hidden)
        assert chosen_options(hidden, myopic)[0].compressions
        assert hidden.native.times(0)[myopic.strategy[0]] < hidden.native.times(0)[plain.strategy[0]]
        assert myopic.end_ns > plain.end_ns
        assert POLICIES["espresso"](hidden).end_ns <= plain.end_ns

    def test_each_keeps_to_its_space(self, problem: Problem) -> None:
        found = {name: chosen_options(problem, policy(problem)) for name, policy in POLICIES.items()}
        assert all(not option.compressions for option in found["fp32"])
        assert len(set(found["fp32"])) == 1
        assert all(option.compressions for option in found["all-compression"])
        assert all(option.devices <= {"training"} for option in found["gpu-only"])
        assert all(option.devices <= {"host"} for option in found["cpu-only"])
        for name, space in (
            ("inter-allgather", spaces.inter_allgather()),
            ("inter-alltoall", spaces.inter_alltoall()),
            ("alltoall-alltoall", spaces.alltoall_alltoall()),
        ):
            assert all(map(space.allow, found[name])), name
            assert any(option.compressions for option in found[name]), name

    @pytest.mark.level2
    def test_a_wide_space_is_no_worse_where_greed_finds_the_best(self, problem: Problem) -> None:
        """Figure 15: what is selected from a crippled space does not beat our choice from the whole one."""
        every = [policy(problem) for policy in POLICIES.values()]
        assert near_optimal(problem, every, budget_s=60.0).end_ns < min(chosen.end_ns for chosen in every[5:8])


@pytest.mark.parametrize("name", POLICIES)
def test_without_what_a_policy_needs_nothing_is_compressed(name: str) -> None:
    bare = Problem(model((100_000, 10.0)), SLOW, FAST_GPU, Constraints(most_compressions=0))
    assert POLICIES[name](bare).end_ns == start(bare).end_ns
    alone = Problem(model((100_000, 10.0)), SLOW, compressor(training=(5.0, 0.1)))
    assert all(option.devices <= {"training"} for option in chosen_options(alone, POLICIES[name](alone)))


@pytest.mark.parametrize("name", POLICIES)
def test_one_host_needs_no_compression_across(name: str) -> None:
    alone = SLOW.model_copy(update={"hosts": 1})
    assert POLICIES[name](Problem(model((100_000, 10.0), (10, 1.0)), alone, FAST_GPU)).by


def random_problem(seed: int, tensors: int, only: Sequence[str]) -> Problem:
    draw = random.Random(seed)
    sizes = [round(10 ** draw.uniform(2, 7)) for _ in range(2)]
    made = model(*((draw.choice(sizes), 10 ** draw.uniform(0, 4)) for _ in range(tensors)))
    system = SystemProfile(
        hosts=draw.choice([1, 2, 4, 8]),
        ranks_per_host=draw.choice([1, 2, 8]),
        within=Link(alpha_us=draw.uniform(1, 20), bytes_per_s=10 ** draw.uniform(9, 11)),
        across=Link(alpha_us=draw.uniform(5, 100), bytes_per_s=10 ** draw.uniform(8, 10)),
    )
    costs: CompressorProfile = compressor(
        training=(draw.uniform(5, 100), 10 ** draw.uniform(-2, 0)),
        host=(draw.uniform(5, 100), 10 ** draw.uniform(-1, 1)),
    )
    return Problem(made, system, costs, Constraints(only=tuple(only)))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), tensors=st.integers(1, 4))
def test_nothing_beats_brute_force_and_the_upper_bound(seed: int, tensors: int) -> None:
    made = random_problem(seed, tensors, FEW)
    best = brute_force(made)
    found = [policy(made) for policy in POLICIES.values()]
    ours = near_optimal(made, found, budget_s=60.0)
    bound = upper_bound(made, [*found, ours, best], budget_s=60.0)
    assert bound.end_ns <= best.end_ns <= ours.end_ns
    for chosen in found:
        assert ours.end_ns <= chosen.end_ns, chosen.by
        assert bound.end_ns <= chosen.end_ns, chosen.by


@pytest.mark.level2
@settings(max_examples=20, deadline=None)
@example(seed=3858, tensors=21)  # of which a strategy takes longer with free compression
@given(seed=st.integers(0, 10**6), tensors=st.integers(5, 30))
def test_the_upper_bound_is_one_of_all_that_it_is_shown(seed: int, tensors: int) -> None:
    made = random_problem(seed, tensors, ())
    found = [policy(made) for policy in POLICIES.values()]
    assert upper_bound(made, found, budget_s=0.0).end_ns <= min(chosen.end_ns for chosen in found)


def test_an_unknown_policy_brings_the_one_that_was_meant() -> None:
    with pytest.raises(PlanError, match=r"unknown policy 'esspresso'; did you mean espresso\?"):
        POLICIES["esspresso"]
    with pytest.raises(PlanError, match="unknown policy 'xyzzy'; known are fp32, all-compression, "):
        POLICIES["xyzzy"]
    assert "xyzzy" not in POLICIES
