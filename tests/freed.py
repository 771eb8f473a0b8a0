"""What stays of an optimizer that is dropped, before the garbage collector comes."""

from __future__ import annotations

import gc
import weakref

from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, make_optimizer, make_parameters

SETTINGS = Settings(fusion_threshold_bytes=600, timeout_s=60, adapt=True, calibration_s=0.0)


def left_over(request: Request) -> list[list[str]]:
    """Return by rank what of a session is alive after its optimizer has trained, was closed and dropped."""

    def body(engine: InProcessEngine) -> list[str]:
        parameters = make_parameters()
        optimizer = make_optimizer(
            parameters, request, lambda: engine, engine.rank, engine.world_size, settings=SETTINGS
        )
        for step in range(4):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        session = optimizer._reducer.session
        parts = [session, session.steering, session.policy, session.services, session.buckets, session._pipeline]
        known = {type(part).__name__: weakref.ref(part) for part in (*parts, *session.services.every)}
        session.close()
        del session, optimizer, parameters, parts
        return [name for name, known_of in known.items() if known_of() is not None]

    gc.collect()
    gc.disable()
    try:
        return run_ranks(2, body)
    finally:
        gc.enable()
