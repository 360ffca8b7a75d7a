#!/usr/bin/env bash
# Puts a PostgreSQL and a MariaDB server, for test/fence, into bin/databases: from Debian's packages and those they need,
# of which nothing is installed and no daemon is started. What is installed already is used where it is. Fails where
# there is no apt, or no such packages.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p bin/databases
archives=$(mktemp -d)
trap 'rm -rf "$archives"' EXIT
mkdir "$archives/partial"

installed() { compgen -G "$1" >/dev/null || compgen -G "bin/databases$1" >/dev/null; }

download() {
  apt-get -qq -y -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Dir::Cache::archives="$archives" \
    --no-install-recommends --download-only install "$@" >/dev/null
}

# get FILE PACKAGE...: the packages, unless the program FILE is there.
get() {
  local file=$1 package
  shift
  if installed "$file"; then
    return 0
  fi
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "databases: no apt here" >&2; return 1; }
  if ! download "$@"; then # the lists of packages are missing, or too old
    [[ $(id -u) == 0 ]] || { echo "databases: only root can renew apt's lists" >&2; return 1; }
    apt-get -qq update && download "$@" || return 1
  fi
  for package in "$archives"/*.deb; do
    # LLVM is for compiling queries only, which the tests switch off, and larger than all the rest.
    [[ $package == */libllvm* ]] || dpkg-deb --extract "$package" bin/databases || return 1
  done
  rm -f "$archives"/*.deb
  installed "$file" || { echo "databases: no $file in $*" >&2; return 1; }
}

failed=0
get '/usr/lib/postgresql/*/bin/postgres' postgresql || failed=1
get '/usr/sbin/mariadbd' mariadb-server-core mariadb-client-core || failed=1
exit $failed
