//! Text from elsewhere (a peer's words, a file's name) made fit for a terminal and a log, and bytes as text.

/// Characters of general category Cf (format) of Unicode 16: invisible, and able to reorder or hide what stands around
/// them; and the two separators of lines and paragraphs.
const FORMAT: [(u32, u32); 21] = [
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x2064),
    (0x2066, 0x206f),
    (0xfeff, 0xfeff),
    (0xfff9, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0001, 0xe0001),
    (0xe0020, 0xe007f),
];

/// `text` on one line, with a space for every control or format character.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_format(c) { ' ' } else { c }).collect()
}

/// A name, a path, or where a link points, on one line as rsync shows it: `\#` and three octal digits for each byte that is no text (not UTF-8, or
/// of a control character other than a tab), and for a backslash that would look like that. So different ones look different. Beyond
/// what rsync does, that also goes for DEL, the controls that UTF-8 takes two bytes for, and format characters: a terminal obeys the ones and hides the others.
pub fn shown_name(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for (at, c) in chunk.valid().char_indices() {
            let is_text = match c {
                '\t' => true,
                '\\' => !is_octal_escape(&chunk.valid().as_bytes()[at..]),
                _ => !c.is_control() && !is_format(c),
            };
            if is_text {
                shown.push(c);
            } else {
                push_octal(&mut shown, c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        push_octal(&mut shown, chunk.invalid());
    }
    shown
}

/// The same between quotation marks; one that is in it is written as if it were no text, so that none ends it early.
pub fn quoted_name(bytes: &[u8]) -> String {
    format!("\"{}\"", shown_name(bytes).replace('"', "\\#042"))
}

fn is_octal_escape(text: &[u8]) -> bool {
    // Any digits: rsync asks for no more.
    matches!(text, [b'\\', b'#', a, b, c, ..] if [a, b, c].iter().all(|digit| digit.is_ascii_digit()))
}

fn push_octal(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        shown.push_str("\\#");
        shown.extend([6, 3, 0].map(|shift| char::from(b'0' + (byte >> shift & 7))));
    }
}

/// `bytes` in hex digits, lower case: two a byte.
pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// The bytes that `text` writes in hex digits of either case; `None` for anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}

fn is_format(c: char) -> bool {
    let code = u32::from(c);
    FORMAT.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threat model: a peer's text cannot move the cursor, start a line, or turn round what is read.
    #[test]
    fn nothing_invisible_is_left() {
        let hostile = "a\u{1b}[2Jb\nc\u{202e}d\u{2066}e\u{200b}f\u{feff}g\u{2028}h\u{e0041}i\u{9b}j\u{ad}k";
        assert_eq!(one_line(hostile), "a [2Jb c d e f g h i j k");
        let harmless = "Grüße, 東京 שלום \u{1f600} e\u{301}";
        assert_eq!(one_line(harmless), harmless);
    }

    /// Threat model: names reach a terminal as rsync writes them, and without what a terminal obeys or hides, which rsync lets through.
    #[test]
    fn names_are_shown_as_rsync_shows_them() {
        for (name, shown) in [
            (&b"a b"[..], "a b"),
            (b"a\nb", r"a\#012b"),
            (b"t\tx", "t\tx"),
            (b"esc\x1b[2J\r", r"esc\#033[2J\#015"),
            (b"x\xff", r"x\#377"),
            (b"half\xc3", r"half\#303"),
            (b"half\xe2\x80a", r"half\#342\#200a"),
            (b"\xed\xa0\x80\xc0\x80", r"\#355\#240\#200\#300\#200"),
            ("Grüße, 東京 \u{1f600}".as_bytes(), "Grüße, 東京 \u{1f600}"),
            (br"\#012", r"\#134#012"),
            (br"\#9999", r"\#134#9999"),
            (br"\\#012\#01\#0a2\a", r"\\#134#012\#01\#0a2\a"),
            (b"\\#\n", r"\#\#012"),
            // What rsync lets a terminal have.
            (b"del\x7f", r"del\#177"),
            ("c1\u{9b}2J".as_bytes(), r"c1\#302\#2332J"),
            ("bidi\u{202e}\u{200e}".as_bytes(), r"bidi\#342\#200\#256\#342\#200\#216"),
            ("tag\u{e0041}".as_bytes(), r"tag\#363\#240\#201\#201"),
            (b"say \"x\"", r#"say "x""#),
        ] {
            assert_eq!(shown_name(name), shown);
        }
        assert_eq!(quoted_name(b"say \"x\\#\n"), r##""say \#042x\#\#012""##);
    }

    /// Threat model: no two names look the same; here all up to six bytes of what an escape is made of and stands for.
    #[test]
    fn different_names_are_shown_differently() {
        let mut names = vec![Vec::new()];
        let mut begin = 0;
        for _ in 0..6 {
            let longer: Vec<Vec<u8>> = names[begin..]
                .iter()
                .flat_map(|name: &Vec<u8>| b"\\#012\n".iter().map(|byte| [&name[..], &[*byte]].concat()))
                .collect();
            begin = names.len();
            names.extend(longer);
        }
        let shown: std::collections::HashSet<String> = names.iter().map(|name| shown_name(name)).collect();
        assert_eq!((names.len(), shown.len()), (55_987, 55_987));
    }

    /// Design 14: names that are not UTF-8 go through documents in hex digits, whole.
    #[test]
    fn hex_digits_are_read_as_they_are_written() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(hex(&[0, 9, 0xab, 0xff]), "0009abff");
        assert_eq!(from_hex(&hex(&all)), Some(all.clone()));
        assert_eq!(from_hex(&hex(&all).to_uppercase()), Some(all));
        for odd in ["0", "0g", "+1", " 00", "é"] {
            assert_eq!(from_hex(odd), None, "{odd:?}");
        }
    }
}
