# frozen_string_literal: true

require_relative 'helper'

# Leaves each callback in every way that Ruby has. The jump arrives where it should, nothing is lost or left open, and the
# reactor runs again afterwards.
class TestSabotage < PeltonTest
  class Sabotage < StandardError; end

  # Speaks TLS, on either side.
  TLS_SERVER = Module.new { def post_init = start_tls }

  # Each entry sets up a reactor in which the proc is called in one kind of callback.
  PLACES = {
    'run block' => ->(_test, act) { act.call },
    'timer' => ->(_test, act) { EM.add_timer(0.001) { act.call } },
    'periodic timer' => ->(_test, act) { EM.add_periodic_timer(0.001) { act.call } },
    'tick' => ->(_test, act) { EM.next_tick { act.call } },
    'deferred result' => ->(_test, act) { EM.defer(proc { 1 }, proc { act.call }) },
    'post_init of a client' => lambda { |test, act|
      EM.connect('127.0.0.1', test.serve, Module.new { define_method(:post_init) { act.call } })
    },
    'post_init of a server' => lambda { |test, act|
      EM.connect('127.0.0.1', test.serve(Module.new { define_method(:post_init) { act.call } }))
    },
    'the block of a server' => ->(test, act) { EM.connect('127.0.0.1', test.serve { act.call }) },
    'connection_completed' => lambda { |test, act|
      EM.connect('127.0.0.1', test.serve, Module.new { define_method(:connection_completed) { act.call } })
    },
    'receive_data' => lambda { |test, act|
      port = test.serve(Module.new { define_method(:receive_data) { |_| act.call } })
      EM.connect('127.0.0.1', port) { |client| client.send_data('x') }
    },
    'receive_data of a datagram' => lambda { |test, act|
      socket = EM.open_datagram_socket('127.0.0.1', 0, Module.new { define_method(:receive_data) { |_| act.call } })
      port, host = Socket.unpack_sockaddr_in(socket.get_sockname)
      socket.send_datagram('x', host, port)
    },
    'notify_readable' => lambda { |test, act|
      reader, writer = test.pipe
      writer.write('x')
      EM.watch(reader, Module.new { define_method(:notify_readable) { act.call } }) { |watch| watch.notify_readable = true }
    },
    'notify_writable' => lambda { |test, act|
      _, writer = test.pipe
      EM.watch(writer, Module.new { define_method(:notify_writable) { act.call } }) { |watch| watch.notify_writable = true }
    },
    'ssl_verify_peer' => lambda { |test, act|
      EM.connect('127.0.0.1', test.serve(TLS_SERVER), Module.new do
        define_method(:post_init) { start_tls(verify_peer: true) }
        define_method(:ssl_verify_peer) { |_| act.call }
      end)
    },
    'ssl_handshake_completed' => lambda { |test, act|
      EM.connect('127.0.0.1', test.serve(TLS_SERVER), Module.new do
        define_method(:post_init) { start_tls }
        define_method(:ssl_handshake_completed) { act.call }
      end)
    },
    'ssl_handshake_completed of a server' => lambda { |test, act|
      port = test.serve(Module.new do
        define_method(:post_init) { start_tls }
        define_method(:ssl_handshake_completed) { act.call }
      end)
      EM.connect('127.0.0.1', port, TLS_SERVER)
    },
    'receive_data with TLS' => lambda { |test, act|
      port = test.serve(Module.new do
        define_method(:post_init) { start_tls }
        define_method(:receive_data) { |_| act.call }
      end)
      EM.connect('127.0.0.1', port, TLS_SERVER) { |client| client.send_data('x') }
    },
    'the end of a process' => ->(_test, act) { EM.system('true') { act.call } }
  }.freeze

  # `unbind` differs: EventMachine keeps its exceptions until the reactor has stopped.
  ALMOST_ALL = PLACES.reject { |name, _| name == 'the end of a process' }.freeze

  def pipe
    pipe = IO.pipe
    (@pipes ||= []).concat(pipe)
    pipe
  end

  def teardown
    super
    @pipes&.each { |io| io.close unless io.closed? }
  end

  PLACES.each do |place, set_up|
    test "an exception leaves #{place}" do
      assert_raise(Sabotage) { run_reactor { set_up.call(self, -> { raise Sabotage, place }) } }
      assert_reactor_works
    end

    test "the error handler gets an exception of #{place}" do
      seen = []
      EM.error_handler do |error|
        seen << error.class
        EM.stop
      end
      run_reactor { set_up.call(self, -> { raise Sabotage, place }) }
      assert_equal Sabotage, seen.first
      EM.error_handler(nil)
      assert_reactor_works
    end

    test "an error handler that raises ends the loop, after #{place}" do
      EM.error_handler { |_| raise Sabotage, 'in the handler' }
      assert_raise(Sabotage) { run_reactor { set_up.call(self, -> { raise 'first' }) } }
      EM.error_handler(nil)
      assert_reactor_works
    end

    test "garbage is collected in #{place}" do
      run_reactor do
        set_up.call(self, lambda {
          GC.start
          GC.compact if GC.respond_to?(:compact)
          EM.stop
        })
      end
      assert_reactor_works
    end

    test "the reactor cannot be run or released inside #{place}" do
      nested = false
      run_reactor do
        set_up.call(self, lambda {
          EM.run { nested = true }
          assert_raise(RuntimeError) { EM.run_machine }
          assert_raise(RuntimeError) { EM.initialize_event_machine }
          assert_raise(RuntimeError) { EM.release_machine }
          EM.stop
        })
      end
      assert nested
      assert_reactor_works
    end

    test "a child forked in #{place} exits without harm" do
      run_reactor do
        set_up.call(self, lambda {
          unless @forked
            @forked = true
            _, status = Process.wait2(fork { exit!(7) })
            assert_equal 7, status.exitstatus
          end
          EM.stop
        })
      end
      assert_reactor_works
    end

    test "a child forked in #{place} runs a reactor of its own" do
      reader, writer = IO.pipe
      run_reactor do
        set_up.call(self, lambda {
          unless @forked
            @forked = true
            pid = fork do
              EM.run { EM.add_timer(0.001) { EM.stop } }
              writer.write 'ran'
              exit!(0)
            end
            Process.wait(pid)
          end
          EM.stop
        })
      end
      writer.close
      assert_equal 'ran', reader.read
      reader.close
      assert_reactor_works
    end
  end

  ALMOST_ALL.each do |place, set_up|
    test "a throw leaves #{place}" do
      caught = catch(:out) do
        run_reactor { set_up.call(self, -> { throw :out, place }) }
        :not_thrown
      end
      assert_equal place, caught
      assert_reactor_works
    end

    test "the end of the thread leaves #{place}" do
      ended = false
      thread = Thread.new do
        run_reactor { set_up.call(self, -> { Thread.current.kill }) }
      ensure
        ended = true
      end
      assert thread.join(DEADLINE), 'the thread has not ended'
      assert ended
      assert_nil thread.value
      assert_reactor_works
    end

    test "exit leaves #{place}" do
      error = assert_raise(SystemExit) { run_reactor { set_up.call(self, -> { exit 9 }) } }
      assert_equal 9, error.status
      assert_reactor_works
    end
  end

  test 'a break leaves the run block' do
    result = EM.run { break :broken }
    assert_equal :broken, result
    assert_reactor_works
  end

  test 'an exception of unbind is raised at the end, and others are told' do
    unbound = 0
    handler = Module.new do
      define_method(:unbind) do
        unbound += 1
        raise Sabotage, "number #{unbound}" if unbound == 1
      end
    end
    assert_raise(Sabotage) do
      run_reactor do
        port = serve
        3.times { EM.connect('127.0.0.1', port, handler) { |client| client.close_connection } }
      end
    end
    assert_equal 3, unbound
    assert_reactor_works
  end

  test 'a shutdown hook that raises does not keep connections open' do
    unbound = false
    handler = Module.new { define_method(:unbind) { unbound = true } }
    assert_raise(Sabotage) do
      run_reactor do
        EM.connect('127.0.0.1', serve, handler)
        EM.add_shutdown_hook { raise Sabotage }
        EM.stop
      end
    end
    assert unbound
    assert_reactor_works
  end

  test 'what comes after an exception in the same pass is not lost' do
    received = []
    handler = Module.new do
      define_method(:receive_data) do |data|
        received << data
        raise Sabotage if received.size == 1
      end
    end
    unbound = 0
    assert_raise(Sabotage) do
      run_reactor do
        port = serve(handler)
        clients = Array.new(10) do
          EM.connect('127.0.0.1', port, Module.new { define_method(:unbind) { unbound += 1 } })
        end
        EM.add_timer(0.05) { clients.each { |client| client.send_data('x') } }
      end
    end
    assert_equal 10, unbound, 'each client was told of its end'
    assert_reactor_works
  end

  test 'a program that turns the loop itself loses nothing to exceptions' do
    received = []
    raised = 0
    EM.initialize_event_machine
    begin
      port = serve(Module.new do
        define_method(:receive_data) do |data|
          received << data
          raise Sabotage
        end
      end)
      sockets = Array.new(5) { |i| TCPSocket.new('127.0.0.1', port).tap { |socket| socket.write(i.to_s) } }
      ticks = 0
      3.times { EM.next_tick { ticks += 1; raise Sabotage } }
      3.times { EM.add_timer(0) { ticks += 1; raise Sabotage } }
      deadline = Time.now + DEADLINE
      # Wakes the loop up.
      tick = proc { EM.add_timer(0.01, tick) }
      tick.call
      until (received.size == 5 && ticks == 6) || Time.now > deadline
        begin
          EM.run_machine_once
        rescue Sabotage
          raised += 1
        end
      end
    ensure
      EM.release_machine
      EM.cleanup_machine
      sockets&.each(&:close)
    end
    assert_equal %w[0 1 2 3 4], received.sort
    assert_equal 6, ticks
    assert_equal 11, raised
    assert_reactor_works
  end

  test 'stress of the garbage collector in every kind of callback' do
    seen = []
    reader, writer = pipe
    GC.stress = true
    begin
      run_reactor(60) do
        echo = Module.new { def receive_data(data) = send_data(data) }
        client = Module.new do
          define_method(:connection_completed) { send_data 'x' * 100 }
          define_method(:receive_data) do |data|
            seen << data.size
            close_connection
          end
          define_method(:unbind) { seen << :unbound }
        end
        EM.connect('127.0.0.1', serve(echo), client)
        EM.connect('127.0.0.1', serve(TLS_SERVER), Module.new do
          define_method(:post_init) { start_tls(verify_peer: true) }
          define_method(:ssl_verify_peer) { |pem| seen << pem[0, 10] }
          define_method(:ssl_handshake_completed) { seen << :secure }
        end)
        EM.watch(reader, Module.new do
          define_method(:notify_readable) do
            reader.read_nonblock(1)
            seen << :readable
          end
        end) { |watch| watch.notify_readable = true }
        writer.write 'x'
        EM.next_tick { seen << :tick }
        EM.defer(proc { :deferred }, proc { |result| seen << result })
        EM.add_periodic_timer(0.01) do
          EM.stop if ([100, :unbound, :readable, :tick, :deferred, :secure, '-----BEGIN'] - seen).empty?
        end
      end
    ensure
      GC.stress = false
    end
    assert_equal [], [100, :unbound, :readable, :tick, :deferred, :secure, '-----BEGIN'] - seen
    assert_reactor_works
  end
end
