"""`forensics explain CAUSE` and `forensics rules list|check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

rules_app = typer.Typer(
    help="The signatures and rules that are known.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Examples:\n\n  forensics rules list --layer comms\n\n  forensics rules check my-signatures.toml",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("explain", epilog="Examples:\n\n  forensics explain infra/gpu-fell-off-bus\n\n  forensics explain --list | grep ^comms")(
        explain
    )
    app.add_typer(rules_app, name="rules")


def explain(
    cause: Annotated[str, typer.Argument(help="A cause, as layer/cause-id or the bare id.")] = "",
    lang: Annotated[str, typer.Option(help="Language: en or zh.")] = "en",
    every: Annotated[bool, typer.Option("--list", help="List all causes with their titles.")] = False,
) -> None:
    """Print what is known of a cause: how it shows itself, what it leads to, what confirms and excludes it, what to do."""
    from forensics.catalogue import describe, find
    from forensics.knowledge import load

    if lang not in ("en", "zh"):
        raise typer.BadParameter(f"{lang}: the languages are en and zh", param_hint="--lang")
    known = load()
    if every:
        for name, one in sorted(known.causes.items()):
            typer.echo(f"{name}\t{one.texts[lang]['title']}")
        return
    if not cause:
        raise typer.BadParameter("give a cause, such as infra/gpu-fell-off-bus; all causes: forensics explain --list", param_hint="CAUSE")
    found = find(known, cause)
    if not found:
        import difflib

        near = difflib.get_close_matches(cause.rpartition("/")[2], [name.partition("/")[2] for name in known.causes], 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; all causes: forensics explain --list"
        raise typer.BadParameter(f"{cause}: no such cause{hint}", param_hint="CAUSE")
    for number, one in enumerate(found):
        typer.echo(("\n" if number else "") + describe(one, known, lang))


@rules_app.command("list", epilog="Example: forensics rules list --layer comms")
def list_rules(
    layer: Annotated[str, typer.Option(help="Only this layer.")] = "",
    rules: Annotated[list[Path] | None, typer.Option(help="A further signature pack; may be repeated.", metavar="PACK")] = None,
) -> None:
    """List every signature and rule: id, role, cause, what it covers of the guide."""
    from forensics.catalogue import rows
    from forensics.knowledge import load

    for row in rows(load(tuple(str(p) for p in rules or ()))):
        if not layer or row[2].startswith(f"{layer}/"):
            typer.echo("\t".join(row))


@rules_app.command("check", epilog="Example: forensics rules check my-signatures.toml")
def check(pack: Annotated[Path, typer.Argument(help="A pack file or a folder of packs.")]) -> None:
    """Check a pack: literals inside every hit, hits match, near misses do not, patterns bounded in time, nothing twice."""
    from forensics.lint import lint

    problems: list[Any] = []
    files = sorted(pack.rglob("*.toml")) if pack.is_dir() else [pack]
    if not files or not all(path.exists() for path in files):
        raise typer.BadParameter(f"{pack}: no such pack", param_hint="PACK")
    for problem in lint(files):
        problems.append(problem)
        typer.echo(problem)
    if problems:
        raise typer.Exit(2)
    typer.echo(f"{len(files)} pack{'s' if len(files) > 1 else ''} in order")
