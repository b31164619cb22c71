#!/usr/bin/env bash
# The whole way of a record in half a minute: a broker, kcat writes to it, PySpark reads the log that was just written.
#
#   ops/demo/run.sh            PYTHON=… names the interpreter that mpbroker and PySpark are installed for
set -euo pipefail

cd "$(dirname "$0")/../.."
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ ! -x .venv/bin/python ] || PYTHON=.venv/bin/python
fi

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
give_up() { printf 'demo: %s\n' "$*" >&2; exit 1; }

command -v kcat >/dev/null || give_up "kcat is not installed: apt-get install kcat"
command -v java >/dev/null || give_up "Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless"
"$PYTHON" -c 'import pyspark' 2>/dev/null || give_up "PySpark is not installed: make setup-spark"

directory=$(mktemp -d "${TMPDIR:-/tmp}/mpbroker-demo-XXXXXX")
broker=
clean_up() {
  [ -z "$broker" ] || { kill "$broker" 2>/dev/null && wait "$broker" || true; }
  rm -rf "$directory"
}
trap clean_up EXIT

port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

say "1. A broker on 127.0.0.1:$port, its log in $directory/data"
mkdir "$directory/data"
"$PYTHON" -m mpbroker serve --listeners "PLAINTEXT://127.0.0.1:$port" --log-dirs "$directory/data" \
  -o num.partitions=3 >"$directory/broker.log" 2>&1 &
broker=$!
for _ in $(seq 100); do
  kcat -q -L -b "127.0.0.1:$port" -m 1 >"$directory/metadata" 2>&1 && break
  kill -0 "$broker" 2>/dev/null || { cat "$directory/broker.log" >&2; give_up "the broker did not start"; }
  sleep 0.05
done
kcat -L -b "127.0.0.1:$port" -m 5 | head -4

say "2. kcat writes twelve orders, each with a customer as its key"
for number in $(seq 12); do
  echo "customer-$((number % 4)):{\"order\": $number, \"amount\": $((number * number))}"
done | tee "$directory/orders" | kcat -q -P -b "127.0.0.1:$port" -t orders -K : -X acks=all
head -3 "$directory/orders"
echo "…"

say "3. PySpark reads them from the broker's files, without asking the broker, while it runs"
echo "(Spark takes some seconds to start)"
# What Spark says of this machine's name and of pandas has nothing to do with the demo.
export SPARK_LOCAL_IP=127.0.0.1 PYTHONWARNINGS=ignore::FutureWarning
"$PYTHON" ops/demo/orders.py "$directory/data"

say "4. The broker stops"
kill "$broker"
wait "$broker" || { cat "$directory/broker.log" >&2; give_up "the broker did not stop cleanly"; }
broker=
echo "done"
