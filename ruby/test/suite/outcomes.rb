# frozen_string_literal: true

# Makes test-unit print a line for each test: `OUTCOME Class#test passed|failed|skipped`. Loaded before a test file.

require 'test/unit'

module Outcomes
  def run(result)
    failures = result.faults.size
    yielded = super
    own = result.faults.drop(failures)
    skipped = own.any? { |fault| fault.is_a?(Test::Unit::Omission) || fault.is_a?(Test::Unit::Pending) }
    failed = own.any? { |fault| fault.is_a?(Test::Unit::Failure) || fault.is_a?(Test::Unit::Error) }
    $stdout.puts "OUTCOME #{self.class.name}##{method_name} #{failed ? 'failed' : skipped ? 'skipped' : 'passed'}"
    $stdout.flush
    yielded
  end
end

Test::Unit::TestCase.prepend(Outcomes)

if ENV['OURS']
  at_exit do
    others = $LOADED_FEATURES.grep(%r{/(eventmachine|rubyeventmachine|fastfilereaderext|em/[^/]+|em/protocols/[^/]+)\.(rb|so)\z})
    own = File.expand_path('../../lib', __dir__)
    others.reject! { |path| path.start_with?(own) }
    abort "files of another EventMachine were loaded: #{others.join(', ')}" unless others.empty?
  end
end
