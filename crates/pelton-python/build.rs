//! Finds the directory of the Python library (feature `embed`) and adds it to the run path. Link arguments only
//! reach this package's tests and examples. A program that hosts Python gets the directory in an environment
//! variable, and passes it to the linker in its own build script (see docs/pyhost.md).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "embed")]
    {
        // Cross builds may not know it; then the system's default path is used.
        let directory = pyo3_build_config::get().lib_dir().unwrap_or("/usr/lib");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{directory}");
        println!("cargo:library_directory={directory}");
    }
}
