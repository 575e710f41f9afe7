//! Who tidies up when nobody else does: a process beside the test that waits for its end, whatever ends it, SIGKILL included, and then
//! removes what still has its name: programs in its namespaces, the namespaces, mounts, loop devices, files.

use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use crate::sweep;

/// `$0` begins the names of namespaces, `$1` the paths of files. Twice, as a program that is killed may just have started another one. Loop devices
/// before mounts: the file of one has no name any more when what it lies in is unmounted, and a device that is mounted goes when that ends.
const SCRIPT: &str = r#"
cat >/dev/null
for again in 1 2; do
    for place in /run/netns/"$0"*; do
        [ -e "$place" ] || continue
        ip netns pids "${place##*/}" | xargs -r kill -KILL
        [ $again = 1 ] || ip netns del "${place##*/}"
    done
    sleep 0.1
done
for place in /sys/block/loop*/loop; do
    read -r file <"$place/backing_file" || continue
    case "$file" in "$1"*) place="${place%/loop}"; losetup -d "/dev/${place##*/}" ;; esac
done
awk -v begin="$1" 'index($2, begin) == 1 { print $2 }' /proc/self/mounts | tac | xargs -r -n 1 umount --lazy
rm -rf -- "$1"*
"#;

/// Starts it, once for this process.
#[allow(clippy::zombie_processes, reason = "it outlives this process, which therefore cannot wait for it")]
pub(crate) fn start() {
    /// What it reads: the end of this process closes it.
    static LIFELINE: OnceLock<ChildStdin> = OnceLock::new();
    LIFELINE.get_or_init(|| {
        let prefix = sweep::own_prefix();
        let paths = std::env::temp_dir().join(&prefix);
        // In a session of its own: whoever kills the group of a test does not mean it.
        let mut janitor = Command::new("setsid");
        janitor.args(["sh", "-c", SCRIPT, &prefix]).arg(paths).current_dir("/");
        janitor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = janitor.spawn().expect("start who tidies up");
        child.stdin.take().expect("its standard input is a pipe")
    });
}
