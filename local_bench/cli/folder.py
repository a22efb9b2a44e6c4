"""`local-bench measure FOLDER --metrics …`: only the numbers, for any folder of images."""

from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.cli.output import progress, show, show_json
from local_bench.core.tables import table

if TYPE_CHECKING:
    from local_bench.core.types import Score
    from local_bench.runs.folder import PairedFiles


def measure_folder(
    folder: Path,
    metrics: str,
    beside: "PairedFiles",
    out: Path | None,
    settings: tuple[str, ...],
    require_metrics: bool,
    as_json: bool,
) -> int:
    """Prints one row an image. UserError where there are none; an unreadable image is an unscored row."""
    from local_bench.core.quiet import quiet_transformers
    from local_bench.generators.numerics import choose_device, set_determinism
    from local_bench.judges.metrics.registry import metric_card
    from local_bench.runs.config import engine_settings
    from local_bench.runs.folder import measure_images

    names = list(dict.fromkeys(name.strip() for name in metrics.split(",")))
    read_off_models = [name for name in names if metric_card(name)]
    engine = engine_settings(settings)
    if read_off_models:
        set_determinism(engine.threads)  # seconds, which plain arithmetic on pixels need not wait for
    quiet_transformers()
    engine = engine.model_copy(update={"device": str(choose_device(engine.device))})
    with progress() as shown:
        found = measure_images(folder, names, beside, engine, shown, out, require_metrics)
    if as_json:
        images = {
            image: {name: {"value": scores[name].value, "unscored": scores[name].unscored} for name in names}
            for image, scores in found.images.items()
        }
        show_json({"metrics": found.metrics, "images": images})
    else:
        rows = [[image, *(_cell(scores[name]) for name in names)] for image, scores in found.images.items()]
        show(table(["image", *names], rows))
    return 0


def _cell(score: "Score") -> str:
    return f"{score.value:.4f}" if score.value is not None else f"unscored: {score.unscored}"
