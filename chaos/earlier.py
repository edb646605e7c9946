"""The version before this one, as the repository remembers it: the last commit before the newest migration."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from chaos.stage import ROOT, RunBroken
from ropeway.engines import migrate
from ropeway.engines.postgres.migrating import PACKAGE

_MIGRATIONS: Final = f"src/{PACKAGE.replace('.', '/')}"


def newest_migration() -> str:
    """Its name, as `ropeway migrate status` shows it."""
    newest = migrate.shipped(PACKAGE)[-1]
    return f"{newest.number:04}_{newest.name}"


def version_before(folder: Path) -> Path:
    """Unpack the source of that version into a folder; the path that Python finds it by.

    An installed package has no history: RunBroken where git or that commit is missing.
    """
    newest = newest_migration()
    added = _git("log", "--diff-filter=A", "--format=%H", "--", f"{_MIGRATIONS}/{newest}.sql").decode().split()
    if not added:
        raise RunBroken(f"the version before {newest} is not in the history of this repository")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", f"{added[-1]}^", "src"))) as packed:
        packed.extractall(folder, filter="data")
    known = sorted(path.stem for path in (folder / _MIGRATIONS).glob("[0-9]*.sql"))
    if len(known) != len(migrate.shipped(PACKAGE)) - 1:
        raise RunBroken(f"the version before {newest} knows {len(known)} migrations: it is not the one before")
    return folder / "src"


def _git(*words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise RunBroken("git is not installed") from None
    if done.returncode != 0:
        raise RunBroken(f"git {words[0]} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout
