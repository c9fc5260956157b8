# frozen_string_literal: true

require_relative 'helper'

# The order of a pass: timers, descriptors, ticks, ends.
class TestOrder < PeltonTest
  test 'the run block runs in the first pass, and ticks queued before it run in it' do
    seen = []
    EM.next_tick { seen << :tick }
    run_reactor do
      seen << :block
      EM.next_tick { EM.stop }
    end
    assert_equal %i[block tick], seen
  end

  test 'descriptors come before ticks' do
    reader, writer = IO.pipe
    seen = []
    run_reactor do
      EM.watch(reader, Module.new { define_method(:notify_readable) { seen << :readable; self.notify_readable = false } }) do |watch|
        watch.notify_readable = true
      end
      writer.write('x')
      EM.next_tick do
        seen << :tick
        EM.stop
      end
    end
    assert_equal %i[readable tick], seen
  ensure
    [reader, writer].each(&:close)
  end

  test 'a tick that a tick queues runs in the next pass' do
    seen = []
    run_reactor do
      EM.next_tick do
        seen << 1
        EM.next_tick { seen << 3; EM.stop }
      end
      EM.next_tick { seen << 2 }
    end
    assert_equal [1, 2, 3], seen
  end

  test 'the ticks after one that raises run in the next pass' do
    seen = []
    EM.error_handler { |error| seen << error.message }
    run_reactor do
      EM.next_tick { raise 'first' }
      EM.next_tick { seen << :second }
      EM.next_tick { EM.stop }
    end
    assert_equal ['first', :second], seen
  end

  test 'timers run in the order of their deadlines' do
    seen = []
    run_reactor do
      [0.03, 0.01, 0.02].each { |delay| EM.add_timer(delay) { seen << delay } }
      EM.add_timer(0.1) { EM.stop }
    end
    assert_equal [0.01, 0.02, 0.03], seen
  end

  test 'a cancelled timer is gone at once' do
    run_reactor do
      before = EM.get_timer_count
      timers = Array.new(1000) { EM.add_timer(1000) { flunk } }
      assert_equal before + 1000, EM.get_timer_count
      timers.each { |timer| EM.cancel_timer(timer) }
      assert_equal before, EM.get_timer_count
      EM.stop
    end
  end

  test 'a timer that is cancelled in the pass in which it is due does not run' do
    run_reactor do
      second = nil
      EM.add_timer(0.01) { EM.cancel_timer(second) }
      second = EM.add_timer(0.01) { flunk 'it was cancelled' }
      sleep 0.02
      EM.add_timer(0.05) { EM.stop }
    end
  end

  test 'a periodic timer is set anew after each call, with its new interval' do
    times = []
    run_reactor do
      timer = EM.add_periodic_timer(0.001) do
        times << 1
        timer.interval = 1000 if times.size == 3
      end
      EM.add_timer(0.1) { EM.stop }
    end
    assert_equal 3, times.size
  end

  test 'shutdown hooks run last in first out, while the reactor counts as running; then connections end' do
    seen = []
    handler = Module.new { define_method(:unbind) { seen << :unbind } }
    run_reactor do
      EM.add_shutdown_hook { seen << [1, EM.reactor_running?] }
      EM.add_shutdown_hook { seen << [2, EM.reactor_running?] }
      EM.connect('127.0.0.1', serve, handler) { |_| EM.next_tick { EM.stop } }
    end
    assert_equal [[2, true], [1, true], :unbind], seen
  end

  test 'the end of the input closes at once' do
    reasons = []
    handler = Module.new { define_method(:unbind) { |reason| reasons << reason; EM.stop } }
    run_reactor do
      socket = TCPSocket.new('127.0.0.1', serve(handler))
      socket.close_write
      EM.add_shutdown_hook { socket.close }
    end
    assert_equal [nil], reasons
  end

  test 'a send of many megabytes is accepted and counted' do
    data = 'x' * (40 << 20)
    received = 0
    run_reactor do
      port = serve(Module.new { define_method(:post_init) { send_data(data); close_connection_after_writing } })
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:receive_data) { |part| received += part.bytesize }
        define_method(:unbind) { EM.stop }
      end)
    end
    assert_equal data.bytesize, received
  end

  test 'a paused connection neither reads nor writes' do
    server = nil
    received = []
    run_reactor do
      port = serve(Module.new { define_method(:receive_data) { |data| received << data } }) { |connection| server = connection }
      echoed = []
      client = EM.connect('127.0.0.1', port, Module.new { define_method(:receive_data) { |data| echoed << data } })
      EM.add_timer(0.05) do
        server.pause
        server.send_data('held')
        assert_equal 4, server.get_outbound_data_size
        client.send_data('waits')
        EM.add_timer(0.05) do
          assert server.paused?
          assert_equal [[], []], [received, echoed]
          server.resume
          EM.add_timer(0.05) do
            assert_equal [['waits'], ['held']], [received, echoed]
            EM.stop
          end
        end
      end
    end
  end

  test 'timers take numbers, callables and blocks, and refuse everything else' do
    seen = []
    run_reactor do
      EM.add_timer(0.001, -> { seen << :lambda })
      EM.add_timer(Rational(1, 1000)) { seen << :rational }
      EM.add_timer('0.001') { seen << :string }
      callable = Object.new
      callable.define_singleton_method(:call) { seen << :object }
      EM.add_timer(0.001, callable)
      EM.add_timer(0.001, nil) { seen << :block }
      assert_raise(ArgumentError) { EM.add_timer(1) }
      assert_raise(ArgumentError) { EM.add_timer }
      assert_raise(ArgumentError) { EM.add_timer(1, -> {}, 3) }
      assert_raise(NoMethodError, TypeError) { EM.add_timer(Object.new) {} }
      # Nothing of this is a timer, and nothing raises.
      [nil, 'x', 1.5, 123_456_789, 1 << 80, -1].each { |timer| assert_false(EM.cancel_timer(timer) ? true : false) }
      EM.add_timer(0.05) { EM.stop }
    end
    assert_equal %i[block lambda object rational string], seen.sort
  end

  test 'a program may look at and change the hash of timers' do
    run_reactor do
      timers = EM.instance_variable_get(:@timers)
      signature = EM.add_timer(1000) {}
      assert timers.key?(signature)
      # Ruby forbids new keys while a hash is iterated over.
      assert_raise(RuntimeError) { timers.each { EM.add_timer(1000) {} } }
      EM.cancel_timer(signature)
      assert_false timers.key?(signature)
      EM.stop
    end
    assert_reactor_works
  end
end
