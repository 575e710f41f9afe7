//! Just enough of Rust's lexical grammar to see code without its comments and strings: words, punctuation, comments
//! (The Rust Reference, "Lexical structure"). A search over the raw text would find forbidden paths in prose.

/// A word (identifier, keyword or number) or one character of punctuation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    Word(String),
    Mark(char),
}

/// A token and the line it begins on, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) kind: TokenKind,
}

impl Token {
    pub(super) fn word(&self) -> Option<&str> {
        match &self.kind {
            TokenKind::Word(word) => Some(word),
            TokenKind::Mark(_) => None,
        }
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.word() == Some(word)
    }

    pub(super) fn is_mark(&self, mark: char) -> bool {
        self.kind == TokenKind::Mark(mark)
    }
}

/// A comment and the line it begins on, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Comment {
    pub(super) line: usize,
    pub(super) text: String,
}

/// A file in pieces. Strings and characters are left out.
#[derive(Clone, Default, Debug)]
pub(super) struct Source {
    pub(super) tokens: Vec<Token>,
    pub(super) comments: Vec<Comment>,
}

/// Splits `text`. Never fails: an unclosed comment or string ends with the file, as the compiler will say.
pub(super) fn lex(text: &str) -> Source {
    let mut scanner = Scanner { rest: text, line: 1 };
    let mut source = Source::default();
    while let Some(first) = scanner.rest.chars().next() {
        let line = scanner.line;
        if scanner.rest.starts_with("//") {
            let text = scanner.take_while(|c| c != '\n');
            source.comments.push(Comment { line, text });
        } else if scanner.rest.starts_with("/*") {
            let text = scanner.take_block_comment();
            source.comments.push(Comment { line, text });
        } else if first == '"' {
            scanner.skip_string();
        } else if first == '\'' {
            scanner.skip_character_or_lifetime();
        } else if first.is_alphanumeric() || first == '_' {
            let word = scanner.take_while(|c| c.is_alphanumeric() || c == '_');
            let raw = matches!(word.as_str(), "r" | "br" | "cr");
            if raw && scanner.skip_raw_string() {
                continue;
            }
            let text_follows = matches!(word.as_str(), "b" | "c") && scanner.rest.starts_with(['"', '\'']);
            if text_follows {
                continue; // the next turn of the loop skips it
            }
            // A raw identifier: `r#type` is the word `type`.
            if word == "r" && scanner.rest.starts_with('#') {
                scanner.advance(1);
                continue;
            }
            source.tokens.push(Token { line, kind: TokenKind::Word(word) });
        } else {
            scanner.advance(first.len_utf8());
            if !first.is_whitespace() {
                source.tokens.push(Token { line, kind: TokenKind::Mark(first) });
            }
        }
    }
    source
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl Scanner<'_> {
    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let end = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let taken = self.rest[..end].to_owned();
        self.advance(end);
        taken
    }

    fn take_block_comment(&mut self) -> String {
        let (mut depth, mut at) = (0usize, 0usize);
        while at < self.rest.len() {
            let rest = &self.rest.as_bytes()[at..];
            if rest.starts_with(b"/*") {
                depth += 1;
                at += 2;
            } else if rest.starts_with(b"*/") {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    break;
                }
            } else {
                at += 1;
            }
        }
        let text = self.rest[..at].to_owned();
        self.advance(at);
        text
    }

    fn skip_string(&mut self) {
        self.skip_quoted(b'"');
    }

    /// Skips from an opening to the closing `quote`, minding backslashes.
    fn skip_quoted(&mut self, quote: u8) {
        let mut escaped = false;
        let end = self.rest.bytes().skip(1).position(|byte| {
            let ends = byte == quote && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        self.advance(end.map_or(self.rest.len(), |end| end + 2));
    }

    /// Skips `#*"…"#*` if that stands here.
    fn skip_raw_string(&mut self) -> bool {
        let hashes = self.rest.bytes().take_while(|byte| *byte == b'#').count();
        if self.rest.as_bytes().get(hashes) != Some(&b'"') {
            return false;
        }
        let close = format!("\"{}", "#".repeat(hashes));
        let body = hashes + 1;
        let end = self.rest[body..].find(&close);
        self.advance(end.map_or(self.rest.len(), |end| body + end + close.len()));
        true
    }

    /// `'a'` and `'\n'` are characters, `'a` is a lifetime.
    fn skip_character_or_lifetime(&mut self) {
        let mut after = self.rest.chars().skip(1);
        let (first, second) = (after.next(), after.next());
        if first == Some('\\') || second == Some('\'') {
            self.skip_quoted(b'\'');
        } else {
            self.advance(1);
            self.take_while(|c| c.is_alphanumeric() || c == '_');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        lex(text).tokens.iter().filter_map(|token| token.word().map(str::to_owned)).collect()
    }

    #[test]
    fn strings_characters_and_comments_hold_no_words() {
        let text = r####"
            // in a comment std::net
            /* a /* nested */ comment std::fs */
            let x = "a \" quoted std::net"; let y = r#"raw " std::net"#; let z = b"bytes std::net";
            let c = '"'; let d = '\''; let e: &'static str = c"c std::net"; let f = b'\\'; let r#type = br"x";
        "####;
        assert_eq!(
            words(text),
            [
                "let", "x", "let", "y", "let", "z", "let", "c", "let", "d", "let", "e", "str", "let", "f",
                "let", "type"
            ]
        );
        let comments = lex(text).comments;
        assert_eq!(comments.iter().map(|comment| comment.line).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(comments[1].text, "/* a /* nested */ comment std::fs */");
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let text = "a\n\"two\nlines\"\n/* two\nlines */ b\n'\n' c";
        let lines: Vec<usize> = lex(text).tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 5, 7]);
    }

    #[test]
    fn an_unclosed_string_or_comment_ends_with_the_file() {
        for text in ["\"abc", "r#\"abc\"", "/* abc", "'\\", "'"] {
            assert!(words(text).is_empty(), "{text}");
        }
    }
}
