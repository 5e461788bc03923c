"""The page of the commands, from the typer application."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from qkv.cli.app import app
from reference.markdown import code, default, generated, limits, table, text, type_name


def page() -> str:
    """Every command with its help text, arguments and options."""
    root: Any = get_command(app)
    parts = [text("# Commands", "# 命令"), generated("qkv/cli"), root.help]
    parts.append(
        text(
            "`qkv --help` and `qkv COMMAND --help` print the same. Exit codes, environment "
            "variables and the fields of `--json` are in [Files](files.md).",
            "`qkv --help` 和 `qkv COMMAND --help` 打印同样的内容。退出码、环境变量和 "
            "`--json` 的字段见[文件](files.md)。",
        )
    )
    for name, command in root.commands.items():
        parts += sections(command, f"qkv {name}", "##")
    return "\n\n".join(filter(None, parts)) + "\n"


def sections(command: Any, path: str, level: str) -> Iterator[str]:
    """The section of a command, then those of its subcommands."""
    yield f"{level} {path}"
    yield command.help
    if subcommands := getattr(command, "commands", {}):
        for name, subcommand in subcommands.items():
            yield from sections(subcommand, f"{path} {name}", level + "#")
        return
    options = [parameter for parameter in command.params if parameter.opts[0].startswith("-")]
    arguments = [parameter for parameter in command.params if parameter not in options]
    yield f"```text\n{' '.join([path, *map(usage, arguments), '[OPTIONS]'])}\n```"
    header = (text("type", "类型"), text("default", "默认值"), text("description", "说明"))
    yield table((text("argument", "参数"), *header), map(row, arguments))
    yield table((text("option", "选项"), *header), map(row, options))


def usage(argument: Any) -> str:
    """The name of an argument in the line of a command, in brackets if it may be left out."""
    name = argument.name.upper() if choices(argument) else argument.metavar or argument.name.upper()
    name = name.strip("[]").removesuffix("]...")
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def choices(parameter: Any) -> list[str]:
    """The values of a metavar such as [translate|generate|embed]."""
    metavar = parameter.metavar or ""
    return metavar.strip("[]").split("|") if "|" in metavar else []


def row(parameter: Any) -> tuple[str, str, str, str]:
    """The row of an argument or option."""
    return (names(parameter), kind(parameter), default_of(parameter), parameter.help or "")


def names(parameter: Any) -> str:
    """The names of an option, with the value it takes, or the name of an argument."""
    if not parameter.opts[0].startswith("-"):
        return code(usage(parameter))
    spellings = [*parameter.opts, *parameter.secondary_opts]
    value = f" {parameter.metavar}" if parameter.metavar else ""
    return ", ".join(code(spelling + value) for spelling in spellings)


def kind(parameter: Any) -> str:
    """The type and the range of a value; a flag takes none."""
    if getattr(parameter, "is_flag", False):
        return text("flag", "开关")
    many = parameter.multiple or parameter.nargs == -1
    name = ", ".join(map(code, choices(parameter)))
    parts = [
        name or type_name(parameter.type_descriptor.annotation),
        limits(parameter.min, parameter.max),
    ]
    return ", ".join(filter(None, [*parts, text("repeatable", "可重复") if many else ""]))


def default_of(parameter: Any) -> str:
    """The default; "required" if there is none, nothing if leaving it out has its own meaning."""
    if parameter.required:
        return text("required", "必需")
    if getattr(parameter, "is_flag", False) and parameter.default is False:
        return text("off", "关")
    return "" if parameter.default in (None, "", []) else default(parameter.default)
