//! Decodes chunked bodies (RFC 9112, section 7.1) strictly: anything that other decoders may read differently is refused.

use super::token::{is_field_value, is_token};
use super::{Field, Fields, HeadLimits, Refusal, fields};

/// Limits on the overhead of a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkLimits {
    /// Bytes of extensions in all chunks of a body together. Legitimate clients send none.
    pub extensions: usize,
    /// Limits on the trailer fields: their number and total size.
    pub trailers: HeadLimits,
}

impl Default for ChunkLimits {
    fn default() -> ChunkLimits {
        ChunkLimits { extensions: 4096, trailers: HeadLimits::default() }
    }
}

/// The result of decoding a piece of input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// Part of the body.
    Data(&'a [u8]),
    /// Nothing yet: more input is needed.
    More,
    /// The body is complete.
    End,
}

/// Decodes a chunked body. It stores only the trailers.
#[derive(Clone, Debug, Default)]
pub struct Chunked {
    state: State,
    /// Bytes that remain of the current chunk.
    remaining: u64,
    /// Digits of the current size.
    digits: u32,
    extensions: usize,
    trailers: Vec<u8>,
    fields: Vec<Field>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Before the first digit of a size.
    #[default]
    Size,
    SizeDigits,
    /// After blanks: an extension must follow.
    BeforeSemicolon,
    ExtensionStart,
    ExtensionName,
    /// After the name of an extension and blanks.
    BeforeEquals,
    ExtensionValueStart,
    ExtensionValue,
    Quoted,
    QuotedPair,
    AfterQuoted,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    LastLf,
    End,
}

/// The maximum number of digits in a size: 64 bits.
const MOST_DIGITS: u32 = 16;

impl Chunked {
    /// Decodes the start of `input`. Returns the number of bytes consumed and the result.
    pub fn decode<'a>(&mut self, input: &'a [u8], limits: &ChunkLimits) -> Result<(usize, Decoded<'a>), Refusal> {
        let mut at = 0;
        loop {
            match self.state {
                State::End => return Ok((at, Decoded::End)),
                State::Data => {
                    let there = (input.len() - at) as u64;
                    let length = self.remaining.min(there) as usize;
                    if length == 0 {
                        return Ok((at, Decoded::More));
                    }
                    self.remaining -= length as u64;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok((at + length, Decoded::Data(&input[at..at + length])));
                }
                _ => {}
            }
            let Some(byte) = input.get(at) else { return Ok((at, Decoded::More)) };
            self.state = self.step(*byte, limits)?;
            at += 1;
        }
    }

    /// Prepares for another body.
    pub(super) fn reset(&mut self) {
        (self.state, self.remaining, self.digits, self.extensions) = (State::Size, 0, 0, 0);
        self.trailers.clear();
        self.fields.clear();
    }

    /// The fields after the last chunk.
    pub fn trailers(&self) -> Fields<'_> {
        Fields::new(&self.trailers, &self.fields)
    }

    fn step(&mut self, byte: u8, limits: &ChunkLimits) -> Result<State, Refusal> {
        use State::*;
        let next = match (self.state, byte) {
            (Size | SizeDigits, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.digit(byte)?;
                SizeDigits
            }
            (SizeDigits | ExtensionName | ExtensionValue | AfterQuoted, b'\r') => SizeLf,
            (SizeDigits | BeforeSemicolon | ExtensionName | BeforeEquals | ExtensionValue | AfterQuoted, b';') => {
                ExtensionStart
            }
            (SizeDigits | BeforeSemicolon | ExtensionValue | AfterQuoted, b' ' | b'\t') => BeforeSemicolon,
            (ExtensionStart, b' ' | b'\t') => ExtensionStart,
            (ExtensionStart | ExtensionName, byte) if is_token(byte) => ExtensionName,
            (ExtensionName | BeforeEquals, b' ' | b'\t') => BeforeEquals,
            (ExtensionName | BeforeEquals, b'=') => ExtensionValueStart,
            (ExtensionValueStart, b' ' | b'\t') => ExtensionValueStart,
            (ExtensionValueStart, b'"') => Quoted,
            (ExtensionValueStart | ExtensionValue, byte) if is_token(byte) => ExtensionValue,
            (Quoted, b'"') => AfterQuoted,
            (Quoted, b'\\') => QuotedPair,
            (Quoted | QuotedPair, byte) if is_field_value(byte) => Quoted,
            (SizeLf, b'\n') if self.remaining == 0 => TrailerStart,
            (SizeLf, b'\n') => Data,
            (DataCr, b'\r') => DataLf,
            (DataLf, b'\n') => Size,
            (TrailerStart, b'\r') => LastLf,
            (TrailerStart | Trailer, _) => return self.trailer(byte, limits),
            (LastLf, b'\n') => {
                self.read_trailers(&limits.trailers)?;
                End
            }
            (Size | SizeDigits | SizeLf, _) => return Err(Refusal::bad("invalid chunk size")),
            (DataCr | DataLf | LastLf, _) => return Err(Refusal::bad("a chunk does not match its size")),
            _ => return Err(Refusal::bad("invalid chunk extension")),
        };
        let in_extension = !matches!(
            next,
            Size | SizeDigits | SizeLf | Data | DataCr | DataLf | TrailerStart | Trailer | LastLf | End
        );
        if in_extension {
            self.extensions += 1;
            if self.extensions > limits.extensions {
                return Err(Refusal::bad("the chunk extensions are too long"));
            }
        }
        Ok(next)
    }

    fn digit(&mut self, byte: u8) -> Result<(), Refusal> {
        let too_large = Refusal::bad("the chunk size is too large");
        let digit = char::from(byte).to_digit(16).ok_or(too_large)?;
        self.digits = if self.state == State::Size { 1 } else { self.digits + 1 };
        // Leading zeros are accepted, up to a limit.
        if self.digits > MOST_DIGITS {
            return Err(too_large);
        }
        let larger = self.remaining.checked_mul(16).and_then(|size| size.checked_add(u64::from(digit)));
        self.remaining = larger.ok_or(too_large)?;
        Ok(())
    }

    fn trailer(&mut self, byte: u8, limits: &ChunkLimits) -> Result<State, Refusal> {
        if self.trailers.len() >= limits.trailers.header_bytes() {
            return Err(Refusal::new(431, "the trailer fields are too long"));
        }
        self.trailers.push(byte);
        if byte != b'\n' {
            return Ok(State::Trailer);
        }
        if !self.trailers.ends_with(b"\r\n") {
            return Err(Refusal::bad("a line ends in LF without CR"));
        }
        Ok(State::TrailerStart)
    }

    /// Parses the complete trailers.
    fn read_trailers(&mut self, limits: &HeadLimits) -> Result<(), Refusal> {
        if self.trailers.is_empty() {
            return Ok(());
        }
        self.trailers.extend_from_slice(b"\r\n");
        let mut headers = [httparse::EMPTY_HEADER; HeadLimits::MOST_HEADERS];
        let most = limits.headers.min(HeadLimits::MOST_HEADERS);
        match httparse::parse_headers(&self.trailers, &mut headers[..most]) {
            Ok(httparse::Status::Complete((length, found))) if length == self.trailers.len() => {
                self.fields.extend(found.iter().map(|header| fields::locate(&self.trailers, header)));
                Ok(())
            }
            Err(httparse::Error::TooManyHeaders) => Err(Refusal::new(431, "too many trailer fields")),
            _ => Err(Refusal::bad("invalid trailer field")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body, the trailers and the number of bytes consumed, or the status of the refusal.
    type Outcome = Result<(Vec<u8>, Vec<(String, Vec<u8>)>, usize), u16>;

    fn decode_cut(input: &[u8], cut: usize) -> Option<Outcome> {
        let limits = ChunkLimits {
            extensions: 30,
            trailers: HeadLimits { header_bytes: 30, headers: 2, ..HeadLimits::default() },
        };
        let (mut decoder, mut body, mut used) = (Chunked::default(), Vec::new(), 0);
        for piece in [&input[..cut], &input[cut..]] {
            let mut rest = piece;
            loop {
                match decoder.decode(rest, &limits) {
                    Ok((count, decoded)) => {
                        used += count;
                        rest = &rest[count..];
                        match decoded {
                            Decoded::Data(data) => body.extend_from_slice(data),
                            Decoded::More => break assert!(rest.is_empty()),
                            Decoded::End => {
                                let trailers = decoder.trailers().iter();
                                let trailers =
                                    trailers.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
                                return Some(Ok((body, trailers, used)));
                            }
                        }
                    }
                    Err(refusal) => return Some(Err(refusal.status)),
                }
            }
        }
        None
    }

    /// Decodes the input, split at every position, and checks that the result is the same. `None` if it is incomplete.
    fn decode(input: &[u8]) -> Option<Outcome> {
        let whole = decode_cut(input, 0);
        for cut in 1..=input.len() {
            assert_eq!(decode_cut(input, cut), whole, "{:?} cut at {cut}", String::from_utf8_lossy(input));
        }
        whole
    }

    fn body(input: &[u8]) -> Vec<u8> {
        decode(input).unwrap().unwrap().0
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(body(b"0\r\n\r\n"), b"");
        assert_eq!(body(b"5\r\nhello\r\nB\r\n, wide\r\nlan\r\n000\r\n\r\n"), b"hello, wide\r\nlan");
        assert_eq!(body(b"a;x;y=z;q=\"\\\"a;\" ; r\t= s\r\n0123456789\r\n0\r\n\r\n"), b"0123456789");
        assert_eq!(
            decode(b"5\r\nhello\r\n0\r\n\r\nGET").unwrap().unwrap().2,
            15,
            "the following bytes are not consumed"
        );
        assert_eq!(decode(b"5\r\nhel"), None);
    }

    #[test]
    fn trailers_are_read() {
        let (_, trailers, _) = decode(b"0\r\nA: b\r\nC:\t d \r\n\r\n").unwrap().unwrap();
        assert_eq!(trailers, [("A".to_owned(), b"b".to_vec()), ("C".to_owned(), b"d".to_vec())]);
        for bad in [
            &b"0\r\nA : b\r\n\r\n"[..],
            b"0\r\nA: b\n\r\n",
            b"0\r\n A: b\r\n\r\n",
            b"0\r\nA\r\n\r\n",
            b"0\r\nA: b\rc\r\n\r\n",
            b"0\r\nA: b\r\n c\r\n\r\n",
        ] {
            assert_eq!(decode(bad), Some(Err(400)), "{:?}", String::from_utf8_lossy(bad));
        }
        assert_eq!(decode(b"0\r\nA:\r\nB:\r\nC:\r\n\r\n"), Some(Err(431)), "one too many");
        assert_eq!(decode(b"0\r\nA: 0123456789012345678901234567890\r\n\r\n"), Some(Err(431)));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b"0x1\r\n",
            b" 1\r\n",
            b"1 \r\n",
            b"1\n",
            b"1\rx",
            b"1;\r\n",
            b"1;=\r\n",
            b"1;a=\r\n",
            b"1;a=\"\r\n",
            b"1;a=\"b\"c\r\n",
            b"1;a\n",
            b"1;a b\r\n",
            b"1;\0\r\n",
            b"1,a\r\n",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\r\na\rx",
            b"0\r\n\rx",
            b"10000000000000000\r\n",
            b"ffffffffffffffffff\r\n",
            b"00000000000000000000000001\r\n",
        ] {
            assert_eq!(decode(bad), Some(Err(400)), "{:?}", String::from_utf8_lossy(bad));
        }
        assert_eq!(
            decode(b"1;a\r\nx\r\n1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
            Some(Err(400)),
            "the limit applies to all chunks together"
        );
    }
}
