//! Codecs: exact frames, limits, malformed input; and the same messages and errors however the bytes are split.

use std::fmt::Debug;

use bytes::Bytes;
use pelton::FrameError::{Malformed, TooLong, Unfinished, WrongLength};
use pelton::codec::{
    Buffer, Codec, Delimiter, FRAME_LIMIT, Fixed, Headed, HeaderAndContent, LengthPrefixed, Lines, Netstring, Prefix,
    Raw, TEXT_LIMIT,
};
use pelton::{Chunk, FrameError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const PREFIXES: [Prefix; 8] = [
    Prefix::U8,
    Prefix::U16Be,
    Prefix::U16Le,
    Prefix::U32Be,
    Prefix::U32Le,
    Prefix::U64Be,
    Prefix::U64Le,
    Prefix::Varint,
];

/// The decoded messages, and how the stream ended.
type Outcome<M> = (Vec<M>, Result<(), FrameError>);

/// Decodes a stream that arrives in these parts. The buffer may hold at most `memory` bytes meanwhile.
fn decode<'a, C: Codec>(mut codec: C, parts: impl IntoIterator<Item = &'a [u8]>, memory: usize) -> Outcome<C::Message> {
    let mut messages = Vec::new();
    let mut buffer = Buffer::new();
    let decode_all = || {
        for part in parts {
            buffer.feed(Chunk::from(part.to_vec()));
            while let Some(message) = codec.decode(&mut buffer)? {
                messages.push(message);
            }
            buffer.keep_rest();
            assert!(buffer.memory() <= memory, "{} bytes of memory for a frame of {memory}", buffer.memory());
            assert!(!buffer.is_empty() || buffer.memory() == 0, "an empty buffer holds memory");
        }
        messages.extend(codec.finished(&mut buffer)?);
        Ok(())
    };
    let end = decode_all();
    (messages, end)
}

/// Decodes all of it at once.
fn whole<C: Codec>(codec: C, bytes: impl AsRef<[u8]>) -> Outcome<C::Message> {
    decode(codec, [bytes.as_ref()], usize::MAX)
}

fn encoded<C: Codec>(mut codec: C, message: impl Into<C::Message>) -> Result<Vec<u8>, FrameError> {
    let mut out = b"before".to_vec();
    let outcome = codec.encode(&message.into(), &mut out);
    assert!(out.starts_with(b"before"));
    match outcome {
        Ok(()) => Ok(out.split_off(6)),
        Err(error) => {
            assert_eq!(out, b"before", "a refused message leaves nothing behind");
            Err(error)
        }
    }
}

fn malformed<T>(outcome: Result<T, FrameError>) -> bool {
    matches!(outcome, Err(Malformed { .. }))
}

#[test]
fn lines_end_in_lf_or_crlf() {
    let (lines, end) = whole(Lines::new(), "one\ntwo\r\n\n\r\nthr\ree\n\r\r\n");
    assert_eq!((lines, end), (["one", "two", "", "", "thr\ree", "\r"].map(String::from).to_vec(), Ok(())));
    assert_eq!(encoded(Lines::new(), "héllo").unwrap(), "héllo\n".as_bytes());
    assert_eq!(encoded(Lines::new().crlf(), "hello\r").unwrap(), b"hello\r\r\n");
    assert_eq!(whole(Lines::new(), "one\ntw"), (vec!["one".to_owned()], Err(Unfinished { bytes: 2 })));
}

#[test]
fn lines_that_could_be_misread_are_refused() {
    assert!(malformed(encoded(Lines::new(), "one\ntwo")));
    assert!(malformed(encoded(Lines::new(), "one\r")));
    assert_eq!(whole(Lines::new(), b"ok\n\xff\xfe\nnever\n").0, ["ok"]);
    assert!(malformed(whole(Lines::new(), b"ok\n\xff\xfe\n").1));
}

#[test]
fn line_limit_excludes_the_line_end() {
    let too_long = Err(TooLong { what: "a line", limit: 5 });
    let lines = || Lines::new().limit(5);
    for ending in ["\n", "\r\n"] {
        assert_eq!(whole(lines(), format!("hello{ending}")), (vec!["hello".to_owned()], Ok(())));
        assert_eq!(whole(lines(), format!("hello!{ending}")), (vec![], too_long));
    }
    assert_eq!(whole(lines(), "hello\r").1, Err(Unfinished { bytes: 6 }), "the line end may follow");
    assert_eq!(whole(lines(), "hello!").1, too_long, "refused as early as possible");
    assert_eq!(whole(lines(), "hello\rx").1, too_long);
    assert_eq!(encoded(lines(), "hello!").map(drop), too_long);
    assert!(
        whole(Lines::new(), "x".repeat(TEXT_LIMIT)).1.is_err_and(|error| error == Unfinished { bytes: TEXT_LIMIT })
    );
    assert!(matches!(whole(Lines::new(), "x".repeat(TEXT_LIMIT + 1)).1, Err(TooLong { .. })));
    assert_eq!(TooLong { what: "a line", limit: 5 }.to_string(), "a line of more than 5 bytes");
}

#[test]
fn delimiters_have_one_or_more_bytes() {
    assert_eq!(whole(Delimiter::new("\0"), "one\0\0two\0"), (vec!["one".into(), "".into(), "two".into()], Ok(())));
    assert_eq!(whole(Delimiter::new("<>"), "a<b<<>c>"), (vec!["a<b<".into()], Err(Unfinished { bytes: 2 })));
    assert_eq!(encoded(Delimiter::new("<>"), "a<").unwrap(), b"a<<>");
    assert!(malformed(encoded(Delimiter::new("<>"), "a<>b")));
    assert!(malformed(encoded(Delimiter::new("aa"), "a")), "the message contains the delimiter");
    let too_long = Err(TooLong { what: "a frame", limit: 3 });
    assert_eq!(whole(Delimiter::new("<>").limit(3), "abc<>abcd<>"), (vec!["abc".into()], too_long));
    assert_eq!(encoded(Delimiter::new("<>").limit(3), "abcd").map(drop), too_long);
}

#[test]
fn fixed_frames_have_one_length() {
    assert_eq!(whole(Fixed::new(3), "abcdefg"), (vec!["abc".into(), "def".into()], Err(Unfinished { bytes: 1 })));
    assert_eq!(encoded(Fixed::new(3), "abc").unwrap(), b"abc");
    for message in ["ab", "abcd"] {
        assert_eq!(encoded(Fixed::new(3), message), Err(WrongLength { length: message.len(), needed: 3 }));
    }
}

#[test]
#[should_panic = "at least one byte"]
fn fixed_frames_must_not_be_empty() {
    Fixed::new(0);
}

#[test]
fn lengths_are_encoded_as_the_prefix_requires() {
    let frames: [&[u8]; 8] = [
        b"\x03abc",
        b"\0\x03abc",
        b"\x03\0abc",
        b"\0\0\0\x03abc",
        b"\x03\0\0\0abc",
        b"\0\0\0\0\0\0\0\x03abc",
        b"\x03\0\0\0\0\0\0\0abc",
        b"\x03abc",
    ];
    for (prefix, frame) in PREFIXES.into_iter().zip(frames) {
        assert_eq!(encoded(LengthPrefixed::new(prefix), "abc").unwrap(), frame, "{prefix:?}");
        assert_eq!(whole(LengthPrefixed::new(prefix), frame), (vec!["abc".into()], Ok(())), "{prefix:?}");
    }
    let long = Bytes::from(vec![7; 300]);
    let frame = encoded(LengthPrefixed::new(Prefix::Varint), long.clone()).unwrap();
    assert_eq!(frame[..3], [0xac, 0x02, 7]);
    assert_eq!(whole(LengthPrefixed::new(Prefix::Varint), frame), (vec![long], Ok(())));
}

#[test]
fn empty_and_unfinished_messages_differ() {
    let codec = || LengthPrefixed::new(Prefix::U16Be);
    assert_eq!(whole(codec(), "\0\0"), (vec!["".into()], Ok(())));
    assert_eq!(whole(codec(), "\0"), (vec![], Err(Unfinished { bytes: 1 })));
    assert_eq!(
        whole(codec(), "\0\x01"),
        (vec![], Err(Unfinished { bytes: 2 })),
        "the prefix is part of an unfinished frame"
    );
    assert_eq!(whole(codec(), "\0\x04abc"), (vec![], Err(Unfinished { bytes: 5 })));
}

#[test]
fn a_length_over_the_limit_is_refused_from_the_prefix() {
    let too_long = Err(TooLong { what: "a frame", limit: 200 });
    for prefix in PREFIXES {
        let codec = || LengthPrefixed::new(prefix).limit(200);
        let frame = encoded(LengthPrefixed::new(prefix), vec![0; 201]).unwrap();
        let head = &frame[..frame.len() - 201];
        assert_eq!(whole(codec(), head).1, too_long, "{prefix:?}");
        assert_eq!(encoded(codec(), vec![0; 201]).map(drop), too_long, "{prefix:?}");
        assert!(encoded(codec(), vec![0; 200]).is_ok());
    }
    for (prefix, limit) in [(Prefix::U8, 255), (Prefix::U16Le, 65_535), (Prefix::U32Be, FRAME_LIMIT)] {
        assert!(encoded(LengthPrefixed::new(prefix), vec![0; limit]).is_ok());
        let refused = encoded(LengthPrefixed::new(prefix), vec![0; limit + 1]);
        assert_eq!(refused, Err(TooLong { what: "a frame", limit }), "{prefix:?} cannot encode more");
    }
    assert_eq!(whole(LengthPrefixed::new(Prefix::U64Le).limit(200), [0xff; 8]).1, too_long);
}

#[test]
fn a_varint_has_64_bits_at_most() {
    let codec = || LengthPrefixed::new(Prefix::Varint);
    let most = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    assert!(matches!(whole(codec(), most).1, Err(TooLong { .. })));
    assert!(malformed(whole(codec(), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02").1));
    assert!(malformed(whole(codec(), [0x80; 10]).1));
    assert_eq!(whole(codec(), [0x80; 9]).1, Err(Unfinished { bytes: 9 }));
    assert_eq!(whole(codec(), b"\x81\x80\0x"), (vec!["x".into()], Ok(())), "padding is accepted");
}

#[test]
fn content_has_the_length_that_a_header_names() {
    let text = "Action: greet\r\nCONTENT-length:5\nX:  a:b \t\r\n\r\nhello\nNext: \n\n";
    let (messages, end) = whole(HeaderAndContent::new(), text);
    let greet = Headed::new("hello").with("Action", "greet").unwrap().with("X", "a:b").unwrap();
    assert_eq!(messages, [greet.clone(), Headed::default(), Headed::new("").with("Next", "").unwrap()]);
    assert_eq!(end, Ok(()));
    assert_eq!(greet.headers.get("ACTION"), Some("greet"));
    assert_eq!(greet.headers.get("Content-Length"), None, "the codec removes it");
    assert_eq!(greet.headers.iter().collect::<Vec<_>>(), [("Action", "greet"), ("X", "a:b")]);
    let frame = "Action: greet\r\nX: a:b\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(encoded(HeaderAndContent::new(), greet).unwrap(), frame.as_bytes());
    let (messages, end) = whole(HeaderAndContent::new().length_header("Size"), "size: 2\n\nok");
    assert_eq!((messages, end), (vec![Headed::new("ok")], Ok(())));
}

#[test]
fn malformed_headers_are_refused() {
    let bad = [
        "no colon\n",
        ": no name\n",
        "two words: x\n",
        " continued: x\n",
        "a: \u{1}\n",
        "a: b\r\r\n",
        "Content-Length:\n",
        "Content-Length: -1\n",
        "Content-Length: +1\n",
        "Content-Length: 1 1\n",
        "Content-Length: 0x1\n",
        "Content-Length: 1\nContent-Length: 1\n",
    ];
    for text in bad {
        assert!(malformed(whole(HeaderAndContent::new(), text).1), "{text:?}");
    }
    assert!(malformed(whole(HeaderAndContent::new(), b"a: \xff\n").1));
    for (name, value) in [("", "x"), ("a b", "x"), ("a:", "x"), ("é", "x"), ("a", "x\ny"), ("a", "x\r")] {
        assert!(malformed(Headed::default().with(name, value)), "{name:?}: {value:?}");
    }
    let own = Headed::default().with("content-length", "7").unwrap();
    assert!(malformed(encoded(HeaderAndContent::new(), own)));
}

#[test]
fn header_and_content_have_a_limit_each() {
    let codec = || HeaderAndContent::new().header_limit(22).content_limit(10);
    let header_too_long = Err(TooLong { what: "a header", limit: 22 });
    let content_too_long = Err(TooLong { what: "content", limit: 10 });
    assert_eq!(whole(codec(), "content-length: 10\r\n\r\n0123456789").1, Ok(()));
    assert_eq!(whole(codec(), "content-length: 11\n").1, content_too_long, "before any content has arrived");
    assert_eq!(whole(codec(), "content-length: 99999999999999999999999\n").1, header_too_long);
    let no_number_has_so_many_digits = whole(HeaderAndContent::new(), "content-length: 99999999999999999999999\n").1;
    assert_eq!(no_number_has_so_many_digits, Err(TooLong { what: "content", limit: FRAME_LIMIT }));
    assert_eq!(whole(codec(), "content-length: 10\r\n \r\n").1, header_too_long);
    assert_eq!(whole(codec(), "a: 1\nb: 2\nc: 3\nd: 4\n\n").1, Ok(()));
    assert_eq!(whole(codec(), "a: 1\nb: 2\nc: 3\nd: 4\nxx").1, header_too_long);
    assert_eq!(whole(codec(), "x".repeat(22)).1, header_too_long);
    assert_eq!(encoded(codec(), Headed::new("12345678901")).map(drop), content_too_long);
    assert_eq!(encoded(codec(), Headed::new("").with("a", "1").unwrap()).map(drop), header_too_long);
    assert_eq!(whole(codec(), "a: 1\n").1, Err(Unfinished { bytes: 5 }));
    assert_eq!(whole(codec(), "content-length: 9\n\nabc").1, Err(Unfinished { bytes: 22 }));
}

#[test]
fn netstrings_are_strict() {
    assert_eq!(whole(Netstring::new(), "5:hello,0:,"), (vec!["hello".into(), "".into()], Ok(())));
    assert_eq!(encoded(Netstring::new(), "hello").unwrap(), b"5:hello,");
    assert_eq!(encoded(Netstring::new(), "").unwrap(), b"0:,");
    for text in [":,", "01:a,", "00:,", " 1:a,", "+1:a,", "-1:a,", "1 :a,", "1:ab", "5;hello,", "a"] {
        assert!(malformed(whole(Netstring::new(), text).1), "{text:?}");
    }
    for unfinished in ["5", "5:", "5:hello"] {
        assert_eq!(whole(Netstring::new(), unfinished).1, Err(Unfinished { bytes: unfinished.len() }));
    }
    let too_long = Err(TooLong { what: "a netstring", limit: 12 });
    assert_eq!(whole(Netstring::new().limit(12), "12:hello, world,").1, Ok(()));
    assert_eq!(whole(Netstring::new().limit(12), "13").1, too_long, "refused as early as possible");
    assert_eq!(encoded(Netstring::new().limit(12), "thirteen char").map(drop), too_long);
    let endless = whole(Netstring::new().limit(usize::MAX), "9".repeat(100)).1;
    assert_eq!(endless, Err(TooLong { what: "a netstring", limit: usize::MAX }));
}

#[test]
fn raw_passes_everything() {
    let parts: [&[u8]; 3] = [b"one", b"", b"two"];
    assert_eq!(decode(Raw, parts, 0), (vec!["one".into(), "two".into()], Ok(())));
    assert_eq!(encoded(Raw, "one").unwrap(), b"one");
}

#[test]
fn endless_frame_is_refused_within_its_memory_limit() {
    /// The size of one read.
    const READ: usize = 64 * 1024;
    fn feed<C: Codec>(mut codec: C, start: &[u8], limit: usize) {
        let mut buffer = Buffer::new();
        let mut fed = 0;
        let (mut part, more) = (start.to_vec(), vec![b'1'; READ]);
        loop {
            fed += part.len();
            buffer.feed(Chunk::from(std::mem::replace(&mut part, more.clone())));
            match codec.decode(&mut buffer) {
                Ok(Some(_)) => panic!("unexpected frame"),
                Ok(None) => buffer.keep_rest(),
                Err(TooLong { .. } | Malformed { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            assert!(buffer.memory() <= limit + READ, "{} bytes", buffer.memory());
        }
        assert!(fed <= limit + READ + start.len(), "refused after {fed} bytes");
    }
    feed(Lines::new(), b"", TEXT_LIMIT);
    feed(Lines::new().limit(1_000_000), b"", 1_000_000);
    feed(Delimiter::new("<end>").limit(1_000_000), b"<en", 1_000_000);
    feed(LengthPrefixed::new(Prefix::U32Be), b"\xff", 0);
    feed(LengthPrefixed::new(Prefix::Varint), b"\xff\xff\xff", 0);
    feed(Netstring::new(), b"", 0);
    feed(Netstring::new().limit(usize::MAX), b"", 0);
    feed(Netstring::new(), b"100000:", 100_000);
    feed(HeaderAndContent::new(), b"a: b\n", TEXT_LIMIT);
}

/// Decodes the same bytes whole, byte by byte, and split at these positions, and compares the messages and the end.
fn same_however_split<C>(codec: &C, bytes: &[u8], cuts: &[Index], memory: usize) -> Result<(), TestCaseError>
where
    C: Codec<Message: PartialEq + Debug> + Clone,
{
    let outcome = decode(codec.clone(), [bytes], memory);
    prop_assert_eq!(&decode(codec.clone(), bytes.chunks(1), memory), &outcome);
    prop_assert_eq!(&decode(codec.clone(), parts(bytes, cuts), memory), &outcome);
    Ok(())
}

/// Encodes messages and decodes them again.
fn round_trip<C>(codec: &C, messages: Vec<C::Message>, cuts: &[Index], memory: usize) -> Result<(), TestCaseError>
where
    C: Codec<Message: PartialEq + Debug> + Clone,
{
    let mut out = Vec::new();
    for message in &messages {
        codec.clone().encode(message, &mut out).unwrap();
    }
    same_however_split(codec, &out, cuts, memory)?;
    prop_assert_eq!(decode(codec.clone(), [&*out], memory), (messages, Ok(())));
    Ok(())
}

fn parts<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.push(bytes.len());
    cuts.sort_unstable();
    let mut from = 0;
    cuts.into_iter().map(|to| &bytes[std::mem::replace(&mut from, to)..to]).collect()
}

/// Input that is made of tokens that mean something to some codec, so that random choices often form frames.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"\n",
        b"\r\n",
        b"\r",
        b"a",
        b"<",
        b"<>",
        b">",
        b":",
        b",",
        b"0",
        b"1",
        b"3:",
        b"3:abc,",
        b"12",
        b"\0",
        b"\0\x02",
        b"\x02",
        b"\x80",
        b"\xff",
        b"Content-Length: 3\n",
        b"content-length:0\r\n",
        b"a: b\n",
        b"\n\n",
        b"hello",
        b" ",
        "é".as_bytes(),
    ];
    vec(prop_oneof![9 => select(words).prop_map(<[u8]>::to_vec), 1 => vec(any::<u8>(), 0..20)], 0..30)
        .prop_map(|words| words.concat())
}

fn cuts() -> impl Strategy<Value = Vec<Index>> {
    vec(any::<Index>(), 0..12)
}

fn contents() -> impl Strategy<Value = Vec<Bytes>> {
    vec(vec(any::<u8>(), 0..100).prop_map(Bytes::from), 0..10)
}

proptest! {
    #[test]
    fn lines_are_the_same_however_they_are_split(bytes in input(), cuts in cuts(), limit in 0..20usize) {
        same_however_split(&Lines::new().limit(limit), &bytes, &cuts, limit + 2)?;
    }

    #[test]
    fn delimited_frames_are_the_same_however_they_are_split(
        bytes in input(),
        cuts in cuts(),
        limit in 0..20usize,
        delimiter in select(vec!["\n", "<>", "\r\n", "aa", "1<>1"]),
    ) {
        same_however_split(&Delimiter::new(delimiter).limit(limit), &bytes, &cuts, limit + delimiter.len())?;
    }

    #[test]
    fn fixed_frames_are_the_same_however_they_are_split(bytes in input(), cuts in cuts(), length in 1..20usize) {
        same_however_split(&Fixed::new(length), &bytes, &cuts, length)?;
    }

    #[test]
    fn prefixed_frames_are_the_same_however_they_are_split(
        bytes in input(),
        cuts in cuts(),
        prefix in select(PREFIXES.to_vec()),
        limit in 0..20usize,
    ) {
        same_however_split(&LengthPrefixed::new(prefix).limit(limit), &bytes, &cuts, limit + 10)?;
    }

    #[test]
    fn headers_and_content_are_the_same_however_they_are_split(bytes in input(), cuts in cuts(), limit in 0..60usize) {
        let codec = HeaderAndContent::new().header_limit(limit).content_limit(3);
        same_however_split(&codec, &bytes, &cuts, limit.max(3))?;
    }

    #[test]
    fn netstrings_are_the_same_however_they_are_split(bytes in input(), cuts in cuts(), limit in 0..20usize) {
        same_however_split(&Netstring::new().limit(limit), &bytes, &cuts, limit + 21)?;
    }

    #[test]
    fn raw_bytes_are_the_same_however_they_are_split(bytes in input(), cuts in cuts()) {
        let (messages, end) = decode(Raw, parts(&bytes, &cuts), 0);
        prop_assert_eq!((messages.concat(), end), (bytes, Ok(())));
    }

    #[test]
    fn lines_round_trip(lines in vec("[^\n]{0,30}", 0..10), cuts in cuts()) {
        round_trip(&Lines::new().crlf(), lines, &cuts, usize::MAX)?;
    }

    #[test]
    fn bytes_round_trip(messages in contents(), cuts in cuts(), prefix in select(PREFIXES.to_vec())) {
        round_trip(&LengthPrefixed::new(prefix).limit(100), messages.clone(), &cuts, 110)?;
        round_trip(&Netstring::new().limit(100), messages.clone(), &cuts, 121)?;
        let undelimited = messages.iter().filter(|message| !message.contains(&0)).cloned().collect();
        round_trip(&Delimiter::new("\0").limit(100), undelimited, &cuts, 101)?;
        let full = messages.into_iter().filter(|message| message.len() >= 10).map(|message| message.slice(..10)).collect();
        round_trip(&Fixed::new(10), full, &cuts, 10)?;
    }

    #[test]
    fn headers_and_content_round_trip(
        messages in vec((vec(("[!-9;-~]{1,8}", "[ -~é\t]{0,20}"), 0..4), vec(any::<u8>(), 0..50)), 0..5),
        cuts in cuts(),
    ) {
        let mut whole = Vec::new();
        for (headers, content) in messages {
            let mut message = Headed::new(content);
            for (name, value) in headers {
                message.headers.add(&name, &value).unwrap();
            }
            whole.push(message);
        }
        round_trip(&HeaderAndContent::new(), whole, &cuts, usize::MAX)?;
    }
}
