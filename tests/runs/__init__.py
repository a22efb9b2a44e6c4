from local_bench.runs.rundir import RunDir


def answers(run_dir):
    """The verdicts without their judge: what an external server serves is part of its identity, so a managed one is
    another judge, with the same answers."""
    with RunDir.open(run_dir) as run:
        query = "SELECT work_id, rubric, point, repeat, answer, labels, unscored, raw FROM verdicts ORDER BY 1, 2, 3, 4"
        return [tuple(row) for row in run.store.rows(query)]
