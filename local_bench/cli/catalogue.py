"""`models` and `suites`: list, show, fetch."""

from pathlib import Path
from typing import Any

import click

from local_bench.cli.cards import fetch_rows, files_here, in_words, what_it_takes
from local_bench.cli.output import say, show, show_json
from local_bench.cli.suites_fetch import fetch_suite
from local_bench.core.tables import table

JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group()
def models() -> None:
    """What generators, judges and models of metrics there are, and what each needs."""


@models.command("list")
@JSON
def list_models(as_json: bool) -> int:
    """All model cards; those of pyiqa's metrics (pyiqa:NAME) are too many to be listed."""
    from local_bench.models.cards import cards

    known = cards()
    if as_json:
        show_json({name: card.model_dump() for name, card in known.items()})
        return 0
    rows = [
        [
            c.name,
            c.role,
            c.family,
            f"{c.parameters_b:g} B",
            f"{c.vram_gb:g} GB",
            c.licence,
            _yes(c.gated),
            what_it_takes(c),
        ]
        for c in sorted(known.values(), key=lambda c: (c.role, c.family, c.parameters_b))
    ]
    show(table(["model", "role", "family", "size", "VRAM", "licence", "gated", "takes"], rows))
    return 0


@models.command("show")
@click.argument("name")
@JSON
def show_model(name: str, as_json: bool) -> int:
    """One model card, and what of its files is here."""
    card = _card(name)
    data = card.model_dump() | files_here(card, say)
    if as_json:
        show_json(data)
    else:
        show(table(["key", "value"], in_words(data)))
    return 0


@models.command("fetch")
@click.argument("targets", nargs=-1, required=True, metavar="NAME|CONFIG.yaml...")
@click.option(
    "--revision",
    "revisions",
    multiple=True,
    metavar="[PART=]COMMIT",
    help="Pin this commit for this machine (one model only; PART= for one of its parts).",
)
@JSON
def fetch(targets: tuple[str, ...], revisions: tuple[str, ...], as_json: bool) -> int:
    """Download models' files (this and `suites fetch` alone use the network), or build the small ones.

    A run's config stands for all models that the run needs.
    """
    from local_bench.core.environment import go_online

    go_online()
    from local_bench.core.errors import UserError
    from local_bench.models.fetch import fetch as fetch_files

    wanted = {card.name: card for target in targets for card in _wanted(target)}
    pinned = {part: commit for part, _, commit in (r.rpartition("=") for r in revisions)}
    if pinned and len(wanted) != 1:
        raise UserError("--revision pins a commit of one model: fetch that model alone")
    fetched = {}
    for card in wanted.values():
        fetch_files(card, pinned, say)
        fetched[card.name] = files_here(card, say)
    if as_json:
        show_json(fetched)
    else:
        show(table(["model", "licence", "files", "size", "commit", "weights sha256"], fetch_rows(wanted, fetched)))
    return 0


def _wanted(target: str) -> list[Any]:
    """The cards that a name or a run's config asks for."""
    if not target.endswith((".yaml", ".yml")):
        return [_card(target)]
    from local_bench.judges.metrics.registry import metric_card
    from local_bench.models.cards import card
    from local_bench.runs.config import load_config

    config = load_config(Path(target))
    found = [
        card(model.card, "generator")
        for model in config.models
        if model.weights is None and model.load != "random" and model.imported is None
    ]
    own = [judge.card for judge in config.judges if judge.base_url is None and judge.weights is None]
    found += [card(name, "judge") for name in dict.fromkeys(own)]
    return found + [described for name in config.metrics if (described := metric_card(name))]


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"


def _card(name: str) -> Any:
    import difflib

    from local_bench.core.errors import UserError
    from local_bench.models.cards import LIBRARIES, card, cards

    if name.partition(":")[0] in LIBRARIES:
        return card(name, "metric")
    known = cards()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "`local-bench models list` shows all"
        raise UserError(f"there is no model {name!r}: {hint}")
    return known[name]


@click.group()
def suites() -> None:
    """What benchmarks there are, and their files."""


suites.add_command(fetch_suite)


@suites.command("list")
@JSON
def list_suites(as_json: bool) -> int:
    """All suites."""
    from local_bench.suites.registry import suite, suite_names

    known = [suite(name) for name in suite_names()]

    if as_json:
        show_json({s.name: {"title": s.title, "licence": s.licence, "source": s.source} for s in known})
    else:
        rows = [[s.name, s.title, "ships with us" if s.shipped else "set suite.path", s.licence] for s in known]
        show(table(["suite", "title", "tasks", "licence"], rows))
    return 0


@suites.command("show")
@click.argument("name")
@click.option("--path", help="The suite's own file or folder, for one that is read from one.")
@click.option("--part", help="Only this part of it: a category, `mini`, `public` and the like.")
@JSON
def show_suite(name: str, path: str | None, part: str | None, as_json: bool) -> int:
    """One suite: its orders, images asked for, worth, licence and source."""
    from local_bench.core.images import pixel_digest
    from local_bench.core.money import usd_number
    from local_bench.suites.registry import suite

    entry = suite(name)
    data: dict[str, Any] = {"suite": entry.name, "title": entry.title, "licence": entry.licence, "source": entry.source}
    data |= {"read_from": "ships with us" if entry.shipped else entry.files, "attempts": entry.attempts}
    if entry.shipped is not None or path is not None:
        refused: list[str] = []
        tasks = entry.tasks(path, pixel_digest, part, refuse=refused.append)
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
    show_json(data) if as_json else show(table(["key", "value"], [[key, str(value)] for key, value in data.items()]))
    return 0
