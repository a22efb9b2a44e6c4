"""`local-bench measure FOLDER --metrics …`: metrics of the images in any folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.cli.output import progress, show, show_json
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from local_bench.core.types import Score
    from local_bench.runs.measure_folder import PairedFiles


def measure_folder(
    folder: Path,
    metrics: str,
    paired: "PairedFiles",
    out: Path | None,
    settings: tuple[str, ...],
    require_metrics: bool,
    as_json: bool,
) -> int:
    """Print one row per image; an unreadable image gives an unscored row. UserError if there are no images."""
    from local_bench.core.process import quiet_transformers
    from local_bench.generators.numerics import choose_device, set_determinism
    from local_bench.judges.metrics.registry import metric_card
    from local_bench.runs.config import engine_settings
    from local_bench.runs.measure_folder import measure_images

    names = list(dict.fromkeys(name.strip() for name in metrics.split(",")))
    needs_models = any(metric_card(name) for name in names)
    engine = engine_settings(settings)
    if needs_models:
        set_determinism(engine.threads)  # imports torch, which takes seconds; pixel metrics do not need it
    quiet_transformers()
    engine = engine.model_copy(update={"device": str(choose_device(engine.device))})
    with progress() as bars:
        result = measure_images(folder, names, paired, engine, bars, out, require_metrics)
    if as_json:
        images = {
            image: {name: {"value": scores[name].value, "unscored": scores[name].unscored} for name in names}
            for image, scores in result.images.items()
        }
        show_json({"metrics": result.metrics, "captions_cut": result.cut, "images": images})
    else:
        rows = [[image, *(_cell(scores[name]) for name in names)] for image, scores in result.images.items()]
        show(aligned(["image", *names], rows))
    return 0


def _cell(score: "Score") -> str:
    return f"{score.value:.4f}" if score.value is not None else f"unscored: {score.unscored}"
