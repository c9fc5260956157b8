# frozen_string_literal: true

require_relative 'lib/em/version'

Gem::Specification.new do |spec|
  spec.name = 'pelton-eventmachine'
  spec.version = EventMachine::VERSION
  spec.summary = "EventMachine's API on the Pelton reactor"
  spec.description = 'A drop-in replacement for EventMachine: the same API and the same order of events, on a reactor written in Rust.'
  spec.authors = ['The Pelton developers']
  spec.licenses = ['MIT', 'Apache-2.0']
  spec.required_ruby_version = '>= 3.1'
  # `vendor` has the sources of the reactor. It exists in the directory that package.rb makes.
  spec.files = Dir.chdir(__dir__) do
    Dir['lib/**/*.rb', 'ext/extconf.rb', 'README.md', 'LICENSE-*', 'vendor/**/*'].select { |path| File.file?(path) }
  end
  spec.extensions = ['ext/extconf.rb']
  # Where `make` leaves the library, for Bundler's `path:`.
  spec.require_paths = %w[lib ext]
end
