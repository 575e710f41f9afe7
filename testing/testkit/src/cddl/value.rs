//! A CBOR item as a tree, to look at and to damage.

/// One item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Any number CBOR has: -2^64 to 2^64 - 1.
    Int(i128),
    /// Byte string.
    Bytes(Vec<u8>),
    /// Text string.
    Text(String),
    /// Array.
    Array(Vec<Value>),
    /// Map, in the order of the bytes.
    Map(Vec<(Value, Value)>),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

impl Value {
    /// Reads exactly one item of definite length.
    pub fn decode(bytes: &[u8]) -> Result<Value, String> {
        let mut rest = bytes;
        let value = read(&mut rest, 0)?;
        if rest.is_empty() { Ok(value) } else { Err("bytes follow the item".into()) }
    }

    /// The bytes, each head in its shortest form, maps in the order they have.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Int(number) if *number >= 0 => head(out, 0, *number as u64),
            Value::Int(number) => head(out, 1, (-1 - number) as u64),
            Value::Bytes(bytes) => {
                head(out, 2, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Value::Text(text) => {
                head(out, 3, text.len() as u64);
                out.extend_from_slice(text.as_bytes());
            }
            Value::Array(items) => {
                head(out, 4, items.len() as u64);
                items.iter().for_each(|item| item.write(out));
            }
            Value::Map(entries) => {
                head(out, 5, entries.len() as u64);
                for (key, value) in entries {
                    key.write(out);
                    value.write(out);
                }
            }
            Value::Bool(value) => out.push(0xf4 + u8::from(*value)),
            Value::Null => out.push(0xf6),
        }
    }

    /// This item with the one at `path` (element of an array or entry of a map, outermost first) put through `change`;
    /// `None` from it takes the element or entry out. `path` must not be empty.
    pub fn changed(&self, path: &[usize], change: &dyn Fn(&Value) -> Option<Value>) -> Value {
        let mut copy = self.clone();
        let Some((at, rest)) = path.split_first() else { return copy };
        let child = match &copy {
            Value::Array(items) => items.get(*at),
            Value::Map(entries) => entries.get(*at).map(|(_, value)| value),
            _ => None,
        };
        let Some(child) = child else { return copy };
        let new = if rest.is_empty() { change(child) } else { Some(child.changed(rest, change)) };
        match (&mut copy, new) {
            (Value::Array(items), Some(new)) => items[*at] = new,
            (Value::Array(items), None) => drop(items.remove(*at)),
            (Value::Map(entries), Some(new)) => entries[*at].1 = new,
            (Value::Map(entries), None) => drop(entries.remove(*at)),
            _ => {}
        }
        copy
    }

    /// Paths of everything inside, for [`Value::changed`].
    pub fn paths(&self) -> Vec<Vec<usize>> {
        let children: Vec<&Value> = match self {
            Value::Array(items) => items.iter().collect(),
            Value::Map(entries) => entries.iter().map(|(_, value)| value).collect(),
            _ => vec![],
        };
        let mut paths = Vec::new();
        for (at, child) in children.into_iter().enumerate() {
            paths.push(vec![at]);
            paths.extend(child.paths().into_iter().map(|rest| [vec![at], rest].concat()));
        }
        paths
    }
}

fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let bytes = argument.to_be_bytes();
    let (low, width) = match argument {
        0..24 => (argument as u8, 0),
        24..0x100 => (24, 1),
        0x100..0x1_0000 => (25, 2),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 8),
    };
    out.push(major << 5 | low);
    out.extend_from_slice(&bytes[8 - width..]);
}

fn read(rest: &mut &[u8], depth: usize) -> Result<Value, String> {
    if depth > 16 {
        return Err("nested too deeply".into());
    }
    let first = *take(rest, 1)?.first().ok_or("ends early")?;
    let (major, low) = (first >> 5, first & 31);
    if major == 7 {
        return match low {
            20 | 21 => Ok(Value::Bool(low == 21)),
            22 => Ok(Value::Null),
            _ => Err("a simple value or float".into()),
        };
    }
    let argument = match low {
        0..24 => u64::from(low),
        24..28 => take(rest, 1 << (low - 24))?.iter().fold(0, |value, digit| value << 8 | u64::from(*digit)),
        _ => return Err("indefinite length".into()),
    };
    match major {
        0 => Ok(Value::Int(i128::from(argument))),
        1 => Ok(Value::Int(-1 - i128::from(argument))),
        2 => Ok(Value::Bytes(take(rest, argument)?.to_vec())),
        3 => String::from_utf8(take(rest, argument)?.to_vec())
            .map(Value::Text)
            .map_err(|_| "text is not UTF-8".into()),
        4 => (0..argument).map(|_| read(rest, depth + 1)).collect::<Result<_, _>>().map(Value::Array),
        5 => (0..argument)
            .map(|_| Ok((read(rest, depth + 1)?, read(rest, depth + 1)?)))
            .collect::<Result<_, String>>()
            .map(Value::Map),
        _ => Err("a tag".into()),
    }
}

fn take<'a>(rest: &mut &'a [u8], len: u64) -> Result<&'a [u8], String> {
    let len = usize::try_from(len).map_err(|_| "ends early")?;
    let (taken, tail) = rest.split_at_checked(len).ok_or("ends early")?;
    *rest = tail;
    Ok(taken)
}
