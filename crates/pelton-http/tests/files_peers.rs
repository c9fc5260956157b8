//! curl requests files, ranges, and conditional responses.

mod common;

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::tree::{Tree, settled};
use common::{On, Serve, Site, on_every_engine};
use pelton_http::Files;

on_every_engine![curl_gets_files_and_ranges, curl_resumes, curl_gets_compressed_files, curl_makes_conditional_requests,];

fn text(lines: usize) -> String {
    (0..lines).map(|line| format!("line {line}\n")).collect()
}

fn site(on: On) -> (Tree, Site) {
    let tree = Tree::new();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    tree.write_at("text.txt", text(1000), then);
    tree.write_at("large.txt", text(100_000), then);
    let site = on.serve(Files::with_settings(tree.path(), settled()).unwrap());
    (tree, site)
}

fn curl_gets_files_and_ranges(on: On) {
    let (_tree, mut site) = site(on);
    assert_eq!(site.curl("URL/text.txt", Vec::new()), text(1000));
    assert_eq!(site.curl("URL/large.txt", Vec::new()), text(100_000));
    let said = site.curl("-w %{http_code};%{content_type} -r 0-6 URL/text.txt", Vec::new());
    assert_eq!(said, "line 0\n206;text/plain; charset=utf-8");
    assert_eq!(site.curl("-r -9 URL/large.txt", Vec::new()), "ne 99999\n");
    assert_eq!(site.curl("-w %{http_code} -o /dev/null -r 99999999- URL/large.txt", Vec::new()), "416");
    for path in ["text.txt", "large.txt"] {
        let parts = site.curl(&format!("-r 0-5,7-12 URL/{path}"), Vec::new());
        assert!(parts.contains("\r\n\r\nline 0\r\n--") && parts.contains("\r\n\r\nline 1\r\n--"), "{parts}");
    }
    let head = site.curl("-I URL/large.txt", Vec::new());
    assert!(head.contains(&format!("Content-Length: {}\r\n", text(100_000).len())), "{head}");
    assert_eq!(site.curl("-w %{http_code} -o /dev/null --path-as-is URL/../text.txt", Vec::new()), "404");
}

fn curl_resumes(on: On) {
    let (tree, mut site) = site(on);
    let part = tree.path().join("part");
    std::fs::write(&part, &text(100_000)[..500_000]).unwrap();
    site.curl(&format!("-C - -o {} URL/large.txt", part.display()), Vec::new());
    assert!(std::fs::read_to_string(part).unwrap() == text(100_000));
}

fn curl_gets_compressed_files(on: On) {
    let (tree, mut site) = site(on);
    let plain = tree.path().join("text.txt");
    let output = Command::new("gzip").args(["--keep", "--best"]).arg(&plain).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let sent = site.curl("--compressed -w %{size_download};%{http_code} URL/text.txt", Vec::new());
    let size = std::fs::metadata(tree.path().join("text.txt.gz")).unwrap().len();
    assert_eq!(sent, format!("{}{size};200", text(1000)));
    assert!(size < 5000);
    assert_eq!(site.curl("URL/text.txt", Vec::new()), text(1000));
}

fn curl_makes_conditional_requests(on: On) {
    let (tree, mut site) = site(on);
    let code = "-w %{http_code} -o /dev/null";
    let changed = u64::try_from(std::fs::metadata(tree.path().join("text.txt")).unwrap().ctime()).unwrap();
    let date = |seconds: u64| {
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        date.replace(", ", ",").replace(' ', ",")
    };
    assert_eq!(site.curl(&format!("{code} -z {} URL/text.txt", date(changed)), Vec::new()), "304");
    assert_eq!(site.curl(&format!("{code} -z {} URL/text.txt", date(changed - 1)), Vec::new()), "200");
    assert_eq!(site.curl(&format!("{code} -z -{} URL/text.txt", date(changed - 1)), Vec::new()), "412");
    let tag = tree.path().join("tag").display().to_string();
    assert_eq!(site.curl(&format!("{code} --etag-save {tag} URL/large.txt"), Vec::new()), "200");
    assert_eq!(site.curl(&format!("{code} --etag-compare {tag} URL/large.txt"), Vec::new()), "304");
    assert_eq!(site.curl(&format!("{code} --etag-compare {tag} URL/text.txt"), Vec::new()), "200");
}
