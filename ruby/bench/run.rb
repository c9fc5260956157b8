# frozen_string_literal: true

# Compares this library with EventMachine on the same Ruby: ruby run.rb [--quick] [--only CASE] [--results FILE]. RUBYLIB must lead
# to this library; EventMachine must be installed (Debian: ruby-eventmachine).
#
# The contenders take turns, window by window, so that a change of the machine's load meets both. What counts is processor time
# per operation, which depends less on the load than the time on the clock.

require 'json'
require 'open3'
require 'socket'

# The load, and what one operation is: case => [operations, connections, bytes per message, description].
CASES = {
  'echo-64' => [60_000, 50, 64, 'echo of 64 bytes, 50 connections'],
  'echo-16384' => [20_000, 50, 16_384, 'echo of 16 KiB, 50 connections'],
  'ticks' => [200_000, 0, 0, 'next_tick, one per pass'],
  'tick-batches' => [500_000, 0, 0, 'next_tick, a thousand per pass'],
  'timers-cancelled' => [90_000, 0, 0, 'add_timer and cancel_timer'],
  'timers-fired' => [90_000, 0, 0, 'add_timer, and its call'],
  'idle' => [400, 400, 0, 'memory of an idle connection']
}.freeze

quick = ARGV.delete('--quick')
only = (at = ARGV.index('--only')) && ARGV.slice!(at, 2).last
results = (at = ARGV.index('--results')) && ARGV.slice!(at, 2).last
abort "unknown arguments: #{ARGV.join(' ')}" unless ARGV.empty?

CONTENDERS = {
  'pelton' => { 'RUBYLIB' => ENV.fetch('RUBYLIB') },
  'eventmachine' => { 'RUBYLIB' => nil },
  'eventmachine, epoll' => { 'RUBYLIB' => nil, 'EM_EPOLL' => '1' }
}.freeze

# Sends messages on all connections, and waits for all answers, until the server is done.
def load_server(port, connections, size)
  sockets = Array.new(connections) { TCPSocket.new('127.0.0.1', port) }
  sockets.each { |socket| socket.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1) }
  return sleep(0.5) if size.zero?

  message = 'x' * size
  loop do
    sockets.each { |socket| socket.write(message) }
    sockets.each { |socket| return if socket.read(size).nil? }
  end
rescue SystemCallError
  # The server has seen enough.
ensure
  sockets&.each(&:close)
end

def measure(environment, name, operations)
  _, connections, size, = CASES[name]
  Open3.popen2(environment, 'ruby', "#{__dir__}/measure.rb", name, operations.to_s) do |input, output, process|
    input.close
    load_server(output.gets.to_i, connections, size) if connections.positive?
    value = output.gets
    raise "#{name}: the process failed" unless process.value.success? && value

    value.to_f
  end
end

def median(values)
  values.sort[values.size / 2]
end

rows = []
CASES.each do |name, (operations, _, _, description)|
  next if only && only != name

  operations = [operations / 20, 100].max if quick && name != 'idle'
  windows = Hash.new { |hash, contender| hash[contender] = [] }
  (quick ? 1 : 5).times do
    CONTENDERS.each do |contender, environment|
      next if contender.end_with?('epoll') && !name.match?(/echo|idle/)

      windows[contender] << measure(environment, name, operations)
    end
  end
  unit = name == 'idle' ? 'bytes' : 'µs of processor time'
  puts "#{description} (#{unit})"
  windows.each do |contender, values|
    ratio = median(windows['pelton']) / median(values)
    puts format('  %-22s best %9.2f  median %9.2f  pelton takes %.2f of it', contender, values.min, median(values), ratio)
    rows << { case: name, contender: contender, unit: unit, best: values.min, median: median(values), windows: values }
  end
end
if results
  commit = Open3.capture2('git', 'rev-parse', '--short', 'HEAD').first.strip
  File.write(results, JSON.pretty_generate(schema: 1, bench: 'ruby', commit: commit, machine: RUBY_DESCRIPTION, rows: rows) << "\n")
end
