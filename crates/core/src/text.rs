//! Text from elsewhere (a peer's words, a file's name) made fit for a terminal and a log.

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
}
