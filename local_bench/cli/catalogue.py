"""`models` and `suites`: list, show, fetch."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from local_bench.cli.cards import card_rows, fetch_rows, inputs_text, local_files
from local_bench.cli.options import JSON, PATH, Commands, cards_completed, examples, suites_completed
from local_bench.cli.output import say, show, show_json
from local_bench.cli.suites_fetch import fetch_suite
from local_bench.core.environment import require
from local_bench.core.files import config_files, find_config, is_safe_id
from local_bench.report.render import aligned


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
    for fault in faults:
        say(f"local-bench: {fault}")
    if as_json:
        show_json({name: card.model_dump() for name, card in by_name.items()})
        return int(bool(faults))
    rows = [
        [
            c.name,
            c.role,
            c.family,
            f"{c.parameters_b:g} B",
            f"{c.vram_gb:g} GB",
            c.licence,
            "yes" if c.gated else "no",
            inputs_text(c),
        ]
        for c in sorted(by_name.values(), key=lambda c: (c.role, c.family, c.parameters_b))
    ]
    show(aligned(["model", "role", "family", "size", "VRAM", "licence", "gated", "inputs"], rows))
    return int(bool(faults))


@models.command("show", epilog=examples("local-bench models show flux1-dev"))
@click.argument("name", shell_complete=cards_completed)
@JSON
def show_model(name: str, as_json: bool) -> int:
    """Show a model card and which of its files are on this machine."""
    card = _card(name)
    data = card.model_dump() | local_files(card, say)
    if card.pipeline:
        require("generate")
        from local_bench.generators.any_pipeline import arguments_of, pipeline_class

        data["arguments"] = arguments_of(pipeline_class(card.pipeline, card.name), card).inputs
    if as_json:
        show_json(data)
    else:
        show(aligned(["key", "value"], card_rows(data)))
    return 0


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

    If a target is a config, all models that it uses are fetched. Only this
    command, `models add` and `suites fetch` use the network.
    """
    from local_bench.core.environment import go_online

    go_online()
    from local_bench.core.errors import UserError
    from local_bench.models.fetch import fetch as fetch_files

    requested = {card.name: card for target in targets for card in _target_cards(target)}
    pinned = {part: commit for part, _, commit in (r.rpartition("=") for r in revisions)}
    if pinned and len(requested) != 1:
        raise UserError("--revision pins a commit of one model: give only that model")
    fetched = {}
    for card in requested.values():
        fetch_files(card, pinned, say)
        fetched[card.name] = local_files(card, say)
    if not as_json:
        show(aligned(["model", "licence", "files", "size", "commit", "weights sha256"], fetch_rows(requested, fetched)))
    if address is None:
        if as_json:
            show_json(fetched)
        return 0
    from local_bench.runs.executors.ray_cluster import fetch_on_nodes

    digests = {name: data["weights_sha256"] for name, data in fetched.items()}
    on_nodes = fetch_on_nodes(address, list(requested.values()), pinned, digests)
    if as_json:
        show_json(fetched | {"nodes": [asdict(entry) for entry in on_nodes]})
    else:
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
    from local_bench.core.files import is_dir

    if not is_dir(Path(target)):
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
        for note in added.notes:
            say(f"local-bench: {note}")
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


suites.add_command(fetch_suite)


@suites.command("list", epilog=examples("local-bench suites list"))
@JSON
def list_suites(as_json: bool) -> int:
    """List all suites."""
    from local_bench.suites.registry import all_suites

    faults: list[str] = []
    every = all_suites(faults.append)
    if as_json:
        show_json({s.name: {"title": s.title, "licence": s.licence, "source": s.source} for s in every})
    else:
        rows = [[s.name, s.title, "included" if s.shipped else "set suite.path", s.licence] for s in every]
        show(aligned(["suite", "title", "tasks", "licence"], rows))
    for fault in faults:
        say(f"local-bench: {fault}")
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
        for sentence in refused:
            say(sentence)
        data |= {
            "n_tasks": len(tasks),
            "n_deliverables": sum(len(t.deliverables) for t in tasks),
            "n_images": sum(len(t.deliverables) for t in tasks) * entry.attempts,
            "n_tasks_unscored": sum(t.unscored is not None for t in tasks),
            "refused": refused,
            "value_usd": usd_number(sum(t.price_micro_usd for t in tasks)),
            "by_category": {c: sum(t.category == c for t in tasks) for c in sorted({t.category for t in tasks})},
        }
    show_json(data) if as_json else show(aligned(["key", "value"], [[key, str(value)] for key, value in data.items()]))
    return 0
