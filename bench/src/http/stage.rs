//! Files that all servers of a run share: files to serve, configurations, and a certificate.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A directory that is removed on drop.
pub struct Stage {
    directory: TempDir,
}

/// A file to serve, with its path.
pub struct Served {
    pub path: &'static str,
    pub name: &'static str,
    size: usize,
}

pub const SMALL: Served = Served { path: "/1k.bin", name: "1 KiB", size: 1 << 10 };
pub const LARGE: Served = Served { path: "/100k.bin", name: "100 KiB", size: 100 << 10 };

/// The names of the certificate, and of its key.
pub const CHAIN: &str = "chain.pem";
pub const KEY: &str = "key.pem";

impl Stage {
    pub fn new() -> Result<Self> {
        let stage = Self { directory: TempDir::with_prefix("pelton-bench-").context("make a temporary directory")? };
        let files = stage.path().join("files");
        fs::create_dir(&files).with_context(|| format!("make {}", files.display()))?;
        // Servers that are started by root switch to another user.
        for directory in [stage.path(), &files] {
            fs::set_permissions(directory, Permissions::from_mode(0o755))
                .with_context(|| format!("let others read {}", directory.display()))?;
        }
        stage.write("files/hello", b"Hello, world!\n")?;
        for Served { path, size, .. } in [SMALL, LARGE] {
            stage.write(&format!("files{path}"), &vec![b'x'; size])?;
        }
        stage.write("load.lua", include_bytes!("peers/load.lua"))?;
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).context("make a certificate")?;
        stage.write(CHAIN, made.cert.pem().as_bytes())?;
        stage.write(KEY, made.signing_key.serialize_pem().as_bytes())?;
        Ok(stage)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path().join(name);
        fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of the certificate of servers with TLS.
    pub fn chain(&self) -> PathBuf {
        self.path().join(CHAIN)
    }

    /// Returns the path of the certificate's key.
    pub fn key(&self) -> PathBuf {
        self.path().join(KEY)
    }

    /// Returns the path of wrk's script.
    pub fn script(&self) -> PathBuf {
        self.path().join("load.lua")
    }
}
