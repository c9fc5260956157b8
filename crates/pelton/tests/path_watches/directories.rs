//! Watches of a directory and its entries.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use pelton::Change;
use pelton_testing::{On, on_every_engine, run_until};

use super::Scene;

on_every_engine![
    entries_are_reported_with_their_paths,
    a_move_inside_has_both_names,
    half_a_move_is_a_creation_or_a_deletion,
    a_move_over_another_entry_is_a_move,
    a_name_may_be_any_bytes,
    entries_of_directories_inside_are_not_reported,
    a_directory_may_vanish_and_come_back,
    a_directory_may_be_moved_away_and_another_take_its_place,
    a_directory_may_become_a_file_and_a_file_a_directory,
    a_directory_behind_a_link_is_watched_under_its_own_name,
    attributes_of_the_directory_itself_are_reported_once,
    two_watches_of_one_directory_and_one_of_a_file_in_it_do_not_disturb_each_other,
    the_root_can_be_watched,
];

pub fn entries_are_reported_with_their_paths(on: On) {
    let mut scene = Scene::new(on);
    scene.make("inbox");
    scene.watch("inbox");
    scene.write("inbox/one", "x");
    scene.expect(["created inbox/one"]);
    scene.write("inbox/one", "y");
    scene.make("inbox/two");
    fs::set_permissions(scene.path("inbox/one"), fs::Permissions::from_mode(0o600)).unwrap();
    scene.remove("inbox/one");
    scene.expect(["modified inbox/one", "created inbox/two", "attributes inbox/one", "deleted inbox/one"]);
}

pub fn a_move_inside_has_both_names(on: On) {
    let mut scene = Scene::new(on);
    scene.write("one", "x");
    scene.make("three");
    scene.watch("");
    scene.rename("one", "two");
    scene.rename("three", "four");
    scene.expect(["moved one to two", "moved three to four"]);
}

pub fn half_a_move_is_a_creation_or_a_deletion(on: On) {
    let mut scene = Scene::new(on);
    scene.make("in");
    scene.make("out");
    scene.write("in/one", "");
    scene.write("out/two", "");
    scene.watch("in");
    scene.rename("in/one", "out/one");
    scene.rename("out/two", "in/two");
    scene.rename("in/two", "in/three");
    scene.expect(["deleted in/one", "created in/two", "moved in/two to in/three"]);
    // Alone, at the end of what the system has queued.
    scene.rename("in/three", "out/three");
    scene.expect(["deleted in/three"]);
    assert_eq!(scene.reactor.timer_count(), 0);
}

pub fn a_move_over_another_entry_is_a_move(on: On) {
    let mut scene = Scene::new(on);
    scene.write("one", "x");
    scene.write("two", "y");
    scene.watch("");
    scene.rename("one", "two");
    scene.expect(["moved one to two"]);
}

pub fn a_name_may_be_any_bytes(on: On) {
    let mut scene = Scene::new(on);
    let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let name = OsStr::from_bytes(&bytes);
    let path = scene.path(name);
    let (log, expected) = (scene.log.clone(), path.clone());
    let directory = scene.directory.clone();
    scene
        .reactor
        .watch_path(&directory, move |_, changes| {
            log.add(format!("{}", matches!(&changes[0], Change::Created { path } if *path == expected)));
        })
        .unwrap();
    fs::write(&path, "").unwrap();
    scene.expect(["true"]);
}

pub fn entries_of_directories_inside_are_not_reported(on: On) {
    let mut scene = Scene::new(on);
    scene.make("inside");
    scene.watch("");
    scene.write("inside/file", "");
    scene.write("file", "");
    scene.expect(["created file"]);
}

pub fn a_directory_may_vanish_and_come_back(on: On) {
    let mut scene = Scene::new(on);
    scene.make("in/box");
    scene.watch("in/box");
    for _ in 0..3 {
        fs::remove_dir_all(scene.path("in")).unwrap();
        scene.expect(["deleted in/box"]);
        scene.make("in/box");
        scene.write("in/box/file", "");
        scene.expect(["created in/box", "created in/box/file"]);
        scene.write("in/box/file", "x");
        scene.expect(["modified in/box/file"]);
        scene.remove("in/box/file");
        scene.expect(["deleted in/box/file"]);
    }
}

pub fn a_directory_may_be_moved_away_and_another_take_its_place(on: On) {
    let mut scene = Scene::new(on);
    scene.make("live");
    scene.make("next");
    scene.write("next/file", "");
    scene.watch("live");
    scene.rename("live", "old");
    scene.expect(["moved live to old"]);
    scene.write("old/unrelated", "");
    scene.rename("next", "live");
    scene.expect(["created live", "created live/file"]);
    scene.write("live/other", "");
    scene.expect(["created live/other"]);
}

pub fn a_directory_may_become_a_file_and_a_file_a_directory(on: On) {
    let mut scene = Scene::new(on);
    scene.make("thing");
    scene.watch("thing");
    fs::remove_dir(scene.path("thing")).unwrap();
    scene.write("thing", "");
    scene.expect(["deleted thing", "created thing"]);
    scene.write("thing", "x");
    scene.expect(["modified thing"]);
    scene.remove("thing");
    scene.make("thing");
    scene.expect(["deleted thing", "created thing"]);
    scene.write("thing/file", "");
    scene.expect(["created thing/file"]);
}

pub fn a_directory_behind_a_link_is_watched_under_its_own_name(on: On) {
    let mut scene = Scene::new(on);
    scene.make("real");
    scene.link("real", "link");
    scene.watch("link");
    scene.write("real/file", "");
    scene.expect(["created link/file"]);
    scene.remove("link");
    scene.make("other");
    scene.expect(["deleted link"]);
    scene.link("other", "link");
    scene.expect(["created link"]);
    scene.write("real/file2", "");
    scene.write("other/file", "");
    scene.expect(["created link/file"]);
}

pub fn attributes_of_the_directory_itself_are_reported_once(on: On) {
    let mut scene = Scene::new(on);
    let path = scene.make("inbox");
    scene.watch("inbox");
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    scene.expect(["attributes inbox"]);
}

pub fn two_watches_of_one_directory_and_one_of_a_file_in_it_do_not_disturb_each_other(on: On) {
    let mut scene = Scene::new(on);
    let first = scene.watch("");
    scene.watch("");
    scene.watch("file");
    scene.write("file", "");
    scene.expect(["created file"; 3]);
    assert!(scene.reactor.end(first));
    assert!(!scene.reactor.end(first));
    scene.write("file", "x");
    scene.expect(["modified file"; 2]);
}

pub fn the_root_can_be_watched(on: On) {
    let mut scene = Scene::new(on);
    let log = scene.log.clone();
    let root = scene.reactor.watch_path("/", move |_, changes| log.add(changes[0].to_string())).unwrap();
    scene.settle();
    assert!(scene.reactor.end(root));
    scene.watch("file");
    scene.write("file", "");
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| log.entries().contains(&"created file".to_owned()));
}
