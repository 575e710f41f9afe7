# Two hosts on one machine, for the benchmarks: network namespaces "near" and "far" joined by a veth pair, one tmpfs (or a folder
# of BENCH_DIR) for their files, an sshd, an rsync daemon and (if installed) an nginx at the far end, and a cgroup for each end that counts its CPU time.
# Sourced by first-bytes.sh; needs root. Everything made here is undone by `lab_down`, by name and by process id.

NEAR_IP=10.77.0.1
FAR_IP=10.77.0.2
SSH_PORT=2222

lab_up() {
    local id=drb$$ name
    NEAR_NS=${id}n FAR_NS=${id}f
    W=$(mktemp -d "${BENCH_DIR:-/tmp}/dray-bench.XXXXXX")
    [ -n "${BENCH_DIR:-}" ] || mount -t tmpfs -o "size=$LAB_BYTES" dray-bench "$W"
    chmod 755 "$W"
    mkdir -p "$W"/{near,far}/{in,out,home,data,state} "$W/bin" "$W/etc"
    lab_cgroups "$id"

    ip netns add "$NEAR_NS"
    ip netns add "$FAR_NS"
    ip link add "${id}n0" netns "$NEAR_NS" type veth peer name "${id}f0" netns "$FAR_NS"
    ip -n "$NEAR_NS" addr add "$NEAR_IP/24" dev "${id}n0"
    ip -n "$FAR_NS" addr add "$FAR_IP/24" dev "${id}f0"
    for name in "$NEAR_NS" "$FAR_NS"; do
        ip -n "$name" link set lo up
    done
    ip -n "$NEAR_NS" link set "${id}n0" up
    ip -n "$FAR_NS" link set "${id}f0" up
    in_net "$NEAR_NS" nft -f - <<NFT
table inet bench {
    counter received { }
    counter sent { }
    chain input { type filter hook input priority 0; iifname "${id}n0" counter name received; }
    chain output { type filter hook output priority 0; oifname "${id}n0" counter name sent; }
}
NFT
    lab_sshd
    lab_rsyncd
    lab_nginx
    baseline=$(far_processes)
}

lab_down() {
    local end pid
    [ -n "${W:-}" ] || return 0
    for end in "${NEAR_CG:-}" "${FAR_CG:-}"; do
        [ -d "$end" ] || continue
        for pid in $(<"$end/cgroup.procs"); do kill "$pid" 2>/dev/null; done
        for _ in {1..50}; do
            [ -z "$(<"$end/cgroup.procs")" ] && break
            read -r -t 0.1 <> <(:) || :
        done
        for pid in $(<"$end/cgroup.procs"); do kill -9 "$pid" 2>/dev/null; done
        for _ in {1..20}; do
            rmdir "$end" 2>/dev/null && break
            read -r -t 0.1 <> <(:) || :
        done
    done
    rmdir "${NEAR_CG%/*}" 2>/dev/null
    ip netns del "$NEAR_NS" 2>/dev/null
    ip netns del "$FAR_NS" 2>/dev/null
    if [ -n "${BENCH_DIR:-}" ]; then rm -rf "$W"; else umount "$W" && rmdir "$W"; fi
}

# One cgroup (v2) for each end; cpu.stat needs no controller.
lab_cgroups() {
    local root
    root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    [ -n "$root" ] || { echo "bench: no cgroup v2 is mounted, so CPU time cannot be told apart" >&2; return 1; }
    NEAR_CG=$root/dray-bench-$1/near FAR_CG=$root/dray-bench-$1/far
    mkdir -p "$NEAR_CG" "$FAR_CG"
}

# `ip netns exec` would hide the cgroups behind a fresh /sys.
in_net() { # NAMESPACE COMMAND…
    nsenter --net="/run/netns/$1" -- "${@:2}"
}

# Starts a server of the far end.
at_far() { # COMMAND…
    # shellcheck disable=SC2016
    in_net "$FAR_NS" bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' at_far "$FAR_CG" $FAR_PIN "$@"
}

far_processes() {
    sort -n "$FAR_CG/cgroup.procs" | tr '\n' ' '
}

wait_for_port() { # PORT
    local _
    for _ in {1..100}; do
        in_net "$FAR_NS" bash -c "exec 3<>/dev/tcp/$FAR_IP/$1" 2>/dev/null && return 0
        read -r -t 0.05 <> <(:) || :
    done
    echo "bench: nothing listens on port $1 of the far end" >&2
    return 1
}

lab_sshd() {
    ssh-keygen -q -t ed25519 -N '' -f "$W/etc/host_key"
    ssh-keygen -q -t ed25519 -N '' -f "$W/etc/client_key"
    cp "$W/etc/client_key.pub" "$W/etc/authorized_keys"
    echo "[$FAR_IP]:$SSH_PORT $(<"$W/etc/host_key.pub")" >"$W/etc/known_hosts"
    mkdir -p -m 755 /run/sshd
    cat >"$W/etc/sshd_config" <<C
Port $SSH_PORT
ListenAddress $FAR_IP
HostKey $W/etc/host_key
AuthorizedKeysFile $W/etc/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
MaxStartups 100
Subsystem sftp internal-sftp
SetEnv HOME=$W/far/home DRAY_DATA_DIR=$W/far/data DRAY_CONFIG=$W/etc/default.toml XDG_STATE_HOME=$W/far/state PATH=$W/bin:/usr/bin:/bin
C
    at_far /usr/sbin/sshd -D -f "$W/etc/sshd_config" -E "$W/etc/sshd.log" &
    wait_for_port "$SSH_PORT"
}

lab_rsyncd() {
    cat >"$W/etc/rsyncd.conf" <<C
port = 873
address = $FAR_IP
use chroot = no
uid = 0
gid = 0
reverse lookup = no
[far]
path = $W/far
read only = no
C
    at_far rsync --daemon --no-detach --config="$W/etc/rsyncd.conf" --log-file="$W/etc/rsyncd.log" &
    wait_for_port 873
}

lab_nginx() {
    HAVE_NGINX=
    command -v nginx >/dev/null || return 0
    mkdir -p "$W/etc/nginx"
    cat >"$W/etc/nginx/nginx.conf" <<C
user root;
worker_processes 1;
daemon off;
pid $W/etc/nginx/pid;
error_log $W/etc/nginx/error.log;
events { }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    client_body_temp_path $W/etc/nginx/body;
    proxy_temp_path $W/etc/nginx/proxy;
    fastcgi_temp_path $W/etc/nginx/fastcgi;
    uwsgi_temp_path $W/etc/nginx/uwsgi;
    scgi_temp_path $W/etc/nginx/scgi;
    server { listen $FAR_IP:80; root $W/far; }
}
C
    at_far nginx -p "$W/etc/nginx" -c "$W/etc/nginx/nginx.conf" 2>/dev/null &
    wait_for_port 80
    HAVE_NGINX=yes
}

# Lets nothing through but ssh: neither end can open another connection.
block_direct() {
    in_net "$FAR_NS" nft -f - <<NFT
table inet blocked {
    chain input { type filter hook input priority 1; iifname != lo tcp flags & (syn | ack) == syn tcp dport != $SSH_PORT drop; }
}
NFT
    in_net "$NEAR_NS" nft -f - <<NFT
table inet blocked {
    chain input { type filter hook input priority 1; iifname != lo tcp flags & (syn | ack) == syn drop; }
}
NFT
}

unblock_direct() {
    in_net "$FAR_NS" nft delete table inet blocked
    in_net "$NEAR_NS" nft delete table inet blocked
}

# Microseconds of CPU time that an end has used, into the variable named.
cpu_us() { # VARIABLE CGROUP
    local key value
    while read -r key value; do
        if [ "$key" = usage_usec ]; then
            printf -v "$1" %s "$value"
            return
        fi
    done <"$2/cpu.stat"
}

# Bytes that the near end has received or sent, IP headers included, as counted before segmentation.
wire_bytes() { # received|sent
    in_net "$NEAR_NS" nft list counter inet bench "$1" | awk '/bytes/ { print $4 }'
}
