"""`ropeway settings`: every setting, its value here and now, and where that comes from."""

from __future__ import annotations

from ropeway.cli import output
from ropeway.cli.options import Json
from ropeway.settings import Settings, default_of, describe, is_secret, setting_names, variable_of


def settings(as_json: Json = False) -> None:
    """Show every setting: its value here, where that comes from, and what it means. Passwords are hidden."""
    loaded = Settings.load()
    if as_json:
        output.say_json({"settings": [_object(loaded, name) for name in setting_names()]})
        return
    for name in setting_names():
        _show(loaded, name)


def _object(loaded: Settings, name: str) -> dict[str, object]:
    return {
        "name": name,
        "variable": variable_of(name),
        "value": loaded.shown()[name],
        "source": loaded.sources[name],
        "default": default_of(name),
        "secret": is_secret(name),
        "meaning": describe(name),
    }


def _show(loaded: Settings, name: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    source = loaded.sources[name]
    line = Text.assemble((name, "bold"), " = ", (_in_words(loaded.shown()[name]), "cyan"))
    # What somebody set is what people look for.
    line.append(f"  ({source})", "dim" if source == "default" else "green")
    out = output.console()
    out.print(line, soft_wrap=True)
    out.print(Padding(Text(describe(name), "dim"), (0, 0, 0, 4), expand=False))


def _in_words(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else output.plain(str(value))
