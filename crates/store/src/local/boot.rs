//! Which boot of the machine this is: what was written but not made durable is still there only within one boot.

use std::sync::OnceLock;

/// Random id of a boot; on disk all zeros where the system has none.
pub type BootId = [u8; 16];

/// No boot: equal to no other, not even to itself.
pub(super) const UNKNOWN: BootId = [0; 16];

/// The id of this boot of the machine (16 random bytes; Linux `random/boot_id`). `None` where the system has none:
/// then nothing that was not made durable may be believed, for nothing tells whether the machine was restarted since.
pub fn boot_id() -> Option<BootId> {
    Some(current()).filter(|boot| *boot != UNKNOWN)
}

/// The id of this boot, or [`UNKNOWN`].
pub(super) fn current() -> BootId {
    static CURRENT: OnceLock<BootId> = OnceLock::new();
    *CURRENT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        parse(&text).unwrap_or(UNKNOWN)
    })
}

/// Whether `boot` is surely this boot.
pub(super) fn is_current(boot: &[u8]) -> bool {
    boot == current() && boot != UNKNOWN
}

fn parse(uuid: &str) -> Option<BootId> {
    let digits: String = uuid.trim().chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_uuid_and_nothing_else() {
        let id = parse("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(id[..4], [0, 0x11, 0x22, 0x33]);
        assert_eq!(parse(""), None);
        assert_eq!(parse("0011"), None);
        assert!(!is_current(&UNKNOWN));
        assert_eq!(boot_id().is_some(), is_current(&current()));
        assert_ne!(boot_id(), Some(UNKNOWN));
    }
}
