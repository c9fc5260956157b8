//! Pending replies, in the order of the messages that they answer.

use std::collections::VecDeque;

/// Replies that cannot be sent yet because an earlier message is unanswered.
///
/// Entries are numbered from the first one ever added, so an answer finds its entry in constant time.
pub(super) struct Pending<M> {
    entries: VecDeque<Entry<M>>,
    /// How many entries have been removed, which is the number of the first one left.
    removed: u64,
}

enum Entry<M> {
    Reserved,
    Answered(Answer<M>),
}

/// The answer to a reserved entry.
pub(super) enum Answer<M> {
    One(M),
    Many(Vec<M>),
    /// The slot was dropped, so there is no answer.
    Dropped,
}

impl<M> Pending<M> {
    pub(super) const fn new() -> Pending<M> {
        Pending { entries: VecDeque::new(), removed: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a reply at the end.
    pub(super) fn put(&mut self, message: M) {
        self.entries.push_back(Entry::Answered(Answer::One(message)));
    }

    /// Reserves an entry for a later reply. Returns its number.
    pub(super) fn reserve(&mut self) -> u64 {
        self.entries.push_back(Entry::Reserved);
        self.removed + self.entries.len() as u64 - 1
    }

    /// Fills the entry with this number.
    pub(super) fn answer(&mut self, number: u64, answer: Answer<M>) {
        let index = number.checked_sub(self.removed).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            *entry = Entry::Answered(answer);
        }
    }

    /// Removes and returns the first entry, if it is answered.
    pub(super) fn next(&mut self) -> Option<Answer<M>> {
        let first = self.entries.pop_front_if(|entry| matches!(entry, Entry::Answered(_)))?;
        self.removed += 1;
        match first {
            Entry::Answered(answer) => Some(answer),
            Entry::Reserved => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(line: &mut Pending<u32>) -> Vec<u32> {
        let mut ready = Vec::new();
        while let Some(answer) = line.next() {
            match answer {
                Answer::One(message) => ready.push(message),
                Answer::Many(messages) => ready.extend(messages),
                Answer::Dropped => ready.push(u32::MAX),
            }
        }
        ready
    }

    #[test]
    fn answers_leave_in_the_order_of_their_entries() {
        let mut line = Pending::new();
        let first = line.reserve();
        line.put(2);
        let third = line.reserve();
        line.answer(third, Answer::Many(vec![3, 4]));
        assert_eq!(ready(&mut line), []);
        line.answer(first, Answer::One(1));
        assert_eq!(ready(&mut line), [1, 2, 3, 4]);
        assert!(line.is_empty());
    }

    #[test]
    fn numbers_stay_valid_while_entries_leave() {
        let mut line = Pending::new();
        let (first, second) = (line.reserve(), line.reserve());
        line.answer(first, Answer::Dropped);
        assert_eq!(ready(&mut line), [u32::MAX]);
        let third = line.reserve();
        line.answer(first, Answer::One(9));
        line.answer(third, Answer::One(3));
        line.answer(second, Answer::One(2));
        assert_eq!(ready(&mut line), [2, 3]);
    }
}
