#!/bin/bash
# Times Drayman and its rivals moving one file, or a directory of small files, between two hosts (two network namespaces, unshaped),
# in turn.
#
#   sudo DRAY_BIN=target/release/dray bench/first-bytes.sh          # all rows; without DRAY_BIN the rivals alone
#
#   BENCH_PAIRS=5         rounds for the large file; every row runs once a round, in an order that rotates
#   BENCH_SMALL_PAIRS=15  rounds for the small one
#   BENCH_BYTES=2147483648  BENCH_SMALL_BYTES=1024
#   BENCH_TREES="10000 50000"  trees of so many files of 4 KiB, 250 in a directory; each also once more when nothing has changed
#   BENCH_TREE_PAIRS=5    rounds for each tree; 0 rounds of anything leave it out
#   BENCH_ROWS="a b"      only these rows (names below)
#   BENCH_PIN=1           each end on a core of its own
#   BENCH_DIR=/mnt        files on the file system of this directory instead of a tmpfs
#   BENCH_FSYNC=1         every row makes the file durable before it ends; rows without a flag for that are left out
#
# Raw numbers, one JSON object a line, go to bench/results/; bench/render.py makes docs/performance.md from them. Every
# transfer is compared with its source (cmp) after the clock has stopped. Round 0 measures memory and is not timed.
set -u
cd "$(dirname "$0")/.." || exit 2
. bench/two-hosts.sh

PAIRS=${BENCH_PAIRS:-5} SMALL_PAIRS=${BENCH_SMALL_PAIRS:-15}
BYTES=${BENCH_BYTES:-2147483648} SMALL_BYTES=${BENCH_SMALL_BYTES:-1024}
TREES=${BENCH_TREES-10000 50000} TREE_PAIRS=${BENCH_TREE_PAIRS:-5} TREE_FILE_BYTES=4096
LAB_BYTES=$((BYTES * 3 + (2 << 30)))
RUN_SECONDS_MAX=300
NEAR_PIN='' FAR_PIN=''
if [ -n "${BENCH_PIN:-}" ]; then NEAR_PIN='taskset -c 0' FAR_PIN='taskset -c 1'; fi

DRAY_ROWS='dray-get dray-get-clear dray-put-get dray-cp-pull dray-cp-push dray-ssh-pull dray-ssh-push'
RIVAL_ROWS='rsync-daemon-pull rsync-daemon-push rsync-ssh-pull rsync-ssh-push rsync-ssh-gcm-pull rsync-ssh-gcm-push
    scp-pull scp-push curl curl-b3sum'
# Tickets are of single files, and nobody fetches ten thousand addresses with curl.
TREE_ROWS='dray-cp-pull dray-cp-push dray-ssh-pull dray-ssh-push rsync-daemon-pull rsync-daemon-push rsync-ssh-pull rsync-ssh-push
    scp-pull scp-push'

main() {
    [ "$(id -u)" = 0 ] || die "needs root, for namespaces"
    local tool
    for tool in ip nft nsenter sshd rsync scp curl b3sum cmp taskset python3; do
        command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || die "needs $tool"
    done
    PATH=$PATH:/usr/sbin
    if [ -n "${DRAY_BIN:-}" ]; then
        DRAY_BIN=$(realpath -e "$DRAY_BIN") || die "DRAY_BIN names no file"
    fi
    trap lab_down EXIT
    trap 'exit 130' INT TERM
    lab_up || exit 1
    prepare
    mkdir -p bench/results
    RESULTS=bench/results/first-bytes-$(date -u +%Y%m%dT%H%M%SZ)${BENCH_PIN:+-pinned}${BENCH_DIR:+-disk}${BENCH_FSYNC:+-fsync}.jsonl
    facts >"$RESULTS"
    measure large "$BYTES" "$PAIRS"
    measure small "$SMALL_BYTES" "$SMALL_PAIRS"
    local count
    for count in $TREES; do
        measure "tree-$count" $((count * TREE_FILE_BYTES)) "$TREE_PAIRS"
        measure "tree-$count-again" $((count * TREE_FILE_BYTES)) "$TREE_PAIRS"
    done
    echo "$RESULTS"
}

die() {
    echo "first-bytes: $1" >&2
    exit 2
}

# Environment and files of both ends.
prepare() {
    export HOME=$W/near/home DRAY_DATA_DIR=$W/near/data XDG_STATE_HOME=$W/near/state DRAY_CONFIG=$W/etc/default.toml
    : >"$W/etc/default.toml"
    echo 'clear_text_data = true' >"$W/etc/clear.toml"
    [ -z "${DRAY_BIN:-}" ] || ln -s "$DRAY_BIN" "$W/bin/dray"
    PATH=$W/bin:$PATH
    local size
    for size in "large $BYTES" "small $SMALL_BYTES"; do
        head -c "${size#* }" /dev/urandom >"$W/far/in/${size% *}" || die "the tmpfs is too small for the file"
        ln "$W/far/in/${size% *}" "$W/near/in/${size% *}"
    done
    local count
    for count in $TREES; do
        make_tree "$count" "$W/far/in/tree-$count" && cp -a "$W/far/in/tree-$count" "$W/near/in/" || die "the tmpfs is too small for the trees"
    done
    SSH_OPTIONS=(-i "$W/etc/client_key" -o "UserKnownHostsFile=$W/etc/known_hosts" -o IdentitiesOnly=yes -o BatchMode=yes)
    SSH_COMMAND="ssh -p $SSH_PORT ${SSH_OPTIONS[*]}"
    RSYNC_FSYNC=() DRAY_FSYNC=()
    if [ -n "${BENCH_FSYNC:-}" ]; then RSYNC_FSYNC=(--fsync) DRAY_FSYNC=(--fsync); fi
}

# Files that nobody has had before, as many as said, 250 in a directory.
make_tree() { # COUNT DIRECTORY
    python3 - "$1" "$2" "$TREE_FILE_BYTES" <<'P'
import os, sys
count, base, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    directory = f"{base}/d{number // 250:05}"
    if number % 250 == 0:
        os.makedirs(directory)
    with open(f"{directory}/f{number:07}", "wb") as file:
        file.write(os.urandom(size))
P
}

# Sets COMMAND, and TO for the file that must equal the source; fails if this row cannot run here. A row may set SERVE,
# what runs at the far end before the clock starts, and BLOCK, to allow ssh only.
row() { # NAME FILE
    local file=${2%-again} gcm=aes128-gcm@openssh.com
    SERVE='' BLOCK='' CONFIG=$W/etc/default.toml
    case $1 in
    *-push) FROM=$W/near/in/$file TO=$W/far/out/$file ;;
    *) FROM=$W/far/in/$file TO=$W/near/out/$file ;;
    esac
    case $2 in
    tree-*)
        tree_row "$1"
        return
        ;;
    esac
    case $1 in
    rsync-daemon-pull) COMMAND=(rsync -W "${RSYNC_FSYNC[@]}" "rsync://$FAR_IP/far/in/$file" "$TO") ;;
    rsync-daemon-push) COMMAND=(rsync -W "${RSYNC_FSYNC[@]}" "$FROM" "rsync://$FAR_IP/far/out/$file") ;;
    rsync-ssh-pull) COMMAND=(rsync -W "${RSYNC_FSYNC[@]}" -e "$SSH_COMMAND" "root@$FAR_IP:$FROM" "$TO") ;;
    rsync-ssh-push) COMMAND=(rsync -W "${RSYNC_FSYNC[@]}" -e "$SSH_COMMAND" "$FROM" "root@$FAR_IP:$TO") ;;
    rsync-ssh-gcm-pull) COMMAND=(rsync -W "${RSYNC_FSYNC[@]}" -e "$SSH_COMMAND -c $gcm" "root@$FAR_IP:$FROM" "$TO") ;;
    rsync-ssh-gcm-push) COMMAND=(rsync -W "${RSYNC_FSYNC[@]}" -e "$SSH_COMMAND -c $gcm" "$FROM" "root@$FAR_IP:$TO") ;;
    dray-get | dray-get-clear)
        SERVE=dray-put
        [ "$1" = dray-get ] || CONFIG=$W/etc/clear.toml
        COMMAND=(dray get "${DRAY_FSYNC[@]}" TICKET -o "$TO")
        ;;
    dray-put-get) COMMAND=(put_and_get "$FROM" "$TO") ;;
    dray-cp-pull | dray-ssh-pull)
        COMMAND=(dray cp "${DRAY_FSYNC[@]}" -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "root@$FAR_IP:$FROM" "$TO")
        ;;
    dray-cp-push | dray-ssh-push)
        COMMAND=(dray cp "${DRAY_FSYNC[@]}" -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "$FROM" "root@$FAR_IP:$TO")
        ;;
    *)
        # These have no flag that makes the file durable.
        [ -z "${BENCH_FSYNC:-}" ] || return 1
        case $1 in
        scp-pull) COMMAND=(scp -q -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "root@$FAR_IP:$FROM" "$TO") ;;
        scp-push) COMMAND=(scp -q -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "$FROM" "root@$FAR_IP:$TO") ;;
        curl) COMMAND=(curl -sSf -o "$TO" "http://$FAR_IP/in/$file") ;;
        curl-b3sum) COMMAND=(curl_and_b3sum "$TO" "http://$FAR_IP/in/$file") ;;
        *) die "no row $1" ;;
        esac
        ;;
    esac
    case $1 in
    dray-ssh-*) BLOCK=yes ;;
    curl*) [ -n "$HAVE_NGINX" ] ;;
    esac
}

# A directory and all that is in it, with what `-a` keeps; it lands in the directory `out`, which is there.
tree_row() { # NAME
    local into=${TO%/*}
    case $1 in
    dray-ssh-*) BLOCK=yes ;;
    esac
    case $1 in
    rsync-daemon-pull) COMMAND=(rsync -a "${RSYNC_FSYNC[@]}" "rsync://$FAR_IP/far/in/${FROM##*/}" "$into/") ;;
    rsync-daemon-push) COMMAND=(rsync -a "${RSYNC_FSYNC[@]}" "$FROM" "rsync://$FAR_IP/far/out/") ;;
    rsync-ssh-pull) COMMAND=(rsync -a "${RSYNC_FSYNC[@]}" -e "$SSH_COMMAND" "root@$FAR_IP:$FROM" "$into/") ;;
    rsync-ssh-push) COMMAND=(rsync -a "${RSYNC_FSYNC[@]}" -e "$SSH_COMMAND" "$FROM" "root@$FAR_IP:$into/") ;;
    dray-cp-pull | dray-ssh-pull)
        COMMAND=(dray cp -a "${DRAY_FSYNC[@]}" -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "root@$FAR_IP:$FROM" "$into/")
        ;;
    dray-cp-push | dray-ssh-push)
        COMMAND=(dray cp -a "${DRAY_FSYNC[@]}" -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "$FROM" "root@$FAR_IP:$into/")
        ;;
    scp-pull) COMMAND=(scp -q -r -p -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "root@$FAR_IP:$FROM" "$into/") ;;
    scp-push) COMMAND=(scp -q -r -p -P "$SSH_PORT" "${SSH_OPTIONS[@]}" "$FROM" "root@$FAR_IP:$into/") ;;
    *) return 1 ;;
    esac
}

# Whether what was delivered is what was sent: bytes, times, modes, owners; nothing less and nothing more.
is_same() {
    if [ -d "$FROM" ]; then
        [ -z "$(rsync -an --checksum --delete --itemize-changes "$FROM/" "$TO/" 2>&1)" ]
    else
        cmp -s "$FROM" "$TO"
    fi
}

# What a person would type, with the directories and addresses of the lab made readable.
shown() { # ROW
    local text
    case $1 in
    dray-get) text="${COMMAND[*]/#"${ticket:- }"/TICKET}" ;;
    dray-get-clear) text="DRAY_CONFIG=clear.toml ${COMMAND[*]/#"${ticket:- }"/TICKET}" ;;
    dray-put-get) text="dray put $FROM & dray get TICKET -o $TO" ;;
    curl-b3sum) text="curl -sSf -o $TO ${COMMAND[2]} && b3sum $TO" ;;
    rsync-ssh*) text="${COMMAND[*]//"$SSH_COMMAND"/\'$SSH_COMMAND}"; text=${text/ root@/\' root@} ;;
    *) text="${COMMAND[*]}" ;;
    esac
    case $1 in
    rsync-ssh*push) text="${COMMAND[*]//"$SSH_COMMAND"/\'$SSH_COMMAND}"; text=${text/" $W/near"/"' $W/near"} ;;
    esac
    text=${text//"${SSH_OPTIONS[*]}"/…}
    text=${text//"$W/near/"/near/}
    text=${text//"$W/far/"/far/}
    text=${text//"$FAR_IP"/FAR}
    echo "$text"
}

curl_and_b3sum() { # TO URL
    curl -sSf -o "$1" "$2" && b3sum "$1" >/dev/null
}

# Put and get of a file nobody has hashed yet, from the start of the one to the end of the other.
put_and_get() { # FROM TO
    local ticket
    exec 3< <(start_put "$1")
    read -r ticket <&3 || return 1
    dray get "${DRAY_FSYNC[@]}" "$ticket" -o "$2"
}

start_put() { # FILE
    DRAY_DATA_DIR=$W/far/data XDG_STATE_HOME=$W/far/state HOME=$W/far/home at_far dray put "$1"
}

# Runs every row once a round; the first round of a size is for memory.
measure() { # SIZE_NAME BYTES PAIRS
    local names=() name round index rows="$DRAY_ROWS $RIVAL_ROWS"
    (($3 > 0)) || return 0
    case $1 in
    tree-*) rows=$TREE_ROWS ;;
    esac
    for name in ${BENCH_ROWS:-$rows}; do
        [[ $name != dray-* || -n "${DRAY_BIN:-}" ]] || continue
        # scp sends everything again, whatever is there; a tree of files is its row already.
        [[ $name-$1 != scp-*-again ]] || continue
        row "$name" "$1" && names+=("$name")
    done
    for ((round = 0; round <= $3; round++)); do
        for ((index = 0; index < ${#names[@]}; index++)); do
            name=${names[(index + round) % ${#names[@]}]}
            row "$name" "$1"
            one_run "$name" "$2" "$round" "$1"
        done
    done
}

one_run() { # ROW BYTES ROUND WHAT
    local near_before far_before near_after far_after wire_in wire_out ticket='' put_pid='' sampler=''
    local begin=0 end=0 code=0 status=ok memory='0 0' keep=$baseline
    # What an earlier round delivered would be taken from its file.
    rm -rf "$W/near/data/store"
    rm -rf "$W/near/out" "$W/far/out" && mkdir "$W/near/out" "$W/far/out"
    [[ $4 != *-again ]] || cp -a "$FROM" "$TO"
    export DRAY_CONFIG=$CONFIG
    [ "$1" != dray-put-get ] || rm -rf "$W/far/data"
    if [ "$SERVE" = dray-put ]; then
        exec 4< <(start_put "$FROM" 2>"$W/put.log")
        read -r -t 120 ticket <&4 || status='put printed no ticket'
        put_pid=$(comm -13 <(tr ' ' '\n' <<<"$baseline" | sort) <(sort "$FAR_CG/cgroup.procs"))
        keep=$(far_processes)
        COMMAND=("${COMMAND[@]/#TICKET/$ticket}")
    fi
    [ -z "$BLOCK" ] || block_direct
    in_net "$NEAR_NS" nft reset counters table inet bench >/dev/null
    if [ "$3" = 0 ]; then
        sample_memory "$W/memory" &
        sampler=$!
    fi
    cpu_us near_before "$NEAR_CG"
    cpu_us far_before "$FAR_CG"
    run_near
    read -r begin end code <"$W/timing"
    settle "$keep"
    cpu_us near_after "$NEAR_CG"
    cpu_us far_after "$FAR_CG"
    wire_in=$(wire_bytes received) wire_out=$(wire_bytes sent)
    if [ -n "$sampler" ]; then
        kill "$sampler" && wait "$sampler" 2>/dev/null
        read -r memory <"$W/memory"
    fi
    [ -z "$BLOCK" ] || unblock_direct
    if [ "$code" != 0 ]; then
        [ "$status" != ok ] || status="exit code $code: $(tail -n 1 "$W/near.log")"
    elif ! is_same; then
        status='what arrived differs'
    fi
    for pid in $put_pid; do kill "$pid" 2>/dev/null; done
    stop_extra
    record "$1" "$2" "$3" "$4"
}

# Runs COMMAND at the near end and leaves begin, end and exit code in the file `timing`. The clock runs inside the end, so
# that entering it costs nothing.
run_near() {
    export -f curl_and_b3sum put_and_get start_put at_far in_net
    export W FAR_NS FAR_CG FAR_PIN DRAY_FSYNC_TEXT="${DRAY_FSYNC[*]}"
    echo '0 0 124' >"$W/timing"
    # shellcheck disable=SC2016
    timeout "$RUN_SECONDS_MAX" nsenter --net="/run/netns/$NEAR_NS" -- $NEAR_PIN bash -c '
        echo $$ >"$1/cgroup.procs"
        timing=$2 log=$3
        shift 3
        DRAY_FSYNC=($DRAY_FSYNC_TEXT)
        begin=$EPOCHREALTIME
        "$@" </dev/null >/dev/null 2>"$log"
        code=$?
        echo "$begin $EPOCHREALTIME $code" >"$timing"' near "$NEAR_CG" "$W/timing" "$W/near.log" "${COMMAND[@]}"
}

# Waits until only the processes in $1 are left at the far end, so that all of a row's CPU time is counted to it.
settle() { # PROCESSES
    local _
    for _ in {1..200}; do
        [ "$(far_processes)" = "$1" ] && return
        # The put of the row dray-put-get stays: it is idle now.
        [ "${COMMAND[0]}" = put_and_get ] && [ "$(wc -l <"$FAR_CG/cgroup.procs")" -le $(($(wc -w <<<"$1") + 1)) ] && return
        read -r -t 0.01 <> <(:) || :
    done
}

# Ends what a row left at the far end.
stop_extra() {
    local pid _
    for pid in $(comm -13 <(tr ' ' '\n' <<<"$baseline" | sort) <(sort "$FAR_CG/cgroup.procs")); do
        kill "$pid" 2>/dev/null
    done
    for _ in {1..200}; do
        [ "$(far_processes)" = "$baseline" ] && return
        read -r -t 0.02 <> <(:) || :
    done
    echo "first-bytes: the far end still runs $(far_processes)" >&2
}

# Keeps the sum of the peak resident sizes (VmHWM, KiB) of each end's processes in the file $1, until killed. The servers'
# waiting processes count only if they are Drayman's.
sample_memory() {
    local -A peak=() side=()
    local end pid near far lines line
    while :; do
        for end in near far; do
            for pid in $(<"$([ $end = near ] && echo "$NEAR_CG" || echo "$FAR_CG")/cgroup.procs"); do
                [[ " $baseline " == *" $pid "* ]] && continue
                mapfile -t lines 2>/dev/null <"/proc/$pid/status" || continue
                for line in "${lines[@]}"; do
                    if [[ $line == VmHWM:* ]]; then
                        line=${line//[!0-9]/}
                        peak[$pid]=$line side[$pid]=$end
                        break
                    fi
                done
            done
        done
        near=0 far=0
        for pid in "${!peak[@]}"; do
            if [ "${side[$pid]}" = near ]; then near=$((near + peak[$pid])); else far=$((far + peak[$pid])); fi
        done
        echo "$near $far" >"$1"
        read -r -t 0.02 <> <(:) || :
    done 2>/dev/null
}

record() { # ROW BYTES ROUND WHAT
    local seconds
    seconds=$(awk -v b="$begin" -v e="$end" 'BEGIN { printf "%.6f", e - b }')
    printf '{"row":%s,"what":%s,"bytes":%d,"round":%d,"status":%s,"seconds":%s,"near_cpu_us":%d,"far_cpu_us":%d,"wire_in_bytes":%d,"wire_out_bytes":%d,"near_peak_kib":%d,"far_peak_kib":%d,"command":%s}\n' \
        "$(json "$1")" "$(json "$4")" "$2" "$3" "$(json "$status")" "$seconds" $((near_after - near_before)) $((far_after - far_before)) \
        "$wire_in" "$wire_out" "${memory% *}" "${memory#* }" "$(json "$(shown "$1")")" >>"$RESULTS"
    printf '%-20s %-16s round %-2d  %9.4f s  %s\n' "$1" "$4" "$3" "$seconds" "$status"
}

# What the numbers depend on.
facts() {
    local model
    model=$(awk -F ': ' '/model name/ { print $2; exit }' /proc/cpuinfo)
    printf '{"facts":{"date":%s,"cpu":%s,"cores":%d,"memory_mib":%d,"kernel":%s,"congestion_control":%s,"file_system":%s,"fsync":%s,"pinned":%s,"dray":%s,"rsync":%s,"ssh":%s,"nginx":%s,"curl":%s}}\n' \
        "$(json "$(date -u +%F)")" "$(json "$model")" "$(nproc)" $(($(awk '/MemTotal/ { print $2 }' /proc/meminfo) / 1024)) \
        "$(json "$(uname -sr)")" "$(json "$(in_net "$NEAR_NS" sysctl -n net.ipv4.tcp_congestion_control)")" \
        "$(json "$(stat -f -c %T "$W")")" "$(json "$([ -z "${BENCH_FSYNC:-}" ] && echo none || echo 'at the end')")" "$([ -z "${BENCH_PIN:-}" ] && echo false || echo true)" \
        "$(json "$([ -z "${DRAY_BIN:-}" ] || "$DRAY_BIN" --version)")" "$(json "$(rsync --version | sed -n '1s/  protocol.*//p')")" \
        "$(json "$(ssh -V 2>&1)")" "$(json "$([ -z "$HAVE_NGINX" ] || nginx -v 2>&1 | sed 's/.*: //')")" \
        "$(json "$(curl --version | sed -n '1s/ (.*//p')")"
}

json() { # TEXT
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//[$'\001'-$'\037']/ }
    printf '"%s"' "$text"
}

main "$@"
