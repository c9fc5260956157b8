//! Decompresses response bodies: gzip, br and zstd.
//!
//! A few bytes can become gigabytes, so output is produced in bounded steps, between which the receiver's limits are checked. The
//! memory of a decoder is bounded too: windows larger than those that the formats require decoders to support are refused.

use std::io::Write;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::write::MultiGzDecoder;

/// Input of one step of gzip, which expands at most 1,032 times.
const GZIP_INPUT: usize = 512;

/// Output of one step of brotli.
const BROTLI_OUTPUT: usize = 32 * 1024;

/// The maximum window of zstd (RFC 9659).
const ZSTD_WINDOW: u64 = 8 << 20;

/// The data is not in the format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undecodable;

/// Decodes one body.
pub(super) enum Decoder {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Brotli(Box<Brotli>),
    Zstd(Box<Zstd>),
}

impl Decoder {
    /// A decoder for the value of a `Content-Encoding`, if it names one supported coding.
    pub(super) fn of(coding: &[u8]) -> Option<Decoder> {
        let is = |name: &str| coding.eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if is("gzip") || is("x-gzip") => Some(Decoder::Gzip(Box::new(MultiGzDecoder::new(Vec::new())))),
            () if is("br") => Some(Decoder::Brotli(Box::new(Brotli::new()))),
            () if is("zstd") => Some(Decoder::Zstd(Box::default())),
            () => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Decoder::Gzip(_) => "gzip",
            Decoder::Brotli(_) => "br",
            Decoder::Zstd(_) => "zstd",
        }
    }

    /// Decodes some of `input` and appends to `out`. Returns how much was used. Call it again until all is used and nothing is
    /// appended any more.
    pub(super) fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Undecodable> {
        match self {
            Decoder::Gzip(gzip) => {
                let used = input.len().min(GZIP_INPUT);
                gzip.write_all(&input[..used]).map_err(|_| Undecodable)?;
                out.append(gzip.get_mut());
                Ok(used)
            }
            Decoder::Brotli(brotli) => brotli.step(input, out),
            Decoder::Zstd(zstd) => zstd.step(input, out),
        }
    }

    /// Ends the input. Fails if the data is incomplete.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Undecodable> {
        match self {
            Decoder::Gzip(gzip) => {
                gzip.try_finish().map_err(|_| Undecodable)?;
                out.append(gzip.get_mut());
                Ok(())
            }
            Decoder::Brotli(brotli) if brotli.is_done => Ok(()),
            Decoder::Zstd(zstd) if zstd.frame.is_none() && zstd.pending.is_empty() => Ok(()),
            Decoder::Brotli(_) | Decoder::Zstd(_) => Err(Undecodable),
        }
    }
}

pub(super) struct Brotli {
    state: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    output: Box<[u8]>,
    is_done: bool,
}

impl Brotli {
    fn new() -> Brotli {
        // Strict: without the extension for large windows.
        let state =
            BrotliState::new_strict(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default());
        Brotli { state, output: vec![0; BROTLI_OUTPUT].into(), is_done: false }
    }

    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Undecodable> {
        if self.is_done {
            return if input.is_empty() { Ok(0) } else { Err(Undecodable) };
        }
        let (mut available, mut used) = (input.len(), 0);
        let (mut room, mut written, mut total) = (self.output.len(), 0, 0);
        let result = BrotliDecompressStream(
            &mut available,
            &mut used,
            input,
            &mut room,
            &mut written,
            &mut self.output,
            &mut total,
            &mut self.state,
        );
        out.extend_from_slice(&self.output[..written]);
        match result {
            BrotliResult::ResultFailure => Err(Undecodable),
            BrotliResult::ResultSuccess => {
                self.is_done = true;
                Ok(used)
            }
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => Ok(used),
        }
    }
}

/// Decodes zstd, one block at a time: a block of four bytes can become 128 KiB.
#[derive(Default)]
pub(super) struct Zstd {
    /// Received but not decoded: less than a block.
    pending: Vec<u8>,
    frame: Option<Box<Frame>>,
}

struct Frame {
    decoder: ruzstd::decoding::FrameDecoder,
    has_checksum: bool,
    /// The last block was decoded; the checksum follows.
    is_last: bool,
}

/// The largest block of zstd, with its header.
const ZSTD_BLOCK: usize = 128 * 1024 + 3;

impl Zstd {
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Undecodable> {
        let used = input.len().min((ZSTD_BLOCK + 32).saturating_sub(self.pending.len()));
        self.pending.extend_from_slice(&input[..used]);
        let (before, mut at) = (out.len(), 0);
        // Parts without output are decoded together with what follows.
        while out.len() == before
            && let Some(length) = self.part(at, out)?
        {
            at += length;
        }
        self.pending.drain(..at);
        Ok(used)
    }

    /// Decodes a header, a block or a checksum. Returns its length, or `None` if it is incomplete.
    fn part(&mut self, at: usize, out: &mut Vec<u8>) -> Result<Option<usize>, Undecodable> {
        let rest = &self.pending[at..];
        let Some(frame) = &mut self.frame else {
            let Some((length, has_checksum)) = frame_header(rest)? else { return Ok(None) };
            let mut decoder = ruzstd::decoding::FrameDecoder::new();
            decoder.init(&rest[..length]).map_err(|_| Undecodable)?;
            self.frame = Some(Box::new(Frame { decoder, has_checksum, is_last: false }));
            return Ok(Some(length));
        };
        if frame.is_last {
            // The checksum is not verified: TCP and TLS have their own.
            const CHECKSUM: usize = 4;
            if rest.len() < CHECKSUM {
                return Ok(None);
            }
            self.frame = None;
            return Ok(Some(CHECKSUM));
        }
        let Some([a, b, c]) = rest.first_chunk() else { return Ok(None) };
        let header = u32::from_le_bytes([*a, *b, *c, 0]);
        let length = 3 + if header >> 1 & 3 == 1 { 1 } else { (header >> 3) as usize };
        if length > ZSTD_BLOCK {
            return Err(Undecodable);
        }
        let Some(mut source) = rest.get(..length) else { return Ok(None) };
        frame.is_last = header & 1 == 1;
        let mut target = [0; 8192];
        loop {
            let (read, written) = frame.decoder.decode_from_to(source, &mut target).map_err(|_| Undecodable)?;
            source = &source[read.min(source.len())..];
            out.extend_from_slice(&target[..written]);
            match (read, written) {
                (_, 0) if source.is_empty() => break,
                (0, 0) => return Err(Undecodable),
                _ => {}
            }
        }
        if frame.is_last && !frame.has_checksum {
            self.frame = None;
        }
        Ok(Some(length))
    }
}

/// Returns the length of a frame's header, and whether a checksum follows the frame, if the header is complete (RFC 8878, section
/// 3.1.1.1).
fn frame_header(bytes: &[u8]) -> Result<Option<(usize, bool)>, Undecodable> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let begun = bytes.len().min(4);
    if bytes[..begun] != MAGIC[..begun] {
        return Err(Undecodable);
    }
    let Some(descriptor) = bytes.get(4).copied() else { return Ok(None) };
    let (is_single, has_checksum) = (descriptor & 0x20 != 0, descriptor & 4 != 0);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = match descriptor >> 6 {
        0 => usize::from(is_single),
        size => 1 << size,
    };
    let start = 5 + usize::from(!is_single) + dictionary;
    let length = start + content;
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    let window = if is_single {
        let mut size = [0; 8];
        size[..content].copy_from_slice(&header[start..]);
        u64::from_le_bytes(size) + if content == 2 { 256 } else { 0 }
    } else {
        let base = 1u64 << (10 + (header[5] >> 3));
        base + base / 8 * u64::from(header[5] & 7)
    };
    if window > ZSTD_WINDOW { Err(Undecodable) } else { Ok(Some((length, has_checksum))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes input in pieces of this size.
    fn decode(coding: &str, input: &[u8], size: usize) -> Result<Vec<u8>, Undecodable> {
        let mut decoder = Decoder::of(coding.as_bytes()).unwrap();
        let mut all = Vec::new();
        for mut piece in input.chunks(size) {
            loop {
                let before = all.len();
                let used = decoder.step(piece, &mut all)?;
                assert!(all.len() - before <= 1 << 20, "{} bytes in one step", all.len() - before);
                piece = &piece[used..];
                if piece.is_empty() && all.len() == before {
                    break;
                }
            }
        }
        decoder.finish(&mut all)?;
        Ok(all)
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn bodies_are_decoded_however_they_are_split() {
        let text = b"hello hello hello hello\n".repeat(400);
        for (coding, data) in [("gzip", gzip(&text)), ("zstd", zstd(&text)), ("x-gzip", gzip(b"")), ("zstd", zstd(b""))]
        {
            let whole = decode(coding, &data, usize::MAX).unwrap();
            assert!(whole == text || whole.is_empty());
            for size in [1, 2, 3, 7, 100] {
                assert_eq!(decode(coding, &data, size).unwrap(), whole, "{coding} in pieces of {size}");
            }
        }
        let twice = [gzip(b"one"), gzip(b"two")].concat();
        assert_eq!(decode("gzip", &twice, 5).unwrap(), b"onetwo");
        assert_eq!(decode("zstd", &[zstd(b"one"), zstd(b"two")].concat(), 5).unwrap(), b"onetwo");
    }

    #[test]
    fn truncated_and_corrupted_bodies_are_refused() {
        let text: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
        for (coding, data) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            for cut in [1, 5, data.len() / 2, data.len() - 1] {
                assert_eq!(decode(coding, &data[..cut], 50), Err(Undecodable), "{coding} cut at {cut}");
            }
            assert_eq!(decode(coding, &[&data[..], b"x"].concat(), 50), Err(Undecodable), "{coding}");
            let mut damaged = data.clone();
            damaged[0] ^= 1;
            assert_eq!(decode(coding, &damaged, 50), Err(Undecodable), "{coding}");
        }
        for coding in ["gzip", "br", "zstd"] {
            assert_eq!(decode(coding, &[0xff; 100], 50), Err(Undecodable), "{coding}");
        }
    }

    #[test]
    fn large_windows_are_refused() {
        // 128 MiB, and a single segment of 16 MiB.
        assert_eq!(frame_header(&[0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3]), Err(Undecodable));
        assert_eq!(frame_header(&[0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 1]), Err(Undecodable));
        assert_eq!(frame_header(&[0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3]), Ok(Some((6, false))));
    }

    /// Blocks of four bytes that stand for 128 KiB each.
    #[test]
    fn bombs_explode_slowly() {
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
        let block = ((128u32 * 1024) << 3 | 1 << 1).to_le_bytes();
        for _ in 0..100 {
            bomb.extend_from_slice(&block[..3]);
            bomb.push(b'x');
        }
        let mut decoder = Decoder::of(b"zstd").unwrap();
        let mut out = Vec::new();
        let mut at = 0;
        for _ in 0..10 {
            let before = out.len();
            at += decoder.step(&bomb[at..], &mut out).unwrap();
            assert!(out.len() - before <= 256 * 1024);
        }
        let zeros = gzip(&vec![0; 10_000_000]);
        assert_eq!(decode("gzip", &zeros, usize::MAX).unwrap().len(), 10_000_000);
    }
}
