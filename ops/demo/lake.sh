#!/usr/bin/env bash
# The object store as the replica: a broker uploads, is killed, its standby takes over, both disks are lost, and
# all comes back; then the topic is a table, which others read. Everything runs on this machine, and is removed at
# the end.
#
#   ops/demo/lake.sh           with versitygw, a server of S3, if make setup has built it, else with a directory
#   ops/demo/lake.sh URL       with a bucket of yours (s3://, gs://, az://), or a mounted directory (file:///):
#                              all is below a prefix of its own there, which is emptied at the end
set -euo pipefail

cd "$(dirname "$0")/../.."
bucket=$PWD/ops/demo/bucket.py
gateway=$PWD/build/versitygw/versitygw-v1.8.0
directory=$(mktemp -d "${TMPDIR:-/tmp}/mpbroker-lake-XXXXXX")
pids=()
memory=()
below=""

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }
give_up() { printf 'lake: %s\n' "$*" >&2; tail -n 5 "$directory"/*.log >&2; exit 1; }
clean_up() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" || true; done
  case $below in
    file://*) rm -rf "${below#file://}" ;;
    ?*) python "$bucket" empty "$below" || true ;;
  esac
  rm -rf "$directory" "${memory[@]}"
}
trap clean_up EXIT
cd "$directory"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
first=127.0.0.1:$(free_port)
second=127.0.0.1:$(free_port)

# serve NUMBER ADDRESS [FLAG]: its pid is in the variable pid
serve() {
  mpbroker serve "${@:3}" --config server.properties -o "node.id=$1" --log-dirs "broker$1" \
    --listeners "PLAINTEXT://$2" >"broker$1.log" 2>&1 &
  pid=$!
  pids+=("$pid")
}
ready() { mpbroker ctl ready --log-dirs "broker$1" --wait 60 >/dev/null || give_up "broker $1 is not ready"; }
# lose NUMBER PID: as if its machine were gone
lose() {
  # With its memory, which a next start on the same directories would remove.
  memory+=("$(answer runtime_dir <"broker$1/mpbroker.json")")
  kill -9 "$2"
  wait "$2" 2>/dev/null || true
}
# answer NAME: of the JSON on standard input
answer() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
# until_said TEXT FILE
until_said() {
  for _ in $(seq 300); do ! grep -q "$1" "$2" 2>/dev/null || return 0; sleep 0.2; done
  give_up "$2 does not say: $1"
}
count() {
  local found
  found=$(mpbroker consume orders -b "$first,$second" -o beginning -n 30000 | sort -n | uniq | wc -l)
  echo "$found different records of 30000"
  [ "$found" = 30000 ] || give_up "records are missing"
}

if [ -n "${1-}" ]; then
  below=${1%/}/mpbroker-lake-$RANDOM$RANDOM
  url=$below/broker
  lake=$below/tables
  if [[ $below = file://* ]]; then mkdir -p "${url#file://}" "${lake#file://}"; fi
  say "1. Objects below $below"
elif [ -x "$gateway" ]; then
  mkdir -p store/bucket
  port=$(free_port)
  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testtest AWS_REGION=us-east-1
  export AWS_ENDPOINT_URL=http://127.0.0.1:$port
  say "1. A server of S3, versitygw, on 127.0.0.1:$port"
  ROOT_ACCESS_KEY=test ROOT_SECRET_KEY=testtest "$gateway" --quiet --port "127.0.0.1:$port" posix store >gateway.log 2>&1 &
  pids+=("$!")
  until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.05; done
  url=s3://bucket/lake
  lake=s3://bucket/tables
else
  mkdir store tables
  url=file://$directory/store
  lake=file://$directory/tables
  say "1. A directory as the object store: build/versitygw is missing, make setup builds it where Go is"
fi
say "   Does it create an object only if it is absent, also in a race? How long does it take?"
show python "$bucket" try "${below:-$url}"

tee server.properties <<END
remote.log.storage.system.enable=true
mpbroker.remote.url=$url
mpbroker.remote.acks=ledger
mpbroker.remote.lease.ms=3000
mpbroker.remote.checkpoint.interval.ms=2000
remote.log.manager.task.interval.ms=200
log.retention.check.interval.ms=200
log.initial.task.delay.ms=200
offsets.topic.num.partitions=1
END

say "2. A broker on $first, and its standby on $second"
serve 1 "$first"
owner=$pid
ready 1
serve 2 "$second" --standby
standby=$pid
until_said "broker 2 on .* stands by" broker1.log
grep -h "follows broker\|stands by" broker1.log broker2.log

say "3. 30,000 records; sealed segments go to the store, and leave the disk"
show mpbroker topic create orders -b "$first" --partitions 1 -c remote.storage.enable=true -c segment.bytes=1048576 \
  -c local.retention.bytes=1048576
seq 30000 | sed 's/$/ an order, and what is to be known of it: thirty thousand of these are more than one segment of a log/' |
  mpbroker produce orders -b "$first,$second"
mpbroker remote status --log-dirs broker1 --topic orders --json >status
until grep -q '"local_segments": [12],' status; do
  sleep 0.2
  mpbroker remote status --log-dirs broker1 --topic orders --json >status
done
# A take-over begins with the newest cut: segments that are younger would be uploaded again.
uploaded=$(date +%s%3N)
cut_ms() { mpbroker remote status --log-dirs broker1 --json | answer last_cut_ms; }
until [ "$(cut_ms | sed s/None/0/)" -gt "$uploaded" ]; do sleep 0.2; done
show mpbroker remote status --log-dirs broker1 --topic orders

say "4. The broker is killed; its standby takes over"
lose 1 "$owner"
until_said "INFO \[supervisor\] serving on" broker2.log
grep -h "has run out\|leads as" broker2.log
count
show mpbroker remote verify --deep --log-dirs broker2
# What the next cut has is read from the store without a broker.
for _ in $(seq 60); do [ "$(python "$bucket" count "$url")" != 30000 ] || break; done

say "5. Both are killed, and their disks are wiped"
lose 2 "$standby"
echo '$ rm -r broker1 broker2'
# Processes of theirs may be about to end.
until rm -rf broker1 broker2 2>/dev/null; do sleep 0.1; done
echo "The store has it all, and is read without a broker:"
show python "$bucket" count "$url" | tee read
grep -qx 30000 read || give_up "records are missing in the store"

say "6. All comes back from the store"
show mpbroker restore --from "$url" --log-dirs broker3 --take-over --force
mv broker3 broker2
serve 2 "$second"
ready 2
count

say "7. The topic is an Iceberg table in the store: sealed records come from there, the rest from the broker"
tee tables.toml <<END
[source]
"mpbroker.bucket" = "$url"
"kafka.bootstrap.servers" = "$second"
[lake]
location = "$lake"
[[tables]]
topic = "orders"
name = "lake.orders"
END
show mpbroker tables run --tables tables.toml --once
seq 30001 30100 | mpbroker produce orders -b "$second"
show mpbroker tables run --tables tables.toml --once
show mpbroker tables status --tables tables.toml
show mpbroker tables why lake.orders --tables tables.toml
mpbroker tables status --tables tables.toml --json >status

say "8. DuckDB and Polars read it; they know nothing of the broker"
cat >table.py <<'END'
import json, os
import polars as pl
from pyiceberg.table import StaticTable

(status,) = json.load(open("status"))
options = {"s3.region": os.environ.get("AWS_REGION", "us-east-1")}
if "AWS_ENDPOINT_URL" in os.environ:
    options["s3.endpoint"] = os.environ["AWS_ENDPOINT_URL"]
table = StaticTable.from_metadata(status["metadata"], options)
connection = table.scan().to_duckdb("orders")
((rows, offsets, last),) = connection.sql("select count(*), count(distinct _offset), max(_offset) from orders").fetchall()
print(f"DuckDB: {rows} rows, {offsets} offsets, the last one is {last}")
frame = pl.scan_iceberg(table, storage_options=options).select("_offset", pl.col("value").cast(pl.String))
print("Polars:", frame.sort("_offset").tail(3).collect().rows())
commits = sum("mpbroker.offsets" in one.summary.additional_properties for one in table.snapshots())
print(f"""
topic orders, {rows:,} records
  |-- sealed segments, in the store --.
  '-- the rest, on the broker --------+--> mpbroker tables run: Spark's executors decode
                                           |-- {status["files"]} Parquet files --------------.
                                           '-- {commits} snapshots, each with its offsets --+--> DuckDB, Polars
docs/TABLES.md has the picture""")
END
# The planner that needs no other package.
export POLARS_ICEBERG_PLANNER=pyiceberg
show python table.py | tee table
grep -q "DuckDB: 30100 rows, 30100 offsets" table || give_up "the table is not what the log is"

say "9. Everything stops, and is removed"
