# frozen_string_literal: true

# Writes a Makefile that builds the native library with cargo. Ruby's own tools (gem, Bundler) run it.

require 'mkmf'

abort 'pelton-eventmachine needs cargo, the build tool of Rust: https://rustup.rs' unless find_executable('cargo')

# The workspace: beside the gem in a packed gem, above it in the repository.
root = [File.expand_path('../pelton', __dir__), File.expand_path('../..', __dir__)].find { |path| File.exist?("#{path}/Cargo.toml") }
abort 'pelton-eventmachine: the sources of the reactor are missing' unless root

built = RbConfig::CONFIG['host_os'].include?('darwin') ? 'libpelton_ruby.dylib' : 'libpelton_ruby.so'
library = "pelton_eventmachine.#{RbConfig::CONFIG['DLEXT']}"

File.write('Makefile', <<~MAKE)
  DESTDIR =
  sitearchdir = #{RbConfig::CONFIG['sitearchdir']}
  RUBYARCHDIR = $(sitearchdir)
  TARGET = $(CURDIR)/target

  all: #{library}

  #{library}:
  \tRUBY=#{RbConfig.ruby} CARGO_TARGET_DIR=$(TARGET) cargo build --release --manifest-path #{root}/crates/pelton-ruby/Cargo.toml --features extension
  \tcp $(TARGET)/release/#{built} #{library}

  install: #{library}
  \tmkdir -p $(DESTDIR)$(RUBYARCHDIR)
  \tcp #{library} $(DESTDIR)$(RUBYARCHDIR)/

  clean:
  \trm -rf $(TARGET) #{library}

  .PHONY: all install clean #{library}
MAKE
