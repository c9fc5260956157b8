# frozen_string_literal: true

# Compares this library with EventMachine on the same Ruby: ruby run.rb [--quick] [--only CASE,...] [--results FILE]. RUBYLIB must lead
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
  'thin' => [20_000, 50, 0, 'thin: a short page, 50 connections'],
  'idle' => [400, 400, 0, 'memory of an idle connection'],
  'many' => [10_000, 10_000, 0, 'connections accepted, of 10,000']
}.freeze

# The request of `thin`, and what its answers end with.
REQUEST = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER_END = "\r\n\r\nhello, world"

# Processes take at most this long, in seconds: select has been seen to spin when descriptors run out.
DEADLINE = 60

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

# Asks for pages on all connections, until the server is done.
def load_thin(port, connections)
  sockets = Array.new(connections) { TCPSocket.new('127.0.0.1', port) }
  loop do
    sockets.each { |socket| socket.write(REQUEST) }
    sockets.each { |socket| return unless socket.gets('hello, world')&.end_with?(ANSWER_END) }
  end
rescue SystemCallError
  # The server has seen enough.
ensure
  sockets&.each(&:close)
end

# Opens connections, and waits until they are answered or the server seems to be stuck. Returns how many were.
def open_many(port, count)
  soft, hard = Process.getrlimit(:NOFILE)
  Process.setrlimit(:NOFILE, [hard, [count + 200, soft].max].min, hard)
  sockets = []
  count.times do
    socket = TCPSocket.new('127.0.0.1', port, connect_timeout: 2)
    break unless socket.wait_readable(2)

    sockets << socket
  end
  sockets.size
rescue SystemCallError, IO::TimeoutError
  sockets.size
ensure
  sockets.each(&:close)
end

# Ruby's heap begins with this many objects for all contenders. Otherwise its size after loading the program decides how often
# garbage is collected: by chance twice as often for one as for the other.
HEAP = { 'RUBY_GC_HEAP_INIT_SLOTS' => '300000' }.freeze

def measure(environment, name, operations)
  _, connections, size, = CASES[name]
  environment = environment.merge(HEAP) unless name == 'idle'
  Open3.popen2(environment, 'ruby', "#{__dir__}/measure.rb", name, operations.to_s) do |input, output, process|
    watch = Thread.new { Process.kill(:KILL, process.pid) unless process.join(DEADLINE) }
    port = output.gets.to_i if connections.positive?
    if name == 'many'
      opened = open_many(port, operations).to_f
      begin
        Process.kill(:KILL, process.pid)
      rescue Errno::ESRCH
        # It has died of its limit.
      end
      next opened
    end

    input.close
    name == 'thin' ? load_thin(port, connections) : load_server(port, connections, size) if connections.positive?
    value = output.gets
    raise "#{name}: the process failed" unless process.value.success? && value

    watch.kill
    value.to_f
  end
end

def median(values)
  values.sort[values.size / 2]
end

rows = []
CASES.each do |name, (operations, _, _, description)|
  next if only && !only.split(',').include?(name)

  operations = [operations / 20, 100].max if quick && !%w[idle many].include?(name)
  windows = Hash.new { |hash, contender| hash[contender] = [] }
  (quick || name == 'many' ? 1 : 5).times do
    CONTENDERS.each do |contender, environment|
      next if contender.end_with?('epoll') && !name.match?(/echo|idle|thin|many/)

      windows[contender] << measure(environment, name, operations)
    end
  end
  unit = { 'idle' => 'bytes', 'many' => 'connections' }.fetch(name, 'µs of processor time')
  puts "#{description} (#{unit})"
  windows.each do |contender, values|
    ratio = median(windows['pelton']) / median(values)
    puts format('  %-22s best %9.2f  median %9.2f  pelton: %.2f of it by medians, %.2f by best windows', contender, values.min,
                median(values), ratio, windows['pelton'].min / values.min)
    rows << { case: name, contender: contender, unit: unit, best: values.min, median: median(values), windows: values }
  end
end
if results
  commit = Open3.capture2('git', 'rev-parse', '--short', 'HEAD').first.strip
  File.write(results, JSON.pretty_generate(schema: 1, bench: 'ruby', commit: commit, machine: RUBY_DESCRIPTION, rows: rows) << "\n")
end
