"""Every command and option that the documentation or the package names exists."""

import re

import click

from local_bench.cli.main import cli
from tests.conftest import ROOT


def mentioned_commands():
    """(file, arguments after `local-bench`) of every mention in code marks or at the start of a line."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "local_bench").rglob("*.py")]
    files += (ROOT / "local_bench").rglob("*.j2")
    for file in files:
        for mention in re.findall(r"(?:`|^ *\$? *)local-bench ([^`\n]+)", file.read_text(), re.MULTILINE):
            yield file.relative_to(ROOT), mention.split()


def test_named_commands_and_options_exist():
    missing, n = [], 0
    for file, parts in mentioned_commands():
        command: click.Command | None = cli
        while parts and isinstance(command, click.Group) and re.fullmatch("[a-z-]+", parts[0]):
            if parts[0].startswith("-"):
                break
            command = command.commands.get(parts.pop(0))
            n += 1
        if command is None:
            missing.append((str(file), parts))
            continue
        command = command.commands[default] if (default := getattr(command, "default_command", None)) else command
        known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h", "--version"}
        for part in parts:
            option = re.match("--[a-z-]+", part.strip("[](),;"))
            if option and option[0] not in known:
                missing.append((str(file), option[0]))
    assert not missing
    assert n > 30
