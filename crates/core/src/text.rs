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
