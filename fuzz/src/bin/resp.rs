//! Replies of a Redis server.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_fuzz::{Input, LIMIT};
use pelton_redis::{Limits, Parser, ProtocolError, Value};

const LIMITS: Limits = Limits { bytes: 4 * LIMIT, elements: 24, depth: 4, line: LIMIT };

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let (whole, end) = parse([input.bytes]);
    let (pieces, other_end) = parse(input.pieces());
    // Printed, because a number that is not one is not equal to itself.
    assert_eq!(format!("{whole:?}"), format!("{pieces:?}"), "the split must not matter");
    assert_eq!(end, other_end);
    for value in &whole {
        assert!(elements(value) <= LIMITS.elements, "{value:?}");
        assert!(depth(value) <= LIMITS.depth, "{value:?}");
    }
});

fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Value>, Result<bool, ProtocolError>) {
    let mut parser = Parser::new(LIMITS);
    let mut values = Vec::new();
    for mut piece in pieces {
        loop {
            match parser.parse(&mut piece) {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(parser.parse(&mut &b":1\r\n"[..]), Err(error), "an error is for ever");
                    return (values, Err(error));
                }
            }
        }
        assert!(piece.is_empty());
    }
    (values, Ok(parser.is_inside()))
}

fn parts(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(values) | Value::Set(values) | Value::Push(values) => values.iter().collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => Vec::new(),
    }
}

fn elements(value: &Value) -> usize {
    1 + parts(value).into_iter().map(elements).sum::<usize>()
}

/// The number of aggregates inside each other.
fn depth(value: &Value) -> usize {
    let inside = parts(value).into_iter().map(depth).max().unwrap_or(0);
    inside + usize::from(value.kind().starts_with("an array") || !parts(value).is_empty())
}
