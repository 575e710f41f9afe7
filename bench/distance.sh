#!/bin/bash
# Times `dray cp` and rsync over ssh across a long link, in turn, between two hosts of the network lab (testing/lab).
#
#   sudo DRAY_BIN=target/release/dray bench/distance.sh
#
#   BENCH_LINK=100M/132ms   rate and round trip, or a name: lab-run --links
#   BENCH_PAIRS=5           rounds; who goes first changes each round, and one more before them is not counted
#   BENCH_SIZES="1024 268435456"   sizes of the single file, bytes
#   BENCH_FILES=10000       small files of 1 to 8 KiB in one tree (0: none); left out if this dray copies no trees
#   BENCH_WAYS="push pull"  from the near end, or to it
#   BENCH_SSH_ONLY=1        nothing but ssh gets through
#   BENCH_DRAY="NAME=PATH …"  several builds of dray instead of DRAY_BIN
#   LAB_RUN=PATH            lab-run; target/release/lab-run otherwise (cargo build --release -p dray-lab)
#
# Raw numbers, one JSON object a line, go to bench/results/. Every copy is compared with its source after the clock has
# stopped. A run whose validity is not "valid" measured the machine rather than the link.
set -u
cd "$(dirname "$0")/.." || exit 2
PATH=$PATH:/usr/sbin

die() {
    echo "distance: $1" >&2
    exit 2
}

[ "$(id -u)" = 0 ] || die "needs root, for namespaces"
LINK=${BENCH_LINK:-100M/132ms} PAIRS=${BENCH_PAIRS:-5} SIZES=${BENCH_SIZES:-1024 268435456} FILES=${BENCH_FILES:-10000}
WAYS=${BENCH_WAYS:-push pull}
BUILDS=${BENCH_DRAY:-dray=${DRAY_BIN:?names the dray to time}}
LAB_RUN=$(realpath -e "${LAB_RUN:-${CARGO_TARGET_DIR:-target}/release/lab-run}") ||
    die "no lab-run; build it: cargo build --release -p dray-lab"
for tool in sshd rsync cmp diff nft ssh-keygen; do
    command -v "$tool" >/dev/null || die "needs $tool"
done

SSH_PORT=22
W=$(mktemp -d /tmp/dray-distance.XXXXXX)
trap 'umount "$W" 2>/dev/null; rmdir "$W"' EXIT
trap 'exit 130' INT TERM
mount -t tmpfs dray-distance "$W" || die "no tmpfs at $W"
chmod 755 "$W"
mkdir -p "$W"/{near,far}/{in,out,home,data,state} "$W/bin" "$W/etc" bench/results
RESULTS=bench/results/distance-$(date -u +%Y%m%dT%H%M%SZ)${BENCH_SSH_ONLY:+-ssh-only}.jsonl

make_sshd() {
    local key
    for key in host client; do ssh-keygen -q -t ed25519 -N '' -f "$W/etc/$key"; done
    mkdir -p -m 755 /run/sshd
    cat >"$W/etc/sshd_config" <<C
Port $SSH_PORT
HostKey $W/etc/host
AuthorizedKeysFile $W/etc/client.pub
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
MaxStartups 100
SetEnv HOME=$W/far/home DRAY_DATA_DIR=$W/far/data DRAY_CONFIG=$W/etc/dray.toml XDG_STATE_HOME=$W/far/state PATH=$W/bin:/usr/bin:/bin
C
    : >"$W/etc/dray.toml"
    SSH_OPTIONS=(-i "$W/etc/client" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no
        -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR)
}

# Loaded again before each run: the first line makes sure that there is something to take out.
make_firewall() {
    cat >"$W/etc/firewall" <<NFT
table inet only_ssh { }
delete table inet only_ssh
table inet only_ssh {
    chain in { type filter hook input priority 1; iifname lo accept; tcp dport $SSH_PORT accept; tcp sport $SSH_PORT accept; meta l4proto tcp drop; }
}
NFT
}

facts() {
    printf '{"facts":{"date":"%s","link":"%s","kernel":"%s","congestion_control":"%s","rsync":"%s","ssh":"%s","ssh_only":%s}}\n' \
        "$(date -u +%F)" "$LINK" "$(uname -r)" "$(cat /proc/sys/net/ipv4/tcp_congestion_control)" \
        "$(rsync --version | sed -n '1s/  protocol.*//p')" "$(ssh -V 2>&1)" "$([ -n "${BENCH_SSH_ONLY:-}" ] && echo true || echo false)"
}

# One row: NAME push|pull RSYNC-OPTIONS DRAY-OPTIONS
row() {
    local name=$1 way=$2 rsync_options=$3 dray_options=$4 from to ssh="ssh ${SSH_OPTIONS[*]}" build runs=() before check
    local environment="HOME=$W/near/home DRAY_DATA_DIR=$W/near/data DRAY_CONFIG=$W/etc/dray.toml XDG_STATE_HOME=$W/near/state"
    if [ "$way" = push ]; then
        from=$W/near/in/$name to="root@\$FAR:$W/far/out/copy" check=$W/far/out/copy
    else
        from="root@\$FAR:$W/far/in/$name" to=$W/near/out/copy check=$W/near/out/copy
    fi
    # A slash at the end makes rsync copy what is in a directory.
    [ -d "$W/near/in/$name" ] && rsync_from=$from/ || rsync_from=$from
    runs=(--run "rsync=exec rsync $rsync_options -e '$ssh' $rsync_from $to")
    for build in $BUILDS; do
        runs+=(--run "${build%%=*}=exec env $environment ${build#*=} cp --quiet $dray_options ${SSH_OPTIONS[*]} $from $to")
    done
    # What an earlier run delivered would be taken from its file. The far end runs the build under test.
    before="rm -rf $W/near/out $W/far/out $W/near/data $W/far/data; mkdir $W/near/out $W/far/out $W/near/data $W/far/data; rm -f $W/bin/dray"
    for build in $BUILDS; do
        before+="; [ \$RUN != ${build%%=*} ] || ln -s $(realpath -e "${build#*=}") $W/bin/dray"
    done
    [ -z "${BENCH_SSH_ONLY:-}" ] || before+="; nft -f $W/etc/firewall"
    if [ -d "$W/near/in/$name" ]; then check="diff -r $W/near/in/$name $check"; else check="cmp $W/near/in/$name $check"; fi
    echo "== $name $way over $LINK${BENCH_SSH_ONLY:+, ssh only}"
    "$LAB_RUN" --link "$LINK" --warm-up --rounds "$PAIRS" --await "$SSH_PORT" \
        ${BENCH_SSH_ONLY:+--far "nft -f $W/etc/firewall"} --far "exec /usr/sbin/sshd -D -f $W/etc/sshd_config -E $W/etc/sshd.log" \
        --before "$before" --check "$check" "${runs[@]}" |
        sed "s/^{/{\"row\":\"$name-$way\",/" | tee -a "$RESULTS" >/dev/null
}

make_sshd
make_firewall
facts >"$RESULTS"
for size in $SIZES; do
    head -c "$size" /dev/urandom >"$W/near/in/file-$size" || die "the tmpfs is too small for $size bytes"
    ln "$W/near/in/file-$size" "$W/far/in/file-$size"
    for way in $WAYS; do row "file-$size" "$way" -W ''; done
    rm "$W"/{near,far}/in/"file-$size"
done
first=${BUILDS%% *}
if ((FILES > 0)) && "${first#*=}" cp --help | grep -q -e '-r,\|--recursive'; then
    for ((number = 0; number < FILES; number++)); do
        folder=$W/near/in/tree/$((number / 100))
        ((number % 100)) || mkdir -p "$folder"
        head -c $((1024 + number % 8 * 1024)) /dev/urandom >"$folder/$number"
    done
    cp -rl "$W/near/in/tree" "$W/far/in/tree"
    for way in $WAYS; do row tree "$way" '-a --no-inc-recursive' -r; done
fi
echo "$RESULTS"
