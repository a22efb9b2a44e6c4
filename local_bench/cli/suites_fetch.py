"""`suites fetch`: download the published files of a benchmark."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, examples, suites_completed
from local_bench.cli.output import say, show, show_json
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from local_bench.models.datasets import Dataset


@click.command(
    "fetch",
    epilog=examples(
        "local-bench suites fetch hype-edit-1 --out data/hype", "local-bench suites fetch servimage --out s --dry-run"
    ),
)
@click.argument("name", shell_complete=suites_completed)
@click.option("--out", "folder", required=True, type=PATH, help="The folder to create.")
@click.option("--revision", metavar="COMMIT", help="Override the commit in configs/datasets.yaml.")
@click.option("--dry-run", is_flag=True, help="Only report what would be downloaded.")
@JSON
def fetch_suite(name: str, folder: Path, revision: str | None, dry_run: bool, as_json: bool) -> int:
    """Download a benchmark's published files.

    The folder is written atomically, with the digest of every file in fetched.json, and then checked by loading the
    suite: exit 1 if tasks or images are missing. Only this command, `models fetch` and `models add` use the network.
    """
    from local_bench.core.environment import go_online

    go_online()
    from local_bench.core.errors import DatasetError
    from local_bench.models.datasets import dataset, fetch_dataset, list_dataset
    from local_bench.suites.registry import suite

    if suite(name).shipped is not None:
        raise DatasetError(f"the suite {name!r} is included in local-bench: there is nothing to fetch")
    entry, folder = dataset(name), folder.absolute()
    data: dict[str, Any] = {"suite": entry.suite, "licence": entry.licence, "not_included": entry.not_included}
    if dry_run:
        listed = list_dataset(name, entry, folder, revision)
        n_files = None if listed.files is None else len(listed.files)
        data |= {"repo": listed.repo, "revision": listed.revision, "n_files": n_files, "bytes": listed.bytes}
        data |= {"pictures": entry.pictures and entry.pictures.url, "files": listed.files}
        _show(data, as_json)
        return 0
    record = fetch_dataset(name, entry, folder, revision, say)
    data |= {"repo": record.repo, "revision": record.revision, "folder": str(folder)}
    data |= {"n_files": len(record.files), "bytes": record.total_bytes}
    pinned = record.revision == entry.source.revision
    data |= _loaded(entry, folder, pinned)
    if pinned and entry.files not in (None, len(record.files)):
        say(f"{len(record.files)} files were downloaded, but this commit has {entry.files}")
        data["complete"] = False
    _show(data, as_json)
    return 0 if data["complete"] else 1


def _loaded(entry: "Dataset", folder: Path, pinned: bool) -> dict[str, Any]:
    """Load the suite from the folder and count its tasks and images; report what is missing."""
    from local_bench.core.errors import UserError
    from local_bench.core.images import pixel_digest
    from local_bench.suites.registry import suite

    result: dict[str, Any] = {"path": None, "n_tasks": 0, "n_images": 0, "n_tasks_unscored": 0, "refused": []}
    path = next(iter(sorted(folder.glob(entry.reads))), None)
    if path is None:
        say(f"{folder} has no {entry.reads}, which the suite {entry.suite} needs")
        return result | {"complete": False, "config": None}
    config = f"suite: {{name: {entry.suite}, path: {json.dumps(str(path), ensure_ascii=False)}}}"
    result |= {"path": str(path), "config": config}
    try:
        tasks = suite(entry.suite).tasks(str(path), pixel_digest, refuse=result["refused"].append)
    except UserError as e:
        say(str(e))
        return result | {"complete": False}
    for message in result["refused"]:
        say(message)
    unscored = [task.unscored for task in tasks if task.unscored is not None]
    if unscored:
        say(f"{len(unscored)} tasks lack an image; the first: {unscored[0]}")
    if len(tasks) != entry.tasks:
        say(f"{len(tasks)} tasks were found, but this benchmark has {entry.tasks}")
    result |= {"n_tasks": len(tasks), "n_images": sum(len(task.deliverables) for task in tasks)}
    complete = not unscored and not result["refused"] and (len(tasks) == entry.tasks or not pinned)
    return result | {"n_tasks_unscored": len(unscored), "complete": complete}


def _show(data: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(data)
        return
    values = data | {
        "bytes": "unknown before the download" if data["bytes"] is None else f"{data['bytes'] / 1e9:.2f} GB"
    }
    lines = [
        [key, str(value)] for key, value in values.items() if value is not None and key not in ("files", "refused")
    ]
    show(aligned(["key", "value"], lines))
    for name in data.get("files") or ():
        show(f"  {name}")
