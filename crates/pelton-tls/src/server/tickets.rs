//! Session tickets: resumption without state on the server, with keys that rotate and can be handed over.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::{ConfigError, Pin};

/// A key encrypts new tickets for this long. Another one is made then.
const ENCRYPTS_FOR: Duration = Duration::from_secs(6 * 60 * 60);

/// A key decrypts tickets for this long, then it is forgotten: a recorded TLS 1.2 session is as secret as the key of its
/// ticket. (With TLS 1.3, a resumed session has a key exchange of its own.)
const DECRYPTS_FOR: Duration = Duration::from_secs(12 * 60 * 60);

const NAME: usize = 16;
const KEY: usize = 32;
const TAG: usize = 16;

/// The first byte of exported keys.
const FORMAT: u8 = 2;

/// The bytes before the exported keys: the format and a hash.
const HEADER: usize = 1 + 32;

/// An exported key: name, key, and when it was made.
const EXPORTED: usize = NAME + KEY + 8;

/// Encrypts and decrypts session tickets.
pub(crate) struct Tickets {
    random: SystemRandom,
    /// The newest first.
    keys: Mutex<Vec<Key>>,
    clock: fn() -> SystemTime,
}

struct Key {
    name: [u8; NAME],
    /// Erased when the key is dropped. ring does not erase the round keys that it derives from it.
    secret: Zeroizing<[u8; KEY]>,
    sealing: LessSafeKey,
    /// Seconds since 1970.
    made: u64,
}

impl Key {
    fn new(name: [u8; NAME], secret: Zeroizing<[u8; KEY]>, made: u64) -> Option<Key> {
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*secret).ok()?);
        Some(Key { name, secret, sealing, made })
    }

    fn age(&self, now: u64) -> Duration {
        Duration::from_secs(now.saturating_sub(self.made))
    }
}

impl Default for Tickets {
    fn default() -> Tickets {
        Tickets { random: SystemRandom::new(), keys: Mutex::default(), clock: SystemTime::now }
    }
}

impl Tickets {
    fn now(&self) -> u64 {
        (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    fn keys(&self) -> MutexGuard<'_, Vec<Key>> {
        // No invariant spans a panic.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Makes a key if there is none or it is too old, and drops those that no ticket needs.
    fn rotate(&self, keys: &mut Vec<Key>) -> Option<()> {
        let now = self.now();
        keys.retain(|key| key.age(now) < DECRYPTS_FOR);
        if keys.first().is_none_or(|key| key.age(now) >= ENCRYPTS_FOR) {
            keys.insert(0, Key::new(self.fill()?, Zeroizing::new(self.fill()?), now)?);
        }
        Some(())
    }

    /// Exports the keys, with the hash of what decides about certificates of clients.
    pub(crate) fn export(&self, clients: Option<Pin>) -> Zeroizing<Vec<u8>> {
        let mut keys = self.keys();
        // Without randomness, there is nothing to hand over.
        let _ = self.rotate(&mut keys);
        // Not grown later: what it was moved from would not be erased.
        let mut bytes = Zeroizing::new(Vec::with_capacity(HEADER + keys.len() * EXPORTED));
        bytes.push(FORMAT);
        bytes.extend_from_slice(&hash_or_zero(clients));
        for key in keys.iter() {
            bytes.extend_from_slice(&key.name);
            bytes.extend_from_slice(&*key.secret);
            bytes.extend_from_slice(&key.made.to_be_bytes());
        }
        bytes
    }

    /// Imports keys, unless they were exported by a server that decides otherwise about certificates of clients.
    pub(crate) fn import(&self, bytes: &[u8], clients: Option<Pin>) -> Result<(), ConfigError> {
        let bad = || ConfigError::settings("these are not exported ticket keys");
        let Some((&FORMAT, rest)) = bytes.split_first() else { return Err(bad()) };
        let (theirs, rest) = rest.split_first_chunk().ok_or_else(bad)?;
        let (exported, []) = rest.as_chunks::<EXPORTED>() else { return Err(bad()) };
        if *theirs != hash_or_zero(clients) {
            return Ok(());
        }
        let mut imported = Vec::new();
        for key in exported {
            let (name, rest) = key.split_first_chunk().ok_or_else(bad)?;
            let (secret, made) = rest.split_first_chunk::<KEY>().ok_or_else(bad)?;
            let made = u64::from_be_bytes(*made.first_chunk().ok_or_else(bad)?);
            imported.push(Key::new(*name, Zeroizing::new(*secret), made).ok_or_else(bad)?);
        }
        let mut keys = self.keys();
        imported.retain(|key| keys.iter().all(|known| known.name != key.name));
        keys.append(&mut imported);
        keys.sort_by_key(|key| std::cmp::Reverse(key.made));
        Ok(())
    }
}

fn hash_or_zero(clients: Option<Pin>) -> [u8; 32] {
    clients.map_or([0; 32], |hash| hash.0)
}

/// A ticket is the key's name, a random nonce, the encrypted state, and the tag.
impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        // A ticket of the last moment of its key is valid for the rest of the key's life.
        (DECRYPTS_FOR - ENCRYPTS_FOR).as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut keys = self.keys();
        self.rotate(&mut keys)?;
        let key = keys.first()?;
        let nonce: [u8; NONCE_LEN] = self.fill()?;
        let mut ticket = Vec::with_capacity(NAME + NONCE_LEN + plain.len() + TAG);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(plain);
        let start = NAME + NONCE_LEN;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.sealing.seal_in_place_separate_tag(nonce, Aad::from(key.name), &mut ticket[start..]).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.keys();
        let now = self.now();
        let key = keys.iter().find(|key| key.name == *name && key.age(now) < DECRYPTS_FOR)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = key.sealing.open_in_place(nonce, Aad::from(key.name), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn a_ticket_is_read_with_imported_keys_and_not_without() {
        let (old, new, stranger) = (Tickets::default(), Tickets::default(), Tickets::default());
        let ticket = old.encrypt(b"state").unwrap();
        assert_eq!(old.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        assert_eq!(stranger.decrypt(&ticket), None);
        for other in [Some(Pin([1; 32])), Some(Pin([2; 32]))] {
            new.import(&old.export(other), None).unwrap();
            new.import(&old.export(None), other).unwrap();
            new.import(&old.export(Some(Pin([3; 32]))), other).unwrap();
        }
        assert_eq!(new.decrypt(&ticket), None, "clients are verified otherwise");
        let clients = Some(Pin([1; 32]));
        new.import(&old.export(clients), clients).unwrap();
        assert_eq!(new.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        let later = new.encrypt(b"later").unwrap();
        assert_eq!(old.decrypt(&later).as_deref(), Some(&b"later"[..]), "the same key goes on encrypting");
        for cut in 0..ticket.len() {
            assert_eq!(old.decrypt(&ticket[..cut]), None);
        }
        let with_rest = [&old.export(None)[..], b"rest"].concat();
        for bad in [&b""[..], b"\x01", b"\x02", b"\x02short", &with_rest] {
            assert!(new.import(bad, None).is_err());
        }
    }

    #[test]
    fn keys_rotate_and_expire() {
        static NOW: AtomicU64 = AtomicU64::new(1_000_000);
        let pass = |time: Duration| NOW.fetch_add(time.as_secs(), Relaxed);
        let tickets = Tickets { clock: || UNIX_EPOCH + Duration::from_secs(NOW.load(Relaxed)), ..Tickets::default() };
        let name = |ticket: &[u8]| ticket[..NAME].to_vec();
        let first = tickets.encrypt(b"first").unwrap();
        pass(ENCRYPTS_FOR - Duration::from_secs(1));
        assert_eq!(name(&tickets.encrypt(b"").unwrap()), name(&first));
        pass(Duration::from_secs(1));
        let second = tickets.encrypt(b"second").unwrap();
        assert_ne!(name(&second), name(&first));
        assert_eq!(tickets.decrypt(&first).as_deref(), Some(&b"first"[..]));
        pass(DECRYPTS_FOR - ENCRYPTS_FOR);
        assert_eq!(tickets.decrypt(&first), None);
        assert!(tickets.decrypt(&second).is_some());
        assert_eq!(tickets.export(None).len(), HEADER + 2 * EXPORTED, "the second and a third");
    }
}
