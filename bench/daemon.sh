#!/bin/bash
# Times dray with a daemon at the holder against dray without one, in turn, between two hosts (two network namespaces,
# unshaped, tmpfs): put and get of a small file that was never hashed, and get of a large one that was.
#
#   sudo bench/daemon.sh DRAY
#
#   BENCH_PAIRS=5           rounds; who goes first changes each round; round 0 is not counted
#   BENCH_BYTES=2147483648  of the large file
#
# Prints a line a run and the medians; raw numbers, one JSON object a line, go to bench/results/. Every copy is compared with its
# source (cmp) after the clock has stopped.
set -u
die() {
    echo "daemon: $1" >&2
    exit 2
}
[ $# = 1 ] || die "needs a build: DRAY"
[ "$(id -u)" = 0 ] || die "needs root, for namespaces"
DRAY=$(realpath -e "$1") || die "no such file: $1"
cd "$(dirname "$0")/.." || exit 2
. bench/two-hosts.sh
PATH=$PATH:/usr/sbin
PAIRS=${BENCH_PAIRS:-5} BYTES=${BENCH_BYTES:-2147483648}
LAB_BYTES=$((BYTES * 3 + (512 << 20)))
FAR_PIN=''
trap lab_down EXIT
trap 'exit 130' INT TERM
lab_up || exit 1
export XDG_CONFIG_HOME=$W/etc
RESULTS=bench/results/daemon-$(date -u +%Y%m%dT%H%M%SZ).jsonl
mkdir -p bench/results
head -c "$BYTES" /dev/urandom >"$W/far/in/large"

# Both holders are there all the while; only one has a daemon.
far() { # NAME COMMAND…
    local name=$1
    shift
    DRAY_SOCKET=$W/far/$name.sock DRAY_DATA_DIR=$W/far/data/$name at_far "$DRAY" "$@"
}
exec 5< <(far daemon serve --json 2>"$W/serve.log")
read -r -t 60 line <&5 || die "no daemon: $(tail -n 1 "$W/serve.log")"
declare -A large
large[daemon]=$(far daemon put "$W/far/in/large" 2>"$W/put.log") || die "$(tail -n 1 "$W/put.log")"
exec 4< <(far alone put "$W/far/in/large" 2>"$W/put.log")
read -r -t 120 line <&4 || die "put printed no ticket: $(tail -n 1 "$W/put.log")"
large[alone]=$line

get() { # TICKET
    DRAY_DATA_DIR=$W/near/data in_net "$NEAR_NS" "$DRAY" get "$1" -o "$W/near/out/copy" 2>"$W/get.log"
}
note() { # ROW ROUND BYTES BEGIN END STATUS
    printf '{"row":"%s","bytes":%s,"round":%s,"status":"%s","seconds":%s}\n' \
        "$1" "$3" "$2" "$6" "$(awk "BEGIN{printf \"%.6f\", ($5-$4)/1e9}")" | tee -a "$RESULTS"
}
fresh() {
    rm -rf "$W/near/out" "$W/near/data"
    mkdir "$W/near/out" "$W/near/data"
}
small_run() { # NAME ROUND
    local begin end status=ok ticket
    fresh
    head -c 1024 /dev/urandom >"$W/far/in/small-$1"
    begin=$(date +%s%N)
    if [ "$1" = daemon ]; then
        ticket=$(far daemon put "$W/far/in/small-$1" 2>"$W/put.log")
    else
        exec 6< <(far alone put "$W/far/in/small-$1" 2>"$W/put.log" & echo $! >"$W/small.pid"; wait)
        read -r -t 60 ticket <&6
    fi
    get "$ticket" || status="failed: $(tail -n 1 "$W/get.log")"
    end=$(date +%s%N)
    cmp -s "$W/far/in/small-$1" "$W/near/out/copy" || status=${status/#ok/the file differs}
    [ "$1" = daemon ] || { kill "$(cat "$W/small.pid")" 2>/dev/null; exec 6<&-; }
    note "put-get-small-$1" "$2" 1024 "$begin" "$end" "$status"
}
large_run() { # NAME ROUND
    local begin end status=ok
    fresh
    begin=$(date +%s%N)
    get "${large[$1]}" || status="failed: $(tail -n 1 "$W/get.log")"
    end=$(date +%s%N)
    cmp -s "$W/far/in/large" "$W/near/out/copy" || status=${status/#ok/the file differs}
    note "get-large-$1" "$2" "$BYTES" "$begin" "$end" "$status"
}

for ((round = 0; round <= PAIRS; round++)); do
    if ((round % 2)); then order='daemon alone'; else order='alone daemon'; fi
    for name in $order; do small_run "$name" "$round"; done
    for name in $order; do large_run "$name" "$round"; done
done
median() {
    awk -F'"seconds":' -v row="\"$1\"" 'index($0, row) && !/"round":0,/ && /"status":"ok"/ { sub(/}.*/, "", $2); print $2 }' "$RESULTS" |
        sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
for row in put-get-small get-large; do
    alone=$(median "$row-alone") daemon=$(median "$row-daemon")
    awk "BEGIN{printf \"$row, median of %d: alone %.4f s, with a daemon %.4f s, ratio %.2f\n\", $PAIRS, $alone, $daemon, $daemon/$alone}"
done
echo "$RESULTS"
