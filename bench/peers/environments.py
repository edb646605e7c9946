"""A peer's environment, made when it is first wanted: a venv with its packages, or a folder of Node packages.

They are kept in bench/.peers (or where ROPEWAY_BENCH_PEERS says), one folder each, and made again when the pinned
packages or the interpreter change. Ropeway itself runs in the project's own environment.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from bench.peers import node_runtime
from bench.peers.catalogue import Peer
from devtools.private import NotAvailable

PROGRAMS = Path(__file__).with_name("programs")

#: The longest that an installation may take: a slow network, not a hanging one.
INSTALL_SECONDS = 600

#: Installations at once: they wait for the network more than they compute.
AT_ONCE = 4

_STAMP = "ropeway-bench.json"


@dataclass(frozen=True)
class Environment:
    """What starts a peer's program."""

    #: The interpreter; the program and `control` or `work` follow.
    interpreter: tuple[str, ...]
    program: Path
    #: The peer's own version, and those of all its pinned packages.
    version: str
    versions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, mode: str) -> list[str]:
        return [*self.interpreter, str(self.program), mode]


def folder() -> Path:
    """Where environments are kept."""
    asked = os.environ.get("ROPEWAY_BENCH_PEERS")
    return Path(asked).resolve() if asked else Path(__file__).resolve().parents[1] / ".peers"


def prepare(peer: Peer) -> Environment:
    """Make what is missing and say how the peer is started; NotAvailable, with the reason, when that cannot be."""
    program = PROGRAMS / ("node" if peer.language == "node" else "") / peer.program
    if not program.is_file():
        raise NotAvailable(f"there is no program {program.name}")
    if not peer.packages:
        return Environment((sys.executable,), program, _own_version(), variables=peer.env)
    home = folder() / (peer.environment or peer.name)
    try:
        if peer.language == "node":
            return _node(peer, home, program)
        return _python(peer, home, program)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAvailable(f"{type(error).__name__}: {error}") from error


def prepare_all(
    peers: Iterable[Peer], told: Callable[[Peer, Environment | str], None]
) -> dict[str, Environment | str]:
    """Prepare all, some at once; by name the environment, or the reason why there is none. `told` hears of each.

    Entries that share an environment wait for one another, and so do all that need Node: the first fetches it.
    """
    queues: dict[str, list[Peer]] = {}
    for peer in peers:
        queues.setdefault("node" if peer.language == "node" else peer.environment or peer.name, []).append(peer)
    made: dict[str, Environment | str] = {}

    def prepare_in_turn(queue: list[Peer]) -> None:
        for peer in queue:
            try:
                made[peer.name] = prepare(peer)
            except NotAvailable as error:
                made[peer.name] = str(error)
            told(peer, made[peer.name])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(prepare_in_turn, queue) for queue in queues.values()]:
            done.result()
    return made


def name_of(package: str) -> str:
    """The package without its pin: "celery[redis]==5.7" is celery, "@scope/name@1.2" is @scope/name."""
    return re.split(r"[\[=<>!~ ;]|(?<=.)@", package, maxsplit=1)[0]


# ── Python ──


def _python(peer: Peer, home: Path, program: Path) -> Environment:
    python = home / "bin" / "python"
    wanted = {"packages": list(peer.packages), "runtime": platform.python_version()}
    versions = _stamped(home, wanted)
    if versions is None:
        if not python.exists():
            # Without a pip of its own, which takes longer to install than most peers.
            make = [str(_base_interpreter()), "-m", "venv", "--without-pip", str(home)]
            _run(make, what="a venv could not be made")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
        install = ["install", "--prefer-binary", "--no-compile", *peer.packages]
        _run([*pip, *install], what=f"pip could not install {', '.join(peer.packages)}")
        versions = _installed(python, [name_of(package) for package in peer.packages])
        _stamp(home, wanted, versions)
    return Environment((str(python),), program, versions[name_of(peer.packages[0])], versions, peer.env)


def _base_interpreter() -> Path:
    """The interpreter behind the project's own environment: every peer runs on the same Python."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def _installed(python: Path, names: list[str]) -> dict[str, str]:
    asked = "import sys; from importlib.metadata import version; print([version(n) for n in sys.argv[1:]])"
    done = subprocess.run(
        [str(python), "-c", asked, *names], capture_output=True, text=True, check=True, timeout=60
    )
    return dict(zip(names, json.loads(done.stdout.replace("'", '"')), strict=True))


def _own_version() -> str:
    return metadata.version("ropeway")


# ── Node ──


def _node(peer: Peer, home: Path, program: Path) -> Environment:
    runtime = node_runtime.find(folder())
    wanted = {"packages": list(peer.packages), "runtime": runtime.version}
    versions = _stamped(home, wanted)
    if versions is None:
        runtime.install(home, peer.packages)
        names = [name_of(package) for package in peer.packages]
        versions = {name: node_runtime.installed_version(home, name) for name in names}
        _stamp(home, wanted, versions)
    variables = {**runtime.environment(home), **peer.env}
    versions = {**versions, "node": runtime.version}
    return Environment((str(runtime.node),), program, versions[name_of(peer.packages[0])], versions, variables)


# ── what both share ──


def _stamped(home: Path, wanted: Mapping[str, object]) -> dict[str, str] | None:
    """The versions that are installed, when the environment is complete and as it is wanted now."""
    try:
        held = json.loads((home / _STAMP).read_text())
    except (OSError, ValueError):
        return None
    return dict(held["versions"]) if held.get("wanted") == wanted else None


def _stamp(home: Path, wanted: Mapping[str, object], versions: Mapping[str, str]) -> None:
    (home / _STAMP).write_text(json.dumps({"wanted": wanted, "versions": versions}, indent=1))


def _run(command: list[str], *, what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"{what} within {INSTALL_SECONDS} s") from error
    if done.returncode != 0:
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-4:]
        raise NotAvailable(f"{what}: {' '.join(last)}")
