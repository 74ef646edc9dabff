#!/bin/sh
# A container engine of the tests' own, beside whatever runs here: its own socket, data and no network rules.
#   eval "$(scripts/os_engine.sh start DIR)"     starts it and sets DOCKER_HOST; root and docker.io are needed
#   scripts/os_engine.sh stop DIR                ends it and removes DIR
set -eu
action=${1:-}
home=${2:-/tmp/agentbench-fc-engine}
PATH=$PATH:/usr/sbin:/sbin

fail() { printf '%s\n' "$*" >&2; exit 1; }

# The whole tree of processes below the engine's: its containerd and the containers' shims.
stop() {
  [ -d "$home" ] || return 0
  if [ -s "$home/pid" ]; then
    pid=$(cat "$home/pid")
    if [ -d "/proc/$pid" ] && tr '\0' ' ' < "/proc/$pid/cmdline" | grep -q -- "$home"; then
      ids=$(DOCKER_HOST=unix://$home/docker.sock timeout 20 docker ps -aq 2>/dev/null || true)
      # shellcheck disable=SC2086
      [ -z "$ids" ] || DOCKER_HOST=unix://$home/docker.sock timeout 60 docker rm -fv $ids >/dev/null 2>&1 || true
      kill "$pid" 2>/dev/null || true
      for _ in $(seq 150); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
      kill -9 "$pid" 2>/dev/null || true
    fi
  fi
  awk -v home="$home/" 'index($2, home) == 1 {print $2}' /proc/mounts | sort -r | while read -r each; do
    umount -l "$each" 2>/dev/null || true
  done
  rm -rf "$home"
}

case $action in
start)
  [ "$(id -u)" -eq 0 ] || fail "Only root can start an engine. Run as root, or use the system's Docker."
  command -v dockerd >/dev/null || fail "dockerd is not installed:  apt-get install -y docker.io"
  if [ -S "$home/docker.sock" ] && DOCKER_HOST=unix://$home/docker.sock docker version >/dev/null 2>&1; then
    echo "export DOCKER_HOST=unix://$home/docker.sock"
    exit 0
  fi
  mkdir -p "$home"
  rm -f "$home/pid" "$home/docker.sock"
  setsid dockerd --host "unix://$home/docker.sock" --data-root "$home/data" --exec-root "$home/exec" \
    --pidfile "$home/pid" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none \
    --storage-driver overlay2 >"$home/log" 2>&1 </dev/null &
  for _ in $(seq 300); do
    if DOCKER_HOST=unix://$home/docker.sock docker version >/dev/null 2>&1; then
      echo "export DOCKER_HOST=unix://$home/docker.sock"
      exit 0
    fi
    sleep 0.1
  done
  tail -n 5 "$home/log" >&2
  stop
  fail "The engine does not answer after 30 s; its last words are above."
  ;;
stop) stop ;;
*) fail "usage: $0 start|stop [DIR]" ;;
esac
