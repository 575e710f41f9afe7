//! Logs on standard error, where `DRAY_LOG` asks for them: a level, and `,json` for a JSON object a line.

use dray_core::{Error, ErrorKind, Result};
use tracing_subscriber::filter::LevelFilter;

/// The variable that asks for them.
const WISH: &str = "DRAY_LOG";

/// Begins to log if that is asked for. `Usage` if it is not understood.
pub(crate) fn start() -> Result<()> {
    let wish = std::env::var_os(WISH).unwrap_or_default();
    let Some((level, is_json)) = understood(&wish.to_string_lossy())? else { return Ok(()) };
    let logging = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level);
    let started = match is_json {
        true => logging.json().flatten_event(true).try_init(),
        false => logging.try_init(),
    };
    started.map_err(|error| Error::new(ErrorKind::Internal, format!("logs cannot begin: {error}")))
}

/// The level, and whether lines are JSON; `None` if nothing is logged.
fn understood(wish: &str) -> Result<Option<(LevelFilter, bool)>> {
    let (level, form) = wish.split_once(',').unwrap_or((wish, "text"));
    let level = match level {
        "" if wish.is_empty() => return Ok(None),
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        _ => return Err(not_understood(wish)),
    };
    match form {
        "text" => Ok(Some((level, false))),
        "json" => Ok(Some((level, true))),
        _ => Err(not_understood(wish)),
    }
}

fn not_understood(wish: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("{WISH}={wish:?} means nothing"))
        .advise("a level (error, warn, info or debug), and `,json` behind it for a JSON object a line")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 4, "opt-in": nothing unless asked for, and a slip is told.
    #[test]
    fn wishes_are_understood() {
        assert!(understood("").unwrap().is_none());
        assert_eq!(understood("info").unwrap(), Some((LevelFilter::INFO, false)));
        assert_eq!(understood("debug,json").unwrap(), Some((LevelFilter::DEBUG, true)));
        for slip in ["loud", "info,xml", ",json", "info,", "INFO"] {
            let error = understood(slip).unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.advice().is_some(), "{slip}");
        }
    }
}
