"""How many clusters the heads of each layer form: what is found once for a model, and kept in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from hvd_compress import schema
from hvd_compress.attention.shares import cache_share
from hvd_compress.errors import ConfigError, PlanError

WHAT = "file of cluster counts"
MOST_HEADS, MOST_LAYERS = 4096, 4096
Head = Annotated[int, Field(ge=0, lt=MOST_HEADS)]
Error = Annotated[float, Field(ge=0)]
Correlation = Annotated[float, Field(ge=-1.001, le=1.001)]


class LayerClusters(schema.Strict):
    """The clusters of one layer.

    Attributes:
        clusters: k, how many.
        membership: for each head the representative of its cluster over all samples, which CHAI-static takes.
        errors: E(1) .. E(H), the error of k-means against k; empty where it was not measured.
        correlation: Pearson's between heads, H x H, mean over samples; empty where it was not measured.
    """

    clusters: Annotated[int, Field(ge=1, le=MOST_HEADS)]
    membership: Annotated[tuple[Head, ...], Field(min_length=1, max_length=MOST_HEADS)]
    errors: tuple[Error, ...] = ()
    correlation: tuple[tuple[Correlation, ...], ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> LayerClusters:
        heads = len(self.membership)
        if any(source >= heads or self.membership[source] != source for source in self.membership):
            raise ValueError(
                f"membership must name, for each of {heads} heads, a representative that represents itself"
            )
        if len(set(self.membership)) != self.clusters:
            raise ValueError(
                f"membership has {len(set(self.membership))} representatives, and clusters is {self.clusters}"
            )
        if self.errors and len(self.errors) != heads:
            raise ValueError(f"errors has {len(self.errors)} numbers for {heads} heads")
        if self.correlation and {len(self.correlation), *map(len, self.correlation)} != {heads}:
            raise ValueError(f"correlation is not {heads} x {heads}")
        return self


class ClusterCounts(schema.Strict):
    """The clusters of all layers of a model.

    Attributes:
        heads: query heads of a layer.
        layers: each layer's clusters.
        model: the type of the model that they are of, for people.
        samples, tokens: that they were found with; 0 where they were not.
        plateau: the share of the error of one cluster that the elbow leaves, also where it was found for a share of the
            cache.
    """

    kind: Literal["hvd_compress/cluster-counts"] = Field(default="hvd_compress/cluster-counts", alias="schema")
    version: Literal[1] = 1
    model: str = ""
    heads: Annotated[int, Field(ge=1, le=MOST_HEADS)]
    layers: Annotated[tuple[LayerClusters, ...], Field(min_length=1, max_length=MOST_LAYERS)]
    samples: Annotated[int, Field(ge=0)] = 0
    tokens: Annotated[int, Field(ge=0)] = 0
    plateau: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> ClusterCounts:
        for index, layer in enumerate(self.layers):
            if len(layer.membership) != self.heads:
                raise ValueError(f"layer {index} has {len(layer.membership)} heads, and heads is {self.heads}")
        return self

    @classmethod
    def of(cls, memberships: Sequence[Sequence[int]]) -> ClusterCounts:
        """Return the counts of given clusters: for each layer and head the representative of the head's cluster.

        Raises:
            ConfigError: a representative does not represent itself, or layers have different numbers of heads.
        """
        try:
            layers = tuple(
                LayerClusters(clusters=max(1, len(set(each))), membership=tuple(each)) for each in memberships
            )
            return cls(heads=len(layers[0].membership) if layers else 1, layers=layers)
        except ValidationError as error:
            words = [f"{'.'.join(map(str, each['loc'])) or 'memberships'}: {each['msg']}" for each in error.errors()]
            raise ConfigError(f"these are no clusters of heads: {schema.summary(words)}") from None

    @property
    def clusters(self) -> tuple[int, ...]:
        """k of each layer."""
        return tuple(layer.clusters for layer in self.layers)

    @property
    def cache_share(self) -> float:
        """The share of a full cache's bytes that stays, where no keys are shared by heads: sum over layers of
        (k + H) / (2 L H)."""
        return cache_share(self.clusters, self.heads)

    def save(self, path: str | Path) -> None:
        """Write them to a file of JSON. Raises PlanError where it cannot be written."""
        schema.write(path, self.model_dump(mode="json", by_alias=True), WHAT)

    @staticmethod
    def load(path: str | Path) -> ClusterCounts:
        """Read such a file. Raises PlanError, which names what is wrong by its path in the file."""
        return schema.read(path, ClusterCounts, WHAT)

    def check(self, layers: int, heads: int, model: str) -> None:
        """Compare with a model that has so many layers and query heads. Raises PlanError where it is another one."""
        if (len(self.layers), self.heads) != (layers, heads):
            raise PlanError(
                f"these cluster counts are of {len(self.layers)} layers with {self.heads} heads"
                f"{f' ({self.model})' if self.model else ''}, and {model} has {layers} layers with {heads} heads: "
                "find_clusters(model, samples) makes those of this model"
            )
