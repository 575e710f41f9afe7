//! Reads numbers and choices from the bytes of an input. Past its end everything reads as zero, so any bytes are a
//! valid input and a shorter input is a simpler one.

/// Cursor over an input.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads from `data`.
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input(data)
    }

    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// The next two bytes, big-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// The next eight bytes, big-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A number near a power of two, from two bytes: the places where arithmetic goes wrong.
    pub fn near_power(&mut self) -> u64 {
        let [exponent, delta] = self.array();
        let delta = i64::from(delta as i8);
        // A third of the exponents is small, where the shapes are.
        let exponent = if exponent >= 128 { exponent % 8 } else { exponent % 64 };
        (1u64 << exponent).wrapping_add_signed(delta)
    }

    /// A number below `bound` (not 0), from one byte or two.
    pub fn below(&mut self, bound: usize) -> usize {
        let value = if bound <= 256 { usize::from(self.byte()) } else { usize::from(self.u16()) };
        value % bound
    }

    /// The next `len` bytes, or what is left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let bytes = self.bytes(N);
        out[..bytes.len()].copy_from_slice(bytes);
        out
    }
}
