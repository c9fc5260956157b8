# frozen_string_literal: true

# Runs the test files of EventMachine, each in a process of its own and each once.
#
#   ruby run_suite.rb record TESTS OUTCOMES
#
# records the outcomes of the EventMachine that Ruby finds: one line per test, `file class#test outcome`. That is how baseline.txt is
# made, with Debian's package ruby-eventmachine.
#
#   ruby run_suite.rb check TESTS BASELINE [--only NAME]...
#
# runs them with this library (RUBYLIB leads to it), and fails if a test that passes in the baseline does not pass, or is missing.
# TESTS is the folder `tests` of EventMachine's source (fetch_suite.rb). Both run in the network of suite/network.rb.
#
# Many of these tests have windows of 10 to 400 ms. If a test fails, its file is run with Debian's EventMachine at once, under the
# same load. A test that fails there as well says nothing about this library; it is listed. suite/racy.txt has tests whose outcome
# depends on the scheduler with any library; they are run and listed, and decide nothing.

require 'open3'

# No file takes more than 10 seconds on an idle machine.
DEADLINE = 120

def outcomes_of(file, tests, ours)
  command = ['ruby', '-I', tests, '-r', "#{__dir__}/suite/outcomes.rb", file]
  environment = ours ? { 'CI' => '1', 'OURS' => '1' } : { 'CI' => '1', 'OURS' => nil, 'RUBYLIB' => nil }
  output, status = Open3.capture2e(environment, 'timeout', '--kill-after=5', DEADLINE.to_s, *command, chdir: File.dirname(tests))
  outcomes = output.scan(/OUTCOME (\S+) (\S+)$/).to_h.transform_keys { |test| "#{File.basename(file, '.rb')} #{test}" }
  # A file whose tests have all passed and that fails nevertheless has left something behind.
  outcomes["#{File.basename(file, '.rb')} exit"] = 'failed' unless status.success? || outcomes.value?('failed')
  [outcomes, output]
end

def read(path)
  lines = File.readlines(path, chomp: true).reject { |line| line.empty? || line.start_with?('#') }
  lines.to_h { |line| file, test, outcome = line.split(' ', 3); ["#{file} #{test}", outcome] }
end

def files(tests, only)
  files = Dir["#{tests}/test_*.rb"].sort
  files.select! { |file| only.include?(File.basename(file, '.rb')) } unless only.empty?
  files
end

def record(tests, result)
  File.open(result, 'w') do |out|
    files(tests, []).each do |file|
      outcomes_of(file, tests, false).first.sort.each { |test, outcome| out.puts "#{test} #{outcome}" }
      puts File.basename(file, '.rb')
    end
  end
end

# Returns what to do about tests of a file that should pass and do not: a text for each, and whether it is an error.
def judge(file, tests, worse, outcomes, racy)
  return [] if worse.empty?

  there, output = outcomes_of(file, tests, false)
  abort "EventMachine cannot be run to compare with:\n#{output}" if there.none? { |test, _| !test.end_with?(' exit') }
  worse.map do |test|
    outcome = outcomes[test] || 'missing'
    if racy.key?(test) then ["#{test} #{outcome}; racy: #{racy[test]}", false]
    elsif there.fetch(test, test.end_with?(' exit') ? 'passed' : 'missing') == 'passed' then ["#{test} #{outcome}; passes with EventMachine, run right after", true]
    else ["#{test} #{outcome}; the same with EventMachine, run right after", false]
    end
  end
end

def check(tests, baseline, only)
  baseline = read(baseline)
  racy = read("#{__dir__}/suite/racy.txt")
  passed = count = 0
  verdicts = files(tests, only).flat_map do |file|
    name = File.basename(file, '.rb')
    outcomes, output = outcomes_of(file, tests, true)
    expected = baseline.select { |test, outcome| test.start_with?("#{name} ") && outcome == 'passed' }.keys
    worse = expected.reject { |test| outcomes[test] == 'passed' }
    worse |= ["#{name} exit"] if outcomes["#{name} exit"]
    count += expected.size
    passed += expected.size - worse.size
    puts "#{name}: #{outcomes.count { |_, outcome| outcome == 'passed' }} of #{outcomes.size} passed"
    puts output unless worse.empty?
    judge(file, tests, worse, outcomes, racy)
  end
  puts "#{passed} of the #{count} tests that pass with EventMachine pass here"
  verdicts.each { |text, error| puts "#{error ? 'ERROR' : 'listed'}: #{text}" }
  exit 1 if verdicts.any? { |_, error| error }
end

what, tests, file, *rest = ARGV
only = rest.each_slice(2).map { |option, name| option == '--only' ? name : abort("unknown argument #{option}") }
case what
when 'record' then record(File.expand_path(tests), file)
when 'check' then check(File.expand_path(tests), file, only)
else abort "usage: ruby #{$PROGRAM_NAME} record TESTS OUTCOMES, or check TESTS BASELINE [--only NAME]..."
end
