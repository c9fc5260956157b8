# frozen_string_literal: true

# Writes a Makefile that builds the native library with cargo. Ruby's own tools (gem, Bundler) run it.

require 'mkmf'

abort 'pelton-eventmachine needs cargo, the build tool of Rust: https://rustup.rs' unless find_executable('cargo')

# The workspace with the sources of the reactor.
root = File.expand_path('../..', __dir__)
abort 'pelton-eventmachine is built in the repository of Pelton, whose sources it needs' unless File.exist?("#{root}/crates/pelton-ruby")

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
