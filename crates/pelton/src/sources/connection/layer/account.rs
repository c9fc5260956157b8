//! Counts how many bytes of the handler are in a queue of transformed bytes.

/// The account of a queue below a layer.
///
/// A layer can turn a byte into many, many into few, or transmit bytes of its own, such as a handshake. Water marks count
/// bytes of the handler, so the account knows how many of them the queue stands for. It is told what is added. What was sent
/// follows from the length of the queue: all methods are passed the current one.
///
/// The queue is seen as two segments, and within a segment the handler's bytes are spread evenly. A segment of which some
/// was sent does not change any more, so that errors of rounding do not add up. What is added meanwhile goes into the other
/// segment. An empty queue stands for no bytes, whatever was added before.
#[derive(Clone, Copy, Default)]
pub(super) struct Account {
    front: Segment,
    back: Segment,
}

/// What was added to a queue.
#[derive(Clone, Copy, Default)]
struct Segment {
    /// Transformed bytes.
    bytes: u64,
    /// Bytes of the handler in them.
    plain: u64,
    /// Transformed bytes that a layer has transmitted on its own.
    own: u64,
}

impl Account {
    /// Adds transformed bytes at the end of a queue that had `len` bytes before.
    pub(super) fn add(&mut self, len: u64, bytes: u64) {
        self.begin_segment(len);
        self.back.bytes += bytes;
    }

    /// Adds to what the last bytes of a queue of `len` bytes stand for.
    pub(super) fn add_meaning(&mut self, len: u64, plain: u64, own: u64) {
        self.begin_segment(len);
        self.back.plain += plain;
        self.back.own += own;
    }

    /// Adds a queue at the end of a queue that had `len` bytes before.
    pub(super) fn append(&mut self, len: u64, later: &Account, later_len: u64) {
        self.add(len, later_len);
        self.add_meaning(len + later_len, later.plain(later_len), later.own(later_len));
    }

    /// Begins a segment if the last one is partly sent.
    fn begin_segment(&mut self, len: u64) {
        if len < self.back.bytes {
            self.front = std::mem::take(&mut self.back);
        }
    }

    /// Returns how many bytes of the handler a queue of `len` bytes stands for. Some, if not all of them were sent.
    pub(super) fn plain(&self, len: u64) -> u64 {
        self.left(len, |segment| segment.plain)
    }

    /// Returns how many bytes of a queue of `len` bytes a layer has transmitted on its own.
    pub(super) fn own(&self, len: u64) -> u64 {
        self.left(len, |segment| segment.own)
    }

    fn left(&self, len: u64, of: impl Fn(&Segment) -> u64) -> u64 {
        if len > self.back.bytes {
            share(of(&self.front), len - self.back.bytes, self.front.bytes) + of(&self.back)
        } else {
            share(of(&self.back), len, self.back.bytes)
        }
    }
}

/// Returns the part of `amount` that belongs to `part` of `whole`, rounded up.
pub(super) fn share(amount: u64, part: u64, whole: u64) -> u64 {
    match part {
        0 => 0,
        _ if part >= whole => amount,
        // It is at most `amount`.
        _ => (u128::from(amount) * u128::from(part)).div_ceil(u128::from(whole)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn sending_byte_by_byte_loses_nothing_to_rounding() {
        let (mut account, mut len) = (Account::default(), 0);
        for _ in 0..1_000 {
            // It never becomes empty: 300 are added, then 300 are sent.
            account.add(len, 300);
            len += 300;
            account.add_meaning(len, 10, 0);
            if len > 3_000 {
                for _ in 0..300 {
                    let before = account.plain(len);
                    len -= 1;
                    assert!((before - 1..=before).contains(&account.plain(len)));
                }
            }
            assert_eq!(account.plain(len), len.div_ceil(30));
        }
        assert_eq!(account.plain(1), 1);
        assert_eq!(account.plain(0), 0);
    }

    #[test]
    fn what_is_counted_stays_near_the_truth_and_ends_at_zero() {
        let mut random = 1u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let (mut account, mut len) = (Account::default(), 0);
        let mut records: VecDeque<(u64, u64)> = VecDeque::new();
        for _ in 0..20_000 {
            let before = account.plain(len);
            let (plain, overhead) = (below(1_000), below(100));
            account.add(len, plain + overhead);
            len += plain + overhead;
            account.add_meaning(len, plain, 0);
            records.push_back((plain + overhead, plain));
            let added = account.plain(len) - before;
            assert_eq!(added, if len == 0 { 0 } else { plain });
            let mut sends = below(1_200).min(len);
            len -= sends;
            while let Some((bytes, plain)) = records.front_mut() {
                if sends < *bytes {
                    *plain = plain.saturating_sub(sends);
                    *bytes -= sends;
                    break;
                }
                sends -= *bytes;
                records.pop_front();
            }
            let truth: u64 = records.iter().map(|(_, plain)| plain).sum();
            assert!(account.plain(len).abs_diff(truth) <= 100 * records.len() as u64 + 100);
            assert!(account.plain(len) > 0 || truth == 0);
            assert_eq!(account.plain(0), 0);
        }
    }

    #[test]
    fn bytes_of_a_layer_are_no_bytes_of_the_handler() {
        let mut account = Account::default();
        account.add(0, 2_000);
        account.add_meaning(2_000, 0, 2_000);
        assert_eq!((account.plain(2_000), account.own(2_000)), (0, 2_000));
        account.add(1_000, 130);
        account.add_meaning(1_130, 100, 0);
        assert_eq!((account.plain(1_130), account.own(1_130)), (100, 1_000));
        assert_eq!((account.plain(130), account.own(130)), (100, 0));
        let mut joined = Account::default();
        joined.add(0, 50);
        joined.add_meaning(50, 5, 0);
        joined.append(40, &account, 65);
        assert_eq!((joined.plain(105), joined.plain(65), joined.plain(0)), (54, 50, 0));
    }

    #[test]
    fn what_is_processed_and_not_transmitted_counts_until_the_queue_is_empty() {
        let mut account = Account::default();
        account.add_meaning(0, 7, 0);
        assert_eq!(account.plain(0), 0);
        let mut account = Account::default();
        account.add(0, 10);
        account.add_meaning(5, 7, 0);
        assert_eq!((account.plain(5), account.plain(1), account.plain(0)), (7, 7, 0));
    }

    #[test]
    fn no_product_is_too_large() {
        assert_eq!(share(u64::MAX, u64::MAX - 1, u64::MAX), u64::MAX - 1);
    }
}
