# frozen_string_literal: true

# Runs the test files of EventMachine, each in a process of its own, and records the outcome of every test:
#
#   ruby run_suite.rb TESTS OUTCOMES [--ours] [--only NAME]... [--deadline SECONDS]
#
# TESTS is the folder `tests` of EventMachine's source (fetch_suite.rb). OUTCOMES is written: one line per test,
# `file class#test outcome`. With --ours, it is an error if a file of another EventMachine is loaded. Without it, the EventMachine
# that Ruby finds is tested; that is how baseline.txt is made, with Debian's package ruby-eventmachine.
#
# Two such files are compared with
#
#   ruby run_suite.rb --compare BASELINE OUTCOMES [KNOWN]
#
# which fails if a test that passed in the baseline does not pass in the other one, or is missing there. KNOWN lists tests that
# are known to fail; it is an error if one of them passes.
#
# Many of the tests have windows of 10 to 400 ms, and a few race by themselves. A test that fails is run again, twice at most, and
# the outcome says so: `passed again`.

require 'open3'



# How often the tests of a file are run until all of them have passed.
ATTEMPTS = 3

def outcomes_of(file, tests, ours, deadline)
  command = ['ruby', '-I', tests, '-r', "#{__dir__}/suite/outcomes.rb", file]
  environment = { 'CI' => '1', 'OURS' => ours ? '1' : nil }
  output, status = Open3.capture2e(environment, 'timeout', '--kill-after=5', deadline.to_s, *command, chdir: File.dirname(tests))
  [output.scan(/OUTCOME (\S+) (\S+)$/).to_h, output, status]
end

# Returns the best outcome of each test in several attempts.
def outcomes_in_attempts(file, tests, ours, deadline)
  all = {}
  output = nil
  ATTEMPTS.times do |attempt|
    outcomes, output, status = outcomes_of(file, tests, ours, deadline)
    outcomes.each do |test, outcome|
      all[test] = attempt.positive? && outcome == 'passed' ? 'passed again' : outcome unless all[test]&.start_with?('passed')
    end
    break if status.success?
  end
  [all, output]
end

def run(arguments)
  tests, result = arguments.shift(2)
  tests = File.expand_path(tests)
  ours, only, deadline = false, [], 60
  until arguments.empty?
    case (argument = arguments.shift)
    when '--ours' then ours = true
    when '--only' then only << arguments.shift
    when '--deadline' then deadline = Integer(arguments.shift)
    else abort "unknown argument #{argument}"
    end
  end
  files = Dir["#{tests}/test_*.rb"].sort
  files.select! { |file| only.include?(File.basename(file, '.rb')) } unless only.empty?
  File.open(result, 'w') do |out|
    files.each do |file|
      name = File.basename(file, '.rb')
      outcomes, output = outcomes_in_attempts(file, tests, ours, deadline)
      outcomes.sort.each { |test, outcome| out.puts "#{name} #{test} #{outcome}" }
      bad = outcomes.count { |_, outcome| outcome == 'failed' }
      puts "#{name}: #{outcomes.size} tests, #{bad} failed"
      puts output if ENV['VERBOSE'] && (bad.positive? || outcomes.empty?)
    end
  end
end

def read(path)
  File.readlines(path, chomp: true).reject { |line| line.empty? || line.start_with?('#') }
      .to_h { |line| file, test, outcome = line.split(' ', 3); ["#{file} #{test}", outcome] }
end

def compare(baseline, ours, known = nil)
  baseline, ours = read(baseline), read(ours)
  known = known ? read(known) : {}
  passes = ->(outcome) { outcome&.start_with?('passed') }
  passed = baseline.select { |_, outcome| passes[outcome] }.keys
  worse = passed.reject { |test| passes[ours[test]] }
  unexpected = worse - known.keys
  fixed = known.keys.select { |test| passes[ours[test]] }
  better = ours.count { |test, outcome| passes[outcome] && !passes[baseline[test]] }
  again = ours.count { |_, outcome| outcome == 'passed again' }
  puts "#{baseline.size} tests in the baseline, #{passed.size} pass there; #{ours.size} here, " \
       "#{(passed - worse).size} of those pass, #{worse.size} do not (#{(worse & known.keys).size} known); #{better} pass only here, #{again} in a second attempt"
  unexpected.each { |test| puts "does not pass here: #{test} (#{ours[test] || 'missing'})" }
  fixed.each { |test| puts "passes, but is listed as known to fail: #{test}" }
  exit 1 unless unexpected.empty? && fixed.empty?
end

if ARGV.first == '--compare' then compare(*ARGV.drop(1)) else run(ARGV.dup) end
