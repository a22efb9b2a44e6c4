"""Writes docs/reference/: run configs, order files and model cards from their pydantic models, and the command line.

    .venv/bin/python scripts/write_reference.py [--check]

With --check nothing is written: exit 1 if a file is not as it would be written.
"""

import argparse
import ast
import inspect
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


def pages() -> dict[str, str]:
    from local_bench.models.cards import ModelCard
    from local_bench.runs.config import RunConfig
    from local_bench.suites.orders import OrderLine

    return {
        "config.md": page(
            "Run configs",
            "A YAML file for `local-bench run`. Unknown keys are errors. `--set KEY.SUB=VALUE` overrides any of them.",
            RunConfig,
        ),
        "orders.md": page(
            "Order files",
            "JSON Lines, one task per line, for `suite: {name: servimage, path: FILE}` and suites of your own.",
            OrderLine,
        ),
        "cards.md": page(
            "Model cards",
            "YAML files in `configs/models/` and `local-bench/models/`, named as the card. A card of your own may "
            "`extends` a shipped one: [extending](../extending.md).",
            ModelCard,
        ),
        "cli.md": "\n".join(commands()),
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
