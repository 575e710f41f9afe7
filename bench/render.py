#!/usr/bin/env python3
"""Renders docs/performance.md from the raw numbers of bench/first-bytes.sh and bench/distance.sh.

    bench/render.py [RESULTS.jsonl …] > docs/performance.md

Without arguments: the newest file of each sort (plain, pinned, disk, fsync) in bench/results/. Rows that lose and runs that
failed are shown; nothing is left out.
"""

import json
import pathlib
import re
import statistics
import sys

RESULTS = pathlib.Path(__file__).parent / "results"

TITLES = {
    "dray-get": "dray get, file already hashed",
    "dray-get-clear": "dray get, clear-text data allowed by both",
    "dray-put-get": "dray put + get, file never hashed",
    "dray-cp-pull": "dray cp from the far host",
    "dray-cp-push": "dray cp to the far host",
    "dray-ssh-pull": "dray cp from the far host, only ssh gets through",
    "dray-ssh-push": "dray cp to the far host, only ssh gets through",
    "rsync-daemon-pull": "rsync daemon, from the far host (clear text)",
    "rsync-daemon-push": "rsync daemon, to the far host (clear text)",
    "rsync-ssh-pull": "rsync over ssh, from the far host",
    "rsync-ssh-push": "rsync over ssh, to the far host",
    "rsync-ssh-gcm-pull": "rsync over ssh with AES-GCM, from the far host",
    "rsync-ssh-gcm-push": "rsync over ssh with AES-GCM, to the far host",
    "scp-pull": "scp from the far host",
    "scp-push": "scp to the far host",
    "curl": "curl from nginx (clear text, not verified)",
    "curl-b3sum": "curl from nginx, then b3sum (clear text)",
}

HEAD = """# Performance

Measured by `bench/first-bytes.sh` (as root; needs the rivals installed) and rendered by `bench/render.py` from the raw numbers in
`bench/results/`. A ratio within one table is a result; an absolute time is weather.

* Two network namespaces on one machine, joined by a veth pair, not shaped. "Near" is where the command runs, "far" the other end.
* Every row runs once a round and the order rotates, so that all rows see the same weather. The times are medians, with the
  fastest and the slowest run. The ratios are medians of the ratios within a round.
* The clock starts and stops inside the near end, around the command as shown. Each result is compared with its source by `cmp` after
  the clock has stopped; a run that failed or differed is counted in the last column and its time is left out of the median.
* CPU time is that of every process of an end (cgroup v2 `cpu.stat`), waiting servers included, user and system. The kernel's network work in
  softirq falls on whichever end it interrupts.
* Memory is the sum of the peak resident sizes (`VmHWM`) of an end's processes in one run that is not timed; rivals' servers that only wait
  are not counted, `dray put` is.
* The bytes on the wire are the near end's, with IP headers, as nft counts them before segmentation.
* The data is incompressible. Drayman runs with its defaults except where a row says otherwise.
"""


LONG_LINKS = """## Long links

Measured by `bench/distance.sh`: two hosts of the network lab ([testing.md](testing.md)), commands in turn, medians with the fastest and the
slowest run, ratios within a round. Every copy is compared with its source. The last column counts the runs that the lab's
validity gate calls INVALID: the engine was late or busy, or the machine was; their times are in the medians.
"""


def main():
    paths = [pathlib.Path(name) for name in sys.argv[1:]] or newest()
    if not paths:
        sys.exit("render: no results; run bench/first-bytes.sh first")
    long_links = [path for path in paths if path.name.startswith("distance")]
    near = [path for path in paths if path not in long_links]
    if near:
        print(HEAD)
    for path in near:
        render(path)
    if long_links:
        print(LONG_LINKS)
    for path in long_links:
        render_distance(path)


def newest():
    latest = {}
    for path in sorted(RESULTS.glob("first-bytes-*.jsonl")) + sorted(RESULTS.glob("distance-*.jsonl")):
        latest[re.sub(r"-\d{8}T\d{6}Z", "", path.stem)] = path
    return [latest[sort] for sort in sorted(latest)]


def render(path):
    facts, runs = {}, []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "facts" in entry:
            facts = entry["facts"]
        else:
            runs.append(entry)
    policy = {"none": "no fsync"}.get(facts["fsync"], "fsync " + facts["fsync"])
    pinned = ", each end pinned to its own core" if facts["pinned"] else ""
    print(f"## {facts['date']}, {facts['file_system']}, {policy}{pinned}\n")
    print(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_mib']} MiB, {facts['kernel']}, congestion control "
        f"{facts['congestion_control']}. "
        + ", ".join(facts[tool] for tool in ("dray", "rsync", "ssh", "nginx", "curl") if facts[tool])
        + f". Raw numbers: `bench/results/{path.name}`.\n"
    )
    # Results from before trees do not say what was moved; there a size was moved once.
    for size, what in dict.fromkeys((run["bytes"], run.get("what")) for run in runs):
        table(size, what or "", [run for run in runs if (run["bytes"], run.get("what")) == (size, what)])
    commands(runs)


def table(size, what, runs):
    rows = list(dict.fromkeys(run["row"] for run in runs))
    timed = {row: {} for row in rows}
    memory, bad, total = {}, {row: 0 for row in rows}, {row: 0 for row in rows}
    for run in runs:
        total[run["row"]] += 1
        if run["status"] != "ok":
            bad[run["row"]] += 1
        elif run["round"] == 0:
            memory[run["row"]] = run
        else:
            timed[run["row"]][run["round"]] = run
    rounds = max((run["round"] for run in runs), default=0)
    large = size >= 1 << 20
    unit, scale = ("s", 1) if large else ("ms", 1000)
    cpu = "CPU-s per GiB near / far" if large else "CPU ms near / far"
    print(f"### {title(size, what)}, {rounds} rounds\n")
    print(
        f"| | {unit}, median (min–max) | ÷ rsync daemon | ÷ rsync over ssh | {cpu} | peak MiB near / far "
        "| wire in / out | failed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    order = sorted(rows, key=lambda row: median(timed[row], "seconds") or float("inf"))
    for row in order:
        done = timed[row]
        times = [run["seconds"] * scale for run in done.values()]
        digits = 2 if large else 1
        cells = [f"**{TITLES[row]}**" if row.startswith("dray") else TITLES[row]]
        if times:
            cells.append(f"{statistics.median(times):.{digits}f} ({min(times):.{digits}f}–{max(times):.{digits}f})")
            direction = "push" if row.endswith("push") else "pull"
            cells.append(ratio(done, timed.get(f"rsync-daemon-{direction}")))
            cells.append(ratio(done, timed.get(f"rsync-ssh-{direction}")))
            per = 1e6 * size / (1 << 30) if large else 1e3
            cells.append(" / ".join(f"{median(done, end) / per:.{digits}f}" for end in ("near_cpu_us", "far_cpu_us")))
        else:
            cells += ["–"] * 4
        peak = memory.get(row)
        cells.append(f"{peak['near_peak_kib'] / 1024:.0f} / {peak['far_peak_kib'] / 1024:.0f}" if peak else "–")
        if times:
            cells.append(" / ".join(amount(median(done, way)) for way in ("wire_in_bytes", "wire_out_bytes")))
        else:
            cells.append("–")
        cells.append(f"{bad[row]} of {total[row]}" if bad[row] else "0")
        print("| " + " | ".join(cells) + " |")
    print()
    for run in runs:
        if run["status"] != "ok":
            print(f"* {TITLES[run['row']]}, round {run['round']}: {run['status']}")
    losers = [row for row in rows if row.startswith("dray") and slower(timed, row)]
    if any(row.startswith("dray") for row in rows):
        names = ", ".join(TITLES[row] for row in losers)
        print(f"Slower than rsync over ssh: {names or 'no row of Drayman'}.\n")


def title(size, what):
    found = re.fullmatch(r"tree-(\d+)(-again)?", what)
    if not found:
        return amount(size)
    count = int(found[1])
    return f"{count:,} files of {amount(size / count)}" + (", nothing changed since" if found[2] else "")


def render_distance(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    facts = next(line["facts"] for line in lines if "facts" in line)
    runs = [line for line in lines if "run" in line and line["round"] > 0]
    barred = ", only ssh gets through" if facts["ssh_only"] else ""
    print(f"### {facts['date']}, {facts['link']}{barred}\n")
    print(
        f"Linux {facts['kernel']}, congestion control {facts['congestion_control']}, {facts['rsync']}, {facts['ssh']}. "
        f"Raw numbers: `bench/results/{path.name}`.\n"
    )
    print("| | what | s, median (min–max) | ÷ rsync over ssh | wire up / down | failed | INVALID |")
    print("|---|---|---|---|---|---|---|")
    for row in dict.fromkeys(run["row"] for run in runs):
        for name in dict.fromkeys(run["run"] for run in runs if run["row"] == row):
            mine = [run for run in runs if (run["row"], run["run"]) == (row, name)]
            done = {run["round"]: run for run in mine if run["status"] == "ok"}
            rival = {run["round"]: run for run in runs if (run["row"], run["run"]) == (row, "rsync") and run["status"] == "ok"}
            times = [run["seconds"] for run in done.values()]
            shown = f"{statistics.median(times):.2f} ({min(times):.2f}–{max(times):.2f})" if times else "–"
            wire = " / ".join(amount(median(done, way)) for way in ("up_bytes", "down_bytes")) if done else "–"
            what, way = row.rsplit("-", 1)
            what = f"{amount(int(what[5:]))} file" if what.startswith("file-") else what
            invalid = sum(run["validity"] != "valid" for run in mine)
            title = f"**{name}**" if name.startswith("dray") else f"{name} over ssh"
            print(f"| {title} | {what}, {way} | {shown} | {ratio(done, rival)} | {wire} | {len(mine) - len(done)} of {len(mine)} | {invalid} |")
    print()


def slower(timed, row):
    rival = timed.get("rsync-ssh-push" if row.endswith("push") else "rsync-ssh-pull", {})
    mine, theirs = median(timed[row], "seconds"), median(rival, "seconds")
    return mine is None or (theirs is not None and mine > theirs)


def median(runs, key):
    values = [run[key] for run in runs.values()]
    return statistics.median(values) if values else None


def ratio(done, rival):
    both = [done[number]["seconds"] / rival[number]["seconds"] for number in done if number in (rival or {})]
    return f"{statistics.median(both):.2f}" if both else "–"


def commands(runs):
    print("Commands (`…` stands for the ssh options: key, known hosts, no other identities, no questions):\n")
    print("```")
    for row in dict.fromkeys(run["row"] for run in runs):
        command = next(run["command"] for run in runs if run["row"] == row)
        print(f"{row:<19} {command}")
    print("```\n")


def amount(count):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.{0 if value >= 100 else 3 if unit == 'GiB' else 1}f} {unit}"
    return f"{count:.0f} B"


if __name__ == "__main__":
    main()
