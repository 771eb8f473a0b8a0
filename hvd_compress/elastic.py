"""Training that goes on with the ranks that are there: `from hvd_compress import elastic`.

    state = elastic.TorchState(model, optimizer, step=0)

    @elastic.run
    def train(state): ...

Under `hvd-compress run --min-np` ranks stay and meet anew; torchrun starts all of them again, and state.commit() keeps
copies in memory for that. hvd_compress.torch has it as hvd.elastic. docs/elastic.md says what each way can do.
"""

from hvd_compress.frontends.elastic.run import run
from hvd_compress.frontends.elastic.sampler import ElasticSampler
from hvd_compress.frontends.elastic.states import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
