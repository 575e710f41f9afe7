//! Keeps processors from being given back while something is measured. A virtual processor with nothing to do is halted, and the machine below gives it to others;
//! whoever is to wake on it then waits until it is given back, for milliseconds where much else runs there. That would be delay of a link.

use std::fs::File;
use std::io::{self, Write};

/// Where the kernel takes wishes of how soon a processor has to wake (`Documentation/power/pm_qos_interface.rst`).
const LATENCY: &str = "/dev/cpu_dma_latency";

/// While this is held, idle processors poll instead of halting, where the kernel has a driver for that (`cpuidle`, on virtual machines `haltpoll`); elsewhere nothing changes. They
/// are idle all the same, for the scheduler and in `/proc/stat`. The kernel takes it back with the descriptor, however its holder ends.
#[derive(Debug)]
pub(crate) struct Awake {
    _wish: File,
}

impl Awake {
    /// `None` where the kernel has no such device, or this user may not ask for it: then processors halt as ever.
    ///
    /// # Errors
    /// What else the kernel refuses.
    pub(crate) fn keep() -> io::Result<Option<Awake>> {
        let mut wish = match File::options().write(true).open(LATENCY) {
            Ok(wish) => wish,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // Microseconds, 32 bits.
        wish.write_all(&0_i32.to_ne_bytes())?;
        Ok(Some(Awake { _wish: wish }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Microseconds within which processors have to wake.
    fn latency_us() -> i32 {
        let mut bytes = [0; 4];
        File::open(LATENCY).unwrap().read_exact(&mut bytes).unwrap();
        i32::from_ne_bytes(bytes)
    }

    #[test]
    fn the_kernel_is_asked_to_keep_processors_awake() {
        crate::require!();
        match Awake::keep().unwrap() {
            Some(_awake) => assert_eq!(latency_us(), 0),
            None => {
                crate::say_skip("the_kernel_is_asked_to_keep_processors_awake", "no /dev/cpu_dma_latency")
            }
        }
    }
}
