use super::*;

/// Parses all of the input, in pieces of this size.
fn in_pieces(bytes: &[u8], size: usize, limits: Limits) -> Result<Vec<Value>, ProtocolError> {
    let mut parser = Parser::new(limits);
    let mut values = Vec::new();
    for mut piece in bytes.chunks(size) {
        while let Some(value) = parser.parse(&mut piece)? {
            values.push(value);
        }
        assert!(piece.is_empty());
    }
    assert!(!parser.is_inside(), "the input ends inside of a reply");
    Ok(values)
}

fn whole(bytes: &[u8]) -> Result<Vec<Value>, ProtocolError> {
    in_pieces(bytes, bytes.len(), Limits::default())
}

fn text(text: &'static str) -> Value {
    Value::Bytes(Bytes::from_static(text.as_bytes()))
}

/// Every type, alone and nested.
const EVERYTHING: &[u8] = b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\nab\n\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n_\r\n#t\r\n#f\r\n,1.5\r\n,-inf\r\n\
(-123456789012345678901234567890\r\n!8\r\nOOM full\r\n=7\r\ntxt:a b\r\n%1\r\n+key\r\n*2\r\n:1\r\n~1\r\n_\r\n\
|1\r\n+ttl\r\n:3600\r\n*2\r\n|1\r\n$1\r\nx\r\n*1\r\n:1\r\n:5\r\n:6\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhe\r\nl\r\n";

fn everything() -> Vec<Value> {
    vec![
        Value::Status("OK".into()),
        Value::Error(ServerError::new(b"ERR no")),
        Value::Int(-7),
        text("ab\n"),
        text(""),
        Value::Null,
        Value::Null,
        Value::Array(vec![]),
        Value::Null,
        Value::Bool(true),
        Value::Bool(false),
        Value::Double(1.5),
        Value::Double(f64::NEG_INFINITY),
        Value::BigNumber("-123456789012345678901234567890".into()),
        Value::Error(ServerError::new(b"OOM full")),
        Value::Verbatim { format: *b"txt", text: "a b".into() },
        Value::Map(vec![(
            Value::Status("key".into()),
            Value::Array(vec![Value::Int(1), Value::Set(vec![Value::Null])]),
        )]),
        Value::Array(vec![Value::Int(5), Value::Int(6)]),
        Value::Push(vec![text("message"), text("c"), text("he\r\nl")]),
    ]
}

#[test]
fn all_types_are_parsed_wherever_the_input_is_split() {
    for size in 1..=EVERYTHING.len() {
        assert_eq!(in_pieces(EVERYTHING, size, Limits::default()), Ok(everything()), "pieces of {size}");
    }
    for at in 1..EVERYTHING.len() {
        let mut parser = Parser::new(Limits::default());
        let mut values = Vec::new();
        for mut piece in [&EVERYTHING[..at], &EVERYTHING[at..]] {
            while let Some(value) = parser.parse(&mut piece).unwrap() {
                values.push(value);
            }
        }
        assert_eq!(values, everything(), "split at {at}");
    }
}

#[test]
fn malformed_input_is_an_error_for_ever() {
    use ProtocolError::*;
    let cases: &[(&[u8], ProtocolError)] = &[
        (b"?\r\n", UnknownType(b'?')),
        (b"\r\n", BadLine),
        (b"+OK\n", BadLine),
        (b"+O\rK\r\n", BadLine),
        (b"$3\r\nabcd\r\n", BadLine),
        (b"$3\r\nab\r\n", BadLine),
        (b":\r\n", Malformed("an integer")),
        (b":1x\r\n", Malformed("an integer")),
        (b"$-2\r\n", Malformed("the length of a string")),
        (b"$99999999999999999999\r\n", Malformed("the length of a string")),
        (b"!-1\r\n", Malformed("the length of an error")),
        (b"%-1\r\n", Malformed("the length of an aggregate")),
        (b"*?\r\n", Streamed),
        (b"$?\r\n", Streamed),
        (b"#x\r\n", Malformed("a Boolean")),
        (b"_x\r\n", Malformed("a null")),
        (b"(12a\r\n", Malformed("a big number")),
        (b"=3\r\ntxt\r\n", Malformed("a text without a format")),
        (b"*1\r\n>1\r\n", NestedPush),
    ];
    for (bytes, error) in cases {
        // Padded, so that a wrong parser would go on.
        let padded = [bytes, &b"xxxx\r\nxx\r\n"[..]].concat();
        for size in 1..=padded.len() {
            assert_eq!(in_pieces(&padded, size, Limits::default()), Err(*error), "{}", bytes.escape_ascii());
        }
        let mut parser = Parser::new(Limits::default());
        assert_eq!(parser.parse(&mut &padded[..]), Err(*error));
        assert_eq!(parser.parse(&mut &b":1\r\n"[..]), Err(*error));
    }
}

#[test]
fn limits_hold_as_soon_as_a_length_announces_too_much() {
    use ProtocolError::*;
    let limits = Limits { bytes: 100, elements: 10, depth: 3, line: 30 };
    let error = |bytes: &[u8]| in_pieces(bytes, bytes.len().max(1), limits).unwrap_err();
    assert_eq!(error(b"$101\r\n"), TooLarge(100));
    assert_eq!(error(b"*10\r\n"), TooManyElements(10));
    assert_eq!(error(b"%5\r\n"), TooManyElements(10));
    assert_eq!(error(b"*18446744073709551615\r\n"), Malformed("the length of an aggregate"));
    assert_eq!(error(b"%9223372036854775807\r\n"), TooManyElements(10));
    assert_eq!(error(b"*1\r\n*1\r\n*1\r\n*1\r\n"), TooDeep(3));
    assert_eq!(error(b"|1\r\n|1\r\n|1\r\n|1\r\n"), TooDeep(3));
    assert_eq!(error(&[&[b'+'; 31][..], b"\r\n"].concat()), LongLine(30));
    assert_eq!(error(&[b'+'; 40]), LongLine(30));
    // Many elements that are small, in aggregates that are small.
    assert_eq!(error(b"*4\r\n*2\r\n_\r\n_\r\n*2\r\n_\r\n_\r\n*2\r\n_\r\n_\r\n"), TooManyElements(10));
    // An aggregate may not promise what others have promised already.
    assert_eq!(error(b"*5\r\n*5\r\n"), TooManyElements(10));
    // Many bytes in strings that are short.
    let string = [&b"$40\r\n"[..], &[b'x'; 40], b"\r\n"].concat();
    assert_eq!(error(&[b"*3\r\n", &string[..], &string, &string].concat()), TooLarge(100));
    // The limits are per reply.
    assert_eq!(in_pieces(&string.repeat(5), 7, limits).unwrap().len(), 5);
}

#[test]
fn announced_lengths_reserve_no_memory() {
    let mut parser = Parser::new(Limits::default());
    assert_eq!(parser.parse(&mut &b"*1000000\r\n$60000000\r\nx"[..]), Ok(None));
    assert!(parser.open.iter().all(|aggregate| aggregate.values.capacity() <= FIRST_ELEMENTS));
    let Item::String { bytes, .. } = &parser.item else { panic!("{parser:?}") };
    assert!(bytes.capacity() <= FIRST_ROOM, "{}", bytes.capacity());
}

#[test]
fn long_string_in_small_pieces_is_copied_a_bounded_number_of_times() {
    let payload = vec![b'x'; 1 << 20];
    let bytes = [format!("${}\r\n", payload.len()).as_bytes(), &payload, b"\r\n"].concat();
    assert_eq!(in_pieces(&bytes, 1000, Limits::default()), Ok(vec![Value::Bytes(payload.into())]));
}

#[test]
fn random_bytes_never_panic() {
    let marks = b"+-:$*_#,(!=%~|>?\r\n0123456789tfx";
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.usize(1..60)).map(|_| marks[random.usize(..marks.len())]).collect();
        let mut parser = Parser::new(Limits { bytes: 1000, elements: 20, depth: 4, line: 20 });
        let mut input = &bytes[..];
        while let Ok(Some(_)) = parser.parse(&mut input) {}
    }
    assert!(whole(b":1\r\n").is_ok());
}
