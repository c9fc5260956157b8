//! A queue that is empty most of the time and rarely holds more than one item.

use std::collections::VecDeque;

/// A queue that allocates nothing for one item and keeps no memory when it is empty. Held-back input is in such queues:
/// there may be very many idle connections.
pub(crate) struct ShortQueue<T> {
    /// `None` if the queue is empty.
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> Default for ShortQueue<T> {
    fn default() -> ShortQueue<T> {
        ShortQueue { first: None, rest: VecDeque::new() }
    }
}

impl<T> ShortQueue<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn push_back(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.rest.push_back(item);
        }
    }

    pub(crate) fn push_front(&mut self, item: T) {
        if let Some(second) = self.first.replace(item) {
            self.rest.push_front(second);
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let item = self.first.take()?;
        if self.rest.capacity() > 0 {
            self.first = self.rest.pop_front();
            if self.rest.is_empty() {
                self.rest = VecDeque::new();
            }
        }
        Some(item)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    pub(crate) fn back(&self) -> Option<&T> {
        self.rest.back().or(self.first.as_ref())
    }
}

impl<T> IntoIterator for ShortQueue<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::collections::vec_deque::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_order_at_both_ends() {
        let mut queue = ShortQueue::default();
        assert!(queue.is_empty() && queue.back().is_none() && queue.pop_front().is_none());
        queue.push_back(2);
        queue.push_front(1);
        queue.push_back(3);
        queue.push_front(0);
        assert_eq!((queue.pop_front(), queue.back()), (Some(0), Some(&3)));
        assert_eq!(queue.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn one_item_takes_no_memory_and_neither_does_an_empty_queue() {
        let mut queue = ShortQueue::default();
        for _ in 0..3 {
            queue.push_back("only");
            assert_eq!(queue.rest.capacity(), 0);
            queue.pop_front();
        }
        queue.push_back("first");
        queue.push_back("second");
        assert_eq!((queue.pop_front(), queue.pop_front()), (Some("first"), Some("second")));
        assert!(queue.is_empty() && queue.rest.capacity() == 0);
    }
}
