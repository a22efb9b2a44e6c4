"""`local-bench measure FOLDER --metrics …`: only the numbers, for any folder of images."""

from pathlib import Path

from local_bench.cli.output import progress, show, show_json, table
from local_bench.core.errors import ImageError, UserError
from local_bench.core.images import load_image
from local_bench.core.nouns import Score
from local_bench.judges.metrics.base import make_metric

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}


def measure_folder(folder: Path, names: list[str], as_json: bool) -> int:
    """Prints one row an image. UserError where there are none; an unreadable image is an unscored row."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give one with images in it")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise UserError(f"{folder} holds no {', '.join(sorted(SUFFIXES))} files: give a folder with images in it")
    metrics = [make_metric(name) for name in names]
    rows: dict[str, list[Score]] = {}
    with progress() as shown:
        shown.begin("measure", len(paths))
        for path in paths:
            try:
                image = load_image(path)
                scores = [metric.score([image], [None])[0] for metric in metrics]
            except ImageError as e:
                scores = [Score(name, None, str(e)) for name in names]
            rows[path.relative_to(folder).as_posix()] = scores
            shown.advance()
    if as_json:
        show_json(
            {
                "metrics": {
                    m.spec.name: {
                        "higher_is_better": m.spec.higher_is_better,
                        "preprocessing": m.spec.preprocessing,
                        "source": m.spec.source,
                    }
                    for m in metrics
                },
                "images": {
                    name: {s.name: {"value": s.value, "unscored": s.unscored} for s in scores}
                    for name, scores in rows.items()
                },
            }
        )
    else:
        show(table(["image", *names], [[name, *(_cell(s) for s in scores)] for name, scores in rows.items()]))
    return 0


def _cell(score: Score) -> str:
    return f"{score.value:.4f}" if score.value is not None else f"unscored: {score.unscored}"
