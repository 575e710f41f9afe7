//! Text to rules.

use std::collections::BTreeMap;

use super::{Entry, Key, Type};

pub(super) fn rules(text: &str) -> Result<BTreeMap<String, Type>, String> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut rules = BTreeMap::new();
    while parser.at < parser.tokens.len() {
        let name = parser.name()?;
        parser.expect("=")?;
        let rule = parser.choice()?;
        if rules.insert(name.clone(), rule).is_some() {
            return Err(format!("rule {name} is defined twice"));
        }
    }
    Ok(rules)
}

/// Words, numbers and signs; remarks are left out.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    for line in text.lines() {
        let mut rest = line.split(';').next().unwrap_or("").trim_start();
        while let Some(first) = rest.chars().next() {
            let signs = ["=>", "..", "=", "/", "{", "}", "[", "]", "(", ")", ",", ":", "?", "*", "+"];
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let len = if let Some(sign) = signs.iter().find(|sign| rest.starts_with(**sign)) {
                sign.len()
            } else if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if first == '.' {
                1 + rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1)
            } else {
                return Err(format!("{first:?} is not understood"));
            };
            tokens.push(rest[..len].to_owned());
            rest = rest[len..].trim_start();
        }
    }
    Ok(tokens)
}

struct Parser {
    tokens: Vec<String>,
    at: usize,
}

impl Parser {
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn take(&mut self) -> Result<String, String> {
        let token = self.tokens.get(self.at).cloned().ok_or("the text ends early")?;
        self.at += 1;
        Ok(token)
    }

    fn skip(&mut self, token: &str) -> bool {
        let found = self.peek(0) == token;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        let got = self.take()?;
        if got == token { Ok(()) } else { Err(format!("{token:?} should stand where {got:?} is")) }
    }

    fn name(&mut self) -> Result<String, String> {
        let token = self.take()?;
        if is_name(&token) { Ok(token) } else { Err(format!("{token:?} is not a name")) }
    }

    fn number(&mut self) -> Result<i128, String> {
        let token = self.take()?;
        token.parse().map_err(|_| format!("{token:?} is not a number"))
    }

    fn choice(&mut self) -> Result<Type, String> {
        let mut types = vec![self.controlled()?];
        while self.skip("/") {
            types.push(self.controlled()?);
        }
        Ok(if types.len() == 1 { types.remove(0) } else { Type::Choice(types) })
    }

    fn controlled(&mut self) -> Result<Type, String> {
        let base = self.plain()?;
        match self.peek(0) {
            ".size" => {
                self.at += 1;
                Ok(Type::Size(Box::new(base), Box::new(self.plain()?)))
            }
            ".le" => {
                self.at += 1;
                Ok(Type::AtMost(Box::new(base), self.number()?))
            }
            other if other.starts_with('.') => Err(format!("{other} is not in the subset")),
            _ => Ok(base),
        }
    }

    fn plain(&mut self) -> Result<Type, String> {
        if self.skip("(") {
            let inner = self.choice()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.skip("[") {
            return Ok(Type::Array(self.entries("]")?));
        }
        if self.skip("{") {
            return Ok(Type::Map(self.entries("}")?));
        }
        if is_name(self.peek(0)) {
            return Ok(Type::Rule(self.take()?));
        }
        let low = self.number()?;
        if self.skip("..") {
            return Ok(Type::Range(low, self.number()?));
        }
        Ok(Type::Literal(low))
    }

    fn entries(&mut self, close: &str) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        while !self.skip(close) {
            let (min, max) = self.occurrence()?;
            let key = if self.peek(1) == ":" {
                let word = self.take()?;
                self.at += 1;
                Some(if is_name(&word) {
                    Key::Remark
                } else {
                    Key::Literal(word.parse().map_err(|_| format!("{word:?} is not a key"))?)
                })
            } else {
                None
            };
            let mut entry = Entry { min, max, key, value: self.choice()? };
            if self.skip("=>") {
                entry.key = Some(Key::Of(entry.value));
                entry.value = self.choice()?;
            }
            entries.push(entry);
            if !self.skip(",") && self.peek(0) != close {
                return Err(format!("{:?} should be a comma or {close:?}", self.peek(0)));
            }
        }
        Ok(entries)
    }

    fn occurrence(&mut self) -> Result<(u64, u64), String> {
        if self.skip("?") {
            return Ok((0, 1));
        }
        if self.skip("+") {
            return Ok((1, u64::MAX));
        }
        let bound = |number: i128| u64::try_from(number).map_err(|_| format!("{number} is no count"));
        let is_count = self.peek(1) == "*" && self.peek(0).parse::<u64>().is_ok();
        if self.peek(0) != "*" && !is_count {
            return Ok((1, 1));
        }
        let min = if self.peek(0) == "*" { 0 } else { bound(self.number()?)? };
        self.expect("*")?;
        let is_bounded = self.peek(0).parse::<u64>().is_ok() && ![":", "=>"].contains(&self.peek(1));
        let max = if is_bounded { bound(self.number()?)? } else { u64::MAX };
        Ok((min, max))
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic())
}
