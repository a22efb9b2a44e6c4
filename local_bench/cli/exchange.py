"""`export`, `import` and `score`: images and results in the benchmarks' file layouts, and their published numbers."""

import math
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, RUN, examples
from local_bench.cli.output import quoted, say, say_faults, say_written, show, show_json, show_result
from local_bench.core.errors import count
from local_bench.report.render import columns_text

if TYPE_CHECKING:
    from local_bench.suites.base import Suite


@click.command("export", epilog=examples("local-bench export runs/ice --format ice-bench --out ice-results"))
@RUN
@click.option(
    "--format", "name", required=True, metavar="NAME", help="ice-bench, idea-bench, hype-edit-1 or servimage."
)
@click.option("--out", type=PATH, help="The output folder [default: RUN/exports/NAME].")
@JSON
def export_run(run_dir: Path, name: str, out: Path | None, as_json: bool) -> int:
    """Write RUN's images and results in a benchmark's file layout.

    The files are readable by the benchmark's official scorer and by `local-bench score`."""
    from local_bench.analysis.official import export, export_notes, suite_of_layout
    from local_bench.runs.rundir import RunDir

    benchmark = suite_of_layout(name)
    out = out or run_dir / "exports" / name
    with RunDir.open(run_dir) as run:
        files = export(run, name, out)
        notes = export_notes(run)
        faults = run.image_store.all_faults
        say_written(run)
        suite_path = run.config.suite.path
    say(*notes)
    if as_json:
        result = {"format": name, "out": str(out), "files": [str(path) for path in files], "notes": notes}
        show_json(result | {"image_faults": [vars(fault) for fault in faults]})
    elif (scored_with := benchmark.score_options) is None:
        show("\n".join(map(str, files)))
    else:
        written = {option: out / file for option, file in benchmark.exported_options.items() if (out / file).exists()}
        if "tasks" not in written and "tasks" in scored_with and suite_path and Path(suite_path).is_dir():
            written["tasks"] = Path(suite_path)
        options = "".join(f" --{option} {quoted(path)}" for option, path in written.items())
        groups = [[path] for path in files] if benchmark.scores_one_file else [files]
        show(
            "\n".join(f"local-bench score {benchmark.name} {shlex.join(map(str, group))}{options}" for group in groups)
        )
    return say_faults(faults)


@click.command(
    "import",
    epilog=examples(
        "local-bench import ice-bench outputs/          # images of other systems, as models of a config",
        "local-bench import servimage annotations.jsonl --run runs/servimage --labels labels.jsonl",
    ),
)
@click.argument("name", metavar="FORMAT")
@click.argument("paths", metavar="FOLDER|FILE…", nargs=-1, required=True, type=PATH)
@click.option("--run", "run_dir", metavar="RUN", type=PATH, help="Import result files as annotations of this run.")
@click.option("--labels", metavar="OUT", type=PATH, help="The annotation file to write, one JSON object per line.")
@click.option("--rater", metavar="NAME", help="The annotator's name [default: people].")
@JSON
def import_files(
    name: str, paths: tuple[Path, ...], run_dir: Path | None, labels: Path | None, rater: str | None, as_json: bool
) -> int:
    """Import a benchmark's files: images as outputs of a model, results as annotations.

    FORMAT is ice-bench, idea-bench, hype-edit-1 or servimage. A FOLDER of outputs gives one manifest per method, for
    models with `card: imported`. Result FILEs with --run and --labels give annotations for agreement and settle."""
    from local_bench.analysis.official import suite_of_layout
    from local_bench.core.errors import UserError

    suite_of_layout(name)
    if run_dir is None and labels is None and rater is None:
        if len(paths) != 1:
            raise UserError(f"images are imported from one folder at a time, not {len(paths)}: give one folder")
        return _import_images(name, paths[0], as_json)
    if run_dir is None or labels is None:
        raise UserError("annotations are imported for the images of a run: give both --run RUN and --labels OUT")
    from local_bench.analysis.import_images import write_labels
    from local_bench.annotation.ratings import PEOPLE
    from local_bench.runs.rundir import RunDir

    existed = labels.exists()  # then it has the same annotations, or it is an error
    with RunDir.open(run_dir) as run:
        n, n_skipped = write_labels(run, name, paths, rater or PEOPLE, labels)
    n_new = 0 if existed else n
    values = {"format": name, "labels": str(labels), "n": n, "n_new": n_new, "n_without_verdict": n_skipped}
    text = f"{count(n, 'annotations')} in {labels}, {n_new} of them new; skipped "
    text += f"{count(n_skipped, 'entries')} without a verdict"
    command = f"local-bench agreement {quoted(run_dir)} --people {quoted(labels)}"
    return show_result(values, f"{text}\n{command}", as_json)


def _import_images(name: str, folder: Path, as_json: bool) -> int:
    import yaml

    from local_bench.analysis.import_images import write_manifests

    manifests, lines = write_manifests(name, folder), ["models:"]
    for of in manifests:
        imported = {"images": of["manifest"]}
        model = {"card": "imported", "name": of["method"], "attempts": of["attempts"], "imported": imported}
        line = yaml.safe_dump(model, default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf)
        lines.append(f"  - {line.strip()}")
    return show_result({"format": name, "manifests": manifests}, "\n".join(lines), as_json)


@click.command(
    epilog=examples(
        "local-bench score ice-bench eval_result.txt --json",
        "local-bench score idea-bench results.csv",
        "local-bench score hype-edit-1 judgements.json --costs costs.json",
        "local-bench score servimage annotations.jsonl --tasks tasks.jsonl --scores scores.jsonl",
    )
)
@click.argument("suite", metavar="SUITE")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=PATH)
@click.option(
    "--tasks",
    type=PATH,
    help="servimage: the tasks (task_id, category, price_usd, deliverables; or the folder ServImage_Bench). "
    "idea-bench: the dataset folder; its meta.json files contain the task categories (not needed for the mini subset).",
)
@click.option(
    "--scores",
    type=PATH,
    help="servimage: BRF, VEQ and CNS per image, used to break ties in the competition. hype-edit-1: a judge's "
    "score per attempt (model, task_id, attempt, score), used to select the best of several.",
)
@click.option("--costs", type=PATH, help='servimage, hype-edit-1: {"model": US dollars per image}.')
@click.option("--api-prices", is_flag=True, default=None, help="Use the paper's prices instead of --costs.")
@click.option("--sensitivity", is_flag=True, default=None, help="Also report rankings under other assumptions.")
@click.option(
    "--require-success", is_flag=True, default=None, help="servimage: pay a winner for fully accepted tasks only."
)
@click.option("--review-usd-per-hour", metavar="USD", help="hype-edit-1: a reviewer's hourly wage [default: 50].")
@click.option("--review-seconds", metavar="S", help="hype-edit-1: review time per image [default: 20].")
@click.option(
    "--retry-cap", metavar="N", type=click.IntRange(1, 1000), help="hype-edit-1: maximum attempts [default: 4]."
)
@click.option(
    "--raters",
    is_flag=True,
    default=None,
    help="hype-edit-1: each file is from one rater; decide by majority.",
)
@JSON
def score(suite: str, files: tuple[Path, ...], as_json: bool, **options: Any) -> int:
    """Compute a benchmark's published numbers from its official result files.

    SUITE is ice-bench (eval_result.txt), idea-bench (results CSV), hype-edit-1 (judgements.json, one or several) or
    servimage (annotations.jsonl, one or several)."""
    from local_bench.core.errors import UserError
    from local_bench.suites.published import ScoreOptions

    scored = _scored_suite(suite, [name for name, value in options.items() if value is not None])
    if scored.scores_one_file and len(files) != 1:
        raise UserError(f"{suite} results are in one file, but {len(files)} are given: score each file separately")
    if options["costs"] is not None and options["api_prices"]:
        raise UserError("--costs and --api-prices both set the cost per image: give only one of them")
    result = scored.score(files, ScoreOptions(**options))
    show_result(result.data, "\n\n".join(map(columns_text, result.tables)), as_json)
    say(*result.notes)
    return 0


def _scored_suite(name: str, options: list[str]) -> "Suite":
    """UserError for a suite without result files, or an option of another suite."""
    from local_bench.core.errors import UserError, hint
    from local_bench.suites.registry import all_suites, suite, suite_names

    def scored() -> dict[str, Collection[str]]:
        return {other.name: other.score_options for other in all_suites() if other.score_options is not None}

    entry = suite(name) if name in suite_names() else None
    if entry is None or entry.score_options is None:
        suggestion = hint(name, scored(), f"use {', '.join(scored())}")
        raise UserError(f"suite {name!r} has no official result files: {suggestion}")
    for option in options:
        if option not in entry.score_options:
            owners = " and ".join(other for other, taken in scored().items() if option in taken)
            raise UserError(f"--{option.replace('_', '-')} applies only to {owners}: omit it for {name}")
    return entry
