"""local-bench: evaluates open-weight image generation models wholly on a lab's own GPUs.

    import local_bench

    run = local_bench.load_run("runs/demo")
    run.candidates()   # a pandas data frame: one row an image, with its file and cost
    run.scores()

Subclasses of `Suite`, `HostMetric`, `NetworkMetric`, `Generator` and `Judge` are found by entry points; see
docs/extending.md. Importing this module imports neither torch nor pandas.
"""

from typing import TYPE_CHECKING, Any

from local_bench.core import __version__

if TYPE_CHECKING:
    from local_bench.analysis.loading import Run, load_run
    from local_bench.core.errors import ConfigError, LocalBenchError, UserError
    from local_bench.core.types import Deliverable, Question, Score, Task, Verdict
    from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item
    from local_bench.generators.registry import Sampler, Traits
    from local_bench.generators.staged import Staged as Generator
    from local_bench.judges.metrics.base import (
        FeatureInput,
        HostMetric,
        LoadedSubject,
        Metric,
        MetricSpec,
        Network,
        NetworkMetric,
        Subject,
        Unscorable,
    )
    from local_bench.judges.vlm.judge import Judge
    from local_bench.judges.vlm.protocols import Reply, Request
    from local_bench.suites.base import Suite

_WHERE = {
    **dict.fromkeys(("Run", "load_run"), "local_bench.analysis.loading"),
    **dict.fromkeys(("ConfigError", "LocalBenchError", "UserError"), "local_bench.core.errors"),
    **dict.fromkeys(("Deliverable", "Question", "Score", "Task", "Verdict"), "local_bench.core.types"),
    **dict.fromkeys(("EncodedPrompt", "GenerationRequest", "Item"), "local_bench.generators.base"),
    "Sampler": "local_bench.generators.registry",
    "Traits": "local_bench.generators.registry",
    "Generator": "local_bench.generators.staged:Staged",
    **dict.fromkeys(
        ("FeatureInput", "HostMetric", "LoadedSubject", "Metric", "MetricSpec", "Network", "NetworkMetric", "Subject"),
        "local_bench.judges.metrics.base",
    ),
    "Unscorable": "local_bench.judges.metrics.base",
    "Judge": "local_bench.judges.vlm.judge",
    **dict.fromkeys(("Reply", "Request"), "local_bench.judges.vlm.protocols"),
    "Suite": "local_bench.suites.base",
}
__all__ = [
    "ConfigError",
    "Deliverable",
    "EncodedPrompt",
    "FeatureInput",
    "GenerationRequest",
    "Generator",
    "HostMetric",
    "Item",
    "Judge",
    "LoadedSubject",
    "LocalBenchError",
    "Metric",
    "MetricSpec",
    "Network",
    "NetworkMetric",
    "Question",
    "Reply",
    "Request",
    "Run",
    "Sampler",
    "Score",
    "Subject",
    "Suite",
    "Task",
    "Traits",
    "Unscorable",
    "UserError",
    "Verdict",
    "__version__",
    "load_run",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, _, attribute = _WHERE[name].partition(":")
    found = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
