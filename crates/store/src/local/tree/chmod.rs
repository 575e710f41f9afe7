//! Changes of permission bits as `rsync --chmod` writes them: `D755,F644`, `u+w,go-rwx`, `a+X`.

use dray_core::{Error, ErrorKind, Result};

use super::super::delivery::umask;

/// Reading, writing and running, for everybody.
const ACCESS: u32 = 0o777;
/// Running, for everybody.
const RUN: u32 = 0o111;

/// A list of changes, made one after the other.
#[derive(Clone, Debug, Default)]
pub struct ModeChange {
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    directories: bool,
    files: bool,
    keep: u32,
    add: u32,
    /// Running is added to directories and to what somebody may run (`X`).
    only_where_run: bool,
}

impl ModeChange {
    /// Parses changes separated by commas: each `D` (directories only) or `F` (all else) or neither, then an octal mode, or
    /// `u`, `g`, `o`, `a`, then `+`, `-` or `=`, then `r`, `w`, `x`, `X`, `s`, `t`. Without any of `ugoa` all are
    /// meant, less the umask of this process.
    pub fn parse(text: &[u8]) -> Result<ModeChange> {
        ModeChange::parse_with(text, umask())
    }

    fn parse_with(text: &[u8], umask: u32) -> Result<ModeChange> {
        let refused = |step: &[u8]| {
            let what = format!("{:?} is no change of permissions", String::from_utf8_lossy(step));
            Error::new(ErrorKind::Usage, what).advise("as in D755,F644 or u+w,go-rwx or Fa-x,Dg+s")
        };
        let parse = |step: &[u8]| parse_step(step, umask).ok_or_else(|| refused(step));
        Ok(ModeChange { steps: text.split(|byte| *byte == b',').map(parse).collect::<Result<_>>()? })
    }

    /// What becomes of `mode`.
    pub fn apply(&self, mode: u32, is_directory: bool) -> u32 {
        self.steps.iter().filter(|step| if is_directory { step.directories } else { step.files }).fold(
            mode,
            |mode, step| {
                let may_run = !step.only_where_run || is_directory || mode & RUN != 0;
                mode & step.keep | if may_run { step.add } else { step.add & !RUN }
            },
        )
    }
}

fn parse_step(step: &[u8], umask: u32) -> Option<Step> {
    let (directories, files, step) = match step {
        [b'D', rest @ ..] => (true, false, rest),
        [b'F', rest @ ..] => (false, true, rest),
        rest => (true, true, rest),
    };
    let of = |keep, add, only_where_run| Some(Step { directories, files, keep, add, only_where_run });
    if step.first().is_some_and(u8::is_ascii_digit) {
        let text = std::str::from_utf8(step).ok()?;
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777)?;
        return of(0, mode, false);
    }
    let at = step.iter().position(|byte| b"+-=".contains(byte))?;
    let (mut who, mut set_id) = (0, 0);
    for byte in &step[..at] {
        match byte {
            b'u' => (who, set_id) = (who | 0o100, set_id | 0o4000),
            b'g' => (who, set_id) = (who | 0o010, set_id | 0o2000),
            b'o' => who |= 0o001,
            b'a' => who |= RUN,
            _ => return None,
        }
    }
    let is_masked = who == 0;
    let who = if is_masked { RUN } else { who };
    let (mut what, mut special, mut only_where_run) = (0, 0, false);
    for byte in &step[at + 1..] {
        match byte {
            b'r' => what |= 4,
            b'w' => what |= 2,
            b'x' => (what, only_where_run) = (what | 1, false),
            b'X' => (what, only_where_run) = (what | 1, what & 1 == 0 || only_where_run),
            b's' => special |= if set_id == 0 { 0o4000 } else { set_id },
            b't' => special |= 0o1000,
            _ => return None,
        }
    }
    let bits = (who * what) & if is_masked { !umask } else { ACCESS };
    match step[at] {
        b'+' => of(0o7777, bits | special, only_where_run),
        b'-' => of(0o7777 & !(bits | special), 0, false),
        _ => {
            // Special bits that are not named stay.
            let set_id = if special == 0 { 0 } else { set_id };
            of(0o7777 & !(who * 7) & !set_id, bits | special, only_where_run)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue `--chmod`: rsync's syntax; what rsync makes of the same is compared end to end.
    #[test]
    fn changes_are_those_of_rsync() {
        for (text, mode, directory, file) in [
            ("D755,F644", 0o700, 0o755, 0o644),
            ("u+w,go-rwx", 0o555, 0o700, 0o700),
            ("a+X", 0o644, 0o755, 0o644),
            ("a+X", 0o744, 0o755, 0o755),
            ("Fa-x,Dg+s", 0o755, 0o2755, 0o644),
            ("ug=rwX,o=", 0o604, 0o770, 0o660),
            ("+w", 0o444, 0o644, 0o644),
            ("u=rw,g=r", 0o4777, 0o4647, 0o4647),
            ("ug=rws", 0o2755, 0o6665, 0o6665),
            ("D+t", 0o755, 0o1755, 0o755),
            ("0", 0o777, 0, 0),
        ] {
            let change = ModeChange::parse_with(text.as_bytes(), 0o022).unwrap();
            assert_eq!(
                format!("{:o}", change.apply(mode, true)),
                format!("{directory:o}"),
                "{text} of {mode:o}"
            );
            assert_eq!(format!("{:o}", change.apply(mode, false)), format!("{file:o}"), "{text} of {mode:o}");
        }
        for bad in ["", "D", "99", "77777", "u", "z+w", "u+y", "u~w", ",", "D755,"] {
            let error = ModeChange::parse_with(bad.as_bytes(), 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{bad}");
        }
    }
}
