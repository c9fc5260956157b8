fn main() {
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_PELTON_PYTHON_LIBRARY_DIRECTORY").unwrap());
}
