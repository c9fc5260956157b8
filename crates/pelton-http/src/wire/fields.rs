//! The fields of a head, as ranges of its bytes.

/// The ranges of a field's name and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub(super) name: (u32, u32),
    pub(super) value: (u32, u32),
}

impl Field {
    /// Where its name begins.
    pub(super) fn start(&self) -> usize {
        self.name.0 as usize
    }
}

fn part(bytes: &[u8], (start, end): (u32, u32)) -> &[u8] {
    bytes.get(start as usize..end as usize).unwrap_or_default()
}

/// The fields of a head, in order. Names are compared without regard to case.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    fields: &'a [Field],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], fields: &'a [Field]) -> Fields<'a> {
        Fields { bytes, fields }
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Iterates over all fields, in order.
    pub fn iter(&self) -> Iter<'a> {
        Iter { bytes: self.bytes, fields: self.fields.iter() }
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The value of the first field with this name, if it is UTF-8.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        str::from_utf8(self.get(name)?).ok()
    }

    /// The values of all fields with this name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.fields
            .iter()
            .filter(move |field| part(bytes, field.name).eq_ignore_ascii_case(name.as_bytes()))
            .map(move |field| part(bytes, field.value))
    }
}

impl<'a> IntoIterator for Fields<'a> {
    type Item = (&'a str, &'a [u8]);
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl std::fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, value)| (name, String::from_utf8_lossy(value)))).finish()
    }
}

/// An iterator over [`Fields`].
#[derive(Clone)]
pub struct Iter<'a> {
    bytes: &'a [u8],
    fields: std::slice::Iter<'a, Field>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a [u8]);
    fn next(&mut self) -> Option<(&'a str, &'a [u8])> {
        let field = self.fields.next()?;
        // A name is a token and so ASCII.
        Some((str::from_utf8(part(self.bytes, field.name)).unwrap_or_default(), part(self.bytes, field.value)))
    }
}

/// Returns the ranges of a field that httparse found in `bytes`. Its value is already trimmed.
#[inline]
pub(super) fn locate(bytes: &[u8], header: &httparse::Header<'_>) -> Field {
    let base = bytes.as_ptr() as usize;
    // The limits keep heads far below 4 GiB.
    let range_of = |part: &[u8]| {
        let start = (part.as_ptr() as usize - base) as u32;
        (start, start + part.len() as u32)
    };
    Field { name: range_of(header.name.as_bytes()), value: range_of(header.value) }
}
