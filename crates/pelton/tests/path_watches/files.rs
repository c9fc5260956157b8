//! Watches of a file, by its path.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use pelton::PathWatchOptions;
use pelton_testing::{On, on_every_engine, run_until};

use super::Scene;

on_every_engine![
    a_file_is_created_modified_and_deleted,
    many_writes_are_one_modification,
    attributes_are_told_apart_from_contents,
    a_file_that_is_replaced_by_a_rename_is_still_watched,
    a_file_that_is_deleted_and_created_again_is_still_watched,
    a_file_that_an_editor_backs_up_by_renaming_is_still_watched,
    a_file_that_is_moved_away_reports_its_new_name,
    a_file_that_is_moved_to_another_directory_is_deleted,
    other_files_in_the_directory_are_not_reported,
    a_file_that_is_deleted_while_open_is_not_modified,
    a_directory_on_the_way_may_vanish_and_come_back,
    a_directory_on_the_way_that_a_process_has_open_may_vanish_and_come_back,
    a_directory_on_the_way_may_be_exchanged,
    a_file_whose_directories_do_not_exist_yet,
    a_link_is_followed_and_may_be_exchanged,
    a_link_on_the_way_may_be_exchanged,
    a_chain_of_links_in_one_directory,
    a_dangling_link_may_get_its_target,
    links_that_lead_in_a_circle_are_an_error,
    a_quiet_period_gathers_changes_in_one_call,
    a_file_that_is_never_quiet_is_reported_all_the_same,
    a_relative_path_is_reported_as_it_was_given,
];

pub fn a_file_is_created_modified_and_deleted(on: On) {
    let mut scene = Scene::new(on);
    scene.watch("file");
    scene.write("file", "");
    scene.expect(["created file"]);
    scene.write("file", "contents");
    scene.expect(["modified file"]);
    scene.remove("file");
    scene.expect(["deleted file"]);
}

pub fn many_writes_are_one_modification(on: On) {
    let mut scene = Scene::new(on);
    let path = scene.write("file", "");
    scene.watch("file");
    let mut file = fs::File::options().append(true).open(path).unwrap();
    for _ in 0..100 {
        file.write_all(b"line\n").unwrap();
    }
    scene.expect(["modified file"]);
}

pub fn attributes_are_told_apart_from_contents(on: On) {
    let mut scene = Scene::new(on);
    let path = scene.write("file", "");
    scene.watch("file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    scene.expect(["attributes file"]);
}

pub fn a_file_that_is_replaced_by_a_rename_is_still_watched(on: On) {
    let mut scene = Scene::new(on);
    scene.write("file", "one");
    scene.watch("file");
    for contents in ["two", "three"] {
        scene.write("file.new", contents);
        scene.rename("file.new", "file");
        scene.expect(["modified file"]);
    }
    scene.write("file", "four");
    scene.expect(["modified file"]);
}

pub fn a_file_that_is_deleted_and_created_again_is_still_watched(on: On) {
    let mut scene = Scene::new(on);
    scene.write("file", "one");
    scene.watch("file");
    scene.remove("file");
    scene.write("file", "two");
    scene.expect(["deleted file", "created file"]);
    scene.write("file", "three");
    scene.expect(["modified file"]);
}

pub fn a_file_that_an_editor_backs_up_by_renaming_is_still_watched(on: On) {
    let mut scene = Scene::new(on);
    scene.write("file", "one");
    scene.watch("file");
    scene.rename("file", "file~");
    scene.write("file", "two");
    scene.remove("file~");
    scene.expect(["moved file to file~", "created file"]);
    scene.write("file", "three");
    scene.expect(["modified file"]);
}

pub fn a_file_that_is_moved_away_reports_its_new_name(on: On) {
    let mut scene = Scene::new(on);
    scene.write("log", "one");
    scene.watch("log");
    scene.rename("log", "log.1");
    scene.expect(["moved log to log.1"]);
    scene.write("log.1", "still written to");
    scene.write("log", "");
    scene.expect(["created log"]);
}

pub fn a_file_that_is_moved_to_another_directory_is_deleted(on: On) {
    let mut scene = Scene::new(on);
    scene.make("elsewhere");
    scene.write("file", "one");
    scene.watch("file");
    scene.rename("file", "elsewhere/file");
    scene.expect(["deleted file"]);
    scene.rename("elsewhere/file", "file");
    scene.expect(["created file"]);
}

pub fn other_files_in_the_directory_are_not_reported(on: On) {
    let mut scene = Scene::new(on);
    scene.write("file", "one");
    scene.watch("file");
    for name in ["file2", "fil", ".file", "file "] {
        scene.write(name, "other");
        scene.rename(name, "other");
        scene.remove("other");
    }
    scene.write("file", "two");
    scene.expect(["modified file"]);
}

pub fn a_file_that_is_deleted_while_open_is_not_modified(on: On) {
    let mut scene = Scene::new(on);
    let mut open = fs::File::create(scene.path("file")).unwrap();
    scene.watch("file");
    scene.remove("file");
    scene.write("file", "another");
    scene.expect(["deleted file", "created file"]);
    open.write_all(b"more").unwrap();
    scene.settle();
    assert_eq!(scene.log.take(), [] as [&str; 0]);
}

pub fn a_directory_on_the_way_may_vanish_and_come_back(on: On) {
    let mut scene = Scene::new(on);
    scene.make("a/b/c");
    scene.write("a/b/c/file", "one");
    scene.watch("a/b/c/file");
    for round in 0..3 {
        fs::remove_dir_all(scene.path("a")).unwrap();
        scene.expect(["deleted a/b/c/file"]);
        scene.make("a/b/c");
        if round == 1 {
            scene.settle();
        }
        scene.write("a/b/c/file", "two");
        scene.expect(["created a/b/c/file"]);
        scene.write("a/b/c/file", "three");
        scene.expect(["modified a/b/c/file"]);
    }
}

pub fn a_directory_on_the_way_that_a_process_has_open_may_vanish_and_come_back(on: On) {
    let mut scene = Scene::new(on);
    let directory = scene.make("a/b");
    scene.write("a/b/file", "one");
    scene.watch("a/b/file");
    // The kernel does not report that an open directory was deleted.
    let _open = fs::File::open(directory).unwrap();
    fs::remove_dir_all(scene.path("a/b")).unwrap();
    scene.expect(["deleted a/b/file"]);
    scene.make("a/b");
    scene.write("a/b/file", "two");
    scene.expect(["created a/b/file"]);
}

pub fn a_directory_on_the_way_may_be_exchanged(on: On) {
    let mut scene = Scene::new(on);
    for name in ["live", "next"] {
        scene.make(&format!("{name}/deep"));
        scene.write(&format!("{name}/deep/file"), name);
    }
    scene.watch("live/deep/file");
    scene.rename("live", "old");
    scene.rename("next", "live");
    scene.expect(["modified live/deep/file"]);
    scene.write("old/deep/file", "not watched any more");
    scene.write("live/deep/file", "watched");
    scene.expect(["modified live/deep/file"]);
}

pub fn a_file_whose_directories_do_not_exist_yet(on: On) {
    let mut scene = Scene::new(on);
    scene.watch("a/b/file");
    scene.make("a");
    scene.settle();
    scene.make("a/b");
    scene.settle();
    assert!(scene.log.is_empty());
    scene.write("a/b/file", "one");
    scene.expect(["created a/b/file"]);
}

pub fn a_link_is_followed_and_may_be_exchanged(on: On) {
    let mut scene = Scene::new(on);
    scene.make("releases");
    scene.write("releases/1", "one");
    scene.write("releases/2", "two");
    scene.link("releases/1", "current");
    scene.watch("current");
    scene.write("releases/1", "changed");
    scene.expect(["modified current"]);
    scene.write("releases/2", "not the one");
    scene.link("releases/2", "current.new");
    scene.rename("current.new", "current");
    scene.expect(["modified current"]);
    scene.write("releases/1", "not any more");
    scene.write("releases/2", "changed");
    scene.expect(["modified current"]);
    scene.remove("current");
    scene.expect(["deleted current"]);
    scene.link("releases/1", "current");
    scene.expect(["created current"]);
}

pub fn a_link_on_the_way_may_be_exchanged(on: On) {
    // As Kubernetes updates its configuration.
    let mut scene = Scene::new(on);
    for version in ["..1", "..2"] {
        scene.make(version);
        scene.write(&format!("{version}/config"), version);
    }
    scene.link("..1", "..data");
    scene.link("..data/config", "config");
    scene.watch("config");
    scene.link("..2", "..new");
    scene.rename("..new", "..data");
    scene.expect(["modified config"]);
    scene.write("..2/config", "changed");
    scene.expect(["modified config"]);
}

pub fn a_chain_of_links_in_one_directory(on: On) {
    let mut scene = Scene::new(on);
    scene.write("file", "one");
    scene.link("file", "first");
    scene.link(scene.path("first").to_str().unwrap(), "second");
    scene.link("../../../../../../../../../../../../", "root");
    scene.watch("second");
    scene.write("file", "two");
    scene.expect(["modified second"]);
    scene.remove("first");
    scene.expect(["deleted second"]);
}

pub fn a_dangling_link_may_get_its_target(on: On) {
    let mut scene = Scene::new(on);
    scene.link("later/file", "link");
    scene.watch("link");
    scene.make("later");
    scene.write("later/file", "");
    scene.expect(["created link"]);
    scene.write("later/file", "more");
    scene.expect(["modified link"]);
}

pub fn links_that_lead_in_a_circle_are_an_error(on: On) {
    let mut scene = Scene::new(on);
    scene.link("two", "one");
    scene.link("one", "two");
    let path = scene.path("one/file");
    let error = scene.reactor.watch_path(&path, |_, _| {}).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("symbolic links"), "{error}");
    assert_eq!((scene.reactor.path_watch_count(), scene.reactor.path_mark_count()), (0, 0));
}

pub fn a_quiet_period_gathers_changes_in_one_call(on: On) {
    let mut scene = Scene::new(on);
    let calls = pelton_testing::Log::default();
    let count = calls.clone();
    let options = PathWatchOptions::default().quiet(Duration::from_millis(40));
    let mut report = scene.reporter();
    let watch = move |reactor: &mut pelton::Reactor, changes: pelton::Changes| {
        count.add("call");
        report(reactor, changes);
    };
    let path = scene.path("file");
    scene.reactor.watch_path_with(path, &options, watch).unwrap();
    let began = scene.reactor.clock();
    scene.write("file", "");
    scene.settle();
    scene.write("file", "one");
    scene.settle();
    scene.write("file", "two");
    scene.settle();
    let written = scene.reactor.clock();
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| !log.is_empty());
    assert!(scene.reactor.clock() - began >= Duration::from_millis(40));
    // The period counts from the last change, as far as the loop has noticed it.
    assert!(scene.reactor.clock() - written >= Duration::from_millis(30));
    assert_eq!((scene.log.take(), calls.len()), (vec!["created file".to_owned()], 1));
    assert_eq!(scene.reactor.timer_count(), 0);
}

pub fn a_file_that_is_never_quiet_is_reported_all_the_same(on: On) {
    let mut scene = Scene::new(on);
    let path = scene.write("file", "");
    scene.watch_with("file", &PathWatchOptions::default().quiet(Duration::from_millis(20)));
    let began = scene.reactor.clock();
    scene.reactor.every(Duration::from_millis(2), move |_, _| fs::write(&path, "again").unwrap());
    let log = scene.log.clone();
    run_until(&mut scene.reactor, |_| !log.is_empty());
    let took = scene.reactor.clock() - began;
    assert!(took >= Duration::from_millis(20), "{took:?}");
}

pub fn a_relative_path_is_reported_as_it_was_given(on: On) {
    let mut scene = Scene::new(on);
    let root = std::env::current_dir().unwrap();
    let up: String = root.components().skip(1).map(|_| "../").collect();
    let path = format!("{up}{}/file", scene.directory.strip_prefix("/").unwrap().display());
    let log = scene.log.clone();
    scene.reactor.watch_path(&path, move |_, changes| log.add(changes[0].to_string())).unwrap();
    scene.write("file", "");
    scene.expect([format!("created {path}").as_str()]);
}
