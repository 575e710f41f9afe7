//! What the kernel tells of mounts, as far as several read it.

/// Where it tells (proc_pid_mountinfo(5)).
pub(crate) const MOUNTINFO: &str = "/proc/self/mountinfo";

/// A word of it without the escapes, of three octal digits, that stand for blanks.
pub(crate) fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[3..] } else { behind };
    }
    out
}
