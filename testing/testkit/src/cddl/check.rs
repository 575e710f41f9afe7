//! A value against a rule.

use super::{Cddl, Entry, Key, Type, Value};

impl Cddl {
    pub(super) fn check(&self, rule: &Type, value: &Value) -> Result<(), String> {
        let wrong = || Err(format!("{value:?} is not {rule:?}"));
        let holds = match (rule, value) {
            (Type::Rule(name), value) => match (self.rules.get(name), name.as_str(), value) {
                (Some(rule), _, value) => {
                    return self.check(rule, value).map_err(|why| format!("{name}: {why}"));
                }
                (None, "any", _)
                | (None, "bool", Value::Bool(_))
                | (None, "bstr", Value::Bytes(_))
                | (None, "int", Value::Int(_))
                | (None, "nil", Value::Null)
                | (None, "tstr", Value::Text(_)) => true,
                (None, "uint", Value::Int(number)) => *number >= 0,
                _ => false,
            },
            (Type::Literal(wanted), Value::Int(number)) => wanted == number,
            (Type::Range(low, high), Value::Int(number)) => (low..=high).contains(&number),
            (Type::Size(base, size), value) => {
                self.check(base, value)?;
                match value {
                    Value::Bytes(bytes) => self.has_size(size, bytes.len()),
                    Value::Text(text) => self.has_size(size, text.len()),
                    // RFC 8610 §3.8.1: the number fits this many bytes.
                    Value::Int(number) => matches!(**size, Type::Literal(bytes @ 1..=8)
                        if (0..1i128 << (8 * bytes)).contains(number)),
                    _ => false,
                }
            }
            (Type::AtMost(base, most), Value::Int(number)) => {
                self.check(base, value)?;
                number <= most
            }
            (Type::Choice(types), value) => types.iter().any(|rule| self.check(rule, value).is_ok()),
            (Type::Array(entries), Value::Array(items)) => return self.array(entries, items),
            (Type::Map(entries), Value::Map(pairs)) => return self.map(entries, pairs),
            _ => false,
        };
        if holds { Ok(()) } else { wrong() }
    }

    fn has_size(&self, size: &Type, len: usize) -> bool {
        self.check(size, &Value::Int(len as i128)).is_ok()
    }

    fn array(&self, entries: &[Entry], items: &[Value]) -> Result<(), String> {
        let mut rest = items;
        for (at, entry) in entries.iter().enumerate() {
            let mut count = 0;
            while count < entry.max
                && let Some((first, tail)) = rest.split_first()
            {
                match self.check(&entry.value, first) {
                    Ok(()) => rest = tail,
                    Err(why) if count < entry.min => return Err(format!("element {at}: {why}")),
                    Err(_) => break,
                }
                count += 1;
            }
            if count < entry.min {
                return Err(format!("element {at} is missing"));
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("{} elements too many", rest.len())) }
    }

    fn map(&self, entries: &[Entry], pairs: &[(Value, Value)]) -> Result<(), String> {
        let mut counts = vec![0; entries.len()];
        for (key, value) in pairs {
            let literal = entries.iter().position(
                |entry| matches!((&entry.key, key), (Some(Key::Literal(wanted)), Value::Int(key)) if wanted == key),
            );
            let found = match literal {
                Some(at) => {
                    self.check(&entries[at].value, value).map_err(|why| format!("key {key:?}: {why}"))?;
                    Some(at)
                }
                None => entries.iter().position(|entry| match &entry.key {
                    Some(Key::Of(rule)) => {
                        self.check(rule, key).is_ok() && self.check(&entry.value, value).is_ok()
                    }
                    _ => false,
                }),
            };
            counts[found.ok_or_else(|| format!("key {key:?} is not allowed"))?] += 1;
        }
        for (entry, count) in entries.iter().zip(counts) {
            if count < entry.min || count > entry.max {
                return Err(format!("{count} entries for {:?}", entry.key));
            }
        }
        Ok(())
    }
}
