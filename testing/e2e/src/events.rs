//! The events of `dray --json` against the schema that is published of them, `docs/events.schema.json`: each line of every `dray` that a
//! test runs is one of its events, with the fields that it has there and no others.
//!
//! Of JSON Schema this knows what that file uses, and stops at anything else.

use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::gate;

/// Words of the schema that say nothing of a value.
const SILENT: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// The schema of all events.
fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let path = gate::project_file("docs/events.schema.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).expect("the schema is JSON")
    })
}

/// Names of all events of the schema.
pub fn names() -> BTreeSet<String> {
    let all = schema()["oneOf"].as_array().expect("the schema lists events").iter();
    let name = |event: &Value| {
        event["properties"]["event"]["const"].as_str().expect("an event has a name").to_owned()
    };
    all.map(name).collect()
}

/// Panics unless each line of `output`, what a `dray --json` printed, is an event as the schema has it; their names.
#[track_caller]
pub fn check(output: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for line in output.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let name = event["event"].as_str().unwrap_or_else(|| panic!("no name: {line}"));
        let is_it = |schema: &&Value| schema["properties"]["event"]["const"] == *name;
        let all = schema()["oneOf"].as_array().expect("the schema lists events");
        let found = all
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("docs/events.schema.json has no {name:?}: {line}"));
        if let Err(why) = fits(found, &event) {
            panic!("docs/events.schema.json has {name:?} otherwise: {why}: {line}");
        }
        seen.insert(name.to_owned());
    }
    seen
}

/// The three patterns that there are.
fn fits_pattern(pattern: &Value, value: &Value) -> bool {
    let hex = &b"0123456789abcdef"[..];
    let (prefix, digits, count) = match pattern.as_str() {
        Some("^blake3:[0-9a-f]{64}$") => ("blake3:", hex, Some(64)),
        Some("^[0-7]{4}$") => ("", &b"01234567"[..], Some(4)),
        Some("^([0-9a-f]{2})+$") => ("", hex, None),
        _ => panic!("{pattern} is not known here"),
    };
    let rest = value.as_str().and_then(|text| text.strip_prefix(prefix)).unwrap_or_default();
    let has_count =
        count.map_or(!rest.is_empty() && rest.len().is_multiple_of(2), |count| rest.len() == count);
    has_count && rest.bytes().all(|byte| digits.contains(&byte))
}

/// Whether `value` is what `schema` says; why not.
fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    let rules = schema.as_object().expect("a schema is an object");
    for (rule, wanted) in rules {
        let is_so = match rule.as_str() {
            "$ref" => {
                let name =
                    wanted.as_str().and_then(|path| path.strip_prefix("#/$defs/")).expect("a reference");
                fits(&self::schema()["$defs"][name], value)?;
                true
            }
            "oneOf" => {
                wanted
                    .as_array()
                    .expect("choices")
                    .iter()
                    .filter(|choice| fits(choice, value).is_ok())
                    .count()
                    == 1
            }
            "const" => value == wanted,
            // To others a word may be new; to this version all are known.
            "examples" => wanted.as_array().expect("words").contains(value),
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is_of(wanted, value)),
                wanted => is_of(wanted, value),
            },
            "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().expect("a number")),
            "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().expect("a number")),
            "pattern" => fits_pattern(wanted, value),
            "properties" => {
                fields(wanted.as_object().expect("fields"), value)?;
                true
            }
            "required" => {
                let has = |name: &Value| value.get(name.as_str().expect("a name")).is_some();
                wanted.as_array().expect("names").iter().all(has)
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    fits(wanted, item)?;
                }
                true
            }
            other => {
                assert!(SILENT.contains(&other), "{other:?} is not known here");
                true
            }
        };
        if !is_so {
            return Err(format!("{rule} {wanted} is not {value}"));
        }
    }
    Ok(())
}

/// Each field is one that is listed, and what that says.
fn fields(listed: &Map<String, Value>, value: &Value) -> Result<(), String> {
    for (name, value) in value.as_object().into_iter().flatten() {
        let schema = listed.get(name).ok_or_else(|| format!("{name:?} is not listed"))?;
        fits(schema, value).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn is_of(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().expect("the name of a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other:?} is no type"),
    }
}
