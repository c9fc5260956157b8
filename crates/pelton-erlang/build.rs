//! Records the directory of the Python library in the native library, so that Erlang's virtual machine finds it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_PELTON_PYTHON_LIBRARY_DIRECTORY") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{directory}");
    }
}
