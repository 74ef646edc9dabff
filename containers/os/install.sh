#!/bin/sh
# Turns a bare Debian or Ubuntu into one stage of the OS task's image. Runs as root inside it, with a network:
#   install.sh ubuntu|default|packages
# Each stage builds on the one before it. The Dockerfile and `agentbench-fc sandbox build` run this same file.
set -eu
stage=$1
export DEBIAN_FRONTEND=noninteractive
repo=/opt/offline-repo

slim='path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*'

install_packages() {
  apt-get -qq -o Acquire::Retries=3 update
  apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" >/dev/null
  apt-get clean
}

tidy() { # the logs stay, as in a stock image: samples count them
  rm -rf /usr/share/doc/*/changelog* /usr/share/man/* /usr/share/info/* /usr/share/locale/* /var/cache/apt/*.bin \
    /tmp/* /root/.cache
}

case $stage in
ubuntu) # what the agent inside each sandbox and the graders need, no more
  printf '%s\n' "$slim" > /etc/dpkg/dpkg.cfg.d/agentbench-fc
  install_packages python3-minimal libpython3-stdlib procps
  rm -rf /var/lib/apt/lists/*
  tidy
  ;;
default)
  [ -e "$repo/sources" ] || {
    mkdir -p "$repo/sources"
    for each in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
      [ ! -e "$each" ] || cp -p "$each" "$repo/sources/"
    done
  }
  install_packages ca-certificates python3 python3-pip git vim curl wget unzip zip tree bc file less iproute2 \
    net-tools xz-utils bzip2
  # Samples install and remove sudo; a sandbox has no network, so a repository with that one package comes along.
  mkdir -p "$repo"
  (cd "$repo" && apt-get -qq download sudo)
  deb=$(cd "$repo" && ls sudo_*.deb)
  {
    dpkg-deb -f "$repo/$deb"
    echo "Filename: ./$deb"
    echo "Size: $(stat -c %s "$repo/$deb")"
    echo "SHA256: $(sha256sum "$repo/$deb" | cut -d ' ' -f 1)"
  } > "$repo/Packages"
  rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*
  echo "deb [trusted=yes] file:$repo ./" > /etc/apt/sources.list
  apt-get -qq update
  tidy
  ;;
packages) # with npm, which wants the network's repositories once more
  rm -f /etc/apt/sources.list
  mkdir -p /etc/apt/sources.list.d
  for each in "$repo"/sources/*; do
    case $each in
    */sources.list) cp -p "$each" /etc/apt/ ;;
    *) cp -p "$each" /etc/apt/sources.list.d/ ;;
    esac
  done
  install_packages npm
  rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*
  echo "deb [trusted=yes] file:$repo ./" > /etc/apt/sources.list
  apt-get -qq update
  tidy
  ;;
*)
  echo "no stage $stage; use ubuntu, default or packages" >&2
  exit 2
  ;;
esac
