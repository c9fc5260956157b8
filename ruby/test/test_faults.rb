# frozen_string_literal: true

require 'stringio'
require_relative 'helper'

# Faults are exceptions. Most of these abort the process in EventMachine.
class TestFaults < PeltonTest
  # Runs the block in a reactor, and stops it.
  def inside
    run_reactor do
      yield
    ensure
      EM.stop
    end
  end

  test 'an io is watched or attached once' do
    reader, writer = IO.pipe
    inside do
      EM.watch(reader)
      assert_raise(RuntimeError) { EM.watch(reader) }
      assert_raise(RuntimeError) { EM.attach(reader) }
      EM.attach(writer)
      assert_raise(RuntimeError) { EM.watch(writer) }
    end
    assert_false reader.closed?, 'a watched io stays open'
    assert writer.closed?, 'an attached io is closed'
  ensure
    [reader, writer].each { |io| io.close unless io.closed? }
  end

  test 'a watch that is closed like a connection stays a watch' do
    reader, writer = IO.pipe
    inside do
      watch = EM.watch(reader)
      watch.close_connection
      assert watch.watch_only?
      assert_raise(RuntimeError) { watch.pause }
      assert_equal reader.fileno, watch.detach
    end
    assert_false reader.closed?
  ensure
    [reader, writer].each(&:close)
  end

  test 'closed, negative and absurd descriptors raise' do
    inside do
      assert_raise(RuntimeError) { EM.attach_fd(-1, true) }
      assert_raise(RuntimeError) { EM.attach_fd(1_000_000, true) }
      assert_raise(RuntimeError) { EM.attach_fd(1_000_000, false) }
      assert_raise(RuntimeError) { EM.attach_sd(1_000_000) }
      assert_raise(RangeError) { EM.attach_fd(1 << 80, true) }
      File.open(__FILE__) { |file| assert_raise(RuntimeError) { EM.attach(file) } }
    end
  end

  test 'a descriptor that is closed while it is watched does no harm' do
    reader, writer = IO.pipe
    run_reactor do
      EM.watch(reader) { |watch| watch.notify_readable = true }
      reader.close
      EM.add_timer(0.02) { EM.stop }
    end
  ensure
    writer.close
  end

  test 'unknown signatures are errors or nothing, never an abort' do
    inside do
      absent = 1 << 40
      assert_equal(-1, EM.send_data(absent, 'x', 1))
      assert_equal(-1, EM.report_connection_error_status(absent))
      assert_nil EM.get_peername(absent)
      assert_nil EM.get_idle_time(absent)
      assert_nil EM.close_connection(absent, false)
      assert_raise(RuntimeError) { EM.detach_fd(absent) }
      assert_raise(RuntimeError) { EM.set_notify_readable(absent, true) }
      assert_raise(RuntimeError) { EM.get_file_descriptor(absent) }
      assert_raise(EM::InvalidSignature) { EM.unwatch_filename(absent) }
      assert_raise(EM::InvalidSignature) { EM.unwatch_pid(absent) }
      assert_raise(Errno::EBADF) { EM.get_sock_opt(absent, 1, 1) }
      EM.stop_server(absent)
      EM.cancel_timer(absent)
    end
  end

  test 'every function says that there is no reactor' do
    { run_machine: [], stop: [], add_oneshot_timer: [1], start_tcp_server: ['127.0.0.1', 0], connect_server: ['127.0.0.1', 1],
      send_data: [1, 'x', 1], close_connection: [1, false], attach_fd: [0, true], get_connection_count: [],
      release_machine: [] }.each do |function, arguments|
      error = assert_raise(RuntimeError) { EM.send(function, *arguments) }
      assert_match(/not initialized/, error.message)
    end
  end

  test 'wrong types are TypeErrors' do
    inside do
      assert_raise(TypeError) { EM.send_data(1, nil, 1) }
      assert_raise(TypeError) { EM.add_oneshot_timer('x') }
      assert_raise(TypeError) { EM.start_tcp_server(nil, 1) }
    end
  end

  test 'ports that are taken, absurd or forbidden raise' do
    taken = TCPServer.new('127.0.0.1', 0)
    inside do
      [taken.addr[1], -1, 65_536, 1 << 40].each do |port|
        error = assert_raise(RuntimeError) { EM.start_server('127.0.0.1', port) }
        assert_match(/no acceptor/, error.message)
        assert_raise(EM::ConnectionError) { EM.connect('127.0.0.1', port) } unless port == taken.addr[1]
      end
    end
  ensure
    taken.close
  end

  test 'names that do not exist are a ConnectionError' do
    inside do
      error = assert_raise(EM::ConnectionError) { EM.connect('does-not-exist.invalid', 80) }
      assert_match(/unable to resolve address/, error.message)
      assert_raise(EM::ConnectionError) { EM.connect("nul\0inside", 80) }
    end
  end

  test 'a handler that cannot be made is an ArgumentError at once' do
    inside do
      needs_one = Module.new { def initialize(one) = super() }
      assert_raise(ArgumentError) { EM.start_server('127.0.0.1', 0, needs_one) }
      assert_raise(ArgumentError) { EM.start_server('127.0.0.1', 0, String) }
      assert_raise(ArgumentError) { EM.connect('127.0.0.1', 1, 5.5) }
    end
  end

  test 'a watched descriptor that hung up is reported, and the reactor does not spin' do
    ours, theirs = UNIXSocket.pair
    calls = 0
    run_reactor do
      theirs.close
      EM.watch(ours, Module.new do
        define_method(:notify_readable) do
          calls += 1
          detach
        end
      end) { |watch| watch.notify_readable = true }
      EM.add_timer(0.05) { EM.stop }
    end
    assert_equal 1, calls
  ensure
    ours.close
  end

  test 'a child process that does not exist ends with a status' do
    status = nil
    capture = $stderr
    $stderr = StringIO.new
    run_reactor { EM.system('/does/not/exist', 'x') { |_, ended| status = ended; EM.stop } }
    assert_false status.success?
  ensure
    $stderr = capture
  end

  test 'a connection has ended when its peer resets it' do
    reason = nil
    run_reactor do
      port = serve(Module.new { define_method(:unbind) { |why| reason = why; EM.stop } })
      socket = TCPSocket.new('127.0.0.1', port)
      socket.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack('ii'))
      EM.add_timer(0.05) { socket.close }
    end
    assert_equal Errno::ECONNRESET, reason
  end

  test 'a refused connection is told to unbind, once' do
    closed = TCPServer.new('127.0.0.1', 0)
    port = closed.addr[1]
    closed.close
    reasons = []
    run_reactor do
      EM.connect('127.0.0.1', port, Module.new { define_method(:unbind) { |why| reasons << why } })
      EM.add_timer(0.05) { EM.stop }
    end
    assert_equal [Errno::ECONNREFUSED], reasons
  end
end
