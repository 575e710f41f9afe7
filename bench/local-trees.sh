#!/bin/bash
# Times `dray cp -a` of a tree within a host against `cp -a`, on an ext4 of its own (a file, mounted by loop) and on a tmpfs, in turn.
#
#   sudo DRAY_BIN=target/release/dray bench/local-trees.sh
#
#   BENCH_FILES=50000     files of 4 KiB, 250 in a directory
#   BENCH_PAIRS=5         rounds; the order alternates, and a first one is not counted
#   BENCH_ON="ext4 tmpfs"
#
# What was written is not waited for, as `cp` does not; before each run everything is on disk. Each copy is compared with its source
# after the clock has stopped. Raw numbers go to bench/results/, the medians to standard output.
set -eu
cd "$(dirname "$0")/.."
FILES=${BENCH_FILES:-50000} PAIRS=${BENCH_PAIRS:-5}
DRAY_BIN=$(realpath -e "${DRAY_BIN:?names no dray}")
PATH=$PATH:/usr/sbin
RESULTS=$PWD/bench/results/local-trees-$(date -u +%Y%m%dT%H%M%SZ).jsonl
W=$(mktemp -d)
PLACE=
down() {
    cd /
    [ -z "$PLACE" ] || umount "$PLACE" || :
    rm -rf "$W"
}
trap down EXIT

up() { # ext4|tmpfs
    PLACE=$W/$1
    mkdir "$PLACE"
    if [ "$1" = ext4 ]; then
        truncate -s $((FILES * 8192 * 3 + (1 << 30))) "$W/image"
        mkfs.ext4 -q -N $((FILES * 4)) "$W/image"
        mount -o loop "$W/image" "$PLACE"
    else
        mount -t tmpfs -o "size=$((FILES * 8192 * 3)),nr_inodes=$((FILES * 4))" dray-bench "$PLACE"
    fi
    python3 - "$FILES" "$PLACE/in" <<'P'
import os, sys
count, base = int(sys.argv[1]), sys.argv[2]
for number in range(count):
    directory = f"{base}/d{number // 250:05}"
    if number % 250 == 0:
        os.makedirs(directory)
    with open(f"{directory}/f{number:07}", "wb") as file:
        file.write(os.urandom(4096))
P
}

one() { # ROW ROUND
    local begin end same=true
    rm -rf "$PLACE/out"
    sync -f "$PLACE"
    begin=$EPOCHREALTIME
    case $1 in
    cp) cp -a "$PLACE/in" "$PLACE/out" ;;
    dray) "$DRAY_BIN" cp --quiet -a "$PLACE/in" "$PLACE/out" ;;
    esac
    end=$EPOCHREALTIME
    [ -z "$(rsync -aHn --checksum --delete --itemize-changes "$PLACE/in/" "$PLACE/out/" 2>&1)" ] || same=false
    awk -v on="${PLACE##*/}" -v row="$1" -v round="$2" -v b="$begin" -v e="$end" -v same=$same 'BEGIN {
        printf "{\"on\":\"%s\",\"files\":'"$FILES"',\"row\":\"%s\",\"round\":%d,\"seconds\":%.4f,\"same\":%s}\n", on, row, round, e - b, same
    }' >>"$RESULTS"
}

mkdir -p bench/results
for on in ${BENCH_ON:-ext4 tmpfs}; do
    up "$on"
    for ((round = 0; round <= PAIRS; round++)); do
        if ((round % 2)); then one cp $round && one dray $round; else one dray $round && one cp $round; fi
    done
    umount "$PLACE"
    PLACE=
done
python3 - "$RESULTS" <<'P'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for on in dict.fromkeys(row["on"] for row in rows):
    seconds = {name: [row["seconds"] for row in rows if (row["on"], row["row"]) == (on, name) and row["round"]] for name in ("dray", "cp")}
    pairs = [dray / cp for dray, cp in zip(seconds["dray"], seconds["cp"])]
    print(f"{on}: dray {statistics.median(seconds['dray']):.3f} s, cp -a {statistics.median(seconds['cp']):.3f} s, "
          f"ratio {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f}), "
          f"all the same: {all(row['same'] for row in rows if row['on'] == on)}")
P
echo "$RESULTS"
