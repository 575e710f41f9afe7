#!/bin/bash
# Times two builds of dray against each other: `dray get` of one hashed file from one holder between two hosts (two network
# namespaces, unshaped, tmpfs), in turn, each with its own holder.
#
#   sudo bench/against.sh BEFORE AFTER
#
#   BENCH_PAIRS=7           rounds; who goes first changes each round; round 0 is not counted
#   BENCH_BYTES=2147483648
#
# Prints a line a run and the medians; raw numbers, one JSON object a line, go to bench/results/. Every copy is compared with its
# source (cmp) after the clock has stopped.
set -u
die() {
    echo "against: $1" >&2
    exit 2
}
[ $# = 2 ] || die "needs two builds: BEFORE AFTER"
[ "$(id -u)" = 0 ] || die "needs root, for namespaces"
BEFORE=$(realpath -e "$1") || die "no such file: $1"
AFTER=$(realpath -e "$2") || die "no such file: $2"
cd "$(dirname "$0")/.." || exit 2
. bench/two-hosts.sh
PATH=$PATH:/usr/sbin
PAIRS=${BENCH_PAIRS:-7} BYTES=${BENCH_BYTES:-2147483648}
# Each build has its own copy of the source and of what is received.
LAB_BYTES=$((BYTES * 4 + (512 << 20)))
FAR_PIN=''
trap lab_down EXIT
trap 'exit 130' INT TERM
lab_up || exit 1
export XDG_CONFIG_HOME=$W/etc
RESULTS=bench/results/against-$(date -u +%Y%m%dT%H%M%SZ).jsonl
mkdir -p bench/results
head -c "$BYTES" /dev/urandom >"$W/far/in/before"
cp "$W/far/in/before" "$W/far/in/after"

declare -A ticket binary=([before]=$BEFORE [after]=$AFTER)
for name in before after; do
    exec 4< <(DRAY_DATA_DIR=$W/far/data/$name at_far "${binary[$name]}" put "$W/far/in/$name" 2>"$W/put.$name.log")
    read -r -t 120 line <&4 || die "put printed no ticket: $(tail -n 1 "$W/put.$name.log")"
    ticket[$name]=$line
done

one_run() { # NAME ROUND
    local begin end status=ok
    rm -rf "$W/near/out" "$W/near/data"
    mkdir "$W/near/out" "$W/near/data"
    begin=$(date +%s%N)
    DRAY_DATA_DIR=$W/near/data in_net "$NEAR_NS" "${binary[$1]}" get "${ticket[$1]}" -o "$W/near/out/copy" 2>"$W/get.log" ||
        status="failed: $(tail -n 1 "$W/get.log")"
    end=$(date +%s%N)
    cmp -s "$W/far/in/$1" "$W/near/out/copy" || status=${status/#ok/the file differs}
    printf '{"row":"get-%s","bytes":%s,"round":%s,"status":"%s","seconds":%s}\n' \
        "$1" "$BYTES" "$2" "$status" "$(awk "BEGIN{printf \"%.6f\", ($end-$begin)/1e9}")" | tee -a "$RESULTS"
}

for ((round = 0; round <= PAIRS; round++)); do
    if ((round % 2)); then order='after before'; else order='before after'; fi
    for name in $order; do one_run "$name" "$round"; done
done
median() {
    awk -F'"seconds":' -v row="get-$1" '$0 ~ row && !/"round":0,/ && /"status":"ok"/ { sub(/}.*/, "", $2); print $2 }' "$RESULTS" |
        sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
before=$(median before) after=$(median after)
awk "BEGIN{printf \"median of %d: before %.3f s, after %.3f s, ratio %.2f\n\", $PAIRS, $before, $after, $after/$before}"
echo "$RESULTS"
