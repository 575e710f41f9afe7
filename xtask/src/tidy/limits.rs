//! `docs/limits.md` against `crates/core/src/limits.rs`: both are parsed, so a bound cannot change without its page.

use std::collections::BTreeMap;
use std::path::Path;

use super::lexical::{self, Token, TokenKind};
use super::{Finding, documents, read};

const CODE: &str = "crates/core/src/limits.rs";
const PAGE: &str = "docs/limits.md";

pub(super) fn check(root: &Path, findings: &mut Vec<Finding>) -> Result<(), String> {
    let constants = constants(&read(root, Path::new(CODE))?).map_err(|error| format!("{CODE}: {error}"))?;
    compare(&constants, &read(root, Path::new(PAGE))?, findings);
    Ok(())
}

fn compare(constants: &BTreeMap<String, u128>, page: &str, findings: &mut Vec<Finding>) {
    let mut listed = BTreeMap::new();
    for row in documents::tables(page) {
        let Some([name, value]) = row.cells.first_chunk() else { continue };
        let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !is_name || name.is_empty() {
            continue;
        }
        listed.insert(name.clone(), row.line);
        let digits: String = value.chars().filter(|c| *c != ',').take_while(char::is_ascii_digit).collect();
        match constants.get(name) {
            None => {
                let message = format!("{CODE} has no constant {name}");
                findings.push(Finding::new("limits", PAGE, row.line, message));
            }
            Some(real) if digits.parse() != Ok(*real) => {
                let message = format!("{name} is {real} in {CODE}, not {value}");
                findings.push(Finding::new("limits", PAGE, row.line, message));
            }
            Some(_) => {}
        }
    }
    for name in constants.keys().filter(|name| !listed.contains_key(*name)) {
        let message = format!("add a row for {name}");
        findings.push(Finding::new("limits", PAGE, 0, message));
    }
}

/// Name and value of every `pub const`.
fn constants(text: &str) -> Result<BTreeMap<String, u128>, String> {
    let tokens = lexical::lex(text).tokens;
    let mut known = BTreeMap::new();
    let mut at = 0;
    while at + 3 < tokens.len() {
        let declares = tokens[at].is_word("pub") && tokens[at + 1].is_word("const");
        let (true, Some(name)) = (declares, tokens[at + 2].word()) else {
            at += 1;
            continue;
        };
        let line = tokens[at].line;
        let end = position(&tokens, at, ';').unwrap_or(tokens.len());
        let begin = position(&tokens, at, '=').filter(|begin| *begin < end);
        let begin = begin.ok_or_else(|| format!("line {line}: {name} has no value"))? + 1;
        let mut expression = Expression { tokens: &tokens[begin..end], at: 0, known: &known };
        let value = expression.shift().filter(|_| expression.at == end - begin);
        let value = value.ok_or_else(|| format!("line {line}: the value of {name} is beyond this reader"))?;
        known.insert(name.to_owned(), value);
        at = end;
    }
    Ok(known)
}

fn position(tokens: &[Token], from: usize, mark: char) -> Option<usize> {
    tokens.iter().skip(from).position(|token| token.is_mark(mark)).map(|offset| from + offset)
}

/// Integers, names, `+ - * << >> as ( )`, with Rust's precedence.
struct Expression<'a> {
    tokens: &'a [Token],
    at: usize,
    known: &'a BTreeMap<String, u128>,
}

impl Expression<'_> {
    fn shift(&mut self) -> Option<u128> {
        let mut left = self.sum()?;
        loop {
            if self.eat("<<") {
                left = left.checked_shl(u32::try_from(self.sum()?).ok()?)?;
            } else if self.eat(">>") {
                left = left.checked_shr(u32::try_from(self.sum()?).ok()?)?;
            } else {
                return Some(left);
            }
        }
    }

    fn sum(&mut self) -> Option<u128> {
        let mut left = self.product()?;
        loop {
            if self.eat("+") {
                left = left.checked_add(self.product()?)?;
            } else if self.eat("-") {
                left = left.checked_sub(self.product()?)?;
            } else {
                return Some(left);
            }
        }
    }

    fn product(&mut self) -> Option<u128> {
        let mut left = self.cast()?;
        while self.eat("*") {
            left = left.checked_mul(self.cast()?)?;
        }
        Some(left)
    }

    fn cast(&mut self) -> Option<u128> {
        let value = self.atom()?;
        while self.tokens.get(self.at).is_some_and(|token| token.is_word("as")) {
            self.at += 2;
        }
        Some(value)
    }

    fn atom(&mut self) -> Option<u128> {
        if self.eat("(") {
            let value = self.shift()?;
            return self.eat(")").then_some(value);
        }
        let word = self.tokens.get(self.at)?.word()?;
        self.at += 1;
        if let Some(value) = self.known.get(word) {
            return Some(*value);
        }
        let digits: String = word.chars().filter(|c| *c != '_').collect();
        match digits.strip_prefix("0x") {
            Some(hex) => u128::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        }
    }

    fn eat(&mut self, operator: &str) -> bool {
        let rest = self.tokens.get(self.at..).unwrap_or(&[]);
        let marks = rest.iter().map(|token| match token.kind {
            TokenKind::Mark(mark) => mark,
            TokenKind::Word(_) => ' ',
        });
        let matches =
            rest.len() >= operator.len() && marks.zip(operator.chars()).all(|(mark, wanted)| mark == wanted);
        if matches {
            self.at += operator.len();
        }
        matches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE_SAMPLE: &str = "/// A.\npub const A: u64 = 64 * 1024;\npub const B: usize = (A as usize + 64) * 2;\n\
                               pub const C: u64 = 1 << 10 + 2;\npub const D: u64 = 10_000;\n";

    fn findings(page: &str) -> Vec<String> {
        let mut found = Vec::new();
        compare(&constants(CODE_SAMPLE).unwrap(), page, &mut found);
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn values_are_computed_as_rust_would() {
        let found = constants(CODE_SAMPLE).unwrap();
        let values: Vec<u128> = found.values().copied().collect();
        assert_eq!(values, [64 * 1024, (64 * 1024 + 64) * 2, 1 << 12, 10_000]);
        assert!(constants("pub const A: u64 = f(1);").is_err());
    }

    #[test]
    fn a_wrong_a_missing_and_a_foreign_row_are_found() {
        let head = "| constant | value |\n|---|---|\n";
        let right = "| `A` | 65,536 |\n| `B` | 131200 |\n| `C` | 4096 |\n| `D` | 10,000 |\n";
        assert_eq!(findings(&format!("{head}{right}")), [""; 0]);
        assert_eq!(findings(&format!("{head}{}", right.replace("65,536", "65,537"))).len(), 1);
        assert_eq!(findings(&format!("{head}{}", right.replace("| `B` | 131200 |\n", ""))).len(), 1);
        assert_eq!(findings(&format!("{head}{right}| `E` | 1 |\n")).len(), 1);
    }
}
