"""A training loop whose embedding rows come through a Lookahead. How the dense part is distributed, the script says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

import torch
from images.ranks import Ranks
from torch import nn

from hvd_compress.embedding import Journal
from recommendation.embedding_model import EmbeddingModel, Settings
from recommendation.metrics import Score, loss_of
from recommendation.sources import Batches, Source

Distribute = Callable[[nn.Module, float], tuple[nn.Module, torch.optim.Optimizer]]
"""From a model and a learning rate to one that all ranks train, and its optimizer."""


def train(source: Source, steps: int, settings: Settings, ranks: Ranks, distribute: Distribute) -> None:
    """Train on at most `steps` batches, score those of the test behind them, and print what happened.

    A batch is scored before it is trained on, so that in the first epoch no example of a score has been seen before.
    """
    model = EmbeddingModel(source, settings)
    parameters = sum(parameter.numel() for parameter in model.dense.parameters())
    ranks.say(f"{source.text}: {sum(source.tables):,} rows in {len(source.tables)} table(s)")
    ranks.say(f"{settings.model} of {parameters:,} dense parameters on {ranks.size} rank(s)")
    model.dense, optimizer = distribute(model.dense, settings.lr)
    batches, journal = Batches(source), None
    if settings.journal is not None:
        journal = Journal(settings.journal, {"model": model.dense, "optimizer": optimizer})
    loader = model.lookahead(batches, settings, journal)
    first = batches.first = 0 if journal is None else loader.restore()
    if first:
        ranks.say(f"goes on behind step {first}")
    name = model.embedding.layout.name
    score, moved, done, start = Score(), Counter[str](), first, 0.0
    for step, batch in enumerate(loader, start=first):
        start = start or time.perf_counter()  # when the first rows are there
        training = step < steps
        if first < step <= steps:
            moved.update(loader.counts[name]._asdict())
        if step == steps:
            _report(done - first, start, moved, ranks)
            model.dense.eval()
            score = Score()
        with torch.set_grad_enabled(training):
            logits = model(batch)
            loss = loss_of(logits, batch.labels)
        score.add(logits, batch.labels, loss)
        if training:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
            if done % settings.report_every == 0 or done == steps:
                ranks.say(f"step {done}: {score.text(ranks.sum)}")
                score = Score()
    if done < steps and done % settings.report_every:  # the data ended
        ranks.say(f"step {done}: {score.text(ranks.sum)}")
    if done < steps or not source.test:
        moved.update(loader.counts[name]._asdict())
        _report(done - first, start, moved, ranks)
    else:
        ranks.say(f"test: {score.text(ranks.sum)}")
    loader.close()


def _report(steps: int, start: float, moved: Mapping[str, int], ranks: Ranks) -> None:
    """`moved`: sums of loader.counts, which at the top of the loop are those of the exchange behind the step before."""
    if not steps:  # an earlier run has trained on all
        return
    rate = steps / (time.perf_counter() - start)
    ranks.say(f"{steps} steps, {rate:.1f} steps/s, with {ranks.size} rank(s)")
    each = ", ".join(f"{name} {count / steps:,.0f}" for name, count in moved.items())
    ranks.say(f"rows a step over all ranks: {each}")
