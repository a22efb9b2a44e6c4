"""`models` and `suites`: list, show, fetch."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, Commands, cards_completed, examples, suites_completed
from local_bench.cli.output import say, say_notes, show, show_json, show_result
from local_bench.core.environment import require
from local_bench.core.errors import count
from local_bench.core.files import config_files, find_config, is_safe_id
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from local_bench.models.cards import ModelCard
    from local_bench.models.datasets import Dataset


@click.group(cls=Commands)
def models() -> None:
    """List, show and download models: generators, judges and metric networks."""


@models.command("list", epilog=examples("local-bench models list", "local-bench models list --json"))
@JSON
def list_models(as_json: bool) -> int:
    """List all model cards, except pyiqa's metrics (pyiqa:NAME).

    A card of your own that is not valid is left out and named, with exit status 1."""
    from local_bench.models.cards import cards

    faults: list[str] = []
    by_name = cards(faults.append)
    say_notes(*faults)
    rows = [
        [
            *(c.name, c.role, c.family, f"{c.parameters_b:g} B", f"{c.vram_gb:g} GB", c.licence),
            *("yes" if c.gated else "no", inputs_text(c)),
        ]
        for c in sorted(by_name.values(), key=lambda c: (c.role, c.family, c.parameters_b))
    ]
    text = aligned(["model", "role", "family", "size", "VRAM", "licence", "gated", "inputs"], rows)
    show_result({name: card.model_dump() for name, card in by_name.items()}, text, as_json)
    return int(bool(faults))


@models.command("show", epilog=examples("local-bench models show flux1-dev"))
@click.argument("name", shell_complete=cards_completed)
@JSON
def show_model(name: str, as_json: bool) -> int:
    """Show a model card and which of its files are on this machine."""
    card = _card(name)
    data = card.model_dump() | local_files(card)
    if files := config_files(f"models/{name}.yaml"):  # of several the first counts
        data["card"] = str(files[0])
    if card.pipeline:
        require("generate")
        from local_bench.generators.any_pipeline import arguments_of, pipeline_class

        data["arguments"] = arguments_of(pipeline_class(card.pipeline, card.name), card).inputs
    return show_result(data, aligned(["key", "value"], card_rows(data)), as_json)


@models.command(
    "fetch",
    epilog=examples(
        "HF_TOKEN=… local-bench models fetch flux1-dev qwen3-vl-8b",
        "local-bench models fetch my.yaml          # all models that a config needs",
        "local-bench models fetch magicbrush --revision COMMIT",
        "local-bench models fetch my.yaml --on-nodes node1:6379",
    ),
)
@click.argument("targets", nargs=-1, required=True, metavar="NAME|CONFIG...", shell_complete=cards_completed)
@click.option(
    "--revision",
    "revisions",
    multiple=True,
    metavar="[PART=]COMMIT",
    help="Pin this commit on this machine (one model only; PART= for one of its parts).",
)
@click.option("--on-nodes", "address", metavar="HOST:PORT", help="Also fetch on every node of this Ray cluster.")
@JSON
def fetch(targets: tuple[str, ...], revisions: tuple[str, ...], address: str | None, as_json: bool) -> int:
    """Download and verify the files of models, or build the small ones.

    If a target is a config, all models that it uses are fetched. A model that cannot be fetched does not stop the
    others. Only this command, `models add` and `suites fetch` use the network.
    """
    from local_bench.core.environment import go_online

    go_online()
    from local_bench.core.errors import UserError, WeightsError
    from local_bench.models.fetch import fetch as fetch_files

    requested = {card.name: card for target in targets for card in _target_cards(target)}
    pinned = {part: commit for part, _, commit in (r.rpartition("=") for r in revisions)}
    if pinned and len(requested) != 1:
        raise UserError("--revision pins a commit of one model: give only that model")
    fetched, fault = {}, None
    for card in requested.values():
        try:
            fetch_files(card, pinned, say)
            fetched[card.name] = local_files(card)
        except WeightsError as e:
            if len(requested) > 1:
                say(f"local-bench: {card.name}: {e}")
            fault = fault or e
    if fault:
        raise fault
    if not as_json:
        show(aligned(["model", "licence", "files", "size", "commit", "weights sha256"], fetch_rows(requested, fetched)))
    on_nodes = []
    if address is not None:
        from local_bench.runs.executors.ray_cluster import fetch_on_nodes

        digests = {name: data["weights_sha256"] for name, data in fetched.items()}
        on_nodes = fetch_on_nodes(address, list(requested.values()), pinned, digests)
    if as_json:
        show_json(fetched if address is None else fetched | {"nodes": [asdict(entry) for entry in on_nodes]})
    elif address is not None:
        rows = [[n.node, n.model, n.weights_sha256 or "-", n.error or "equal"] for n in on_nodes]
        show(aligned(["node", "model", "weights sha256", "state"], rows))
    return int(any(entry.error for entry in on_nodes))


@models.command(
    epilog=examples(
        "local-bench models add Tongyi-MAI/Z-Image-Turbo",
        "local-bench models add Qwen/Qwen3.5-4B",
        "local-bench models add ../checkpoints/ours --name ours",
    )
)
@click.argument("target", metavar="OWNER/NAME|FOLDER")
@click.option("--name", help="The model's name [default: the last part of TARGET].")
@JSON
def add(target: str, name: str | None, as_json: bool) -> int:
    """Write a card for a diffusers pipeline, or for a judge, to ./local-bench/models/.

    Any repository or folder with a model_index.json whose classes are in diffusers and transformers, or with the
    config.json of a vision-language model that vLLM serves; code from a repository is never run. Reads configs and the
    headers of weights; of a folder without the network."""
    from local_bench.core.environment import go_online

    if not os.path.isdir(Path(target)):
        go_online()

    require("generate")
    from local_bench.generators.adding import add_card
    from local_bench.judges.vlm.adding import judge_fields

    added = add_card(target, name, Path("local-bench") / "models", judge_fields)
    if as_json:
        show_json({"path": str(added.path), "card": added.card, "notes": added.notes})
    else:
        used = f"{{card: {added.card['name']}}}"
        show(f"{added.path}: use it as `{f'judge: {used}' if added.card['role'] == 'judge' else f'models: [{used}]'}`")
        say_notes(*added.notes)
    return 0


def _target_cards(target: str) -> list[Any]:
    """The card with a name, or all cards that a config uses."""
    from local_bench.judges.metrics.registry import metric_card
    from local_bench.models.cards import card, cards

    path = find_config(Path(target))
    if path.suffix not in (".yaml", ".yml") or target in cards():
        return [_card(target)]
    from local_bench.runs.config import load_config

    config = load_config(path)
    result = [
        card(model.card, "generator")
        for model in config.models
        if model.weights is None and model.load != "random" and model.imported is None
    ]
    judges = [judge.card for judge in config.judges if judge.base_url is None and judge.weights is None]
    result += [card(name, "judge") for name in dict.fromkeys(judges)]
    return result + [described for name in config.metrics if (described := metric_card(name))]


def _card(name: str) -> Any:
    from local_bench.core.errors import UserError, hint
    from local_bench.models.cards import LIBRARIES, card, cards

    if name.partition(":")[0] in LIBRARIES:
        return card(name, "metric")
    by_name = cards()
    if name in by_name:
        return by_name[name]
    if is_safe_id(name) and config_files(f"models/{name}.yaml"):
        return card(name, "generator")  # raises with the reason why it is left out
    raise UserError(f"unknown model {name!r}: {hint(name, by_name, 'see `local-bench models list`')}")


@click.group(cls=Commands)
def suites() -> None:
    """List, show and download benchmarks."""


@suites.command("list", epilog=examples("local-bench suites list"))
@JSON
def list_suites(as_json: bool) -> int:
    """List all suites."""
    from local_bench.suites.registry import all_suites

    faults: list[str] = []
    every = all_suites(faults.append)
    values = {s.name: {"title": s.title, "licence": s.licence, "source": s.source} for s in every}
    rows = [[s.name, s.title, "included" if s.shipped else "set suite.path", s.licence] for s in every]
    show_result(values, aligned(["suite", "title", "tasks", "licence"], rows), as_json)
    say_notes(*faults)
    return int(bool(faults))


@suites.command("show", epilog=examples("local-bench suites show hype-edit-1 --path hype/public.json"))
@click.argument("name", shell_complete=suites_completed)
@click.option("--path", type=PATH, help="The benchmark's file or folder.")
@click.option("--part", help="Only this part: a category, `mini`, `public`, ….")
@JSON
def show_suite(name: str, path: Path | None, part: str | None, as_json: bool) -> int:
    """Show a suite: number of tasks and images, value, licence and source."""
    from local_bench.core.images import pixel_digest
    from local_bench.core.money import usd_number
    from local_bench.suites.registry import suite

    entry = suite(name)
    data: dict[str, Any] = {"suite": entry.name, "title": entry.title, "licence": entry.licence, "source": entry.source}
    data |= {"read_from": "included" if entry.shipped else entry.files, "attempts": entry.attempts}
    if entry.shipped is not None or path is not None:
        refused: list[str] = []
        tasks = entry.tasks(None if path is None else str(path), pixel_digest, part, refuse=refused.append)
        say(*refused)
        data |= {
            "n_tasks": len(tasks),
            "n_deliverables": sum(len(t.deliverables) for t in tasks),
            "n_images": sum(len(t.deliverables) for t in tasks) * entry.attempts,
            "n_tasks_unscored": sum(t.unscored is not None for t in tasks),
            "refused": refused,
            "value_usd": usd_number(sum(t.price_micro_usd for t in tasks)),
            "by_category": {c: sum(t.category == c for t in tasks) for c in sorted({t.category for t in tasks})},
        }
    return show_result(data, aligned(["key", "value"], [[key, str(value)] for key, value in data.items()]), as_json)


def inputs_text(card: "ModelCard") -> str:
    """A generator's inputs, e.g. `text`, `text, optional image`, `text + depth map`. Empty for other roles."""
    if card.role != "generator":
        return ""
    takes = card.takes
    if takes.condition:
        images = f"{takes.condition} map"
    elif takes.pictures > 1:
        images = f"up to {takes.pictures} images"
    else:
        images = "image"
    mask = " + mask" if takes.mask else ""
    if not takes.pictures:
        return f"text{mask}"
    return f"text, optional {images}{mask}" if takes.text_alone else f"text + {images}{mask}"


def local_files(card: "ModelCard") -> dict[str, Any]:
    """The state of a card's files on this machine. Reports missing or damaged files; builds a small model if needed."""
    from local_bench.core.errors import WeightsError
    from local_bench.models.cards import MAIN
    from local_bench.models.manifest import pins, read_manifest, revision_of
    from local_bench.models.weights import resolve, resolve_parts, weights_digest

    data: dict[str, Any] = {"here": False}
    data |= dict.fromkeys(("folder", "weights_sha256", "bytes", "revision", "revision_from", "manifest"))
    try:
        data["revision"] = revision_of(card)
        data["revision_from"] = data["revision"] and ("this machine" if MAIN in pins(card) else "the card")
        manifest = read_manifest(card)
        data["manifest"] = manifest and manifest.model_dump()
        folder, parts = resolve(card), resolve_parts(card)
        data |= {"weights_sha256": weights_digest(folder, parts), "folder": str(folder)}
        files = [p for location in (folder, *parts.values()) for p in location.rglob("*") if p.is_file()]
        data["bytes"] = sum(p.stat().st_size for p in files)
        data["here"] = True
    except WeightsError as e:
        say(str(e))
    return data


def fetch_rows(cards: dict[str, "ModelCard"], fetched: dict[str, dict[str, Any]]) -> list[list[str]]:
    """One row per model: licence, number of files, size, commit and weights digest."""
    rows = []
    for name, data in fetched.items():
        manifest = data["manifest"]
        repositories = [manifest, *manifest["parts"].values()] if manifest else []
        kind = "built" if cards[name].source.build else "folder"
        rows.append(
            [
                name,
                cards[name].licence,
                str(sum(len(repository["files"]) for repository in repositories)) if repositories else kind,
                f"{(data['bytes'] or 0) / 1e9:.2f} GB",
                (data["revision"] or "-")[:12],
                data["weights_sha256"] or "-",
            ]
        )
    return rows


_OF_RANDOM_WEIGHTS = {f"architecture.tokenizer{n}" for n in ("", "_2", "_3")}
"""Tokenizers of the models with random weights that `plan --measure` times."""


def card_rows(data: dict[str, Any]) -> list[list[str]]:
    """Rows (key, value) of a card and its files: nested keys joined by dots, manifests summarised, nulls and
    what does not apply to its role omitted."""
    from local_bench.models.cards import OF_JUDGES

    rows = []
    unused = _OF_RANDOM_WEIGHTS | {*(() if data.get("role") == "judge" else OF_JUDGES)}
    for key, value in data.items():
        if key in unused:
            continue
        if key == "manifest" and value:
            repositories = (value, *value["parts"].values())
            n = sum(len(repository["files"]) for repository in repositories)
            rows.append([key, f"{count(n, 'files')}, fetched {value['fetched_utc']}"])
            for origin in (origin for repository in repositories for origin in repository["origins"]):
                by = f"verified against {origin['checked_by']}" if origin["checked_by"] else "not verified"
                rows.append([f"{key}.origin", f"{origin['url']} ({origin['bytes'] / 1e6:.1f} MB), digest {by}"])
        elif key == "bytes" and value is not None:
            rows.append(["on disk", f"{value / 1e9:.2f} GB"])
        elif key == "here":
            rows.append([key, "yes" if value else "no"])
        elif isinstance(value, dict):
            rows += card_rows({f"{key}.{name}": inner for name, inner in value.items()})
        elif value is not None:
            rows.append([key, str(value)])
    return rows


@suites.command(
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
        data |= list_dataset(name, entry, folder, revision)
        _show(data, as_json)
        return 0
    record = fetch_dataset(name, entry, folder, revision, say)
    data |= {"repo": record.repo, "revision": record.revision, "folder": str(folder)}
    data |= {"n_files": len(record.files), "bytes": sum(file.bytes for file in record.files.values())}
    pinned = record.revision == entry.source.revision
    data |= _loaded(entry, folder, pinned)
    if pinned and entry.files not in (None, len(record.files)):
        say(f"{count(len(record.files), 'files were')} downloaded, but this commit has {entry.files}")
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
    say(*result["refused"])
    unscored = [task.unscored for task in tasks if task.unscored is not None]
    if unscored:
        say(f"{count(len(unscored), 'tasks lack')} an image; the first: {unscored[0]}")
    if len(tasks) != entry.tasks:
        say(f"{count(len(tasks), 'tasks were')} found, but this benchmark has {entry.tasks}")
    result |= {"n_tasks": len(tasks), "n_images": sum(len(task.deliverables) for task in tasks)}
    complete = not unscored and not result["refused"] and (len(tasks) == entry.tasks or not pinned)
    return result | {"n_tasks_unscored": len(unscored), "complete": complete}


def _show(data: dict[str, Any], as_json: bool) -> None:
    size = "unknown before the download" if data["bytes"] is None else f"{data['bytes'] / 1e9:.2f} GB"
    shown = {key: value for key, value in data.items() if value is not None or key == "bytes"} | {"bytes": size}
    rows = [[key, str(value)] for key, value in shown.items() if key not in ("files", "refused")]
    files = (f"  {name}" for name in data.get("files") or ())
    show_result(data, "\n".join([aligned(["key", "value"], rows), *files]), as_json)
