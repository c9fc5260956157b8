# frozen_string_literal: true

# Writes a Makefile that builds the native library with cargo. Ruby's own tools (gem, Bundler) run it.

require 'mkmf'

abort 'pelton-eventmachine needs cargo, the build tool of Rust: https://rustup.rs' unless find_executable('cargo')

# The workspace with the sources of the reactor: in a gem, or in the repository.
root = [File.expand_path('../vendor', __dir__), File.expand_path('../..', __dir__)].find { |path| File.exist?("#{path}/crates/pelton-ruby") }
abort 'the sources of the reactor are missing; make the gem with package.rb' unless root

built = RbConfig::CONFIG['host_os'].include?('darwin') ? 'libpelton_ruby.dylib' : 'libpelton_ruby.so'
library = "pelton_eventmachine.#{RbConfig::CONFIG['DLEXT']}"

File.write('Makefile', <<~MAKE)
  DESTDIR =
  sitearchdir = #{RbConfig::CONFIG['sitearchdir']}
  RUBYARCHDIR = $(sitearchdir)
  # A gem is installed without what was built on the way.
  OWN_TARGET = $(CURDIR)/target
  TARGET = $(or $(CARGO_TARGET_DIR),$(OWN_TARGET))

  all: #{library}

  #{library}:
  \tRUBY=#{RbConfig.ruby} CARGO_TARGET_DIR=$(TARGET) cargo build --release --manifest-path #{root}/crates/pelton-ruby/Cargo.toml --features extension
  \tcp $(TARGET)/release/#{built} #{library}

  install: #{library}
  \tmkdir -p $(DESTDIR)$(RUBYARCHDIR)
  \tcp #{library} $(DESTDIR)$(RUBYARCHDIR)/
  \trm -rf $(OWN_TARGET)

  clean:
  \trm -rf $(OWN_TARGET) #{library}

  .PHONY: all install clean #{library}
MAKE
