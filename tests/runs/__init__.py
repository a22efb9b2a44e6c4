from local_bench.runs.rundir import RunDir
from local_bench.runs.work import WorkOrder
from tests.orders import noise, order, write_orders


def two_orders(folder, *points):
    """Two orders of two images each in `orders.jsonl`, and images for them in `images`."""
    for i in range(2):
        for k in (1, 2):
            noise(folder / "images" / f"t{i}" / f"{k}.png", 2 * i + k)
    write_orders(
        folder / "orders.jsonl", (order(f"t{i}", ["front", "back"], evaluation_points=points) for i in range(2))
    )


def plain_order(card, folder, **changes):
    """A work order of a model with random weights on the CPU, as a run without settings has it."""
    execution = {"device": "cpu", "attention": "native", "compile": False, "offload": (), "threads": 1, "io_workers": 2}
    weights = {"weights": None, "parts": {}, "weights_sha256": "random", "lossy": {}}
    batches = {"batch_order": "plan", "batch_size": None, "attempts": 1, "capacity_gb": None}
    settings = {"label": card.name, "card": card, "folder": folder} | execution | weights | batches
    return WorkOrder(**settings | changes)


def rows(run_dir, query, *values):
    with RunDir.open(run_dir) as run:
        return run.store.rows(query, *values)


def answers(run_dir):
    """The verdicts without their judge: what an external server serves is part of its identity, so a managed one is
    another judge, with the same answers."""
    query = "SELECT work_id, rubric, point, repeat, answer, labels, unscored, raw FROM verdicts ORDER BY 1, 2, 3, 4"
    return [tuple(row) for row in rows(run_dir, query)]
