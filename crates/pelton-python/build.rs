//! Finds the directory of the Python library that programs are linked with (feature `embed`), so that they find it again when they
//! start. Link arguments reach this package's tests and examples only; a program that hosts Python is told the directory,
//! and passes it on to the linker in a build script of its own (see docs/pyhost.md).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "embed")]
    {
        // A build for another system may not know it; then it is where that system looks anyway.
        let directory = pyo3_build_config::get().lib_dir().unwrap_or("/usr/lib");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{directory}");
        println!("cargo:library_directory={directory}");
    }
}
