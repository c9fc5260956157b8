//! `pelton get`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

const CONTENT: &[u8] = b"0123456789abcdefghij";

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("pelton-get-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.0.join(name)).ok()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn answer(request: &str, cuts: &Mutex<bool>) -> Vec<u8> {
    let target = request.split(' ').nth(1).unwrap_or_default();
    let range =
        request.lines().find_map(|line| line.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let same = request.contains("If-Range: \"one\"");
    match (target, range) {
        ("/missing", _) => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ("/rubbish", _) => b"rubbish\r\n\r\n".to_vec(),
        ("/away", _) => b"HTTP/1.1 302 Found\r\nLocation: /file\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ("/circle", _) => b"HTTP/1.1 302 Found\r\nLocation: /circle\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ("/file", Some(from)) if same => {
            let rest = &CONTENT[from..];
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nETag: \"one\"\r\nContent-Range: bytes {from}-19/20\r\nContent-Length: {}\r\n\r\n",
                rest.len()
            );
            [head.as_bytes(), rest].concat()
        }
        _ => {
            let head = "HTTP/1.1 200 OK\r\nETag: \"one\"\r\nContent-Length: 20\r\n\r\n";
            let is_cut = std::mem::take(&mut *cuts.lock().unwrap());
            let body = match request.split(' ').next() {
                Some("HEAD") => &CONTENT[..0],
                _ if is_cut => &CONTENT[..8],
                _ => CONTENT,
            };
            [head.as_bytes(), body].concat()
        }
    }
}

/// Serves until the process ends. The first response is cut off if `cuts` is set.
fn serve(cuts: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let cuts = Arc::new(Mutex::new(cuts));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, cuts): (TcpStream, _) = (stream.unwrap(), cuts.clone());
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
                request.push(byte[0]);
            }
            // One request per connection.
            let _ = stream.write_all(&answer(&String::from_utf8_lossy(&request), &cuts));
        }
    });
    format!("http://{address}")
}

fn get(directory: &Directory, arguments: &[&str]) -> (i32, String, Output) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    command.arg("get").args(arguments).current_dir(&directory.0);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned(), output)
}

#[test]
fn files_are_downloaded_under_their_names() {
    let (base, directory) = (serve(false), Directory::new("names"));
    let (code, text, output) = get(&directory, &[&format!("{base}/file")]);
    assert_eq!(code, 0, "{output:?}");
    assert!(text.starts_with("./file: 20 bytes in "), "{text}");
    assert_eq!(directory.read("file").as_deref(), Some(CONTENT));
    assert_eq!(directory.read("file.part"), None);
    let (code, text, _) = get(&directory, &["-o", "-", &format!("{base}/away")]);
    assert_eq!((code, text.as_bytes()), (0, CONTENT));
    let urls = ["/a", "/b", "/c"].map(|path| format!("{base}{path}"));
    let (code, ..) = get(&directory, &["-p", "2", "-q", &urls[0], &urls[1], &urls[2]]);
    assert_eq!(code, 0);
    assert!(["a", "b", "c"].iter().all(|name| directory.read(name).as_deref() == Some(CONTENT)));
}

#[test]
fn interrupted_downloads_are_resumed() {
    let (base, directory) = (serve(true), Directory::new("resume"));
    let url = format!("{base}/file");
    assert_eq!(get(&directory, &[&url]).0, 18, "incomplete");
    assert_eq!(directory.read("file.part").as_deref(), Some(&CONTENT[..8]));
    assert_eq!(directory.read("file"), None);
    let (code, text, output) = get(&directory, &["--resume", "--json", &url]);
    assert_eq!(code, 0, "{output:?}");
    assert!(text.contains("\"status\":206") && text.contains("\"bytes\":20"), "{text}");
    assert_eq!(directory.read("file").as_deref(), Some(CONTENT));
    assert_eq!((directory.read("file.part"), directory.read("file.part.tag")), (None, None));
    // Another file than the one that was interrupted is downloaded from its beginning.
    std::fs::write(directory.0.join("file.part"), "other content").unwrap();
    std::fs::write(directory.0.join("file.part.tag"), "\"two\"").unwrap();
    let (code, text, _) = get(&directory, &["--resume", "--json", &url]);
    assert!(code == 0 && text.contains("\"status\":200"), "{text}");
    assert_eq!(directory.read("file").as_deref(), Some(CONTENT));
}

#[test]
fn hashes_are_compared() {
    let (base, directory) = (serve(false), Directory::new("hash"));
    let url = format!("{base}/file");
    let (_, text, _) = get(&directory, &["--json", &url]);
    let hash = text.split("\"sha256\":\"").nth(1).unwrap()[..64].to_owned();
    std::fs::remove_file(directory.0.join("file")).unwrap();
    assert_eq!(get(&directory, &["--sha256", &hash.to_uppercase(), &url]).0, 0);
    std::fs::remove_file(directory.0.join("file")).unwrap();
    assert_eq!(get(&directory, &["--sha256", &"0".repeat(64), &url]).0, 1);
    assert_eq!(directory.read("file"), None, "a wrong file does not get its name");
    assert_eq!(get(&directory, &["--sha256", "xyz", &url]).0, 2);
}

#[test]
fn heads_are_printed() {
    let (base, directory) = (serve(false), Directory::new("head"));
    let (code, text, _) = get(&directory, &["--head", &format!("{base}/file")]);
    assert!(code == 0 && text.starts_with(&format!("{base}/file 200\nETag: ")), "{text}");
    assert!(std::fs::read_dir(&directory.0).unwrap().next().is_none(), "nothing is written");
}

#[test]
fn failures_have_the_exit_codes_of_curl() {
    let (base, directory) = (serve(false), Directory::new("codes"));
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, expected) in [
        ("ftp://a/".to_owned(), 3),
        ("http://does-not-exist.invalid/".to_owned(), 6),
        (format!("http://{refusing}/"), 7),
        (format!("{base}/rubbish"), 8),
        (format!("{base}/missing"), 22),
        (format!("{base}/circle"), 47),
    ] {
        let (code, _, output) = get(&directory, &[&url]);
        assert_eq!(code, expected, "{url}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{output:?}");
    }
    let (code, _, output) = get(&directory, &["-o", "no/such/place", &format!("{base}/file")]);
    assert_eq!(code, 23, "{output:?}");
    assert_eq!(get(&directory, &["-o", "x", &format!("{base}/a"), &format!("{base}/b")]).0, 2);
    assert_eq!(get(&directory, &[]).0, 2);
    let urls = [format!("{base}/missing"), format!("{base}/file")];
    assert_eq!(get(&directory, &[&urls[0], &urls[1]]).0, 22, "that of the first failure");
    assert_eq!(directory.read("file").as_deref(), Some(CONTENT), "the others are downloaded");
}
