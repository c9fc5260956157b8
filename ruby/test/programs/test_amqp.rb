# frozen_string_literal: true

require_relative '../helper'
require 'tmpdir'
$VERBOSE = nil
require 'amqp'

# The gem amqp, against RabbitMQ.
class TestAmqp < PeltonTest
  DEADLINE = 120

  def setup
    @directory = Dir.mktmpdir
    # The server runs as a user of its own.
    File.chmod(0o777, @directory)
    @port = TCPServer.open('127.0.0.1', 0) { |server| server.addr[1] }
    distribution = TCPServer.open('127.0.0.1', 0) { |server| server.addr[1] }
    environment = {
      'RABBITMQ_NODENAME' => "pelton#{Process.pid}@localhost", 'RABBITMQ_NODE_IP_ADDRESS' => '127.0.0.1', 'HOME' => @directory,
      'RABBITMQ_NODE_PORT' => @port.to_s, 'RABBITMQ_DIST_PORT' => distribution.to_s, 'RABBITMQ_MNESIA_BASE' => @directory,
      'RABBITMQ_LOG_BASE' => @directory, 'RABBITMQ_PID_FILE' => "#{@directory}/pid"
    }
    @pid = spawn(environment, 'rabbitmq-server', %i[out err] => "#{@directory}/output")
    deadline = Time.now + DEADLINE
    begin
      TCPSocket.new('127.0.0.1', @port).close
    rescue Errno::ECONNREFUSED
      sleep 0.2
      retry if Time.now < deadline
      flunk File.read("#{@directory}/output")
    end
  end

  def teardown
    super
    # The script starts the server as another user, in a session of its own.
    server = File.read("#{@directory}/pid").to_i
    Process.kill('KILL', server)
    Process.wait(@pid)
  ensure
    FileUtils.rm_rf(@directory)
  end

  test 'messages go through a queue, in order and whole' do
    seen = []
    sizes = [0, 1, 100, 100_000, 1_000_000]
    EM.run do
      EM.add_timer(DEADLINE) { raise 'not done' }
      AMQP.connect(host: '127.0.0.1', port: @port) do |connection|
        channel = AMQP::Channel.new(connection)
        queue = channel.queue('', exclusive: true, auto_delete: true)
        queue.subscribe do |_, payload|
          seen << payload.bytesize
          connection.close { EM.stop } if seen.size == sizes.size
        end
        EM.add_timer(0.2) { sizes.each { |size| channel.default_exchange.publish('x' * size, routing_key: queue.name) } }
      end
    end
    assert_equal sizes, seen
  end
end
