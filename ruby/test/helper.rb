# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path('../lib', __dir__))
require 'test/unit'
require 'eventmachine'
require 'timeout'
require 'socket'

# Everything here runs on loopback, with ports that the system picks, and with a deadline.
class PeltonTest < Test::Unit::TestCase
  DEADLINE = 20

  def teardown
    EM.error_handler(nil)
    assert_false EM.reactor_running?
  end

  # Runs the reactor, and fails if it does not end in time.
  def run_reactor(deadline = DEADLINE)
    EM.run do
      EM.add_timer(deadline) { raise "not done after #{deadline} s" }
      yield
    end
  end

  # Returns the port of a server.
  def port_of(server)
    Socket.unpack_sockaddr_in(EM.get_sockname(server)).first
  end

  # Starts a server on a free port. Returns the port.
  def serve(handler = nil, *args, &block)
    port_of(EM.start_server('127.0.0.1', 0, handler, *args, &block))
  end

  # The reactor still works.
  def assert_reactor_works
    echoed = +''
    echo = Module.new { def receive_data(data) = send_data(data) }
    run_reactor do
      client = Module.new do
        define_method(:connection_completed) { send_data 'still here' }
        define_method(:receive_data) do |data|
          echoed << data
          EM.stop if echoed.size == 10
        end
      end
      EM.connect('127.0.0.1', serve(echo), client)
    end
    assert_equal 'still here', echoed
  end
end
