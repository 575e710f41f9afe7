#!/usr/bin/env python3
"""`dray sync -a` of a tree of which one file changed, with its time and the largest memory of each end (issue "ten million entries").

    sudo DRAY_BIN=target/release/dray bench/many-entries.py [DIRECTORIES]

DIRECTORIES (10,000) of 1,000 empty files each, twice, on an ext4 of its own (a file, mounted by loop, in $BENCH_DIR or /var/tmp: 10 GB
for ten million); one file is changed; then within the host, over ssh (a server of its own on 127.0.0.1), and with rsync within the host.
"""
import json, os, resource, signal, subprocess, sys, tempfile, time

DIRECTORIES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
FILES = 1000
DRAY = os.path.realpath(os.environ["DRAY_BIN"])
PORT = 2299


def run(*command):
    subprocess.run(command, check=True)


def make_tree(top):
    """Files with a time of their own, the same in each tree."""
    at = 1_700_000_000_000_000_000
    os.mkdir(top)
    for number in range(DIRECTORIES):
        path = f"{top}/{number // 1000:03}/{number % 1000:03}"
        os.makedirs(path)
        folder = os.open(path, os.O_DIRECTORY)
        for name in range(FILES):
            name = f"entry-{name:05}.dat"
            os.mknod(name, 0o100644, dir_fd=folder)
            os.utime(name, ns=(at, at + number), dir_fd=folder, follow_symlinks=False)
        os.close(folder)
        os.utime(path, ns=(at, at))


def largest_memory(pids):
    """KiB that each process with our program has had at most, by its number."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe") == DRAY:
                lines = open(f"/proc/{pid}/status").read().splitlines()
                pids.update((pid, int(line.split()[1])) for line in lines if line.startswith("VmHWM"))
        except OSError:
            pass


def measure(what, command, top, number):
    changed = f"{number % DIRECTORIES // 1000:03}/{number % DIRECTORIES % 1000:03}/entry-00500.dat"
    with open(f"{top}/src/{changed}", "w") as file:
        file.write(what)
    os.sync()
    begun, pids = time.monotonic(), {}
    process = subprocess.Popen(command, cwd=top)
    while process.poll() is None:
        largest_memory(pids)
        time.sleep(0.2)
    assert process.returncode == 0, command
    with open(f"{top}/src/{changed}") as left, open(f"{top}/dst/{changed}") as right:
        assert left.read() == right.read() == what
    own = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    memory = [round(kib / 1024, 1) for kib in pids.values()] or [f"at most {own / 1024:.1f}"]
    row = {"what": what, "entries": DIRECTORIES * FILES, "seconds": round(time.monotonic() - begun, 1), "mib": memory}
    print(json.dumps(row), flush=True)


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "/var/tmp")) as work:
        image, place = f"{work}/image", f"{work}/place"
        entries = 2 * DIRECTORIES * (FILES + 1) + 20_000
        os.mkdir(place)
        with open(image, "wb") as file:
            file.truncate(entries * 2048 + (1 << 30))
        run("mkfs.ext4", "-q", "-O", "^has_journal", "-N", str(entries), image)
        run("mount", "-o", "loop,noatime", image, place)
        server = None
        try:
            make_tree(f"{place}/src")
            make_tree(f"{place}/dst")
            for key in ["host", "client"]:
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{work}/{key}")
            with open(f"{work}/config", "w") as file:
                file.write(
                    f"Port {PORT}\nListenAddress 127.0.0.1\nHostKey {work}/host\nPidFile {work}/pid\nStrictModes no\n"
                    f"AuthorizedKeysFile {work}/client.pub\nUsePAM no\nPermitRootLogin yes\n"
                )
            os.makedirs("/run/sshd", exist_ok=True)
            server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", f"{work}/config", "-E", f"{work}/log"])
            time.sleep(1)
            ssh = (
                f"ssh -p {PORT} -i {work}/client -o IdentitiesOnly=yes -o StrictHostKeyChecking=no "
                "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
            )
            sync = [DRAY, "sync", "-a", "-q"]
            far = ["--remote-dray", DRAY, "-e", ssh, "src/", f"root@127.0.0.1:{place}/dst/"]
            measure("dray within the host", [*sync, "src/", "dst/"], place, 1)
            measure("dray over ssh", [*sync, *far], place, 2)
            measure("rsync within the host", ["rsync", "-a", "src/", "dst/"], place, 3)
        finally:
            if server:
                server.send_signal(signal.SIGTERM)
                server.wait()
            run("umount", place)


main()
