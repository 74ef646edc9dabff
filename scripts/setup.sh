#!/bin/sh
# Creates the virtual environment and installs the project into it. Does nothing when nothing changed.
set -eu
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
TORCH_INDEX=${TORCH_INDEX:-}

fail() { printf '%s\n' "$@" >&2; exit 1; }

command -v "$PYTHON" >/dev/null 2>&1 || fail \
  "There is no $PYTHON. Everything here needs Python 3.11 or newer." \
  "Install it:  sudo apt-get install python3 python3-venv python3-pip     (or PYTHON=/path/to/python3.11 make …)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail \
  "$PYTHON is $("$PYTHON" -V 2>&1); Python 3.11 or newer is needed." \
  "Install one and name it:  make PYTHON=python3.11 …"

stamp="$VENV/.installed"
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)" $TORCH $TORCH_INDEX $(pwd)"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

if [ ! -x "$VENV/bin/python" ]; then
  echo "Creating $VENV"
  if ! "$PYTHON" -m venv "$VENV" >/dev/null 2>&1; then
    # Debian splits ensurepip off into python3-venv; the system's pip can fill a bare environment instead.
    rm -rf "$VENV"
    if ! { "$PYTHON" -m venv --without-pip "$VENV" &&
           "$PYTHON" -m pip --python "$VENV/bin/python" install --quiet pip; } 2>/dev/null; then
      rm -rf "$VENV"
      fail "A virtual environment cannot be made: neither ensurepip nor pip is there for $PYTHON." \
           "Install one:  sudo apt-get install python3-venv python3-pip"
    fi
  fi
fi

free=$(df -Pk . | awk 'NR==2 {print int($4 / 1048576)}')
[ "$free" -ge 4 ] || echo "Only ${free} GiB of disk are free here; the environment takes about 2 GiB." >&2

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }
echo "Installing $TORCH, then the project (about two minutes the first time)"
# torch first and alone: a later resolver step must find it and not fetch another build
if [ -n "$TORCH_INDEX" ]; then
  pip install --quiet --index-url "$TORCH_INDEX" "$TORCH"
else
  pip install --quiet "$TORCH"
fi
pip install --quiet -c constraints.txt -e '.[kg,db,os,serve,train,dev]'
# ALFWorld's engine is compiled; a machine without a compiler gets everything else
if ! pip install --quiet -c constraints.txt -e '.[alfworld]'; then
  echo "ALFWorld's engine could not be built, all else is there. It needs a C++ compiler, cmake and make:" \
       "sudo apt-get install g++ cmake make, then  rm $stamp  and make again." >&2
fi
printf '%s' "$wanted" > "$stamp"
"$VENV/bin/agentbench-fc" doctor --missing || true
