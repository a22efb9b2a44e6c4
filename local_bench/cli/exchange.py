"""`export` and `import`: images and results in the benchmarks' file layouts."""

import math
import shlex
from pathlib import Path

import click

from local_bench.cli.options import JSON, PATH, RUN, examples
from local_bench.cli.output import quoted, say, say_faults, show, show_json


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
        suite_path = run.config.suite.path
    for note in notes:
        say(note)
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
    if as_json:
        show_json({"format": name, "labels": str(labels), "n": n, "n_new": n_new, "n_without_verdict": n_skipped})
    else:
        what = f"{n} annotations in {labels}, {n_new} of them new"
        show(f"{what}; skipped {n_skipped} entries without a verdict")
        show(f"local-bench agreement {quoted(run_dir)} --people {quoted(labels)}")
    return 0


def _import_images(name: str, folder: Path, as_json: bool) -> int:
    import yaml

    from local_bench.analysis.import_images import write_manifests

    manifests = write_manifests(name, folder)
    if as_json:
        rows = [
            {"method": m.method, "manifest": str(m.path), "n": m.n_images, "attempts": m.attempts} for m in manifests
        ]
        show_json({"format": name, "manifests": rows})
    else:
        show("models:")
        for m in manifests:
            model = {"card": "imported", "name": m.method, "attempts": m.attempts, "imported": {"images": str(m.path)}}
            line = yaml.safe_dump(model, default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf)
            show(f"  - {line.strip()}")
    return 0
