"""The suite `studio`."""

from pathlib import Path

from local_bench.suites.servimage.suite import DesignTasks


class Studio(DesignTasks):
    """Twelve commercial design tasks, judged and settled as ServImage's."""

    name = "studio"
    title = "Twelve commercial briefs of our own"
    licence = "Apache-2.0"
    source = "local-bench"
    shipped = Path(__file__).with_name("orders.jsonl")
