"""The commands that carry results between houses: `export` and `import`, in the benchmarks' own layouts."""

from pathlib import Path

import click

from local_bench.cli.output import show, show_json

FILE = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command("export")
@click.argument("run_dir", metavar="RUN", type=FILE)
@click.option(
    "--format", "name", required=True, metavar="NAME", help="ice-bench, idea-bench, hype-edit-1 or servimage."
)
@click.option("--out", type=FILE, help="Where to [default: RUN/exports/NAME].")
@JSON
def export_run(run_dir: Path, name: str, out: Path | None, as_json: bool) -> int:
    """Write RUN's images and results in a benchmark's own layout.

    The official scorers read what is written, and so does `local-bench score`."""
    from local_bench.report.official.formats import check_format, export
    from local_bench.runs.rundir import RunDir

    check_format(name)
    out = out or run_dir / "exports" / name
    with RunDir.open(run_dir) as run:
        files = export(run, name, out)
    if as_json:
        show_json({"format": name, "out": str(out), "files": [str(path) for path in files]})
    else:
        beside = f" --tasks {out / 'tasks.jsonl'} --scores {out / 'scores.jsonl'}" if name == "servimage" else ""
        each = [files] if name in ("servimage", "hype-edit-1") else [[path] for path in files]
        show("\n".join(f"local-bench score {name} {' '.join(map(str, group))}{beside}" for group in each))
    return 0
