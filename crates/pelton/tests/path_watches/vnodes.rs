//! The code for systems with `kqueue`, which compares the entries of directories, on an emulated queue. It combines what happens
//! between two looks at a directory, so not all tests apply.
//!
//! It keeps a descriptor per entry. Each test runs in a child process, because tests on `select` in the same process need numbers
//! below 1,024.

use pelton::EngineKind;
use pelton_os::notify::emulate_vnodes;
use pelton_testing::{On, child};

macro_rules! as_elsewhere {
    ($($file:ident::$name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            if child::role().is_none() {
                let status = child::command(concat!("vnodes::", stringify!($name)), "vnodes").status().unwrap();
                return assert!(status.success(), "{status}");
            }
            emulate_vnodes();
            super::$file::$name(On(EngineKind::Poll));
        })*
    };
}

as_elsewhere![
    files::a_file_is_created_modified_and_deleted,
    files::many_writes_are_one_modification,
    files::attributes_are_told_apart_from_contents,
    files::a_file_that_is_replaced_by_a_rename_is_still_watched,
    files::a_file_that_is_moved_away_reports_its_new_name,
    files::a_directory_on_the_way_may_vanish_and_come_back,
    files::a_directory_on_the_way_may_be_exchanged,
    files::a_file_whose_directories_do_not_exist_yet,
    files::a_link_is_followed_and_may_be_exchanged,
    files::a_link_on_the_way_may_be_exchanged,
    directories::a_name_may_be_any_bytes,
    directories::a_directory_may_vanish_and_come_back,
    directories::two_watches_of_one_directory_and_one_of_a_file_in_it_do_not_disturb_each_other,
    trees::new_directories_are_watched_and_their_entries_reported_once,
    trees::deleted_directories_give_their_marks_back,
    trees::what_is_reported_agrees_with_what_is_there,
    trees::what_another_thread_creates_meanwhile_is_reported_exactly_once,
];
