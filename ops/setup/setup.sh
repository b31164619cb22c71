#!/usr/bin/env bash
# Makes a machine ready for a purpose: finds (or installs) what that needs from the system, then fills .venv.
#   core   to run a broker and its commands
#   spark  Spark, its JVM reader and the demo, too
#   dist   to make wheels, but for the jar of the JVM reader
#   all    what tests, benchmarks and the project's own tools need, too
# As root it installs what is missing with apt-get; otherwise it prints the commands that do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON_MINOR_MIN=11
JAVA_MIN=17
GO_MIN=$(sed -n 's/^go //p' tests/real_clients/franz/go.mod)

say() { printf '%s\n' "setup: $*" >&2; }
die() { say "$*"; exit 1; }

[ "$(uname -s)" = Linux ] || die "mpbroker runs on Linux only; this is $(uname -s)"

# A Python is good if it is new enough, can make virtual environments and has its headers.
python_is_good() {
    "$1" - "$PYTHON_MINOR_MIN" >/dev/null 2>&1 <<'PY'
import ensurepip, os, sys, sysconfig, venv
good = sys.version_info >= (3, int(sys.argv[1])) and sys.implementation.name == "cpython"
raise SystemExit(not (good and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))
PY
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if command -v "$candidate" >/dev/null && python_is_good "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# The headers; Python's own ssl module is linked with the library itself.
openssl_is_good() {
    echo '#include <openssl/ssl.h>' | "${CC:-cc}" -E -xc - >/dev/null 2>&1
}

# java or javac. Java 8 calls itself 1.8, later ones 17.0.2.
java_is_good() {
    local program=$1 version
    [ -n "${JAVA_HOME:-}" ] && program=$JAVA_HOME/bin/$1
    version=$("$program" -version 2>&1 | sed -nE 's/^(javac |.* version ")([0-9]+).*/\2/p' | head -n 1) || return 1
    [ -n "$version" ] && [ "$version" -ge "$JAVA_MIN" ]
}

# Not what it would fetch by itself: distributions and users turn that off.
go_is_good() {
    local version
    version=$(GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -n 's/^go version go\([0-9][^ ]*\).*/\1/p') || return 1
    [ -n "$version" ] && printf '%s\n' "$GO_MIN" "$version" | sort -V -C
}

# Fills two lists: packages without which nothing works, and those that Spark, the demo and some tests need.
look_around() {
    required=() wanted=()
    command -v "${CC:-cc}" >/dev/null || required+=(gcc libc6-dev)
    openssl_is_good || required+=(libssl-dev)
    find_python >/dev/null || required+=(python3 python3-venv python3-dev)
    case $purpose in core | dist) return 0 ;; esac
    # The compiler is for the JVM reader of Spark sessions alone; its package brings java too.
    { java_is_good java && java_is_good javac; } || wanted+=("$(java_package)")
    command -v kcat >/dev/null || wanted+=(kcat)
    # The JVM reader fetches by Kafka's client, which Maven brings.
    command -v mvn >/dev/null || wanted+=(maven)
    [ "$purpose" != spark ] || return 0
    command -v curl >/dev/null || wanted+=(curl)
    # The console's tests click in it.
    command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null ||
        command -v google-chrome >/dev/null || wanted+=("$(chromium_package)")
    # promtool is in the same package.
    command -v promtool >/dev/null || wanted+=(prometheus)
}

# Without windows and their libraries it is a third of the size.
chromium_package() {
    if apt-cache show chromium-headless-shell >/dev/null 2>&1; then
        echo chromium-headless-shell
    else
        echo chromium
    fi
}

java_package() {
    if apt-cache show openjdk-17-jdk-headless >/dev/null 2>&1; then
        echo openjdk-17-jdk-headless
    else
        echo default-jdk-headless
    fi
}

install_missing() {
    look_around
    [ $((${#required[@]} + ${#wanted[@]})) -gt 0 ] || return 0
    local commands
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        commands="sudo apt-get update && sudo apt-get install -y ${required[*]} ${wanted[*]}"
        command -v apt-get >/dev/null || commands="(your system's names for) ${required[*]} ${wanted[*]}"
        say "missing: ${required[*]} ${wanted[*]}; please install them:"
        say "    $commands"
        [ ${#required[@]} -eq 0 ] || exit 1
        say "going on without them: what needs them (Spark, its JVM reader, the demo, some tests) will not work"
        return 0
    fi
    apt-get update -q
    look_around # what apt knows has changed
    say "installing ${required[*]} ${wanted[*]}"
    local asked_for=" ${wanted[*]} "
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${required[@]}" "${wanted[@]}"
    # Its package starts a service, which nobody has asked for: tests start one of their own.
    if [[ $asked_for == *" prometheus "* ]] && [ -d /run/systemd/system ]; then
        systemctl disable --now --quiet prometheus || say "prometheus runs as a service now"
    fi
    look_around
    [ ${#required[@]} -eq 0 ] || die "still missing after apt-get: ${required[*]} \
(Python must be 3.$PYTHON_MINOR_MIN or newer; name another one with: make setup PYTHON=/path/to/python3)"
    [ ${#wanted[@]} -eq 0 ] || say "still missing: ${wanted[*]}; Spark, the demo and some tests need them"
}

fill_venv() {
    local python
    python=$(find_python) || die "no usable Python 3.$PYTHON_MINOR_MIN or newer"
    if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
        say "creating .venv with $python"
        "$python" -m venv --clear .venv
    fi
    # uv honours the system's certificates only when told to; pip does through PIP_CERT.
    export UV_SYSTEM_CERTS=1
    [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
    .venv/bin/python -c 'import uv' 2>/dev/null || .venv/bin/python -m pip install --quiet uv
    # --inexact leaves alone uv itself, which the lock file does not know, and what other purposes installed.
    # The native modules are make's. Bytecode is compiled once, here, and not again in each process where
    # PYTHONDONTWRITEBYTECODE is set.
    say "installing Python packages: $(what_for)"
    MPBROKER_NATIVE=0 UV_PROJECT_ENVIRONMENT=.venv \
        .venv/bin/uv sync --quiet --locked --inexact --compile-bytecode $(chosen_packages)
    [ "$purpose" != all ] || go_is_good go || go_is_good .venv/bin/go ||
        say "no Go $GO_MIN or newer here, and none to fetch for $(uname -m): the tests of franz-go will fail"
}

what_for() {
    case $purpose in
    core) echo "what a broker needs, 30 MB" ;;
    spark) echo "PySpark and what else Spark needs, 0.9 GB" ;;
    dist) echo "auditwheel, which checks wheels" ;;
    all) echo "what tests, benchmarks and tools need, 1.6 GB" ;;
    esac
}

# Extras and dependency groups of pyproject.toml, as flags of uv.
chosen_packages() {
    case $purpose in
    core) echo --no-default-groups --group build ;;
    spark) echo --no-default-groups --group build --extra spark --extra security ;;
    dist) echo --no-default-groups --group build --group dist ;;
    # A distribution's Go is mostly older than the franz-go tests want: the lock file has one for them.
    all) echo --all-extras --all-groups "$(go_is_good go && echo --no-group go)" ;;
    esac
}

purpose=${1:-all}
case $purpose in core | spark | dist | all) ;; *) die "unknown purpose $purpose: core, spark, dist or all" ;; esac
install_missing
fill_venv
say "ready: $(.venv/bin/python --version), $(.venv/bin/uv --version)"
