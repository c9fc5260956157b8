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
  spec.files = Dir.chdir(__dir__) { Dir['lib/**/*.rb', 'ext/**/*.rb', 'README.md'] }
  spec.extensions = ['ext/extconf.rb']
end
