#!/usr/bin/env bash
# Make a virtual environment at $1 with a Python >= 3.11: $PYTHON, or the newest that works.
# One that is there and works is kept. Debian's venv package is installed if it is what is missing.
set -euo pipefail

venv=$1
wanted='import sys; sys.exit(sys.version_info < (3, 11))'

# Asking for the version is not enough: a pyenv shim exists for versions that do not run.
works() { "$1" -c "$wanted" >/dev/null 2>&1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

if works "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  exit 0
fi

python=
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
  if works "$candidate"; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "Ropeway needs Python 3.11 or newer; ${PYTHON:-none on the PATH} is not one that runs." >&2
  echo 'Name one with PYTHON=/path/to/python3.' >&2
  exit 1
fi

# Debian splits ensurepip, which venv needs, into a package of its own.
if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
  version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
  echo "Installing python$version-venv with apt-get"
  as_root apt-get update -q >/dev/null
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "python$version-venv" >/dev/null
fi

echo "Making $venv with $("$python" --version) ($(command -v "$python"))"
rm -rf "$venv"
"$python" -m venv "$venv"
