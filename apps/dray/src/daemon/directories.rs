//! Directories by the daemon: `put DIR` where it runs, and what `ls` and `done` say of them.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use dray_client::types::{DirectoryLine, SharedDirectory};
use dray_client::{Client, DirectoryOptions};
use dray_core::text::one_line;
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, Result};
use dray_node::{Event, Observer, Stop};
use serde_json::json;

use super::{receivers, until_when, whom};
use crate::output::{Output, bytes};

/// Shares `path` by the daemon: prints the ticket and leaves. False if the daemon cannot, which is then this command's to do.
pub(crate) fn put(
    client: &Client,
    path: &Path,
    (public, expires_in): (bool, Option<Duration>),
    output: &Output,
    stop: &Stop,
) -> Result<bool> {
    // By this name only a directory is opened: what else may stand there by now is not waited for.
    let directory = File::open(path.join("."));
    let directory = directory.map_err(|error| Error::file(format!("open directory {path:?}"), error))?;
    let options = DirectoryOptions { public, expires_in };
    let shared = match client.put_directory(&directory, &options, &|| stop.is_set()) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            output.note(&format!("this command shares it by itself: {}", one_line(&error.to_string())));
            return Ok(false);
        }
        Err(_) if stop.is_set() => {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted before the ticket was made"));
        }
        shared => shared?,
    };
    for warning in &shared.warnings {
        output.event(Event::Warning(warning.clone()));
    }
    show(&shared, &options, output);
    Ok(true)
}

fn show(shared: &SharedDirectory, options: &DirectoryOptions, output: &Output) {
    let event = json!({
        "event": "shared-directory", "path": shared.path, "ticket": shared.ticket,
        "addresses": shared.addresses,
    });
    output.ticket(&shared.ticket, &event);
    if options.public {
        output.note(crate::run::PUBLIC_DIRECTORY);
    }
    let until = match options.expires_in {
        Some(_) => "until it expires, or",
        None => "until",
    };
    output.note(&format!(
        "the daemon serves {} {until} dray done TICKET; there: dray get TICKET -o DIR, later dray sync -a TICKET DIR",
        one_line(&shared.path)
    ));
}

/// What the daemon shares of them; none if it is of another version.
pub(super) fn of(client: &Client) -> Result<Vec<DirectoryLine>> {
    match client.directories() {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
        directories => directories,
    }
}

/// Prints them.
pub(super) fn ls(directories: &[DirectoryLine], output: &Output) -> Result<()> {
    for directory in directories {
        let mut event = serde_json::to_value(directory)
            .map_err(|error| Error::new(ErrorKind::Internal, "a share is no JSON").caused_by(error))?;
        event["event"] = "directory".into();
        output.result(&line(directory), &event);
    }
    Ok(())
}

fn line(directory: &DirectoryLine) -> String {
    let until = until_when(directory.expires_unix_s, "until done");
    let (whom, receivers) = (whom(directory.public), receivers(directory.receivers));
    let sent = bytes(directory.sent_bytes);
    let trouble = match &directory.trouble {
        Some(trouble) => format!("; last: {}", one_line(trouble)),
        None if !directory.lasting => "; to be shared again when the daemon was started again".to_owned(),
        None => String::new(),
    };
    format!(
        "{}  {:>10}  {whom}  {until:<12}  {receivers}  {:?}, {sent} sent{trouble}",
        directory.id, "directory", directory.path
    )
}

/// Ends the share of one.
pub(super) fn done(client: &Client, id: DirectoryId, output: &Output) -> Result<()> {
    client.done_directory(id)?;
    let event = json!({"event": "done-directory", "directory": id.to_string()});
    output.told(&format!("{id} is no longer shared"), &event);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 5, `ls`: what, with whom, until when, and what is wrong with it; on one line, whatever a name has in it.
    #[test]
    fn a_directory_is_one_line() {
        let directory = DirectoryLine {
            id: "directory:00".into(),
            path: "/srv/a\nb".into(),
            lasting: true,
            receivers: 3,
            sent_bytes: 2 << 20,
            trouble: Some("it is not\nwhat it was".into()),
            ..DirectoryLine::default()
        };
        let told = line(&directory);
        assert_eq!(told.lines().count(), 1, "{told}");
        for words in ["ticket", "until done", "3 receivers", r#""/srv/a\nb", 2.00 MiB sent; last: it is not"#]
        {
            assert!(told.contains(words), "{words}: {told}");
        }
        let other = DirectoryLine { public: true, lasting: false, trouble: None, ..directory };
        let told = line(&other);
        assert!(told.contains("public") && told.contains("to be shared again"), "{told}");
    }
}
