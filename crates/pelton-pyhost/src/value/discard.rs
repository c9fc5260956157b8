//! Dropping deeply nested values.

use super::Value;

/// Drops values without recursion, so that no depth overflows the stack. [`Value`] cannot do this in its own
/// `Drop`, because then it could not be matched by value.
pub(crate) fn discard(values: impl Iterator<Item = Value>) {
    let mut left = Vec::new();
    values.for_each(|value| open(value, &mut left));
    while let Some(value) = left.pop() {
        open(value, &mut left);
    }
}

/// Drops a value, except for nested containers, which it adds to `left`.
fn open(value: Value, left: &mut Vec<Value>) {
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            left.extend(items.into_iter().filter(is_nested));
        }
        Value::Dict(pairs) => left.extend(pairs.into_iter().flat_map(|(key, value)| [key, value]).filter(is_nested)),
        _ => {}
    }
}

fn is_nested(value: &Value) -> bool {
    matches!(value, Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_values_are_dropped_without_recursion() {
        let deep = (0..1_000_000).fold(Value::Int(1), |value, level| match level % 4 {
            0 => Value::List(vec![Value::None, value]),
            1 => Value::Tuple(vec![value]),
            2 => Value::Dict(vec![(Value::from("key"), value)]),
            _ => Value::FrozenSet(vec![value, Value::from("text")]),
        });
        discard([Value::Int(1), deep].into_iter());
    }
}
