from local_bench.core.types import canonical_json
from local_bench.runs.config import EngineConfig, LossyConfig, ModelConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Candidate
from local_bench.runs.work import ModelPlan, WorkOrder
from tests.orders import noise, order, write_orders


def two_orders(folder, *points):
    """Two orders of two images each in `orders.jsonl`, and images for them in `images`."""
    for i in range(2):
        for k in (1, 2):
            noise(folder / "images" / f"t{i}" / f"{k}.png", 2 * i + k)
    write_orders(
        folder / "orders.jsonl", (order(f"t{i}", ["front", "back"], evaluation_points=points) for i in range(2))
    )


def plain_order(card, folder, batch_size=None, attempts=1, weights=None, lossy=(), **changes):
    """A work order of a model with random weights on the CPU, as a run without settings has it."""
    settings = ModelConfig(card=card.name, batch_size=batch_size, attempts=attempts, lossy=LossyConfig(**dict(lossy)))
    model = ModelPlan(settings, card, weights, weights_sha256="random")
    device = {"device": "cpu", "attention": "native", "compile": False}
    return WorkOrder(**{"model": model, "engine": EngineConfig(), "folder": folder} | device | changes)


def job(work_id, prompt, seed, sampler, *input_images):
    """A candidate to generate, with an id and a seed of its own."""
    work = canonical_json({"sampler": sampler.settings, "pictures": input_images})
    return Candidate(work_id, 0, "t", 1, "m", 1, prompt, work, seed)


def rows(run_dir, query, *values):
    with RunDir.open(run_dir) as run:
        return run.store.rows(query, *values)


def answers(run_dir):
    """The verdicts without their judge: what an external server serves is part of its identity, so a managed one is
    another judge, with the same answers."""
    query = "SELECT work_id, rubric, point, repeat, answer, labels, unscored, raw FROM verdicts ORDER BY 1, 2, 3, 4"
    return [tuple(row) for row in rows(run_dir, query)]
