"""Downloads models on every node of a Ray cluster and compares their digests; for nodes without a shared cache."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from local_bench.core.environment import go_online, isolate
from local_bench.core.errors import LocalBenchError
from local_bench.models.cards import ModelCard
from local_bench.runs.config import EngineConfig, RayConfig
from local_bench.runs.executors.ray_cluster import Cluster, lost_error

_OTHER_FILES = "its files differ from those of this machine: fetch the same commit on both"


@dataclass(frozen=True)
class NodeModel:
    """A model on a node."""

    node: str
    model: str
    weights_sha256: str | None
    error: str | None
    """Why the model cannot be used there."""


def fetch_on_nodes(
    address: str, cards: Sequence[ModelCard], revisions: Mapping[str, str], expected: Mapping[str, str | None]
) -> list[NodeModel]:
    """Fetch `cards` on every node of the cluster at `address`, each with its own network access and Hub login.

    `expected` are the weights' digests on this machine, by card; a node with others has an error. ConfigError if the
    cluster cannot be used.
    """
    cluster = Cluster(EngineConfig(device="cpu", executor="ray", ray=RayConfig(address=address)))
    try:
        remote = cluster.ray.remote(_fetch)
        environ = {name: os.environ[name] for name in ("LOCAL_BENCH_CACHE", "HF_HOME") if name in os.environ}
        started = [
            (node, remote.options(**cluster.pinned(node["NodeID"])).remote(list(cards), dict(revisions), environ))
            for node in cluster.nodes()
        ]
        found: list[NodeModel] = []
        for node, reference in started:
            try:
                results = cluster.ray.get(reference)
            except cluster.ray.exceptions.RayError as e:
                results = {card.name: (None, lost_error(cluster.ray, e)) for card in cards}
            for model, (sha256, error) in results.items():
                other = error is None and sha256 != expected.get(model)
                found.append(NodeModel(node["NodeName"], model, sha256, _OTHER_FILES if other else error))
        return found
    finally:
        cluster.close()


def _fetch(
    cards: list[ModelCard], revisions: dict[str, str], environ: dict[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """(digest, error) of each card, on a node."""
    os.environ.update(environ)
    isolate()
    go_online()
    from local_bench.models.fetch import fetch
    from local_bench.models.weights import resolve, resolve_parts, weights_digest

    found: dict[str, tuple[str | None, str | None]] = {}
    for card in cards:
        try:
            fetch(card, revisions)
            found[card.name] = weights_digest(resolve(card), resolve_parts(card)), None
        except LocalBenchError as e:
            found[card.name] = None, str(e)
    return found
