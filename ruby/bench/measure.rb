# frozen_string_literal: true

# One measurement, in a process of its own: ruby measure.rb CASE COUNT. Prints the processor time per operation in microseconds,
# or for `idle` the bytes of memory per connection. For `many`, it serves until it is killed.

require 'eventmachine'
require 'socket'

EM.epoll if ENV['EM_EPOLL']
kind = ARGV.fetch(0)
count = Integer(ARGV.fetch(1))

def processor
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :float_microsecond)
end

# The memory that the process has of its own, in bytes.
def memory
  GC.start
  Integer(File.read('/proc/self/statm').split[1]) * 4096
end

def report(begun, count)
  printf("%.3f\n", (processor - begun) / count)
  EM.stop
end

# Answers what it gets, and counts messages. The load comes from another process, which waits for the port.
class Echo < EM::Connection
  class << self
    attr_accessor :left, :begun, :count, :size
  end

  def post_init
    @received = 0
  end

  def receive_data(data)
    send_data(data)
    @received += data.bytesize
    return if @received < Echo.size

    @received -= Echo.size
    Echo.begun ||= processor
    Echo.left -= 1
    report(Echo.begun, Echo.count) if Echo.left.zero?
  end
end

module Silent; end

# Says something, so that its peer knows that it was accepted.
module Greeting
  def post_init
    send_data('x')
  end
end

EM.run do
  case kind
  when /\Aecho-(\d+)\z/
    Echo.size = Regexp.last_match(1).to_i
    Echo.count = Echo.left = count
    server = EM.start_server('127.0.0.1', 0, Echo)
    $stdout.puts Socket.unpack_sockaddr_in(EM.get_sockname(server)).first
    $stdout.flush
  when 'ticks'
    left = count
    begun = processor
    tick = proc { (left -= 1).zero? ? report(begun, count) : EM.next_tick(tick) }
    EM.next_tick(tick)
  when 'tick-batches'
    begun = processor
    left = count
    batch = proc do
      999.times { EM.next_tick { left -= 1 } }
      EM.next_tick { (left -= 1).positive? ? batch.call : report(begun, count) }
    end
    batch.call
  when 'timers-cancelled'
    begun = processor
    count.times { |i| EM.cancel_timer(EM.add_timer(1000 + (i % 1000)) {}) }
    report(begun, count)
  when 'timers-fired'
    begun = processor
    left = count
    batch = proc do
      waiting = 1000
      1000.times do |i|
        EM.add_timer((i % 10) / 1000.0) do
          left -= 1
          if (waiting -= 1).zero?
            left.positive? ? batch.call : report(begun, count)
          end
        end
      end
    end
    batch.call
  when 'idle'
    accepted = 0
    server = EM.start_server('127.0.0.1', 0, Silent) do
      if (accepted += 1) == count
        $stdout.puts((memory - $before) / count)
        EM.stop
      end
    end
    $stdout.puts Socket.unpack_sockaddr_in(EM.get_sockname(server)).first
    $stdout.flush
    $before = memory
  when 'many'
    EM.set_descriptor_table_size(count + 200)
    server = EM.start_server('127.0.0.1', 0, Greeting)
    $stdout.puts Socket.unpack_sockaddr_in(EM.get_sockname(server)).first
    $stdout.flush
  when 'thin'
    require 'thin'
    Thin::Logging.silent = true
    left = count
    begun = nil
    application = lambda do |_|
      begun ||= processor
      report(begun, count) if (left -= 1).zero?
      [200, { 'Content-Type' => 'text/plain', 'Content-Length' => '12' }, ['hello, world']]
    end
    thin = Thin::Server.new('127.0.0.1', 0, application, signals: false)
    thin.start
    $stdout.puts Socket.unpack_sockaddr_in(EM.get_sockname(thin.backend.instance_variable_get(:@signature))).first
    $stdout.flush
  else abort "no case #{kind}"
  end
end
