"""Programs that some tests run and that a machine may lack: found on the PATH, else installed by apt."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from devtools.private import NotAvailable, apt_install


class Program(NamedTuple):
    """What it is called, the Debian package that has it, and the oldest version that will do."""

    name: str
    package: str
    oldest: tuple[int, ...]


PROGRAMS: Mapping[str, Program] = {
    # The first Node with AbortSignal.any; Debian 12 has 18.19.
    "node": Program("node", "nodejs", (18, 17)),
    # The first curl that reads headers from a file.
    "curl": Program("curl", "curl", (7, 55)),
    # The first Chromium with CSS color-mix and :has; Debian keeps it much newer.
    "chromium": Program("chromium", "chromium", (111, 0)),
}


def obtain_program(name: str) -> str:
    """The path of a program, installed if it is missing; NotAvailable, with the reason, when it cannot be had."""
    program = PROGRAMS[name]
    path = shutil.which(program.name)
    if path is None:
        apt_install(program.package)
        path = shutil.which(program.name)
    if path is None:
        raise NotAvailable(f"{program.package} was installed but there is no {program.name} on the PATH")
    version = version_of(path)
    if version < program.oldest:
        shown, wanted = (".".join(map(str, each)) for each in (version, program.oldest))
        raise NotAvailable(f"{path} is version {shown}, and {wanted} is the oldest that will do")
    return path


def version_of(path: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAvailable(f"{path} does not run: {error}") from error
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None:
        raise NotAvailable(f"{path} --version answered {said[:100]!r}")
    return int(found[1]), int(found[2])
