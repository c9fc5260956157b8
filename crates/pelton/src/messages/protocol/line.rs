//! Replies in the order of the messages that they answer.

use std::collections::VecDeque;

/// Replies that cannot be sent yet because an earlier message is still unanswered.
///
/// Places are numbered from the first one ever opened, so an answer finds its place in constant time however many have left.
pub(super) struct Line<M> {
    places: VecDeque<Place<M>>,
    /// How many places have left the line: the number of the first one in it.
    left: u64,
}

enum Place<M> {
    Open,
    Answered(Answer<M>),
}

/// What an open place was answered with.
pub(super) enum Answer<M> {
    One(M),
    Many(Vec<M>),
    /// Its slot was dropped: there will be no answer.
    Dropped,
}

impl<M> Line<M> {
    pub(super) const fn new() -> Line<M> {
        Line { places: VecDeque::new(), left: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds a reply that is there already, behind everything else.
    pub(super) fn put(&mut self, message: M) {
        self.places.push_back(Place::Answered(Answer::One(message)));
    }

    /// Adds a place for a reply that comes later. Returns its number.
    pub(super) fn open(&mut self) -> u64 {
        self.places.push_back(Place::Open);
        self.left + self.places.len() as u64 - 1
    }

    /// Fills the place with this number.
    pub(super) fn answer(&mut self, number: u64, answer: Answer<M>) {
        let index = number.checked_sub(self.left).and_then(|index| usize::try_from(index).ok());
        if let Some(place) = index.and_then(|index| self.places.get_mut(index)) {
            *place = Place::Answered(answer);
        }
    }

    /// Takes out the first place, if it is answered.
    pub(super) fn next(&mut self) -> Option<Answer<M>> {
        let first = self.places.pop_front_if(|place| matches!(place, Place::Answered(_)))?;
        self.left += 1;
        match first {
            Place::Answered(answer) => Some(answer),
            Place::Open => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(line: &mut Line<u32>) -> Vec<u32> {
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
    fn answers_leave_in_the_order_of_their_places() {
        let mut line = Line::new();
        let first = line.open();
        line.put(2);
        let third = line.open();
        line.answer(third, Answer::Many(vec![3, 4]));
        assert_eq!(ready(&mut line), []);
        line.answer(first, Answer::One(1));
        assert_eq!(ready(&mut line), [1, 2, 3, 4]);
        assert!(line.is_empty());
    }

    #[test]
    fn numbers_stay_valid_while_places_leave() {
        let mut line = Line::new();
        let (first, second) = (line.open(), line.open());
        line.answer(first, Answer::Dropped);
        assert_eq!(ready(&mut line), [u32::MAX]);
        let third = line.open();
        line.answer(first, Answer::One(9));
        line.answer(third, Answer::One(3));
        line.answer(second, Answer::One(2));
        assert_eq!(ready(&mut line), [2, 3]);
    }
}
