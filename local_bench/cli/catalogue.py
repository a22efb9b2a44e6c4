"""`models` and `suites`: list, show, fetch."""

from pathlib import Path
from typing import Any

import click

from local_bench.cli.output import say, show, show_json, table

JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group()
def models() -> None:
    """What generators and judges there are, and what each needs."""


@models.command("list")
@JSON
def list_models(as_json: bool) -> int:
    """All model cards."""
    from local_bench.core.cards import cards

    known = cards()
    if as_json:
        show_json({name: card.model_dump() for name, card in known.items()})
        return 0
    rows = [
        [c.name, c.role, c.title, f"{c.parameters_b:g} B", f"{c.vram_gb:g} GB", c.licence, "yes" if c.gated else "no"]
        for c in sorted(known.values(), key=lambda c: (c.role, c.parameters_b))
    ]
    show(table(["model", "role", "title", "size", "VRAM", "licence", "gated"], rows))
    return 0


@models.command("show")
@click.argument("name")
@JSON
def show_model(name: str, as_json: bool) -> int:
    """One model card, and whether its files are here."""
    from local_bench.core.errors import WeightsError
    from local_bench.core.weights import resolve, weights_digest

    card = _card(name)
    data: dict[str, Any] = card.model_dump()
    try:
        data["weights_sha256"] = weights_digest(resolve(card))
    except WeightsError as e:
        data["weights_sha256"] = None
        say(str(e))
    if as_json:
        show_json(data)
    else:
        show(table(["key", "value"], [[key, str(value)] for key, value in data.items()]))
    return 0


@models.command("fetch")
@click.argument("names", nargs=-1, required=True)
@JSON
def fetch(names: tuple[str, ...], as_json: bool) -> int:
    """Download models' files (the one command that uses the network), or build the small ones."""
    import os

    from local_bench.core.weights import fetch as fetch_weights
    from local_bench.core.weights import weights_digest

    os.environ.pop("HF_HUB_OFFLINE", None)
    fetched: dict[str, dict[str, str]] = {}
    for card in [_card(name) for name in names]:
        say(f"{card.name}: {card.title}, licence {card.licence}")
        folder: Path = fetch_weights(card)
        fetched[card.name] = {"folder": str(folder), "weights_sha256": weights_digest(folder)}
    if as_json:
        show_json(fetched)
    else:
        show(table(["model", "weights sha256"], [[name, entry["weights_sha256"]] for name, entry in fetched.items()]))
    return 0


def _card(name: str) -> Any:
    import difflib

    from local_bench.core.cards import cards
    from local_bench.core.errors import UserError

    known = cards()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "`local-bench models list` shows all"
        raise UserError(f"there is no model {name!r}: {hint}")
    return known[name]


@click.group()
def suites() -> None:
    """What benchmarks there are."""


@suites.command("list")
@JSON
def list_suites(as_json: bool) -> int:
    """All suites."""
    from local_bench.suites.registry import SUITES

    if as_json:
        show_json({name: {"title": s.title, "licence": s.licence, "source": s.source} for name, s in SUITES.items()})
    else:
        rows = [[s.name, s.title, "ships with us" if s.path else "set suite.path", s.licence] for s in SUITES.values()]
        show(table(["suite", "title", "tasks", "licence"], rows))
    return 0


@suites.command("show")
@click.argument("name")
@click.option("--path", help="The suite's own file, for one that is read from one.")
@JSON
def show_suite(name: str, path: str | None, as_json: bool) -> int:
    """One suite: its orders, images asked for, worth, licence and source."""
    from local_bench.core.images import pixel_digest
    from local_bench.core.money import usd_number
    from local_bench.suites.registry import suite

    entry = suite(name)
    data: dict[str, Any] = {"suite": entry.name, "title": entry.title, "licence": entry.licence, "source": entry.source}
    if entry.path is not None or path is not None:
        tasks = entry.tasks(path, pixel_digest)
        data |= {
            "n_tasks": len(tasks),
            "n_deliverables": sum(len(t.deliverables) for t in tasks),
            "n_tasks_unscored": sum(t.unscored is not None for t in tasks),
            "value_usd": usd_number(sum(t.price_micro_usd for t in tasks)),
            "by_category": {c: sum(t.category == c for t in tasks) for c in sorted({t.category for t in tasks})},
        }
    show_json(data) if as_json else show(table(["key", "value"], [[key, str(value)] for key, value in data.items()]))
    return 0
