"""Shared options and arguments, examples in the help, and shell completion."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from local_bench.cli.output import say
from local_bench.core.errors import UserError, hint, short
from local_bench.core.files import path_fault

if TYPE_CHECKING:
    from local_bench.runs.rundir import RunDir

F = TypeVar("F", bound=Callable[..., Any])


class PathOption(click.ParamType[Path]):
    """A path that a file can have; whether it exists is checked by the command."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # a default
        fault = path_fault(value) or ("it is empty" if not value else None)
        if fault:
            raise UserError(f"{short(value)} is not a path: {fault}: give another path")
        return Path(value)


class ConfigOption(PathOption):
    """As PathOption; also the name of a shipped run config."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from local_bench.core.files import find_config

        return find_config(super().convert(value, param, ctx))


PATH, CONFIG_PATH = PathOption(), ConfigOption()
ALLOW_REMOTE = click.option(
    "--allow-remote",
    is_flag=True,
    help="Contact the judge servers that the run directory's own config names; give it only for a run that you trust.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
FORMAT = click.option(
    "--format", "form", type=click.Choice(["text", "csv", "latex", "json"]), default="text", help="[default: text]"
)


def examples(*lines: str) -> str:
    """A help epilog with example command lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Commands(click.Group):
    """A command group that suggests the nearest command for an unknown name, and lists its commands by section with
    the whole first sentence of each."""

    sections: Mapping[str, Sequence[click.Command]] = {}
    """Heading -> commands; those that are in none come last, below `Commands`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = {command.name for section in self.sections.values() for command in section}
        others = [self.commands[name] for name in self.list_commands(ctx) if name not in named]
        for heading, commands in {**self.sections, "Commands": others}.items():
            rows = [(str(command.name), command.get_short_help_str(limit=400)) for command in commands]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            suggestion = hint(args[0], self.list_commands(ctx), f"`{ctx.command_path} --help` lists the commands.")
            raise click.UsageError(f"unknown command {args[0]!r}: {suggestion}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as e:  # it says which command it ended
            e.args = e.args or (ctx.invoked_subcommand,)
            raise
        except SystemExit as e:  # without a sentence, and perhaps with status 0
            if ctx.parent is not None:
                raise
            say(f"local-bench: a package ended the command (SystemExit: {e.code}): finished work is kept")
            raise SystemExit(e.code if isinstance(e.code, int) and e.code else 1) from e


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[list["RunDir"]]:
    """The runs. UserError for one that is given twice."""
    from local_bench.runs.rundir import RunDir

    resolved = [path.resolve() for path in paths]
    twice = next((path for i, path in enumerate(paths) if resolved[i] in resolved[:i]), None)
    if twice is not None:
        raise UserError(f"{twice} is given twice: give it once")
    with ExitStack() as stack:
        yield [stack.enter_context(RunDir.open(path)) for path in paths]


# ---- completion


def _completer(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            return [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - completion must not print a traceback
            return []

    return complete


def _cards() -> Iterable[str]:
    from local_bench.models.cards import cards

    return sorted(cards())


def _suites() -> Iterable[str]:
    from local_bench.suites.registry import suite_names

    return suite_names()


def run_dirs(folder: Path) -> list[Path]:
    """The run directories in a folder, by name."""
    return sorted(path.parent for path in folder.glob("[!.]*/run.yaml")) if folder.is_dir() else []


def _runs() -> Iterable[str]:
    from local_bench.core.files import runs_dir

    return [str(path) for path in run_dirs(runs_dir())]


def _configs() -> Iterable[str]:
    from local_bench.core.files import configs_dir

    shipped = sorted(path.stem for path in (configs_dir() / "runs").glob("*.yaml"))
    return [*map(str, sorted(Path().glob("*.yaml"))), *shipped]


cards_completed, suites_completed = _completer(_cards), _completer(_suites)
runs_completed = _completer(_runs)
targets_completed = _completer(lambda: [*_runs(), *_configs()])
RUN = click.argument("run_dir", metavar="RUN", type=PATH, shell_complete=runs_completed)
RUNS = click.argument("run_dirs", metavar="RUN…", nargs=-1, required=True, type=PATH, shell_complete=runs_completed)
CONFIG = click.argument("config", metavar="CONFIG", type=CONFIG_PATH, shell_complete=_completer(_configs))
TARGET = click.argument("target", metavar="CONFIG|RUN", type=CONFIG_PATH, shell_complete=targets_completed)

# ---- overrides of a config


def _shortcut(name: str, key: str, kind: Any, text: str, **more: Any) -> Callable[[F], F]:
    """An option equivalent to `--set KEY=VALUE`, or to several of them."""

    def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        ctx.meta.setdefault(_SHORTCUTS, []).extend(f"{key}={one}" for one in values)

    return click.option(name, type=kind, expose_value=False, is_eager=True, callback=store, help=text, **more)


_SHORTCUTS = "local_bench.settings"


def _all_settings(ctx: click.Context, _: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the shortcuts, and then those of --set, which take precedence."""
    for one, other in product(ctx.meta.get(_SHORTCUTS, ()), settings):
        if other != one and one.startswith(other.partition("=")[0]):
            say(f"local-bench: --set {other} is used, not {one} of the shorter option")
    return (*ctx.meta.get(_SHORTCUTS, ()), *settings)


SETTING = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY.SUB=VALUE",
    callback=_all_settings,
    help="Override a config value, e.g. judge.protocol=logit; may be given several times.",
)


def overrides(command: F) -> F:
    """`--set`, and its shortcuts `--limit`, `--shard`, `--model` and `--seed`."""
    for option in (
        SETTING,
        _shortcut("--seed", "seed", int, "The run's seed (short for --set seed=N)."),
        _shortcut(
            "--model",
            "--model",
            str,
            "Run only this model of the config, or this model card; may be given several times.",
            multiple=True,
            metavar="NAME",
            shell_complete=cards_completed,
        ),
        _shortcut(
            "--shard", "suite.shard", str, "Only the i-th of n shards, as i/n (short for --set suite.shard=i/n)."
        ),
        _shortcut(
            "--limit", "suite.limit", click.IntRange(1), "Only the first N tasks (short for --set suite.limit=N)."
        ),
    ):
        command = option(command)
    return command
