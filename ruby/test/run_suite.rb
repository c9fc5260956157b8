# frozen_string_literal: true

# Runs the test files of EventMachine, each in a process of its own, and records the outcome of every test:
#
#   ruby run_suite.rb TESTS OUTCOMES [--lib DIRECTORY]... [--only NAME]... [--deadline SECONDS]
#
# TESTS is the folder `tests` of EventMachine's source. OUTCOMES is written: one line per test, `file class#test outcome`.
# Without --lib, the installed EventMachine is tested.
#
# Two such files are compared with
#
#   ruby run_suite.rb --compare BASELINE OUTCOMES [KNOWN]
#
# which fails if a test that passed in the baseline does not pass in the other one, or is missing there. KNOWN lists tests that
# are known to fail, with the reason; it is an error if one of them passes.

require 'open3'



def outcomes_of(file, tests, libs, deadline)
  command = ['ruby', *libs.flat_map { |lib| ['-I', lib] }, '-I', tests, '-r', "#{__dir__}/outcomes.rb", file]
  output, status = Open3.capture2e({ 'CI' => '1' }, 'timeout', '--kill-after=5', deadline.to_s, *command, chdir: File.dirname(tests))
  lines = output.scan(/OUTCOME (\S+) (\S+)$/)
  [lines, output, status]
end

def run(arguments)
  tests, result = arguments.shift(2)
  tests = File.expand_path(tests)
  libs, only, deadline = [], [], 60
  until arguments.empty?
    case (argument = arguments.shift)
    when '--lib' then libs << File.expand_path(arguments.shift)
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
      lines, output, status = outcomes_of(file, tests, libs, deadline)
      lines.each { |test, outcome| out.puts "#{name} #{test} #{outcome}" }
      bad = lines.count { |_, outcome| outcome == 'failed' }
      ended = status.success? || bad.positive? ? '' : ", ended with #{status}"
      puts "#{name}: #{lines.size} tests, #{bad} failed#{ended}"
      puts output if (bad.positive? || !ended.empty?) && ENV['VERBOSE']
      out.flush
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
  passed = baseline.select { |_, outcome| outcome == 'passed' }.keys
  worse = passed.reject { |test| ours[test] == 'passed' }
  unexpected = worse - known.keys
  fixed = known.keys.select { |test| ours[test] == 'passed' }
  better = ours.count { |test, outcome| outcome == 'passed' && baseline[test] != 'passed' }
  puts "#{baseline.size} tests in the baseline, #{passed.size} pass there; #{ours.size} here, " \
       "#{(passed - worse).size} of those pass, #{worse.size} do not (#{(worse & known.keys).size} known); #{better} pass only here"
  unexpected.each { |test| puts "does not pass here: #{test} (#{ours[test] || 'missing'})" }
  fixed.each { |test| puts "passes, but is listed as known to fail: #{test}" }
  exit 1 unless unexpected.empty? && fixed.empty?
end

if ARGV.first == '--compare' then compare(*ARGV.drop(1)) else run(ARGV.dup) end
