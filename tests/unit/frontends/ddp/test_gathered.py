"""What all ranks remember, in one place: each takes its own back, and ranks of a job of another size share it."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hvd_compress.ddp as hc
from hvd_compress.errors import CommunicationError, ConfigError, UsageError
from tests.harness import remembered
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import compressed, flat, make_model, optimizer_of, train

NAMES = ("int4", "powersgd", "momentum")


def test_one_file_for_all_ranks() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(save, Path(folder), ranks=3)
        run_ranks(go_on, Path(folder), ranks=2)


def save(rank: int, folder: Path) -> None:
    of_some_ranks(rank)
    for name in NAMES:
        ddp = compressed(make_model(), name)
        optimizer = optimizer_of(ddp)
        train(ddp, optimizer, rank, range(4))
        own, gathered = hc.state_dict(ddp), hc.of(ddp).gathered_state_dict()
        assert list(gathered["ranks"]) == ([f"rank {each} of 3" for each in range(3)] if rank == 0 else [*own["ranks"]])
        if rank == 0:
            torch.save({"model": ddp.module.state_dict(), "compression": gathered}, folder / name)
        dist.barrier()
        saved = torch.load(folder / name, weights_only=True)
        again = compressed(make_model(1), name)
        again.module.load_state_dict(saved["model"])
        hc.of(again).load_gathered_state_dict(saved["compression"])
        kept = remembered(hc.state_dict(again))["residuals"]
        assert all(torch.equal(kept[key], each) for key, each in remembered(own)["residuals"].items())
        other = optimizer_of(again)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(ddp, optimizer, rank, range(4, 6))
        train(again, other, rank, range(4, 6))
        assert torch.equal(flat(ddp), flat(again)), name
        with pytest.raises(ConfigError, match=f"not the state of all ranks of a job, but of rank {rank} of 3"):
            hc.of(again).load_gathered_state_dict(own)
    with pytest.raises(UsageError, match="is not compressed"):
        hc.of(make_model()).gathered_state_dict()


def of_some_ranks(rank: int) -> None:
    """A model of two ranks of three: they are counted, and gathered, as in its process group."""
    group = dist.new_group([1, 2])
    if rank:
        ddp = compressed(make_model(), "int4", process_group=group)
        own, gathered = hc.state_dict(ddp)["ranks"], hc.of(ddp).gathered_state_dict()["ranks"]
        assert list(own) == [f"rank {rank - 1} of 2"]
        assert list(gathered) == (["rank 0 of 2", "rank 1 of 2"] if rank == 1 else list(own))


def go_on(rank: int, folder: Path) -> None:
    """Two ranks where there were three: the average over ranks owes what it did before."""
    for name in NAMES:
        saved = torch.load(folder / name, weights_only=True)["compression"]
        ddp = compressed(make_model(), name)
        hc.of(ddp).load_gathered_state_dict(saved)
        found = remembered(hc.state_dict(ddp))
        ranks = [saved["ranks"][f"rank {each} of 3"] for each in range(3)]
        for key, residual in found["residuals"].items():
            mean = torch.stack([each["residuals"][key].double() for each in ranks]).mean(dim=0)
            assert torch.allclose(residual.double(), mean, atol=1e-7, rtol=1e-6)
        assert any(bool(each.any()) for each in found["residuals"].values())
        for kind, kept in found["states"].items():
            for key, tensor in kept.items():
                if all(torch.equal(each["states"][kind][key], tensor) for each in ranks[:1]):
                    assert torch.equal(tensor, ranks[1]["states"][kind][key]), "alike on all ranks, it stays so"
        train(ddp, optimizer_of(ddp), rank, range(1))
        assert hc.of(ddp).last_step.step == saved["step"]


def test_a_rank_that_gathers_alone_is_told_so_and_pairs_with_nothing() -> None:
    """As `if rank == 0: save(gathered_state_dict())` does, while others go on with collectives of their own."""
    run_ranks(gather_alone, ranks=2, HVD_COMPRESS_TIMEOUT_S="1")


def gather_alone(rank: int) -> None:
    ddp = compressed(make_model(), "int4")
    train(ddp, optimizer_of(ddp), rank, range(2))
    hc.of(ddp).gathered_state_dict()
    if rank == 0:
        with pytest.raises(CommunicationError, match=r"step 2, what is saved: no answer within 1 s .* rank 1 has not"):
            hc.of(ddp).gathered_state_dict()
        with pytest.warns(UserWarning, match="an earlier exchange failed, .*: this is of one rank"):
            assert list(hc.of(ddp).gathered_state_dict()["ranks"]) == ["rank 0 of 2"]
    found = torch.zeros(2)
    dist.all_gather_into_tensor(found, torch.tensor([float(rank)]))
    assert found.tolist() == [0.0, 1.0]
