"""Reads `.sql` files of named statements: `-- name: claim` and the lines below it, up to the next name.

The comment lines right below a name are for people; the statement itself starts after them. Placeholders in
braces (`{schema}`, `{now}`) are filled once, when an engine opens.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: ([a-z_]+)\s*$", re.MULTILINE)
_HOLE = re.compile(r"\{([a-z_]+)\}")


@cache
def statements(package: str, file: str) -> dict[str, str]:
    """The named statements of one file inside a package, as they are written."""
    text = (files(package) / file).read_text(encoding="utf-8")
    pieces = _NAME.split(text)[1:]
    named = dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))
    if len(named) * 2 != len(pieces):
        raise ValueError(f"{package}/{file}: a statement's name is used twice")
    return named


def fill(text: str, holes: dict[str, str]) -> str:
    """`text` with every `{hole}` filled; an unknown one is an error, so that a typo cannot reach a database."""
    return _HOLE.sub(lambda match: holes[match.group(1)], text)
