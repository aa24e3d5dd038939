"""Options of commands that providers declare."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.cli.application import Grouped
from fleet.cli.options import parse_count, parse_duration, parse_money, split_commas
from fleet.cli.runtime import read_settings
from fleet.errors import FleetError, UsageError
from fleet.steps import Step
from provision.options import COUNT, DURATION, FLAG, MONEY, PAIRS, TEXTS, Option, declarations, default_text
from provision.registry import NAMES, REGISTRY, UnknownProviderError, options_class

_VALUES = "fleet.providers"  # the values of these options, in the context of a command


class WithProviders(Grouped):
    """A command with the options of all providers of this package, and of the one that --provider names."""

    scope = False
    """Only the options that name an account."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._provided: dict[str, Any] = {}
        self._add(NAMES)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and store the values of providers' options in the context."""
        self._add([_named_provider(args)])
        rest = super().parse_args(ctx, args)
        ctx.meta[_VALUES] = {name: ctx.params.pop(option.name) for name, option in self._provided.items()}
        return rest

    def _add(self, providers: Sequence[str]) -> None:
        """Add an option for each name that one or more providers declare; the first declaration has the help."""
        for provider, field, declared in _list_declarations(providers):
            if declared.name not in self._provided and (declared.scope or not self.scope):
                made = _make_option(declared, default_text(options_class(provider), field))
                self._provided[declared.name] = made
                self.params.append(made)


class WithScopes(WithProviders):
    """A command with the providers' options that name an account."""

    scope = True


def read_options(ctx: Any) -> dict[str, dict[str, Any]]:
    """Return the given options by provider and field; an option of several providers is set for each of them.

    Raises:
        UsageError: a file that an option names cannot be read.
    """
    values = {name: value for name, value in ctx.meta[_VALUES].items() if value is not None and value != ()}
    options: dict[str, dict[str, Any]] = {}
    providers = (*NAMES, *(name for name in (ctx.params.get("provider"),) if name and name not in REGISTRY))
    for provider, field, declared in _list_declarations(providers):
        if declared.name in values:
            try:
                value = declared.convert(_parse(declared, values[declared.name]), Path.cwd())
            except ValueError as error:
                raise UsageError(f"{declared.name}: {error}", next_steps=[Step(ctx.info_name, "--help")]) from error
            options.setdefault(provider, {})[field] = value
    return options


def _list_declarations(providers: Sequence[str]) -> Iterator[tuple[str, str, Option]]:
    for provider in providers:
        try:
            options = options_class(provider)
        except UnknownProviderError:  # reported by the command
            continue
        for field, declared in declarations(options).items():
            if declared.flags:
                yield provider, field, declared


def _named_provider(args: Sequence[str]) -> str:
    """Return the value of --provider, or the provider that fleet.toml names."""
    for at, word in enumerate(args):
        if word == "--provider":
            return next(iter(args[at + 1 : at + 2]), "")
        if word.startswith("--provider="):
            return word.partition("=")[2]
    with contextlib.suppress(FleetError):  # reported by the command
        return read_settings().provider or ""
    return ""


def _make_option(declared: Option, default: str) -> Any:
    """Return the option that Typer makes of a parameter of a function."""
    kind: Any = {FLAG: bool, TEXTS: list[str], PAIRS: list[str], COUNT: int}.get(declared.kind, str)
    text = f"{declared.help}  [default: {default}]" if default else declared.help
    made = typer.Option(
        *declared.flags,
        parser={COUNT: parse_count, DURATION: parse_duration, MONEY: parse_money}.get(declared.kind),
        metavar=declared.metavar or None,
        help=text,
        show_default=False,
        rich_help_panel=declared.group or None,
        hidden=declared.rare,
    )
    name = declared.name.lstrip("-").replace("-", "_")

    def take(**_: Any) -> None:
        pass

    parameter = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, made]
    )
    take.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    take.__annotations__ = {name: parameter.annotation}
    alone = typer.Typer(add_completion=False)
    alone.command()(take)
    command: Any = typer.main.get_command(alone)
    return command.params[0]


def _parse(declared: Option, value: Any) -> Any:
    if declared.kind is TEXTS:
        return split_commas(list(value)) or ()
    if declared.kind is PAIRS:
        return tuple(value)
    return round(value) if declared.kind is DURATION else value
