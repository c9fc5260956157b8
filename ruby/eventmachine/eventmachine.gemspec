# frozen_string_literal: true

require_relative '../lib/em/version'

# A gem without files. It satisfies gems that depend on the gem `eventmachine`, with this library in its place. Use it from Bundler:
#
#   gem 'eventmachine', path: '…/ruby/eventmachine'
#   gem 'pelton-eventmachine', path: '…/ruby'
Gem::Specification.new do |spec|
  spec.name = 'eventmachine'
  spec.version = EventMachine::VERSION
  spec.summary = 'Stands in for EventMachine, with pelton-eventmachine'
  spec.authors = ['The Pelton developers']
  spec.licenses = ['MIT', 'Apache-2.0']
  spec.files = []
  spec.add_dependency 'pelton-eventmachine', EventMachine::VERSION
end
