"""Writes docs/reference/: run configs, task files and model cards from their pydantic models, the command line, the
shipped models, and the tables and figures of the papers.

    .venv/bin/python scripts/write_reference.py [--check]

With --check nothing is written: exit 1 if a file is not as it would be written.
"""

import argparse
import ast
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a model's fields, inherited ones included."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not (isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel):
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[field.target.id] = " ".join(text.value.value.split())
    return found


def type_name(annotation: Any) -> str:
    """A type as a reader of YAML writes it: `int`, `text`, `one of "a", "b"`, `list of …`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(one) for one in arguments if one is not type(None))
    if origin in (list, tuple):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    names = {"str": "text", "bool": "true or false", "float": "number", "Decimal": "number"}
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, name)


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None or isinstance(value, BaseModel) or value in ({}, [], ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"}
    limits = ((sign, getattr(limit, name, None)) for name, sign in signs.items() for limit in field.metadata)
    parts = [f"{sign} {value}" for sign, value in limits if value is not None]
    return f" ({', '.join(parts)})" if parts else ""


def inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from inner_models(one)


def sections(model: type[BaseModel]) -> Iterator[str]:
    """A table of the model's keys, then those of the models in it, each once."""
    waiting, seen = [model], {model}
    while waiting:
        one = waiting.pop(0)
        texts = field_texts(one)
        doc = inspect.getdoc(one)
        yield f"## {one.__name__}\n"
        if doc and not doc.startswith("!!!"):
            yield " ".join(doc.split()) + "\n"
        yield "| key | value | default | |\n|---|---|---|---|"
        for name, field in one.model_fields.items():
            cells = [f"`{name}`", type_name(field.annotation) + bounds(field), default(field), texts.get(name, "")]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
            for inner in inner_models(field.annotation):
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
        yield ""


def page(title: str, text: str, model: type[BaseModel]) -> str:
    return "\n".join([f"# {title}\n", f"{text}\n", *sections(model)])


def commands() -> Iterator[str]:
    from local_bench.cli.main import cli

    yield "# Command line\n"
    yield "Results go to stdout (`--json` for programs), progress and messages to stderr.\n"
    endings = "0: done; 1: the run ended with failures or a check did not hold; 2: wrong input; 130: interrupted"
    yield f"Exit status {endings}.\n"

    def walk(command: click.Command, context: click.Context) -> Iterator[str]:
        yield f"{'#' * (2 if context.parent is None or context.parent.parent is None else 3)} {context.command_path}\n"
        yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
        if isinstance(command, click.Group):
            for name in sorted(command.commands):
                yield from walk(
                    command.commands[name], click.Context(command.commands[name], context, name, terminal_width=100)
                )

    context = click.Context(cli, info_name="local-bench", terminal_width=100, help_option_names=["-h", "--help"])
    yield from walk(cli, context)


def table(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def models() -> Iterator[str]:
    """The shipped cards of real models, and of those that are included."""
    from local_bench.core.files import configs_dir
    from local_bench.models.cards import cards

    shipped = [card for card in cards().values() if not card.source.random]
    yield "# Shipped models\n"
    yield MODELS
    yield "## Generators\n"
    yield "The settings are the authors' where they publish any; a run's config overrides them.\n"
    yield table("model", "inputs", "GB", "steps", "guidance", "side", "licence")
    sources = []
    for card in (card for card in shipped if card.role == "generator"):
        sampler, takes = card.sampler, card.takes
        assert sampler is not None
        inputs = ["text"] if takes.text_alone else []
        inputs += (
            [f"{takes.condition} map"]
            if takes.condition
            else [f"{takes.pictures} image{'s' * (takes.pictures > 1)}"]
            if takes.pictures
            else []
        )
        scale = sampler.true_cfg_scale if sampler.guidance_scale is None else sampler.guidance_scale
        guidance = "-" if scale is None else f"{scale:g}"
        guidance += f", image {sampler.image_guidance_scale}" if sampler.image_guidance_scale else ""
        above = (configs_dir() / "models" / f"{card.name}.yaml").read_text().partition("\nsampler:")[0]
        comment = re.search(r"\n# steps[^:]*: ((?:.|\n# )+)\Z", above)
        sources += [row(f"`{card.name}`", " ".join(comment[1].split("\n# ")))] if comment else []
        yield row(
            *(f"`{card.name}`{' *' * (card.family == 'diffusers')}", ", ".join([*inputs, *["mask"] * takes.mask])),
            *(f"{card.vram_gb:.3g}", sampler.num_inference_steps, guidance, sampler.height),
            card.licence + ", gated" * card.gated,
        )
    yield "\nWhere the settings are from:\n"
    yield table("model", "steps and guidance")
    yield from sources
    for role, title in (("judge", "Judges"), ("metric", "Networks of metrics")):
        yield f"\n## {title}\n"
        yield table("model", "", "GB", "licence")
        for card in (card for card in shipped if card.role == role):
            gpus = f" on {card.tensor_parallel_size} GPUs" if card.tensor_parallel_size > 1 else ""
            yield row(f"`{card.name}`", card.title, f"{card.vram_gb:g}{gpus}", card.licence + ", gated" * card.gated)


MODELS = """\
Memory is decimal GB of the largest phase (bfloat16, one image at the side below), counted by
`scripts/count_flops.py`; text encoders, denoiser and judge are never on the GPU together. If only decoding does not
fit, some blocks leave the GPU meanwhile. A model that does not fit otherwise streams its weights from host memory:
slower, and not compiled, so its images differ from those of a larger GPU. Models with * have the family `diffusers`:
one call of diffusers' pipeline per image, all components on the GPU together or moved there one by one
([models](../models.md)).

Gated: `models fetch` needs an account of the Hub that accepted the terms. Revisions are pinned in the cards, but for
`magicbrush` and the IP-Adapter, of which none could be verified: `models fetch` requires `--revision COMMIT`.
Settings "as public code has it" are from other public projects that repeat the model card's example. The models
`mini-…` are included and run on a CPU; `tiny-…` (not listed) are one per family, with random weights, for tests.
"""


def papers_page() -> Iterator[str]:
    """Every table and figure of the papers, with its command or the reason why there is none."""
    from local_bench.report.papers.contents import entries, papers

    yield "# Tables and figures of the papers\n"
    yield "ICE-Bench's are those of its supplement. [Benchmarks](../benchmarks.md) has the options.\n"
    for paper in papers():
        yield f"## {paper}\n"
        yield table("", "content", "command")
        for entry in entries(paper):
            yield row(entry.name, entry.title, f"`{entry.command}`" if entry.command else f"not made: {entry.reason}")
        yield ""


def pages() -> dict[str, str]:
    from local_bench.models.cards import ModelCard
    from local_bench.runs.config import RunConfig
    from local_bench.suites.task_files import TaskLine

    return {
        "config.md": page(
            "Run configs",
            "A YAML file for `local-bench run`. Unknown keys are errors. `--set KEY.SUB=VALUE` overrides any of them.",
            RunConfig,
        ),
        "task-files.md": page(
            "Task files",
            "JSON Lines, one task per line, for `suite: {name: servimage, path: FILE}` and suites of your own.",
            TaskLine,
        ),
        "cards.md": page(
            "Model cards",
            "YAML files in `configs/models/` and `local-bench/models/`, named as the card. A card of your own may "
            "`extends` a shipped one: [extending](../extending.md).",
            ModelCard,
        ),
        "cli.md": "\n".join(commands()),
        "models.md": "\n".join(models()),
        "papers.md": "\n".join(papers_page()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    stale = []
    for name, written in pages().items():
        path, text = FOLDER / name, written.rstrip() + "\n"
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"{'not up to date' if check else 'written'}: {', '.join(stale)}", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
