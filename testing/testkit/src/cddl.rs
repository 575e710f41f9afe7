//! Checks CBOR items against CDDL (RFC 8610), so that the grammar in `docs/` is held against real messages.
//!
//! The part of CDDL those files use, and no more: rules, choices, integer literals and ranges, the types of the prelude
//! named in [`PRELUDE`], `.size` and `.le`, arrays, maps, and the occurrences `?`, `*`, `+` and `n*m`. A map entry with a
//! literal key has cut semantics as the RFC says (§3.5.4): a key that is named never falls through to a wildcard. Arrays
//! are matched greedily, without going back.

mod check;
mod parse;
mod value;

use std::collections::{BTreeMap, BTreeSet};

pub use value::Value;

/// Types that need no rule.
pub const PRELUDE: [&str; 7] = ["any", "bool", "bstr", "int", "nil", "tstr", "uint"];

/// Rules, read from a CDDL file.
#[derive(Debug)]
pub struct Cddl {
    rules: BTreeMap<String, Type>,
}

#[derive(Clone, Debug)]
enum Type {
    Rule(String),
    Literal(i128),
    /// Inclusive at both ends.
    Range(i128, i128),
    /// Bytes of a string, or bytes that a number must fit in.
    Size(Box<Type>, Box<Type>),
    AtMost(Box<Type>, i128),
    Choice(Vec<Type>),
    Array(Vec<Entry>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
struct Entry {
    min: u64,
    max: u64,
    key: Option<Key>,
    value: Type,
}

#[derive(Clone, Debug)]
enum Key {
    /// `1: type`.
    Literal(i128),
    /// `uint => type`.
    Of(Type),
    /// `name: type` in an array, which only says what the element is for.
    Remark,
}

impl Cddl {
    /// Reads the rules. Fails at what is not in the subset, and at names that no rule and no prelude defines.
    pub fn parse(text: &str) -> Result<Cddl, String> {
        let cddl = Cddl { rules: parse::rules(text)? };
        for (name, rule) in &cddl.rules {
            for used in rule.names() {
                if !cddl.rules.contains_key(used) && !PRELUDE.contains(&used) {
                    return Err(format!("rule {name} uses {used}, which is not defined"));
                }
            }
        }
        Ok(cddl)
    }

    /// Checks that `bytes` are one item of rule `rule`; the error says where they are not.
    pub fn validate(&self, rule: &str, bytes: &[u8]) -> Result<(), String> {
        let value = Value::decode(bytes)?;
        let rule = self.rules.get(rule).ok_or_else(|| format!("there is no rule {rule}"))?;
        self.check(rule, &value)
    }

    /// Rules that nothing reachable from `start` uses.
    pub fn unused(&self, start: &[&str]) -> Vec<&str> {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = start.to_vec();
        while let Some(name) = open.pop() {
            if let Some((name, rule)) = self.rules.get_key_value(name)
                && seen.insert(name)
            {
                open.extend(rule.names());
            }
        }
        self.rules.keys().map(String::as_str).filter(|name| !seen.contains(name)).collect()
    }
}

impl Type {
    fn names(&self) -> Vec<&str> {
        match self {
            Type::Rule(name) => vec![name],
            Type::Literal(_) | Type::Range(..) => vec![],
            Type::Size(base, size) => [base.names(), size.names()].concat(),
            Type::AtMost(base, _) => base.names(),
            Type::Choice(types) => types.iter().flat_map(Type::names).collect(),
            Type::Array(entries) | Type::Map(entries) => entries
                .iter()
                .flat_map(|entry| {
                    let key = match &entry.key {
                        Some(Key::Of(key)) => key.names(),
                        _ => vec![],
                    };
                    [key, entry.value.names()].concat()
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(rules: &str, hex: &str) -> bool {
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
        Cddl::parse(rules).unwrap().validate("a", &bytes).is_ok()
    }

    #[test]
    fn scalars() {
        for (rule, good, bad) in [
            ("a = uint", "18ff", "20"),
            ("a = int", "3903e7", "40"),
            ("a = bool", "f5", "01"),
            ("a = nil", "f6", "f4"),
            ("a = 7", "07", "08"),
            ("a = -1..2", "20", "21"),
            ("a = -1..2", "02", "03"),
            ("a = uint .le 5", "05", "06"),
            ("a = uint .size 2", "19ffff", "1a00010000"),
            ("a = bstr .size 2", "420102", "4101"),
            ("a = tstr .size (0..2)", "60", "63616263"),
            ("a = 1 / 2 / tstr", "60", "03"),
            ("a = b ; remark\nb = c / 9\nc = tstr", "09", "08"),
        ] {
            assert!(holds(rule, good), "{rule} {good}");
            assert!(!holds(rule, bad), "{rule} {bad}");
        }
    }

    #[test]
    fn containers() {
        for (rule, good, bad) in [
            ("a = [uint, tstr]", "820160", "8101"),
            ("a = [n: uint, * tstr]", "83016060", "820101"),
            ("a = [1*2 uint]", "820101", "83010101"),
            ("a = [1*2 uint]", "8101", "80"),
            ("a = [+ uint]", "8101", "80"),
            ("a = {0: uint, ? 1: tstr}", "a10001", "a10101"),
            ("a = {0: uint, ? 1: tstr}", "a200010160", "a200010101"),
            ("a = {0: uint}", "a10001", "a200010101"),
            ("a = {0: uint, * uint => any}", "a200011863f6", "a2000120f6"),
            ("a = {* uint => any}", "a0", "80"),
            // The cut: a named key with the wrong value is not saved by the wildcard.
            ("a = {? 1: tstr, * uint => any}", "a10160", "a10101"),
        ] {
            assert!(holds(rule, good), "{rule} {good}");
            assert!(!holds(rule, bad), "{rule} {bad}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for rules in [
            "a = b",
            "a =",
            "a = [",
            "a = {0: uint",
            "a = uint .cbor b",
            "a = 1 a = 2",
            "a = ~x",
            "= uint",
            "a = #6.1(uint)",
        ] {
            assert!(Cddl::parse(rules).is_err(), "{rules}");
        }
        assert_eq!(Cddl::parse("a = uint b = c c = 1").unwrap().unused(&["a"]), ["b", "c"]);
        assert!(Cddl::parse("a = uint").unwrap().validate("b", &[0]).is_err());
        assert!(Cddl::parse("a = any").unwrap().validate("a", &[0, 0]).is_err(), "one item, not two");
    }
}
