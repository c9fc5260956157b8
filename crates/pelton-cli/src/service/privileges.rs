//! Gives up root after the addresses are bound and the keys are read.

use std::fs;
use std::path::Path;

/// Where the system lists its users and groups. Directories elsewhere (LDAP) are not asked: give numbers for those.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// Whom to run as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ids {
    user: Option<u32>,
    group: Option<u32>,
}

/// Becomes this user and group, for good. Without a group, that of the user. All threads that are started later inherit this,
/// so none may run yet.
pub fn give_up(user: Option<&str>, group: Option<&str>) -> Result<(), String> {
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    let read = |path| fs::read_to_string(Path::new(path)).map_err(|error| format!("read {path}: {error}"));
    become_(find(user, group, &read(USERS)?, &read(GROUPS)?)?)
}

fn find(user: Option<&str>, group: Option<&str>, users: &str, groups: &str) -> Result<Ids, String> {
    let mut ids = Ids { user: None, group: None };
    if let Some(name) = user {
        match entry(users, name, 3) {
            Some(fields) => {
                ids.user = fields.get(2).and_then(|id| id.parse().ok());
                ids.group = fields.get(3).and_then(|id| id.parse().ok());
            }
            None => ids.user = number(name),
        }
        if ids.user.is_none() {
            return Err(format!("--user {name}: there is no such user in {USERS}"));
        }
    }
    if let Some(name) = group {
        let listed = entry(groups, name, 2).and_then(|fields| fields.get(2)?.parse().ok());
        ids.group = listed.or_else(|| number(name));
    }
    match (ids.group, group) {
        (Some(_), _) => Ok(ids),
        (None, Some(name)) => Err(format!("--group {name}: there is no such group in {GROUPS}")),
        (None, None) => {
            let user = user.unwrap_or_default();
            Err(format!("--user {user}: give --group too, because {USERS} lists no user of this name"))
        }
    }
}

/// Returns the number that is given in place of a name. The largest one means "unchanged" to the kernel.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

/// Returns the fields of the line of this name, if there are more than `least`.
fn entry<'a>(text: &'a str, name: &str, least: usize) -> Option<Vec<&'a str>> {
    text.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields[0] == name && fields.len() > least)
}

#[cfg(target_os = "linux")]
fn become_(ids: Ids) -> Result<(), String> {
    use rustix::process::{Gid, Uid, getegid, geteuid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(format!("cannot give up root: {threads} threads run already"));
    }
    let (now_user, now_group) = (geteuid(), getegid());
    let user = ids.user.map(Uid::from_raw).filter(|user| *user != now_user);
    let group = ids.group.map(Gid::from_raw).filter(|group| *group != now_group);
    let failed = |what: &str, error| format!("{what}: {error}; only root may change it");
    // Groups first: without root, they cannot be changed any more.
    if now_user.is_root()
        && let Some(group) = ids.group.map(Gid::from_raw)
    {
        set_thread_groups(&[group]).map_err(|error| failed("give up the groups of root", error))?;
    }
    if let Some(group) = group {
        set_thread_res_gid(group, group, group).map_err(|error| failed("change the group", error))?;
    }
    if let Some(user) = user {
        set_thread_res_uid(user, user, user).map_err(|error| failed("change the user", error))?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn become_(_: Ids) -> Result<(), String> {
    Err("--user and --group work on Linux only".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nwww:x:33:44:www:/var/www:/bin/false\nbroken:x\n";
    const GROUPS: &str = "root:x:0:\nweb:x:55:www\n";

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        let find = |user, group| find(user, group, USERS, GROUPS);
        let ids = |user, group| Ok(Ids { user, group: Some(group) });
        assert_eq!(find(Some("www"), None), ids(Some(33), 44));
        assert_eq!(find(Some("www"), Some("web")), ids(Some(33), 55));
        assert_eq!(find(None, Some("web")), ids(None, 55));
        assert_eq!(find(Some("1000"), Some("1001")), ids(Some(1000), 1001));
        for (user, group) in [
            (Some("1000"), None),
            (Some("nobody"), None),
            (Some("www"), Some("none")),
            (Some("broken"), None),
            (Some("4294967295"), Some("web")),
            (Some("www"), Some("4294967295")),
        ] {
            let error = find(user, group).unwrap_err();
            assert!(error.starts_with("--user ") || error.starts_with("--group "), "{error}");
        }
    }
}
