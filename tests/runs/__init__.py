from local_bench.runs.rundir import RunDir
from tests.orders import noise, order, write_orders


def two_orders(folder, *points):
    """Two orders of two images each in `orders.jsonl`, and images for them in `images`."""
    for i in range(2):
        for k in (1, 2):
            noise(folder / "images" / f"t{i}" / f"{k}.png", 2 * i + k)
    write_orders(
        folder / "orders.jsonl", (order(f"t{i}", ["front", "back"], evaluation_points=points) for i in range(2))
    )


def answers(run_dir):
    """The verdicts without their judge: what an external server serves is part of its identity, so a managed one is
    another judge, with the same answers."""
    with RunDir.open(run_dir) as run:
        query = "SELECT work_id, rubric, point, repeat, answer, labels, unscored, raw FROM verdicts ORDER BY 1, 2, 3, 4"
        return [tuple(row) for row in run.store.rows(query)]
