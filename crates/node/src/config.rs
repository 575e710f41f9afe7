//! Configuration: a TOML file, the environment, defaults; and where things are kept (XDG base directories).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dray_client::types::FEATURES;
use dray_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::search::SearchPolicy;

/// What `$DRAY_CONFIG`, or `config.toml` in the user's configuration directory, may say. Every key is optional; an
/// unknown one is an error, so that a misspelt one is not silently without effect.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Send and receive data in clear text where the other end allows it too; control stays encrypted and every byte
    /// proven. Default: false.
    pub clear_text_data: Option<bool>,
    /// Follow hints of a ticket to loopback and link-local addresses. Default: false.
    pub allow_local_targets: Option<bool>,
    /// TCP connections to one sender, at most. Default: one for each CPU core, at most 4.
    pub connections: Option<usize>,
    /// Bytes that may be outstanding at once, over all sources. Default: 64 MiB.
    pub window_mib: Option<u64>,
    /// TCP port `dray put` listens on. Default: one the system chooses, remembered for the object.
    pub port: Option<u16>,
    /// Bytes of objects that the daemon keeps although nobody holds them any more. Default: 1024 MiB.
    pub cache_mib: Option<u64>,
    /// Keep an index of the chunks of files that were put and fetched, and look for parts of new objects in it. Default: false.
    pub index: Option<bool>,
    /// MiB that the index may take on disk. Default: 512.
    pub index_mib: Option<u64>,
    /// Look for parts of a file that somebody copies or synchronises to here by ssh in other files, up to the home. Default: false.
    pub search: Option<bool>,
    /// How the disk is searched: "cost", "breadth-first", "all-stats", "no-pressure" or "no-disk". Default: "cost".
    pub search_policy: Option<SearchPolicy>,
    /// TCP address at which the daemon tells its figures to whoever asks, for Prometheus. Default: none.
    pub metrics: Option<SocketAddr>,
    /// Features of the local API that the daemon does not offer, by the names that `docs/api.md` has. Default: none.
    pub api_without: Option<Vec<String>>,
}

/// Directories of the user.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Identity and store.
    pub data_dir: PathBuf,
    /// Configuration file, whether or not it exists.
    pub config_file: PathBuf,
    /// The user's folder for sockets (`XDG_RUNTIME_DIR`), if there is one.
    pub runtime_dir: Option<PathBuf>,
}

impl Paths {
    /// From `DRAY_DATA_DIR`, `DRAY_CONFIG`, the XDG variables and `HOME`.
    pub fn from_environment() -> Result<Paths> {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let absolute = |name: &str| var(name).filter(|path| path.is_absolute());
        let under_home = |rest: &str| {
            absolute("HOME").map(|home| home.join(rest)).ok_or_else(|| {
                Error::new(ErrorKind::Usage, "no home directory: HOME is not set to an absolute path")
                    .advise("set HOME, or DRAY_DATA_DIR and DRAY_CONFIG")
            })
        };
        let data_dir = match var("DRAY_DATA_DIR") {
            Some(dir) => std::path::absolute(&dir).map_err(|error| Error::io("DRAY_DATA_DIR", error))?,
            None => match absolute("XDG_DATA_HOME") {
                Some(dir) => dir.join("dray"),
                None => under_home(".local/share/dray")?,
            },
        };
        let config_file = match var("DRAY_CONFIG") {
            Some(file) => file,
            None => match absolute("XDG_CONFIG_HOME") {
                Some(dir) => dir.join("dray/config.toml"),
                None => {
                    under_home(".config/dray/config.toml").unwrap_or_else(|_| data_dir.join("config.toml"))
                }
            },
        };
        Ok(Paths { data_dir, config_file, runtime_dir: absolute("XDG_RUNTIME_DIR") })
    }
}

#[cfg(test)]
impl Paths {
    /// Everything below `dir`, nothing from the environment.
    pub(crate) fn below(dir: &Path) -> Paths {
        Paths { data_dir: dir.to_owned(), config_file: dir.join("config.toml"), runtime_dir: None }
    }
}

/// The configuration in force.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where things are kept.
    pub paths: Paths,
    /// See [`ConfigFile::clear_text_data`].
    pub clear_text_data: bool,
    /// See [`ConfigFile::allow_local_targets`].
    pub allow_local_targets: bool,
    /// See [`ConfigFile::connections`].
    pub connections: usize,
    /// See [`ConfigFile::window_mib`], in bytes.
    pub window_bytes: u64,
    /// See [`ConfigFile::port`].
    pub port: Option<u16>,
    /// See [`ConfigFile::cache_mib`], in bytes.
    pub cache_bytes: u64,
    /// See [`ConfigFile::index`].
    pub index: bool,
    /// See [`ConfigFile::index_mib`], in MiB.
    pub index_mib: u64,
    /// See [`ConfigFile::search`].
    pub search: bool,
    /// See [`ConfigFile::search_policy`].
    pub search_policy: SearchPolicy,
    /// See [`ConfigFile::metrics`].
    pub metrics: Option<SocketAddr>,
    /// See [`ConfigFile::api_without`].
    pub api_without: Vec<String>,
}

impl Config {
    /// Reads environment and file. A missing file means defaults, unless `DRAY_CONFIG` names it.
    pub fn load() -> Result<Config> {
        let paths = Paths::from_environment()?;
        let named = std::env::var_os("DRAY_CONFIG").is_some_and(|value| !value.is_empty());
        let file = read(&paths.config_file, named)?;
        Config::new(paths, &file)
    }

    /// From a file's contents, checked.
    pub fn new(paths: Paths, file: &ConfigFile) -> Result<Config> {
        let bad = |what: String| {
            Err(Error::new(ErrorKind::Usage, format!("configuration {:?}: {what}", paths.config_file))
                .advise("mend that line, or take it out for the default"))
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let connections = file.connections.unwrap_or(cores.min(4));
        if !(1..=16).contains(&connections) {
            return bad(format!("connections = {connections} is not between 1 and 16"));
        }
        let window_mib = file.window_mib.unwrap_or(64);
        if !(2..=1024).contains(&window_mib) {
            return bad(format!("window_mib = {window_mib} is not between 2 and 1024"));
        }
        if file.port == Some(0) {
            return bad("port = 0 is no port; leave the line out to let the system choose".into());
        }
        let cache_mib = file.cache_mib.unwrap_or(1024);
        if cache_mib > 1 << 30 {
            return bad(format!("cache_mib = {cache_mib} is more than {}", 1 << 30));
        }
        let index_mib = file.index_mib.unwrap_or(512);
        if !(256..=1024).contains(&index_mib) {
            return bad(format!("index_mib = {index_mib} is not between 256 and 1024"));
        }
        let api_without = file.api_without.clone().unwrap_or_default();
        if let Some(odd) = api_without.iter().find(|name| !FEATURES.contains(&name.as_str())) {
            return bad(format!("api_without: the API has no {odd:?}, only {}", FEATURES.join(", ")));
        }
        Ok(Config {
            api_without,
            cache_bytes: cache_mib << 20,
            index: file.index.unwrap_or(false),
            index_mib,
            search: file.search.unwrap_or(false),
            search_policy: file.search_policy.unwrap_or_default(),
            metrics: file.metrics,
            clear_text_data: file.clear_text_data.unwrap_or(false),
            allow_local_targets: file.allow_local_targets.unwrap_or(false),
            connections,
            window_bytes: window_mib << 20,
            port: file.port,
            paths,
        })
    }
}

fn read(path: &Path, must_exist: bool) -> Result<ConfigFile> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok(ConfigFile::default());
        }
        Err(error) => {
            let message = Error::io(format!("cannot read the configuration {path:?}"), error);
            let advice =
                if must_exist { "mend or unset DRAY_CONFIG" } else { "make it readable, or remove it" };
            return Err(Error::new(ErrorKind::Usage, message.to_string()).advise(advice));
        }
    };
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<ConfigFile> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let what = format!("configuration {path:?}, line {line}: {}", error.message().replace('\n', ", "));
        Error::new(ErrorKind::Usage, what).advise("mend that line, or take it out for the default")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> Paths {
        Paths { data_dir: "/d".into(), config_file: "/c.toml".into(), runtime_dir: None }
    }

    #[test]
    fn defaults_and_bounds() {
        let config = Config::new(paths(), &ConfigFile::default()).unwrap();
        assert!(!config.clear_text_data && !config.allow_local_targets);
        assert!(!config.index && config.index_mib == 512);
        assert!(!config.search && config.search_policy == SearchPolicy::Cost);
        assert!((1..=4).contains(&config.connections));
        for text in [
            "connections = 0",
            "connections = 17",
            "window_mib = 1",
            "port = 0",
            "cache_mib = 1073741825",
            "index_mib = 255",
            "index_mib = 1025",
            "api_without = [\"x\"]",
        ] {
            let file: ConfigFile = toml::from_str(text).unwrap();
            let error = Config::new(paths(), &file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains("/c.toml"), "{error}");
        }
    }

    /// An error of the file is one line that names the place, the key and what would be right.
    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, words) in [
            ("port = 1\n\nclear_text_dta = true\n", "line 3", "clear_text_dta"),
            ("port = 1\nwindow_mib =\n", "line 2", "window"),
            ("connections = \"four\"", "line 1", "invalid type"),
            ("search = true\nsearch_policy = \"fast\"", "line 2", "no-pressure"),
        ] {
            let error = parse(Path::new("/c.toml"), text).unwrap_err();
            let told = error.to_string();
            assert_eq!((error.kind(), told.lines().count()), (ErrorKind::Usage, 1), "{told}");
            assert!(told.contains(line) && told.contains("/c.toml"), "{told}");
            assert!(words == "window" || told.contains(words), "{told}");
        }
    }
}
