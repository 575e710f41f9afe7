"""BitTorrent for the bench, by libtorrent: who seeds a file, and who fetches it. Without a tracker: the address is given.

seed FILE TORRENT ADDRESS:PORT            writes TORRENT, prints a line once it seeds, and goes on until it is ended
fetch TORRENT FOLDER ADDRESS PORT         fetches into FOLDER; ends when all pieces are there and their hashes are right
"""

import os
import sys

import libtorrent as lt


def session(listen):
    # No search for others, and plain TCP, which is its fastest; the rest are its defaults.
    others = ["enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp", "enable_outgoing_utp", "enable_incoming_utp"]
    settings = dict.fromkeys(others, False)
    plain = int(lt.enc_policy.disabled)
    settings.update(listen_interfaces=listen, in_enc_policy=plain, out_enc_policy=plain)
    settings.update(hashing_threads=os.cpu_count())
    settings.update(alert_mask=lt.alert.category_t.status_notification | lt.alert.category_t.error_notification)
    return lt.session(settings)


def wait_for(running, wanted):
    while True:
        running.wait_for_alert(1000)
        for alert in running.pop_alerts():
            if isinstance(alert, wanted):
                return
            if isinstance(alert, lt.torrent_error_alert):
                sys.exit(alert.message())


def seed(path, torrent, listen):
    files = lt.file_storage()
    lt.add_files(files, path)
    # One kind of hashes: a torrent of both has each piece hashed twice.
    made = lt.create_torrent(files, 0, lt.create_torrent.v1_only)
    folder = os.path.dirname(path)
    lt.set_piece_hashes(made, folder)
    with open(torrent, "wb") as out:
        out.write(lt.bencode(made.generate()))
    running = session(listen)
    wanted = lt.add_torrent_params()
    wanted.ti, wanted.save_path = lt.torrent_info(torrent), folder
    wanted.flags |= lt.torrent_flags.seed_mode
    running.add_torrent(wanted)
    wait_for(running, lt.torrent_finished_alert)
    print("ready", flush=True)
    while True:
        running.wait_for_alert(60_000)
        running.pop_alerts()


def fetch(torrent, folder, address, port):
    running = session("0.0.0.0:0")
    wanted = lt.add_torrent_params()
    wanted.ti, wanted.save_path = lt.torrent_info(torrent), folder
    running.add_torrent(wanted).connect_peer((address, int(port)))
    wait_for(running, lt.torrent_finished_alert)


{"seed": seed, "fetch": fetch}[sys.argv[1]](*sys.argv[2:])
